"""Ratings into cached block DataFrames, one row a block, both orientations.

    ratings ─encode─► one binary chunk for each (input task, row block) ─shuffle─► build ─► row blocks, cached
    row blocks ─turn─► one binary chunk for each (row block, column block) ─shuffle─► build ─► column blocks, cached

A rating crosses the network as 8 bytes, never as a row of its own. Everything here runs in Python workers on Arrow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark import Broadcast
from pyspark.sql import DataFrame

from onebit_spark.blocks import RatingBlock
from onebit_spark.certificate.split import Split
from onebit_spark.errors import FitFailed
from onebit_spark.ratings import ITEM, LABEL, USER

FLUSH = 4_000_000  # ratings that a task holds before it hands them on

COUNTS = "block int, ratings binary, positives binary"
CHUNKS = "block int, rows binary, codes binary"
BLOCKS = (
    "block int, rows binary, columns binary, pointers binary, codes binary, "
    "n long, checksum long, repeated long, conflicting long"
)

Batches = Iterator[pa.RecordBatch]
Int32s = NDArray[np.int32]


@dataclass(frozen=True)
class SideTable:
    """What tasks must know of one side: broadcast once."""

    values: pa.Array | None  # ids, ascending; None where they are only met as numbers
    block_of: NDArray[np.int32]
    counts: NDArray[np.int64] | None = None  # what a block must find, where it is known
    positives: NDArray[np.int64] | None = None


@dataclass(frozen=True)
class PlacedBlock:
    """A RatingBlock with its place in the matrix: row r of it is row ``rows[r]``, its column c ``columns[c]``."""

    number: int
    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    ratings: RatingBlock
    checksum: int


def row_blocks(
    ratings: DataFrame, users: Broadcast[SideTable], items: Broadcast[SideTable], n_blocks: int
) -> DataFrame:
    """The ratings by blocks of users; ``ratings`` has the columns USER, ITEM, LABEL."""
    chunks = ratings.mapInArrow(_Encode(users, items), CHUNKS)
    return chunks.repartitionById(n_blocks, chunks["block"]).mapInArrow(_Build(users), BLOCKS)


def column_blocks(blocks: DataFrame, items: Broadcast[SideTable], n_blocks: int) -> DataFrame:
    """The same ratings by blocks of items, from the blocks of users."""
    chunks = blocks.mapInArrow(_Turn(items), CHUNKS)
    return chunks.repartitionById(n_blocks, chunks["block"]).mapInArrow(_Build(items), BLOCKS)


def chosen_blocks(blocks: DataFrame, split: Split) -> DataFrame:
    """The row blocks with only the ratings that the split chooses."""
    return blocks.mapInArrow(_Choose(split), BLOCKS)


def count_rows(batches: Batches) -> Batches:
    """The ratings, and the positive ones, of every row of the blocks."""
    for block in read_blocks(batches):
        yield block_line(block=block.number, ratings=block.ratings.row_counts, positives=block.ratings.row_positives)


def read_blocks(batches: Batches) -> Iterator[PlacedBlock]:
    """The blocks of a task, without copying their ratings."""
    for batch in batches:
        for i in range(batch.num_rows):
            cell = {name: batch.column(name)[i] for name in batch.schema.names}
            columns = _array(cell["columns"], np.int64)
            ratings = RatingBlock(_array(cell["pointers"], np.int64), _array(cell["codes"], np.int32), len(columns))
            yield PlacedBlock(
                cell["block"].as_py(), _array(cell["rows"], np.int64), columns, ratings, cell["checksum"].as_py()
            )


def _array(cell: Any, dtype: Any) -> NDArray[Any]:
    return np.frombuffer(cell.as_buffer(), dtype)


def block_line(**cells: Any) -> pa.RecordBatch:
    """One row: arrays as binary, whole numbers as int64 (the block's number as int32)."""
    arrays = {}
    for name, value in cells.items():
        if name == "block":
            arrays[name] = pa.array([value], pa.int32())
        elif isinstance(value, np.ndarray):
            data = pa.py_buffer(np.ascontiguousarray(value))
            offsets = pa.py_buffer(np.array([0, value.nbytes], np.int32))
            arrays[name] = pa.Array.from_buffers(pa.binary(), 1, [None, offsets, data])
        else:
            arrays[name] = pa.array([int(value)], pa.int64())
    return pa.RecordBatch.from_pydict(arrays)


@dataclass(frozen=True)
class _Encode:
    """(user, item, label) into indices, grouped by the user's block."""

    users: Broadcast[SideTable]
    items: Broadcast[SideTable]

    def __call__(self, batches: Batches) -> Batches:
        users, items = self.users.value, self.items.value
        for table in _gathered(batches):
            rows, columns = _index(table[USER], users), _index(table[ITEM], items)
            labels = table[LABEL].to_numpy(zero_copy_only=False).astype(np.int32)
            yield from _chunks(users.block_of, rows, columns << 1 | labels)


@dataclass(frozen=True)
class _Turn:
    """The ratings of row blocks, grouped by the item's block."""

    items: Broadcast[SideTable]

    def __call__(self, batches: Batches) -> Batches:
        block_of = self.items.value.block_of
        for block in read_blocks(batches):
            rows = np.repeat(block.rows.astype(np.int32), block.ratings.row_counts)
            columns = block.columns.astype(np.int32)[block.ratings.codes >> 1]
            yield from _chunks(block_of, columns, rows << 1 | (block.ratings.codes & 1))


@dataclass(frozen=True)
class _Build:
    """All chunks of a block into one compressed block, checked against the survey."""

    side: Broadcast[SideTable]

    def __call__(self, batches: Batches) -> Batches:
        side = self.side.value
        arrived: dict[int, list[tuple[Int32s, Int32s]]] = {}
        for batch in batches:
            for i in range(batch.num_rows):
                pair = (_array(batch.column("rows")[i], np.int32), _array(batch.column("codes")[i], np.int32))
                arrived.setdefault(batch.column("block")[i].as_py(), []).append(pair)
        for number, pairs in arrived.items():
            yield self._built(side, number, *(np.concatenate(part) for part in zip(*pairs, strict=True)))

    def _built(self, side: SideTable, number: int, rows: Int32s, codes: Int32s) -> pa.RecordBatch:
        members = np.flatnonzero(side.block_of == number)
        columns = np.flatnonzero(np.bincount(codes >> 1))
        ratings = RatingBlock.from_coordinates(
            _positions(members)[rows], _positions(columns)[codes >> 1], codes & 1 == 1, (len(members), len(columns))
        )
        if side.counts is not None and side.positives is not None:
            same = np.array_equal(ratings.row_counts, side.counts[members])
            if not (same and np.array_equal(ratings.row_positives, side.positives[members])):
                raise _changed("a row does not have the ratings that were counted")
        return _block(number, members, columns, ratings)


@dataclass(frozen=True)
class _Choose:
    """The ratings of row blocks that a split chooses; rows and columns stay."""

    split: Split

    def __call__(self, batches: Batches) -> Batches:
        for block in read_blocks(batches):
            yield _block(block.number, block.rows, block.columns, self.split.chosen_of(block.ratings, block.rows))


def _block(number: int, rows: NDArray[np.int64], columns: NDArray[np.int64], ratings: RatingBlock) -> pa.RecordBatch:
    repeated, conflicting = _repeats(ratings)
    return block_line(
        block=number,
        rows=rows,
        columns=columns,
        pointers=ratings.row_pointers,
        codes=ratings.codes,
        n=ratings.n_ratings,
        checksum=_checksum(rows, columns, ratings),
        repeated=repeated,
        conflicting=conflicting,
    )


def _gathered(batches: Batches) -> Iterator[pa.Table]:
    """Spark's small batches joined to larger tables: an id lookup costs a hash table of all ids each time."""
    held: list[pa.RecordBatch] = []
    n = 0
    for batch in batches:
        held.append(batch)
        n += batch.num_rows
        if n >= FLUSH:
            yield pa.Table.from_batches(held)
            held, n = [], 0
    if n:
        yield pa.Table.from_batches(held)


def _positions(ascending: NDArray[np.int64]) -> Int32s:
    """The inverse of a list of numbers: position[ascending[k]] = k."""
    position = np.full(int(ascending[-1]) + 1, -1, np.int32)
    position[ascending] = np.arange(len(ascending), dtype=np.int32)
    return position


def _index(ids: pa.ChunkedArray, side: SideTable) -> Int32s:
    """The position of every id among the side's ids."""
    assert side.values is not None
    found = pc.index_in(ids, value_set=side.values)
    if found.null_count:
        missing = ids.filter(pc.is_null(found))[0]
        raise _changed(f"id {missing} was not there when the ratings were counted")
    return found.to_numpy().astype(np.int32)


def _chunks(block_of: NDArray[np.int32], rows: Int32s, codes: Int32s) -> Batches:
    if len(rows) == 0:
        return
    blocks = block_of[rows]
    # A stable sort of 16-bit keys is a radix sort.
    order = np.argsort(blocks.astype(np.int16) if blocks.max() < 2**15 else blocks, kind="stable")
    blocks, rows, codes = blocks[order], rows[order], codes[order]
    starts = np.flatnonzero(np.diff(blocks, prepend=-1))
    for lo, hi in zip(starts, [*starts[1:], len(blocks)], strict=True):
        yield block_line(block=int(blocks[lo]), rows=rows[lo:hi], codes=codes[lo:hi])


def _repeats(ratings: RatingBlock) -> tuple[int, int]:
    """Ratings beyond the first of their cell, and cells rated both ways."""
    row = np.repeat(np.arange(ratings.n_rows), ratings.row_counts)
    codes = ratings.codes
    same_cell = (row[1:] == row[:-1]) & (codes[1:] >> 1 == codes[:-1] >> 1)
    return int(np.sum(same_cell)), int(np.sum(same_cell & (codes[1:] != codes[:-1])))


def _checksum(rows: NDArray[np.int64], columns: NDArray[np.int64], ratings: RatingBlock) -> int:
    """A sum over ratings of a hash of (row, column, label): independent of their order, additive over blocks."""
    row = np.repeat(rows.astype(np.uint64), ratings.row_counts)
    code = columns.astype(np.uint64)[ratings.codes >> 1] << np.uint64(1) | (ratings.codes & 1).astype(np.uint64)
    with np.errstate(over="ignore"):
        x = row * np.uint64(0x9E3779B97F4A7C15) ^ code
        x = (x ^ (x >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9)
        return int(np.sum(x ^ (x >> np.uint64(29)), dtype=np.uint64).astype(np.int64))


def _changed(detail: str) -> FitFailed:
    return FitFailed(
        f"the source of the ratings changed while it was read: {detail}. It is not deterministic (a random split or "
        "sample, say): write the ratings to disk first and fit from there"
    )
