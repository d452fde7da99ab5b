"""Tall tables. They have one line per row of a side. The shuffle exchange uses them instead of arrays.

A table is stored (``storage``) with one line per block. A new table is computed from the cached blocks of ratings, from
tables of the same side, and from those lines of a table of the other side that a block refers to::

    table of the other side ─┐
    routes of its blocks ────┴─► Send ─► each block's lines, once ─┐
    tables of this side ────────────────────────────────────────────┤ shuffled by block
    blocks of this side (cached; their ratings stay where they are) ┴─► Make ─► new table, stored; its sums, collected

The driver gets only the sums. Every step starts from stored tables and from the cache. So neither plan nor lineage
grows. What is lost with an executor is computed again from there, unless the tables are on the executors, too.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from onebit_spark.core.losses import OTHER, Side
from onebit_spark.core.posterior import FloatArray
from onebit_spark.engines.cells import Batches
from onebit_spark.engines.faults import check_checksums, worker_errors
from onebit_spark.engines.layout import Placement
from onebit_spark.engines.shuffle.routes import (
    LINES,
    MADE,
    PLACED,
    ROUTED,
    Adopt,
    EachRow,
    Make,
    MakeAlone,
    Packing,
    Place,
    Route,
    Send,
    Sums,
    Transform,
    Work,
)
from onebit_spark.engines.shuffle.storage import Storage
from onebit_spark.platform.caching import cached
from onebit_spark.platform.plans import cut_from_plan, partition_keys
from onebit_spark.platform.sessions import is_connect


@dataclass(frozen=True)
class RoutedSide:
    """One orientation of the ratings.

    Parameters
    ----------
    blocks : DataFrame
        The cached blocks, each in the partition of its key, with the routes to the blocks of the other side.
    placement : Placement
        The block of each row.
    keys : array of int32
        Key of each block.
    checksums : dict
        Key ─► (ratings, checksum).
    n_rated : int
        Rows with ratings.
    """

    blocks: DataFrame
    placement: Placement
    keys: NDArray[np.int32]
    checksums: dict[int, tuple[int, int]]
    n_rated: int

    @property
    def n_ratings(self) -> int:
        return sum(n for n, _ in self.checksums.values())

    def sent(self, lines: DataFrame) -> DataFrame:
        """Lines in the partitions of the blocks' keys. To group them with the blocks, Spark need not move a block."""
        return lines.repartition(self.placement.n_blocks, "key")


class TallTable:
    """A stored table. It is deleted when nothing refers to it any more."""

    def __init__(self, stored: DataFrame, delete: Callable[[], object], dtype: np.dtype[Any]) -> None:
        self._stored = stored
        self.dtype = dtype
        weakref.finalize(self, delete).atexit = False  # the engine has deleted it by then

    def stored(self) -> DataFrame:
        return self._stored

    def lines(self, place: int = 0) -> DataFrame:
        return self.stored().select("key", F.lit(place).alias("place"), F.lit(0).alias("sender"), "values")


