"""Tall tables, a line for every row of a side, in files: what the shuffle exchange has instead of arrays.

A table lives in Parquet, one line a block. A new one is computed from the cached blocks of ratings, from tables of the
same side, and from those lines of a table of the other side that a block refers to::

    table of the other side ─┐
    routes of its blocks ────┴─► _Send ─► each block's lines, once ─┐
    tables of this side ────────────────────────────────────────────┤ shuffled by block
    blocks of this side (cached; their ratings stay where they are) ┴─► _Make ─► new table, written; its sums, collected

The driver sees the sums. Every step starts from files and from the cache, so neither plan nor lineage grows, and what
is lost with an executor is computed again from there.
"""

from __future__ import annotations

import uuid
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

from onebit_spark.engines.blocking import BLOCKS, Batches, PlacedBlock, block_line, cell_array, read_block
from onebit_spark.engines.faults import worker_errors
from onebit_spark.engines.layout import Placement
from onebit_spark.engines.plans import cut_from_plan, partition_keys
from onebit_spark.errors import FitFailed
from onebit_spark.filesystem import Location
from onebit_spark.losses import Side
from onebit_spark.posterior import FloatArray

ROUTED = f"key int, {BLOCKS}, routes binary, ends binary, rated long"
LINES = "key int, place int, sender int, values binary"
PLACED = "key int, rows binary, values binary"
MADE = "key int, values binary, sums binary, n long, checksum long"
PARTNERS = -1  # the place of lines from the other side; tables of the same side have 0, 1, …

Sums = NDArray[np.float64]
Work = Callable[[PlacedBlock, list[FloatArray], FloatArray | None], tuple[FloatArray | None, Sums]]
Pack = Callable[[pa.RecordBatch], tuple[NDArray[np.int64], FloatArray]]
Transform = Callable[[FloatArray, NDArray[np.int64]], FloatArray]

OTHER: dict[Side, Side] = {"rows": "cols", "cols": "rows"}


@dataclass(frozen=True)
class RoutedSide:
    """One orientation of the ratings: cached blocks, each in the partition of its key, with routes to the others."""

    blocks: DataFrame
    placement: Placement
    keys: NDArray[np.int32]
    checksums: dict[int, tuple[int, int]]  # key ─► (ratings, checksum)
    n_rated: int  # rows with ratings

    @property
    def n_ratings(self) -> int:
        return sum(n for n, _ in self.checksums.values())


class TallTable:
    """A table in a folder, which goes when nobody refers to the table any more."""

    def __init__(self, spark: SparkSession, folder: Location, dtype: np.dtype[Any]) -> None:
        self._spark = spark
        self.uri = folder.uri
        self.dtype = dtype
        weakref.finalize(self, folder.delete)

    def stored(self) -> DataFrame:
        return self._spark.read.schema(MADE).parquet(self.uri)

    def lines(self, place: int = 0) -> DataFrame:
        return self.stored().select("key", F.lit(place).alias("place"), F.lit(0).alias("sender"), "values")


