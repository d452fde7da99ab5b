"""Ratings in: packed by one pass that finds every defect, and the ids of both sides counted.

    few ids      SUMMARY of all bundles ─► the driver counts them                    one job that runs no Python
    many ids     ``id_counts`` ─► one line per id, cached ─► how many there are      a shuffle of ids

An exchange that shuffles needs the lines. After few ids were counted on the driver, they are made at the first use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from onebit_spark.core.config import FitConfig
from onebit_spark.core.losses import Side
from onebit_spark.core.settings import declared
from onebit_spark.core.sketch import CellSketch, limit_for
from onebit_spark.errors import RequestError
from onebit_spark.input.accumulators import in_utc
from onebit_spark.input.columns import quoted, type_of
from onebit_spark.input.defects import (
    Columns,
    Tally,
    check_columns,
    check_ratings,
    not_deterministic,
    suspect,
    verdict,
)
from onebit_spark.input.id_counts import COUNTED, PARTIAL, CountIds, sum_counts
from onebit_spark.input.packing import SUMMARY, PackedRatings
from onebit_spark.input.ratings import ITEM, USER
from onebit_spark.platform.binary_cells import binary_line, cell_array
from onebit_spark.platform.caching import cached
from onebit_spark.platform.limits import driver_limits
from onebit_spark.platform.plans import cut_from_plan, in_partitions
from onebit_spark.platform.schemas import schema_of
from onebit_spark.platform.sessions import described, parallelism

SIDE_NUMBERS = {USER: 1, ITEM: 2}  # as ``id_counts`` tells them
SUMMARY_BYTES = 128 * 2**20  # that the driver takes
RATINGS_PER_PART = 10**7  # whose ids one task sums up; at least a part for every core
PARTS_PER_CORE = 4  # at most
HASHES = schema_of("cells binary")


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
class Summary:
    """The ids of users and of items, and hashes of cells, on the driver."""

    ids: tuple[Ids, Ids]
    cells: NDArray[np.int64]

    @classmethod
    def of(cls, bundles: DataFrame) -> Summary:
        """What ``id_counts`` and ``Census.sketch`` would find, without their jobs."""
        lines = bundles.select(*SUMMARY).toArrow()
        cells = [cell_array(cell, np.int64) for cell in lines["cells"]]
        return cls(_sides(pa.Table.from_batches(sum_counts(CountIds(1)(lines.to_batches())))), np.concatenate(cells))


@dataclass(frozen=True)
class Census:
    """The ratings packed and counted.

    Parameters
    ----------
    tally : Tally
        The counts.
    n_users, n_items : int
        Numbers of ids.
    packed : PackedRatings
        The ratings.
    group : callable
        Makes ``grouped``.
    weight : float, optional
        The sum of the weights.
    summary : Summary, optional
        If it is small enough for the driver.
    """

    tally: Tally
    n_users: int
    n_items: int
    packed: PackedRatings
    group: Callable[[], DataFrame]
    weight: float | None = None
    summary: Summary | None = None

    @cached_property
    def grouped(self) -> DataFrame:
        """One line per id, cached."""
        return self.group()

    def survey(self) -> Survey:
        """With the ids, on the driver."""
        users, items = _sides(self.grouped.toArrow()) if self.summary is None else self.summary.ids
        return Survey(self.tally, users, items, self.weight)

    def sketch(self) -> CellSketch:
        """The sketch of the ratings."""
        limit = limit_for(self.tally.n)
        if self.summary is None:
            bundles = self.packed.bundles
            with described(bundles.sparkSession, "sketch"):
                cells = bundles.select("cells").mapInArrow(_UpTo(limit), HASHES).toArrow()["cells"]
            hashes = np.concatenate([cell_array(cell, np.int64) for cell in cells])
        else:
            hashes = self.summary.cells
        return CellSketch(limit, *np.unique(hashes[hashes <= limit], return_counts=True))


@dataclass(frozen=True)
class _UpTo:
    """The hashes up to a limit."""

    limit: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for cell in batch.column("cells"):
                hashes = cell_array(cell, np.int64)
                yield binary_line(cells=hashes[hashes <= self.limit])


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
def census(df: DataFrame, columns: Columns, collect_ids: bool = True) -> Iterator[Census]:
    """Pack the ratings, validate them, and count those of every id.

    If ``collect_ids`` is true and the ids are few, the driver counts them.
    A bundle's facts say how many defects it holds. Only if there are any does a second pass fetch examples.
    """
    check_columns(df, columns)
    with ExitStack() as release:
        with described(df.sparkSession, "survey"):
            counted = _counted(df, columns, collect_ids, release)
        yield counted


def _counted(df: DataFrame, columns: Columns, collect_ids: bool, release: ExitStack) -> Census:
    packed = PackedRatings.of(df, columns, release)
    tally = packed_tally(df, columns, packed.facts)
    weight = None if columns.weight is None else float(packed.facts["weight"])

    def group() -> DataFrame:
        ids = id_counts(packed.bundles, tally.n, df, columns)
        return cached(cut_from_plan(ids, packed.cached.sparkSession), release)

    most_bytes = min(SUMMARY_BYTES, driver_limits(df.sparkSession).result // 2) if collect_ids else 0
    if packed.facts["summary_bytes"] <= most_bytes:
        summary = Summary.of(packed.bundles)
        n_users, n_items = map(len, summary.ids)
        return Census(tally, n_users, n_items, packed, group, weight, summary)
    grouped = group()
    return Census(tally, *numbers_of_ids(grouped), packed, lambda: grouped, weight)


def packed_tally(df: DataFrame, columns: Columns, facts: Counter[str]) -> Tally:
    """The tally of ratings by the facts of their bundles. Raises a RequestError if they cannot be fitted."""
    if facts["absent"] or suspect(columns, facts):
        check_ratings(df, columns)
        raise not_deterministic("ratings came that cannot be fitted, and are no longer there")
    return verdict(df, columns, facts)


def id_counts(bundles: DataFrame, n: int, df: DataFrame, columns: Columns) -> DataFrame:
    """One line per id of n ratings: the user or the item, its side, its ratings and its positive ratings.

    By one shuffle of ids.
    """
    ids = [StructField(name, type_of(df, of)) for name, of in ((USER, columns.user), (ITEM, columns.item))]
    numbers = [StructField("side", IntegerType()), StructField("n", LongType()), StructField("above", LongType())]
    cores = parallelism(df.sparkSession)
    n_parts = min(PARTS_PER_CORE * cores, max(cores, n // RATINGS_PER_PART))
    partial = bundles.select(*COUNTED).mapInArrow(CountIds(n_parts), PARTIAL)
    return in_partitions(partial, n_parts, F.col("part")).mapInArrow(sum_counts, StructType([*ids, *numbers]))


def numbers_of_ids(grouped: DataFrame) -> tuple[int, int]:
    """How many users and how many items there are, from the lines of ``id_counts``."""
    found = {line["side"]: line["count"] for line in grouped.groupBy("side").count().collect()}
    return found[SIDE_NUMBERS[USER]], found[SIDE_NUMBERS[ITEM]]


def survey(df: DataFrame, columns: Columns) -> Survey:
    """The census with the ids, on the driver."""
    with census(df, columns) as counted:
        return counted.survey()


def _sides(groups: pa.Table) -> tuple[Ids, Ids]:
    """The users and the items from the lines of ``id_counts``."""
    users, items = (_ids(groups.filter(pc.equal(groups["side"], side)), name) for name, side in SIDE_NUMBERS.items())
    return users, items


def _ids(groups: pa.Table, column: str) -> Ids:
    order = pc.sort_indices(groups[column])
    groups = groups.take(order)
    values = groups[column].combine_chunks()
    if isinstance(values, pa.ChunkedArray):  # an empty table, or one that does not fit a single chunk
        values = pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type)
    return Ids(
        in_utc(values),
        groups["n"].to_numpy().astype(np.int64),
        groups["above"].to_numpy().astype(np.int64),
    )
