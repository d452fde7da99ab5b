"""Ratings in: one count of a DataFrame that finds every defect, and the ids of both sides."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from onebit_spark.core.config import FitConfig
from onebit_spark.core.losses import Side
from onebit_spark.core.settings import declared
from onebit_spark.errors import RequestError
from onebit_spark.input.columns import HASH_PARTS, quoted
from onebit_spark.input.defects import (
    BIT,
    Columns,
    Tally,
    check_columns,
    check_ratings,
    fingerprint,
    marks,
    positive,
    suspect,
    verdict,
)
from onebit_spark.input.weights import weight_number
from onebit_spark.platform.sessions import described

# The columns inside, whatever they are outside.
USER, ITEM, LABEL, WEIGHT = "__onebit_user", "__onebit_item", "__onebit_label", "__onebit_weight"
_GROUP = {USER: 1, ITEM: 2}  # Spark's grouping_id: which of the two columns is *not* grouped by


@dataclass(frozen=True)
class Ids:
    """The ids of one side in ascending order, with the number of ratings and of positive ratings of each."""

    values: pa.Array
    counts: NDArray[np.int64]
    positives: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.counts)


@dataclass(frozen=True)
class Survey:
    """The ratings counted, with the ids of both sides on the driver."""

    tally: Tally
    users: Ids
    items: Ids
    weight: float | None = None  # the sum of the weights

    @property
    def ids(self) -> dict[Side, Ids]:
        """The ids by side: users are the rows, items the columns."""
        return {"rows": self.users, "cols": self.items}


@dataclass(frozen=True)
class Census:
    """What one pass over the ratings counted: totals here, one line per id in a cached DataFrame."""

    tally: Tally
    n_users: int
    n_items: int
    grouped: DataFrame
    weight: float | None = None  # the sum of the weights

    def by_id(self, column: str) -> DataFrame:
        """(id, n, above): every id of the column USER or ITEM with its ratings, and its positive ratings."""
        return self.grouped.where(F.col("side") == _GROUP[column]).select(F.col(column).alias("id"), "n", "above")

    def survey(self) -> Survey:
        """With the ids, on the driver."""
        table = self.grouped.select(USER, ITEM, "side", "n", "above").toArrow()
        users, items = (_ids(table.filter(pc.equal(table["side"], group)), name) for name, group in _GROUP.items())
        return Survey(self.tally, users, items, self.weight)


def prepared(df: DataFrame, columns: Columns, *further: str) -> DataFrame:
    """(user, item, positive) under the inside names, the weights if there are any, and ``further`` columns.

    Unreadable labels and columns are refused by ``survey``.
    """
    return df.select(
        F.col(quoted(columns.user)).alias(USER),
        F.col(quoted(columns.item)).alias(ITEM),
        positive(df, columns.label, columns.threshold).alias(LABEL),
        *_weight(columns),
        *map(quoted, further),
    )


def _weight(columns: Columns) -> list[Column]:
    return [] if columns.weight is None else [weight_number(columns.weight).alias(WEIGHT)]


def split_off(df: DataFrame, columns: Columns, fraction: float, seed: int) -> tuple[DataFrame, DataFrame]:
    """The ratings to fit, and about ``fraction`` of them that are held out.

    By a hash of user and item: no label is looked at, the same ratings are held out however the input is partitioned
    or re-read, and all ratings of one cell go the same way. So the holdout is a sample of what the fit has not seen:
    ratings like these, of cells that were kept out at random.
    """
    if problem := declared(FitConfig)["seed"].problem(seed):
        raise RequestError(str(problem))
    check_columns(df, columns)
    held_out = coin(columns, fraction, seed)
    return df.where(~held_out), df.where(held_out)


def coin(columns: Columns, fraction: float, seed: int) -> Column:
    """Whether a cell is held out."""
    ids = (F.col(quoted(name)) for name in (columns.user, columns.item))
    drawn = F.shiftrightunsigned(F.xxhash64(F.lit(seed), *ids), 32)  # 32 bits
    return drawn < F.lit(round(fraction * 2**32))


@contextmanager
def census(df: DataFrame, columns: Columns) -> Iterator[Census]:
    """Validate and count in one pass: ratings grouped by user, and by item, in one aggregation.

    A group's ``marks`` say which kinds of values it holds, defects among them. Only if there are any does a second
    pass count them and fetch examples.
    """
    check_columns(df, columns)
    named = df.select(
        F.col(quoted(columns.user)).alias(USER),
        F.col(quoted(columns.item)).alias(ITEM),
        marks(df, columns).alias("marks"),
        *fingerprint(df, columns),
        *_weight(columns),
    )
    sums = HASH_PARTS if columns.weight is None else (*HASH_PARTS, WEIGHT)
    grouped = named.groupingSets([[USER], [ITEM]], USER, ITEM).agg(
        F.grouping_id().alias("side"),
        F.count(F.lit(1)).alias("n"),
        F.sum((F.col("marks").bitwiseAND(F.lit(BIT["above"])) != 0).cast("bigint")).alias("above"),
        F.bit_or("marks").alias("marks"),
        *(F.sum(part).alias(part) for part in sums),
    )
    grouped = grouped.persist()
    try:
        totals = grouped.groupBy("side").agg(
            F.count(F.lit(1)).alias("ids"), F.sum("n").alias("n"), F.sum("above").alias("above"),
            F.bit_or("marks").alias("marks"), *(F.sum(part).alias(part) for part in sums),
        )  # fmt: skip
        with described(df.sparkSession, "survey"):
            lines = {line["side"]: line.asDict() for line in totals.collect()}
        nothing = dict.fromkeys(("ids", "n", "above", "marks", *HASH_PARTS), 0)
        users, items = (lines.get(_GROUP[name], nothing) for name in (USER, ITEM))
        present = {name: int(bool(users["marks"] & bit)) for name, bit in BIT.items()}
        if suspect(columns, present):
            check_ratings(df, columns)
        counted = {**present, **{name: users[name] for name in ("n", "above", *HASH_PARTS)}}
        tally = verdict(df, columns, counted)
        yield Census(tally, users["ids"], items["ids"], grouped, users.get(WEIGHT))
    finally:
        grouped.unpersist()


def survey(df: DataFrame, columns: Columns) -> Survey:
    """The census with the ids, on the driver."""
    with census(df, columns) as counted:
        return counted.survey()


def _ids(groups: pa.Table, column: str) -> Ids:
    order = pc.sort_indices(groups[column])
    groups = groups.take(order)
    values = groups[column].combine_chunks()
    if isinstance(values, pa.ChunkedArray):  # an empty table, or one that does not fit a single chunk
        values = pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type)
    return Ids(
        values,
        groups["n"].to_numpy().astype(np.int64),
        groups["above"].to_numpy().astype(np.int64),
    )