class Tables:
    """Both orientations of the ratings, and the jobs that make tables from them."""

    def __init__(self, spark: SparkSession, folder: Location, sides: dict[Side, RoutedSide]) -> None:
        self.spark = spark  # a working session: see ``plans.working_session``
        self.sides = sides
        self._folder = folder

    def over(self, sides: dict[Side, RoutedSide]) -> Tables:
        """Tables from other ratings of the same rows: either's can be used with both."""
        return Tables(self.spark, self._folder, sides)

    def make(
        self, side: Side, work: Work, own: tuple[TallTable, ...] = (), partners: TallTable | None = None,
        send: Transform | None = None, dtype: Any = np.float64,
    ) -> tuple[TallTable, list[Sums]]:  # fmt: skip
        """The table that ``work`` computes block by block, and its sums in the order of the blocks."""
        table = self._written(self._made(side, work, own, partners, send), dtype)
        return table, self._checked(side, table.stored())

    def sums(
        self, side: Side, work: Work, own: tuple[TallTable, ...] = (), partners: TallTable | None = None
    ) -> list[Sums]:
        """Only the sums of such a table, which is not kept."""
        return self._checked(side, self._made(side, work, own, partners, None))

    def rows(self, side: Side, table: TallTable, work: Any, schema: Any) -> DataFrame:
        """Lines of ``schema`` from the table and the numbers of its rows: ``work(row numbers, values)``."""
        blocks = self.sides[side].blocks.select("key", "rows")
        grouped = blocks.groupBy("key").cogroup(table.lines().groupBy("key"))
        return grouped.applyInArrow(_plain(_Rows(work, table.dtype)), schema)

    def adopted(self, side: Side, lines: DataFrame, pack: Pack, empty: FloatArray) -> TallTable:
        """A table from lines in any order, which ``pack`` turns into row numbers and values; else ``empty``'s line."""
        here = self.sides[side]
        placed = cut_from_plan(lines.mapInArrow(_Place(pack, here.placement, here.keys), PLACED), self.spark)
        grouped = here.blocks.drop("routes", "ends").groupBy("key").cogroup(placed.groupBy("key"))
        return self._written(grouped.applyInArrow(_plain(_Adopt(empty)), MADE), empty.dtype)

    def outlasting(self, frame: DataFrame, schema: StructType) -> DataFrame:
        """The frame in a folder of its own, which stays when these tables go."""
        folder = self._folder.sibling(f"{self._folder.name}-model") / uuid.uuid4().hex
        frame.write.parquet(folder.uri)
        return frame.sparkSession.read.schema(schema).parquet(folder.uri)

    def _written(self, made: DataFrame, dtype: Any) -> TallTable:
        table = TallTable(self.spark, self._folder / f"table-{uuid.uuid4().hex}", np.dtype(dtype))
        with worker_errors():
            made.write.parquet(table.uri)
        return table

    def _made(
        self, side: Side, work: Work, own: tuple[TallTable, ...], partners: TallTable | None, send: Transform | None
    ) -> DataFrame:
        here, there = self.sides[side], self.sides[OTHER[side]]
        incoming = [table.lines(place) for place, table in enumerate(own)]
        if partners is not None:
            routes = there.blocks.select("key", "block", "pointers", "routes", "ends")
            sending = routes.groupBy("key").cogroup(partners.lines().groupBy("key"))
            incoming.append(sending.applyInArrow(_plain(_Send(here.keys, partners.dtype, send)), LINES))
        blocks = here.blocks.drop("routes", "ends")
        dtypes = [table.dtype for table in own]
        if not incoming:
            return blocks.mapInArrow(_MakeAlone(work), MADE)
        make = _Make(work, there.placement, dtypes, None if partners is None else partners.dtype)
        lines = reduce(DataFrame.unionAll, incoming)
        return blocks.groupBy("key").cogroup(lines.groupBy("key")).applyInArrow(_plain(make), MADE)

    def _checked(self, side: Side, made: DataFrame) -> list[Sums]:
        with worker_errors():
            table = made.select("key", "sums", "n", "checksum").toArrow()
        here = self.sides[side]
        lines = {line["key"]: line for line in table.to_pylist()}
        if {key: (line["n"], line["checksum"]) for key, line in lines.items()} != here.checksums:
            raise FitFailed(
                "a block of ratings was computed again and came out different: the source is not deterministic (a "
                "random split or sample, say). Write the ratings to disk first and fit from there"
            )
        return [np.frombuffer(lines[key]["sums"]) for key in here.keys.tolist() if key in lines]


def routed(
    parts: DataFrame, build: Callable[[Batches], Batches], here: Placement, there: Placement, release: ExitStack
) -> RoutedSide:
    """Blocks as ``build`` makes them from the partitions of ``parts``, given their routes, and cached by key."""
    keys = partition_keys(here.n_blocks)
    built = parts.mapInArrow(_Route(build, keys, there), ROUTED)
    blocks = built.repartition(here.n_blocks, "key").persist(StorageLevel.MEMORY_AND_DISK)
    release.callback(blocks.unpersist)
    with worker_errors():
        lines = blocks.select("key", "n", "checksum", "rated").toArrow().to_pylist()
    checksums = {line["key"]: (line["n"], line["checksum"]) for line in lines}
    return RoutedSide(blocks, here, keys, checksums, sum(line["rated"] for line in lines))


