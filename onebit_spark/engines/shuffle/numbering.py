"""Numbers the ids in ascending order without collecting them. The survey's arrays have the same numbers."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from onebit_spark.core.losses import Side
from onebit_spark.engines.blocking import CHUNKS, chunks, gathered, weights_in
from onebit_spark.engines.cells import Batches
from onebit_spark.engines.layout import HEAVY, Placement, block_loads, place
from onebit_spark.input.census import ITEM, LABEL, USER, Census, prepared
from onebit_spark.input.defects import Columns
from onebit_spark.platform.plans import cut_from_plan

WIDE = 2**30  # from so many rows or columns on, a number with a label bit needs more than 32 bits


@dataclass(frozen=True)
class NumberedIds:
    """The numbered ids of a side.

    Parameters
    ----------
    frame : DataFrame
        ``id``, ``number`` (its position in ascending order) and ``n`` (its ratings), one line per id.
    n_rows : int
        Number of ids.
    """

    frame: DataFrame
    n_rows: int


def number_ids(census: Census, column: str, release: ExitStack) -> NumberedIds:
    """Sort the ids. A number is the position in the partition plus the sizes of the partitions before it."""
    ordered = census.by_id(column).orderBy("id").persist()
    release.callback(ordered.unpersist)
    ordered.count()
    lines = cut_from_plan(ordered)
    part = F.spark_partition_id()
    sizes = {line["part"]: line["count"] for line in lines.groupBy(part.alias("part")).count().collect()}
    before = np.cumsum([0] + [sizes.get(p, 0) for p in range(max(sizes) + 1)])
    offset = F.element_at(F.array(*(F.lit(int(start)) for start in before)), part + 1)
    place_in_part = F.monotonically_increasing_id().bitwiseAND(F.lit((1 << 33) - 1))  # the upper bits are the partition
    numbered = lines.select("id", (offset + place_in_part).cast("long").alias("number"), "n")
    numbered = numbered.persist()
    release.callback(numbered.unpersist)
    return NumberedIds(numbered, int(before[-1]))


def placement_of(ids: NumberedIds, n_ratings: int, n_blocks: int) -> Placement:
    """The placement of ``layout.side_layout``, from the heavy rows and the load of each block only."""
    least = n_ratings / (HEAVY * n_blocks)
    heavy = ids.frame.where(F.col("n") > F.lit(least)).select("number", "n").orderBy("number").toArrow()
    numbers, counts = (heavy[name].to_numpy() for name in ("number", "n"))
    loads = np.zeros(n_blocks, np.int64)
    if len(numbers):
        light = ids.frame.where(F.col("n") <= F.lit(least)).mapInArrow(_Loads(n_blocks), "loads binary").toArrow()
        for cell in light["loads"]:
            loads += np.frombuffer(cell.as_buffer(), np.int64)
    return place(n_blocks, numbers, counts, loads)


def encoded(
    ratings: DataFrame, columns: Columns, ids: dict[Side, NumberedIds], placement: Placement, wide: bool
) -> DataFrame:
    """The ratings as numbers, in chunks for the blocks of rows. This takes two joins on unique ids."""
    users = ids["rows"].frame.select(F.col("id").alias(USER), F.col("number").alias("rows"))
    items = ids["cols"].frame.select(F.col("id").alias(ITEM), F.col("number").alias("cols"))
    joined = prepared(ratings, columns).join(users, USER).join(items, ITEM).drop(USER, ITEM)
    return joined.mapInArrow(_EncodeNumbers(placement, wide), CHUNKS)


@dataclass(frozen=True)
class _Loads:
    """Number of ratings that the hash puts into each block, for the ids of a task."""

    n_blocks: int

    def __call__(self, batches: Batches) -> Batches:
        loads = np.zeros(self.n_blocks, np.int64)
        for batch in batches:
            loads += block_loads(batch.column("number").to_numpy(), batch.column("n").to_numpy(), self.n_blocks)
        yield pa.RecordBatch.from_pydict({"loads": [loads.tobytes()]})


@dataclass(frozen=True)
class _EncodeNumbers:
    placement: Placement
    wide: bool

    def __call__(self, batches: Batches) -> Batches:
        dtype = np.int64 if self.wide else np.int32
        for table in gathered(batches):
            rows, columns = (table[name].to_numpy().astype(dtype) for name in ("rows", "cols"))
            labels = table[LABEL].to_numpy(zero_copy_only=False).astype(dtype)
            yield from chunks(self.placement.of(rows), rows, columns << 1 | labels, weights_in(table))