class Tables:
    """Both orientations of the ratings, and the jobs that make tables from them."""

    def __init__(self, spark: SparkSession, storage: Storage, sides: dict[Side, RoutedSide]) -> None:
        self.spark = spark  # a working session: see ``plans.working_session``
        self.sides = sides
        self.storage = storage

    def over(self, sides: dict[Side, RoutedSide]) -> Tables:
        """The same for other ratings of the same rows. Tables of one can be used with the other."""
        return Tables(self.spark, self.storage, sides)

    def make(
        self, side: Side, work: Work, own: tuple[TallTable, ...] = (), partners: TallTable | None = None,
        send: Transform | None = None, dtype: Any = np.float64,
    ) -> tuple[TallTable, list[Sums]]:  # fmt: skip
        """The table that ``work`` computes block by block, and its sums, in the order of the blocks."""
        table = self._written(self._made(side, work, own, partners, send), dtype)
        return table, self._checked(side, table.stored())

    def sums(
        self, side: Side, work: Work, own: tuple[TallTable, ...] = (), partners: TallTable | None = None,
        send: Transform | None = None,
    ) -> list[Sums]:  # fmt: skip
        """Only the sums of such a table. The table is not stored."""
        return self._checked(side, self._made(side, work, own, partners, send))

    def rows(self, side: Side, tables: tuple[TallTable, ...], work: Any, schema: Any) -> DataFrame:
        """A DataFrame of ``schema`` from tables of a side, by ``work(row numbers, values)`` for each block."""
        here = self.sides[side]
        lines = reduce(DataFrame.unionAll, [table.lines(place) for place, table in enumerate(tables)])
        grouped = here.blocks.select("key", "rows").groupBy("key").cogroup(here.sent(lines).groupBy("key"))
        return grouped.applyInArrow(_plain(EachRow(work, [table.dtype for table in tables])), schema)

    def adopted(
        self, side: Side, lines: DataFrame, pack: Packing, empty: FloatArray, measure: Callable[[FloatArray], Sums]
    ) -> tuple[TallTable, list[Sums]]:
        """A table from lines in any order. ``pack`` turns lines into row numbers and values.

        Rows without a line get the line ``empty``. The sums are ``measure`` of each block.
        """
        here = self.sides[side]
        placed = cut_from_plan(lines.mapInArrow(Place(pack, here.placement, here.keys), PLACED), self.spark)
        blocks = here.blocks.drop("routes", "ends", "row_weights")
        grouped = blocks.groupBy("key").cogroup(here.sent(placed).groupBy("key"))
        table = self._written(grouped.applyInArrow(_plain(Adopt(empty, measure)), MADE), empty.dtype)
        return table, self._checked(side, table.stored())

    def outlasting(self, frame: DataFrame, schema: StructType) -> DataFrame:
        """The frame, stored as long as a plan reads it."""
        return self.storage.outlasting(frame, schema)

    def _written(self, made: DataFrame, dtype: Any) -> TallTable:
        with worker_errors():
            stored, delete = self.storage.keep(made, MADE)
        return TallTable(stored, delete, np.dtype(dtype))

    def _made(
        self, side: Side, work: Work, own: tuple[TallTable, ...], partners: TallTable | None, send: Transform | None
    ) -> DataFrame:
        here, there = self.sides[side], self.sides[OTHER[side]]
        incoming = [table.lines(place) for place, table in enumerate(own)]
        if partners is not None:
            routes = there.blocks.select("key", "block", "pointers", "routes", "ends", "row_weights")
            sending = routes.groupBy("key").cogroup(there.sent(partners.lines()).groupBy("key"))
            incoming.append(sending.applyInArrow(_plain(Send(here.keys, partners.dtype, send)), LINES))
        blocks = here.blocks.drop("routes", "ends", "row_weights")
        dtypes = [table.dtype for table in own]
        if not incoming:
            return blocks.mapInArrow(MakeAlone(work), MADE)
        arriving = None if partners is None else getattr(send, "dtype", partners.dtype)
        make = Make(work, there.placement, dtypes, arriving)
        lines = here.sent(reduce(DataFrame.unionAll, incoming))
        return blocks.groupBy("key").cogroup(lines.groupBy("key")).applyInArrow(_plain(make), MADE)

    def _checked(self, side: Side, made: DataFrame) -> list[Sums]:
        with worker_errors():
            table = made.select("key", "sums", "n", "checksum").toArrow()
        here = self.sides[side]
        lines = {line["key"]: line for line in table.to_pylist()}
        check_checksums({key: (line["n"], line["checksum"]) for key, line in lines.items()}, here.checksums)
        return [np.frombuffer(lines[key]["sums"]) for key in here.keys.tolist() if key in lines]


def routed(
    parts: DataFrame, build: Callable[[Batches], Batches], here: Placement, there: Placement, storage: Storage,
    release: ExitStack,
) -> RoutedSide:  # fmt: skip
    """Build blocks from the partitions of ``parts``, add their routes, and cache them by key.

    On Spark Connect their plan cannot be cut, and every job would carry it along. So the blocks are stored there first.
    """
    keys = partition_keys(here.n_blocks)
    built = parts.mapInArrow(Route(build, keys, there), ROUTED)
    if is_connect(parts.sparkSession):
        with worker_errors():
            built, delete = storage.keep(built, ROUTED)
        release.callback(delete)
    blocks = cached(built.repartition(here.n_blocks, "key"), release, StorageLevel.DISK_ONLY)
    with worker_errors():
        lines = blocks.select("key", "n", "checksum", "rated").toArrow().to_pylist()
    checksums = {line["key"]: (line["n"], line["checksum"]) for line in lines}
    return RoutedSide(blocks, here, keys, checksums, sum(line["rated"] for line in lines))


def _plain(work: Callable[[pa.Table, pa.Table], pa.Table]) -> Callable[[pa.Table, pa.Table], pa.Table]:
    """A function of two arguments. Of a callable object Spark would also count ``self``, and pass the key."""

    def call(left: pa.Table, right: pa.Table) -> pa.Table:
        return work(left, right)

    return call