def _plain(work: Callable[[pa.Table, pa.Table], pa.Table]) -> Callable[[pa.Table, pa.Table], pa.Table]:
    """As a function of two arguments: Spark counts those of a callable object with ``self``, and would add the key."""

    def call(left: pa.Table, right: pa.Table) -> pa.Table:
        return work(left, right)

    return call


# ---- in the workers --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Route:
    """To each built block its key, and which of its rows every block of the other side refers to."""

    build: Callable[[Batches], Batches]
    keys: NDArray[np.int32]
    there: Placement

    def __call__(self, batches: Batches) -> Batches:
        for batch in self.build(batches):
            block = read_block({name: batch.column(name)[0] for name in batch.schema.names})
            routes, ends = routes_of(block, self.there)
            rated = np.count_nonzero(block.ratings.row_counts)
            key = pa.array([self.keys[block.number]], pa.int32())
            extra = block_line(routes=routes, ends=ends, rated=rated)
            names = ["key", *batch.schema.names, *extra.schema.names]
            yield pa.RecordBatch.from_arrays([key, *batch.columns, *extra.columns], names=names)


def routes_of(block: PlacedBlock, there: Placement) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """The positions of the rows that block t of the other side refers to are routes[ends[t] : ends[t + 1]]."""
    target = there.of(block.columns)[block.ratings.codes >> 1].astype(np.int64)
    row = np.repeat(np.arange(block.ratings.n_rows), block.ratings.row_counts)
    pairs = np.unique(target * max(1, block.ratings.n_rows) + row)
    target, row = np.divmod(pairs, max(1, block.ratings.n_rows))
    return row.astype(np.int32), np.searchsorted(target, np.arange(there.n_blocks + 1))


@dataclass(frozen=True)
class _Send:
    """The lines of a block's table that each block of the other side refers to."""

    keys: NDArray[np.int32]
    dtype: np.dtype[Any]
    transform: Transform | None

    def __call__(self, block: pa.Table, lines: pa.Table) -> pa.Table:
        pointers, ends = cell_array(block["pointers"][0], np.int64), cell_array(block["ends"][0], np.int64)
        routes, counts = cell_array(block["routes"][0], np.int32), np.diff(pointers)
        values = _matrix(lines["values"][0], self.dtype, len(counts))
        if self.transform is not None:
            values = self.transform(values, counts)
        sender = block["block"][0].as_py()
        parts = [
            _line(int(self.keys[target]), sender, values[routes[ends[target] : ends[target + 1]]])
            for target in np.flatnonzero(np.diff(ends))
        ]
        return pa.Table.from_batches(parts) if parts else _NO_LINES


@dataclass(frozen=True)
class _Make:
    """One block of a new table, from its ratings, its own lines and its partners'."""

    work: Work
    there: Placement
    dtypes: list[np.dtype[Any]]
    partner_dtype: np.dtype[Any] | None

    def __call__(self, blocks: pa.Table, lines: pa.Table) -> pa.Table:
        block = read_block({name: blocks[name][0] for name in blocks.schema.names})
        places, senders = lines["place"].to_pylist(), lines["sender"].to_pylist()
        at = {place: i for i, place in enumerate(places) if place != PARTNERS}
        own = [_matrix(lines["values"][at[k]], dtype, len(block.rows)) for k, dtype in enumerate(self.dtypes)]
        partners = None
        if self.partner_dtype is not None:
            arrived = {senders[i]: lines["values"][i] for i, place in enumerate(places) if place == PARTNERS}
            partners = self._gathered(block, arrived)
        made = _made_line(blocks["key"][0].as_py(), block, *self.work(block, own, partners))
        return pa.Table.from_batches([made])

    def _gathered(self, block: PlacedBlock, arrived: dict[int, Any]) -> FloatArray:
        """The partners in the order of the block's columns: each sender's lines ascend by row number, as these do."""
        sender_of = self.there.of(block.columns)
        order = np.argsort(sender_of, kind="stable")
        edges = np.searchsorted(sender_of[order], np.arange(self.there.n_blocks + 1))
        partners: FloatArray | None = None
        for sender in np.flatnonzero(np.diff(edges)):
            places = order[edges[sender] : edges[sender + 1]]
            lines = _matrix(arrived[int(sender)], self.partner_dtype, len(places))
            if partners is None:
                partners = np.empty((len(block.columns), lines.shape[1]), self.partner_dtype)
            partners[places] = lines
        return np.empty((0, 1), self.partner_dtype) if partners is None else partners


