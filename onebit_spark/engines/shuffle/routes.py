"""Code of the workers: how lines of tall tables are sent from block to block. See ``tables``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from onebit_spark.core.blocks import Sums as RowWeights
from onebit_spark.core.posterior import FloatArray
from onebit_spark.engines.cells import BLOCKS, Batches, PlacedBlock, read_ascending, read_block
from onebit_spark.engines.layout import Placement
from onebit_spark.platform.binary import binary_line, cell_array

ROUTED = f"key int, {BLOCKS}, routes binary, ends binary, row_weights binary, rated long"
LINES = "key int, place int, sender int, values binary"
PLACED = "key int, rows binary, values binary"
MADE = "key int, values binary, sums binary, n long, checksum long"
PARTNERS = -1  # the place of lines of the other side; tables of the same side have the places 0, 1, …

Sums = NDArray[np.float64]
Work = Callable[[PlacedBlock, list[FloatArray], FloatArray | None], tuple[FloatArray | None, Sums]]
Packing = Callable[[pa.RecordBatch], tuple[NDArray[np.int64], FloatArray]]
Transform = Callable[[FloatArray, RowWeights], FloatArray]


@dataclass(frozen=True)
class Route:
    """Adds to each block its key, the rows that each block of the other side refers to, and sums of weights."""

    build: Callable[[Batches], Batches]
    keys: NDArray[np.int32]
    there: Placement

    def __call__(self, batches: Batches) -> Batches:
        for batch in self.build(batches):
            block = read_block({name: batch.column(name)[0] for name in batch.schema.names})
            routes, ends = routes_of(block, self.there)
            rated = np.count_nonzero(block.ratings.row_counts)
            key = pa.array([self.keys[block.number]], pa.int32())
            # Without weights, the sums are the differences of the pointers.
            sums = np.empty(0) if block.ratings.weights is None else block.ratings.row_weights
            extra = binary_line(routes=routes, ends=ends, row_weights=sums, rated=rated)
            names = ["key", *batch.schema.names, *extra.schema.names]
            yield pa.RecordBatch.from_arrays([key, *batch.columns, *extra.columns], names=names)


def routes_of(block: PlacedBlock, there: Placement) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """(routes, ends): block t of the other side refers to the rows at the positions routes[ends[t] : ends[t + 1]]."""
    target = there.of(block.columns)[block.ratings.codes >> 1].astype(np.int64)
    row = np.repeat(np.arange(block.ratings.n_rows), block.ratings.row_counts)
    pairs = np.unique(target * max(1, block.ratings.n_rows) + row)
    target, row = np.divmod(pairs, max(1, block.ratings.n_rows))
    return row.astype(np.int32), np.searchsorted(target, np.arange(there.n_blocks + 1))


@dataclass(frozen=True)
class Send:
    """Sends each block of the other side the lines that it refers to."""

    keys: NDArray[np.int32]
    dtype: np.dtype[Any]
    transform: Transform | None

    def __call__(self, block: pa.Table, lines: pa.Table) -> pa.Table:
        pointers, ends = cell_array(block["pointers"][0], np.int64), cell_array(block["ends"][0], np.int64)
        routes, weights = cell_array(block["routes"][0], np.int32), cell_array(block["row_weights"][0], np.float64)
        values = _matrix(lines["values"][0], self.dtype, len(pointers) - 1)
        if self.transform is not None:
            values = self.transform(values, weights if len(weights) else np.diff(pointers))
        sender = block["block"][0].as_py()
        parts = [
            _line(int(self.keys[target]), sender, values[routes[ends[target] : ends[target + 1]]])
            for target in np.flatnonzero(np.diff(ends))
        ]
        return pa.Table.from_batches(parts) if parts else _NO_LINES


@dataclass(frozen=True)
class Make:
    """Computes one block of a new table from its ratings, its own lines and the lines of its partners."""

    work: Work
    there: Placement
    dtypes: list[np.dtype[Any]]
    partner_dtype: np.dtype[Any] | None

    def __call__(self, blocks: pa.Table, lines: pa.Table) -> pa.Table:
        block = read_block({name: blocks[name][0] for name in blocks.schema.names})
        places, senders = lines["place"].to_pylist(), lines["sender"].to_pylist()
        own = _own_tables(lines, self.dtypes, len(block.rows))
        partners = None
        if self.partner_dtype is not None:
            arrived = {senders[i]: lines["values"][i] for i, place in enumerate(places) if place == PARTNERS}
            partners = self._gathered(block, arrived)
        made = _made_line(blocks["key"][0].as_py(), block, *self.work(block, own, partners))
        return pa.Table.from_batches([made])

    def _gathered(self, block: PlacedBlock, arrived: dict[int, Any]) -> FloatArray:
        """The partners in the order of the block's columns. The columns and the lines of each sender ascend."""
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
class MakeAlone:
    """Computes one block of a new table from its ratings only."""

    work: Work

    def __call__(self, batches: Batches) -> Batches:
        for batch in batches:
            for i in range(batch.num_rows):
                cells = {name: batch.column(name)[i] for name in batch.schema.names}
                block = read_block(cells)
                yield _made_line(cells["key"].as_py(), block, *self.work(block, [], None))


