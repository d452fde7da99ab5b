"""The ratings of a DataFrame packed on the executors, checked, and the ids of both sides
counted.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark import StorageLevel, TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from onebit_spark.core.losses import Side
from onebit_spark.data.hashes import CellSketch, limit_for
from onebit_spark.data.ratings import (
    ITEM,
    USER,
    Batches,
    Columns,
    RatingCounts,
    of_both_classes,
)
from onebit_spark.data.user_tables import in_utc, one_array
from onebit_spark.engines.spark.columns import check_columns, type_of
from onebit_spark.engines.spark.frames import (
    binary_line,
    cached,
    cell_array,
    expect_long_lines,
    in_partitions,
    schema_of,
    truncate_plan,
    working_session,
)
from onebit_spark.engines.spark.packing import (
    COUNTED,
    PACKED,
    SIDE_NUMBERS,
    SUMMARY,
    CountIds,
    Pack,
    sum_counts,
)
from onebit_spark.engines.spark.rating_files import map_ratings
from onebit_spark.engines.spark.ratings import counts_of_facts
from onebit_spark.engines.spark.sessions import described, driver_limits, parallelism


@dataclass(frozen=True)
class PackedRatings:
    bundles: DataFrame  # the lines of PACKED, in a session that reads one line at a time
    # Sums over all bundles: ``n``, the flags of ``ratings.FLAGS``, HASH_PARTS, ``absent``,
    # ``weight`` and ``summary_bytes``, the size of SUMMARY.
    facts: Counter[str]
    # The same lines, where they are kept, in a session that sends many short rows to Python
    cached: DataFrame

    @classmethod
    def of(cls, df: DataFrame, columns: Columns, release: ExitStack) -> PackedRatings:
        """Read the ratings once, by one job.

        The bundles remain on the executors' disks until ``release`` is closed.
        """
        lines = map_ratings(df, columns, Pack(columns.threshold, first_bundle), PACKED)
        kept = cached(lines, release, StorageLevel.DISK_ONLY)
        facts = Counter[str]()
        for text in kept.select("facts").toArrow()["facts"].to_pylist():
            facts.update(json.loads(text))
        working = working_session(df.sparkSession)
        expect_long_lines(working, 1)
        return cls(truncate_plan(kept, working), facts, kept)


def first_bundle() -> int:
    context = TaskContext.get()
    return (0 if context is None else context.partitionId()) << 32


PARTIAL = schema_of("part int, side int, ids binary, none binary, n binary, above binary")
HASHES = schema_of("cells binary")
SUMMARY_BYTES = 128 * 2**20  # that the driver takes
RATINGS_PER_PART = 10**7  # whose ids one task sums up; at least a part for every core
PARTS_PER_CORE = 4  # at most


@dataclass(frozen=True)
class Ids:
    """The ids of one side in ascending order, with the number of ratings and of positive ratings of
    each.
    """

    values: pa.Array
    counts: NDArray[np.int64]
    positives: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.counts)


@dataclass(frozen=True)
class RatingSurvey:
    counts: RatingCounts
    n_users: int
    n_items: int
    packed: PackedRatings
    group: Callable[[], DataFrame]  # makes ``grouped``
    weight: float | None = None  # the sum of the weights
    # If they are few enough for the driver: the ids of users and of items, and the hashes of cells.
    summary: tuple[tuple[Ids, Ids], NDArray[np.int64]] | None = None

    @cached_property
    def grouped(self) -> DataFrame:
        return self.group()

    def ids(self) -> dict[Side, Ids]:
        users, items = _sides(self.grouped.toArrow()) if self.summary is None else self.summary[0]
        return {"rows": users, "cols": items}

    def sketch(self) -> CellSketch:
        limit = limit_for(self.counts.n)
        if self.summary is not None:
            hashes = self.summary[1]
        else:

            def up_to_limit(batches: Batches) -> Batches:
                for batch in batches:
                    for cell in batch.column("cells"):
                        part = cell_array(cell, np.int64)
                        yield binary_line(cells=part[part <= limit])

            bundles = self.packed.bundles
            with described(bundles.sparkSession, "sketch"):
                hashes = _all_hashes(
                    bundles.select("cells").mapInArrow(up_to_limit, HASHES).toArrow()
                )
        return CellSketch(limit, *np.unique(hashes[hashes <= limit], return_counts=True))


@contextmanager
def survey_ratings(
    df: DataFrame, columns: Columns, collect_ids: bool = True
) -> Iterator[RatingSurvey]:
    """Pack the ratings, validate them, and count those of every id.

    If ``collect_ids`` is true and the ids are few, the driver counts them.
    The facts of a bundle count its defects. A second pass fetches examples only if there are any.
    """
    check_columns(df, columns)
    with ExitStack() as release:
        with described(df.sparkSession, "survey"):
            survey = _surveyed(df, columns, collect_ids, release)
        yield survey


def _surveyed(
    df: DataFrame, columns: Columns, collect_ids: bool, release: ExitStack
) -> RatingSurvey:
    packed = PackedRatings.of(df, columns, release)
    facts = packed.facts
    counts = of_both_classes(counts_of_facts(df, columns, facts), columns)
    weight = None if columns.weight is None else float(facts["weight"])

    def group() -> DataFrame:
        ids = id_counts(packed.bundles, counts.n, df, columns)
        return cached(truncate_plan(ids, packed.cached.sparkSession), release)

    most_bytes = (
        min(SUMMARY_BYTES, driver_limits(df.sparkSession).result // 2) if collect_ids else 0
    )
    # What ``id_counts`` and ``sketch`` would find by further jobs
    if facts["summary_bytes"] <= most_bytes:
        lines = packed.bundles.select(*SUMMARY).toArrow()
        ids = _sides(pa.Table.from_batches(sum_counts(CountIds(1)(lines.to_batches()))))
        summary = ids, _all_hashes(lines)
        return RatingSurvey(counts, len(ids[0]), len(ids[1]), packed, group, weight, summary)
    grouped = group()
    n = {line["side"]: line["count"] for line in grouped.groupBy("side").count().collect()}
    return RatingSurvey(
        counts, n[SIDE_NUMBERS[USER]], n[SIDE_NUMBERS[ITEM]], packed, lambda: grouped, weight
    )


def id_counts(bundles: DataFrame, n: int, df: DataFrame, columns: Columns) -> DataFrame:
    """One line per id of n ratings: the user or the item, its side, its ratings and its positive
    ratings.
    """
    ids = [
        T.StructField(name, type_of(df, of))
        for name, of in ((USER, columns.user), (ITEM, columns.item))
    ]
    numbers = schema_of("side int, n long, above long")
    cores = parallelism(df.sparkSession)
    n_parts = min(PARTS_PER_CORE * cores, max(cores, n // RATINGS_PER_PART))
    partial = bundles.select(*COUNTED).mapInArrow(CountIds(n_parts), PARTIAL)
    return in_partitions(partial, n_parts, F.col("part")).mapInArrow(
        sum_counts, T.StructType([*ids, *numbers])
    )


def _sides(groups: pa.Table) -> tuple[Ids, Ids]:
    """The users and the items from the lines of ``id_counts``."""

    def side(column: str) -> Ids:
        lines = groups.filter(pc.equal(groups["side"], SIDE_NUMBERS[column]))
        lines = lines.take(pc.sort_indices(lines[column]))
        counts = (lines[name].to_numpy().astype(np.int64) for name in ("n", "above"))
        return Ids(in_utc(one_array(lines[column])), *counts)

    return side(USER), side(ITEM)


def _all_hashes(lines: pa.Table) -> NDArray[np.int64]:
    return np.concatenate([cell_array(cell, np.int64) for cell in lines["cells"]])