@dataclass(frozen=True)
class _MakeAlone:
    """A block of a new table from its ratings alone."""

    work: Work

    def __call__(self, batches: Batches) -> Batches:
        for batch in batches:
            for i in range(batch.num_rows):
                cells = {name: batch.column(name)[i] for name in batch.schema.names}
                block = read_block(cells)
                yield _made_line(cells["key"].as_py(), block, *self.work(block, [], None))


@dataclass(frozen=True)
class _Place:
    """Lines in any order, grouped by the block of their rows."""

    pack: Pack
    placement: Placement
    keys: NDArray[np.int32]

    def __call__(self, batches: Batches) -> Batches:
        for batch in batches:
            numbers, values = self.pack(batch)
            blocks = self.placement.of(numbers)
            for block in np.unique(blocks):
                here = blocks == block
                yield block_line(key=int(self.keys[block]), rows=numbers[here], values=values[here])


@dataclass(frozen=True)
class _Adopt:
    """A block of a table from the lines that arrived for some of its rows."""

    empty: FloatArray

    def __call__(self, blocks: pa.Table, lines: pa.Table) -> pa.Table:
        block = read_block({name: blocks[name][0] for name in blocks.schema.names})
        values = np.repeat(self.empty, len(block.rows), axis=0)
        for i in range(lines.num_rows):
            numbers = cell_array(lines["rows"][i], np.int64)
            places = np.searchsorted(block.rows, numbers)
            values[places] = _matrix(lines["values"][i], values.dtype, len(numbers))
        return pa.Table.from_batches([_made_line(blocks["key"][0].as_py(), block, values, np.empty(0))])


@dataclass(frozen=True)
class _Rows:
    """Each row of a block with its line of the table."""

    work: Any
    dtype: np.dtype[Any]

    def __call__(self, blocks: pa.Table, lines: pa.Table) -> pa.Table:
        numbers = cell_array(blocks["rows"][0], np.int64)
        return self.work(numbers, _matrix(lines["values"][0], self.dtype, len(numbers)))


def _made_line(key: int, block: PlacedBlock, values: FloatArray | None, sums: Sums) -> pa.RecordBatch:
    kept = np.empty(0) if values is None else values
    n = block.ratings.n_ratings
    return block_line(key=key, values=kept, sums=np.asarray(sums, np.float64), n=n, checksum=block.checksum)


def _line(key: int, sender: int, values: FloatArray) -> pa.RecordBatch:
    cells = block_line(key=key, values=values)
    places = [pa.array([place], pa.int32()) for place in (PARTNERS, sender)]
    columns = [cells.column("key"), *places, cells.column("values")]
    return pa.RecordBatch.from_arrays(columns, names=["key", "place", "sender", "values"])


def _matrix(cell: Any, dtype: Any, n_rows: int) -> FloatArray:
    return cell_array(cell, dtype).reshape(n_rows, -1)


_NO_LINES = pa.table(
    {"key": pa.array([], pa.int32()), "place": pa.array([], pa.int32()), "sender": pa.array([], pa.int32()),
     "values": pa.array([], pa.binary())}
)  # fmt: skip