@dataclass(frozen=True)
class Place:
    """Groups lines in any order by the block of their rows."""

    pack: Packing
    placement: Placement
    keys: NDArray[np.int32]

    def __call__(self, batches: Batches) -> Batches:
        for batch in batches:
            numbers, values = self.pack(batch)
            blocks = self.placement.of(numbers)
            for block in np.unique(blocks):
                here = blocks == block
                yield binary_line(key=int(self.keys[block]), rows=numbers[here], values=values[here])


@dataclass(frozen=True)
class Adopt:
    """Makes one block of a table from lines for some of its rows. The other rows get the line ``empty``."""

    empty: FloatArray
    measure: Callable[[FloatArray], Sums]

    def __call__(self, blocks: pa.Table, lines: pa.Table) -> pa.Table:
        block = read_block({name: blocks[name][0] for name in blocks.schema.names})
        values = np.repeat(self.empty, len(block.rows), axis=0)
        for i in range(lines.num_rows):
            numbers = cell_array(lines["rows"][i], np.int64)
            places = np.searchsorted(block.rows, numbers)
            values[places] = _matrix(lines["values"][i], values.dtype, len(numbers))
        return pa.Table.from_batches([_made_line(blocks["key"][0].as_py(), block, values, self.measure(values))])


@dataclass(frozen=True)
class EachRow:
    """Applies ``work`` to the rows of a block and their lines in the tables."""

    work: Any
    dtypes: list[np.dtype[Any]]

    def __call__(self, blocks: pa.Table, lines: pa.Table) -> pa.Table:
        numbers = read_ascending(blocks["rows"][0])
        return self.work(numbers, _own_tables(lines, self.dtypes, len(numbers)))


def _made_line(key: int, block: PlacedBlock, values: FloatArray | None, sums: Sums) -> pa.RecordBatch:
    kept = np.empty(0) if values is None else values
    n = block.ratings.n_ratings
    return binary_line(key=key, values=kept, sums=np.asarray(sums, np.float64), n=n, checksum=block.checksum)


def _line(key: int, sender: int, values: FloatArray) -> pa.RecordBatch:
    cells = binary_line(key=key, values=values)
    places = [pa.array([place], pa.int32()) for place in (PARTNERS, sender)]
    columns = [cells.column("key"), *places, cells.column("values")]
    return pa.RecordBatch.from_arrays(columns, names=["key", "place", "sender", "values"])


def _own_tables(lines: pa.Table, dtypes: list[np.dtype[Any]], n_rows: int) -> list[FloatArray]:
    """The block's part of each table of its own side, in the order of their places."""
    at = {place: i for i, place in enumerate(lines["place"].to_pylist()) if place != PARTNERS}
    return [_matrix(lines["values"][at[k]], dtype, n_rows) for k, dtype in enumerate(dtypes)]


def _matrix(cell: Any, dtype: Any, n_rows: int) -> FloatArray:
    return cell_array(cell, dtype).reshape(n_rows, -1)


_NO_LINES = pa.table(
    {"key": pa.array([], pa.int32()), "place": pa.array([], pa.int32()), "sender": pa.array([], pa.int32()),
     "values": pa.array([], pa.binary())}
)  # fmt: skip
