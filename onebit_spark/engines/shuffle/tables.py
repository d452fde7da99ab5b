"""Tall tables. They have one line per row of a side. The shuffle exchange uses them instead of arrays.

A table is stored with one line per block (see ``storage``). A new table is computed from the cached blocks of ratings,
from tables of the same side, and from those lines of a table of the other side that a block refers to::

    table of the other side ─┐
    routes of its blocks ────┴─► Send ─► each block's lines, once ─┐
    tables of this side ────────────────────────────────────────────┤ shuffled by block
    blocks of this side (cached; their ratings stay where they are) ┴─► Make ─► new table, stored; its sums, collected

The driver gets only the sums. Every step starts from stored tables and from the cache. So neither plan nor lineage
grows. What is lost with an executor is computed again from there.

Tables of a side with few rows may be held on the driver instead (``exchange="mixed"``). They are broadcast, so nothing
of them is shuffled; a new one is collected.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from onebit_spark.core.blocks import Sums as RowWeights
from onebit_spark.core.losses import OTHER, Side
from onebit_spark.core.posterior import FloatArray
from onebit_spark.engines.faults import check_checksums, worker_errors
from onebit_spark.engines.shuffle.routes import (
    LINES,
    MADE,
    PLACED,
    Adopt,
    Broadcasted,
    EachRow,
    Make,
    Packing,
    Place,
    Send,
    Source,
    Sums,
    Transform,
    Work,
)
from onebit_spark.engines.shuffle.sides import RoutedSide
from onebit_spark.engines.shuffle.storage import Storage
from onebit_spark.platform.binary_cells import cell_array
from onebit_spark.platform.plans import cut_from_plan
from onebit_spark.platform.sessions import broadcast


class TallTable:
    """A stored table. It is deleted when nothing refers to it any more."""

    def __init__(self, stored: DataFrame, delete: Callable[[], object], dtype: np.dtype[Any]) -> None:
        self.stored = stored
        self.dtype = dtype
        weakref.finalize(self, delete).atexit = False  # the engine has deleted it by then

    def lines(self, place: int = 0) -> DataFrame:
        return self.stored.select("key", F.lit(place).alias("place"), F.lit(0).alias("sender"), "values")


class HeldTable:
    """A table on the driver. What was broadcast of it is destroyed when nothing refers to the table any more."""

    def __init__(self, spark: SparkSession, values: FloatArray) -> None:
        self._spark = spark
        self.values = values
        self._whole: Broadcasted | None = None

    @property
    def whole(self) -> Broadcasted:
        if self._whole is None:
            self._whole = self._sent(self.values)
        return self._whole

    def through(self, send: Transform | None, weights: RowWeights) -> Broadcasted:
        """The table as it is to be sent."""
        return self.whole if send is None else self._sent(send(self.values, weights))

    def _sent(self, values: FloatArray) -> Broadcasted:
        sent = broadcast(self._spark, values)
        weakref.finalize(self, sent.destroy).atexit = False
        return Broadcasted(sent)


AnyTable = TallTable | HeldTable


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
        self, side: Side, work: Work, own: tuple[AnyTable, ...] = (), partners: AnyTable | None = None,
        send: Transform | None = None, dtype: Any = np.float64,
    ) -> tuple[AnyTable, list[Sums]]:  # fmt: skip
        """The table that ``work`` computes block by block, and its sums, in the order of the blocks."""
        return self._kept(side, self._made(side, work, own, partners, send), np.dtype(dtype))

    def sums(
        self, side: Side, work: Work, own: tuple[AnyTable, ...] = (), partners: AnyTable | None = None,
        send: Transform | None = None,
    ) -> list[Sums]:  # fmt: skip
        """Only the sums of such a table. The table is not kept."""
        return self._checked(side, _collected(self._made(side, work, own, partners, send), "sums"))

    def held(self, values: FloatArray) -> HeldTable:
        """A table from an array of the driver."""
        return HeldTable(self.spark, values)

    def rows(self, side: Side, tables: tuple[AnyTable, ...], work: Any, schema: Any) -> DataFrame:
        """A DataFrame of ``schema`` from tables of a side, by ``work(row numbers, values)`` for each block."""
        here, (sources, lines) = self.sides[side], _own(tables)
        blocks = here.blocks.select("key", "rows")
        each = EachRow(work, sources)
        if not lines:
            return blocks.mapInArrow(each.alone, schema)
        return _cogrouped(blocks, here.sent(reduce(DataFrame.unionAll, lines)), each, schema)

    def adopted(
        self, side: Side, lines: DataFrame, pack: Packing, empty: FloatArray, measure: Callable[[FloatArray], Sums]
    ) -> tuple[AnyTable, list[Sums]]:
        """A table from lines in any order. ``pack`` turns lines into row numbers and values.

        Rows without a line get the line ``empty``. The sums are ``measure`` of each block.
        """
        here = self.sides[side]
        placed = cut_from_plan(lines.mapInArrow(Place(pack, here.placement, here.keys), PLACED), self.spark)
        return self._kept(side, _cogrouped(here.ratings, here.sent(placed), Adopt(empty, measure), MADE), empty.dtype)

    def outlasting(self, frame: DataFrame, schema: StructType) -> DataFrame:
        """The frame, stored as long as a plan reads it."""
        return self.storage.outlasting(frame, schema)

    def _made(
        self, side: Side, work: Work, own: tuple[AnyTable, ...], partners: AnyTable | None, send: Transform | None
    ) -> DataFrame:
        here, there = self.sides[side], self.sides[OTHER[side]]
        sources, lines = _own(own)
        arriving: Source | None = None
        if isinstance(partners, HeldTable):
            assert there.held is not None
            arriving = partners.through(send, there.held.counts)
        elif partners is not None:
            routes = there.blocks.select("key", "block", "pointers", "routes", "ends", "row_weights")
            lines.append(_cogrouped(routes, there.sent(partners.lines()), Send(here.keys, partners.dtype, send), LINES))
            arriving = getattr(send, "dtype", partners.dtype)
        make = Make(work, there.placement, sources, arriving)
        if not lines:
            return here.ratings.mapInArrow(make.alone, MADE)
        return _cogrouped(here.ratings, here.sent(reduce(DataFrame.unionAll, lines)), make, MADE)

    def _kept(self, side: Side, made: DataFrame, dtype: np.dtype[Any]) -> tuple[AnyTable, list[Sums]]:
        """The table where tables of this side are kept: in files, or here."""
        held = self.sides[side].held
        if held is None:
            with worker_errors():
                stored, delete = self.storage.keep(made, MADE)
            return TallTable(stored, delete, dtype), self._checked(side, _collected(stored, "sums"))
        lines = _collected(made, "sums", "values")
        sums, values = self._checked(side, lines), np.empty((len(held.counts), 0), dtype)
        for key, cell in zip(lines["key"].to_pylist(), lines["values"], strict=True):
            rows = held.rows_of[key]
            part = cell_array(cell, dtype).reshape(len(rows), -1)
            if values.shape[1] != part.shape[1]:
                values = np.empty((len(values), part.shape[1]), dtype)
            values[rows] = part
        return self.held(values), sums

    def _checked(self, side: Side, made: pa.Table) -> list[Sums]:
        here = self.sides[side]
        lines = {line["key"]: line for line in made.select(["key", "sums", "n", "checksum"]).to_pylist()}
        check_checksums({key: (line["n"], line["checksum"]) for key, line in lines.items()}, here.checksums)
        return [np.frombuffer(lines[key]["sums"]) for key in here.keys.tolist() if key in lines]


def _own(tables: tuple[AnyTable, ...]) -> tuple[list[Source], list[DataFrame]]:
    """Where each table comes from, and the lines of those that are in files."""
    sources: list[Source] = []
    lines: list[DataFrame] = []
    for place, table in enumerate(tables):
        if isinstance(table, HeldTable):
            sources.append(table.whole)
        else:
            sources.append(table.dtype)
            lines.append(table.lines(place))
    return sources, lines


def _collected(made: DataFrame, *cells: str) -> pa.Table:
    with worker_errors():
        return made.select("key", "n", "checksum", *cells).toArrow()


def _cogrouped(
    blocks: DataFrame, lines: DataFrame, work: Callable[[pa.Table, pa.Table], pa.Table], schema: Any
) -> DataFrame:
    """``work`` on each block and its lines."""

    def call(left: pa.Table, right: pa.Table) -> pa.Table:  # Spark would count ``self`` of a callable as an argument
        return work(left, right)

    return blocks.groupBy("key").cogroup(lines.groupBy("key")).applyInArrow(call, schema)
