"""Code of the workers: how a block gets its lines of tall tables. See ``tables``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark import Broadcast

from onebit_spark.core.blocks import Sums as RowWeights
from onebit_spark.core.posterior import FloatArray
from onebit_spark.engines.block_frames import BLOCK_CELLS, Batches, PlacedBlock, read_ascending, read_block
from onebit_spark.engines.layout import Placement
from onebit_spark.platform.binary_cells import binary_line, cell_array, schema_of

ROUTED = schema_of(f"key int, {BLOCK_CELLS}, routes binary, ends binary, row_weights binary, rated long")
LINES = schema_of("key int, place int, sender int, values binary")
PLACED = schema_of("key int, rows binary, values binary")
MADE = schema_of("key int, values binary, sums binary, n long, checksum long")
PARTNERS = -1  # the place of lines of the other side; tables of the same side have the places 0, 1, …

Sums = NDArray[np.float64]
Work = Callable[[PlacedBlock, list[FloatArray], FloatArray | None], tuple[FloatArray | None, Sums]]
Packing = Callable[[pa.RecordBatch], tuple[NDArray[np.int64], FloatArray]]
Transform = Callable[[FloatArray, RowWeights], FloatArray]


@dataclass(frozen=True)
class Broadcasted:
    """A table that every worker holds."""

    table: Broadcast[FloatArray]

    def at(self, numbers: NDArray[np.int64]) -> FloatArray:
        return self.table.value[numbers]


Source = np.dtype[Any] | Broadcasted  # of a block's lines: they arrive as numbers of this type, or are here already


@dataclass(frozen=True)
class Route:
    """Adds to each block its key, the rows that each block of the other side refers to, and sums of weights."""

    build: Callable[[Batches], Batches]
    keys: NDArray[np.int32]
    there: Placement | None  # None: nothing is sent from here

    def __call__(self, batches: Batches) -> Batches:
        for batch in self.build(batches):
            block = read_block({name: batch.column(name)[0] for name in batch.schema.names})
            routes, ends = NO_ROUTES if self.there is None else routes_of(block, self.there)
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
    own: list[Source]
    partners: Source | None

    def __call__(self, blocks: pa.Table, lines: pa.Table) -> pa.Table:
        return pa.Table.from_batches([self._made({name: blocks[name][0] for name in blocks.schema.names}, lines)])

    def alone(self, batches: Batches) -> Batches:
        """The same for blocks that no lines arrive for."""
        for batch in batches:
            for i in range(batch.num_rows):
                yield self._made({name: batch.column(name)[i] for name in batch.schema.names}, _NO_LINES)

    def _made(self, cells: dict[str, Any], lines: pa.Table) -> pa.RecordBatch:
        block = read_block(cells)
        own = _own_tables(lines, self.own, block.rows)
        return _made_line(cells["key"].as_py(), block, *self.work(block, own, self._partners(block, lines)))

    def _partners(self, block: PlacedBlock, lines: pa.Table) -> FloatArray | None:
        """The partners in the order of the block's columns. The columns and the lines of each sender ascend.

        A block that a split has emptied has no partners. Its table has no width, for no line tells it.
        """
        if self.partners is None or isinstance(self.partners, Broadcasted):
            return None if self.partners is None else self.partners.at(block.columns)
        places, senders = lines["place"].to_pylist(), lines["sender"].to_pylist()
        arrived = {senders[i]: lines["values"][i] for i, place in enumerate(places) if place == PARTNERS}
        sender_of = self.there.of(block.columns)
        order = np.argsort(sender_of, kind="stable")
        edges = np.searchsorted(sender_of[order], np.arange(self.there.n_blocks + 1))
        partners: FloatArray | None = None
        for sender in np.flatnonzero(np.diff(edges)):
            positions = order[edges[sender] : edges[sender + 1]]
            values = _matrix(arrived[int(sender)], self.partners, len(positions))
            if partners is None:
                partners = np.empty((len(block.columns), values.shape[1]), self.partners)
            partners[positions] = values
        return np.empty((0, 0), self.partners) if partners is None else partners


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
    own: list[Source]

    def __call__(self, blocks: pa.Table, lines: pa.Table) -> pa.Table:
        return self._done(blocks["rows"][0], lines)

    def alone(self, batches: Batches) -> Batches:
        """The same for blocks that no lines arrive for."""
        for batch in batches:
            for rows in batch.column("rows"):
                yield from self._done(rows, _NO_LINES).to_batches()

    def _done(self, rows: Any, lines: pa.Table) -> pa.Table:
        numbers = read_ascending(rows)
        return self.work(numbers, _own_tables(lines, self.own, numbers))


def _made_line(key: int, block: PlacedBlock, values: FloatArray | None, sums: Sums) -> pa.RecordBatch:
    kept = np.empty(0) if values is None else values
    n = block.ratings.n_ratings
    return binary_line(key=key, values=kept, sums=np.asarray(sums, np.float64), n=n, checksum=block.checksum)


def _line(key: int, sender: int, values: FloatArray) -> pa.RecordBatch:
    cells = binary_line(key=key, values=values)
    places = [pa.array([place], pa.int32()) for place in (PARTNERS, sender)]
    columns = [cells.column("key"), *places, cells.column("values")]
    return pa.RecordBatch.from_arrays(columns, names=["key", "place", "sender", "values"])


def _own_tables(lines: pa.Table, sources: list[Source], rows: NDArray[np.int64]) -> list[FloatArray]:
    """The block's part of each table of its own side, in the order of their places."""
    at = {place: i for i, place in enumerate(lines["place"].to_pylist()) if place != PARTNERS}
    return [
        source.at(rows) if isinstance(source, Broadcasted) else _matrix(lines["values"][at[k]], source, len(rows))
        for k, source in enumerate(sources)
    ]


def _matrix(cell: Any, dtype: Any, n_rows: int) -> FloatArray:
    return cell_array(cell, dtype).reshape(n_rows, -1)


NO_ROUTES = np.empty(0, np.int32), np.zeros(1, np.int64)
_NO_LINES = pa.table(
    {"key": pa.array([], pa.int32()), "place": pa.array([], pa.int32()), "sender": pa.array([], pa.int32()),
     "values": pa.array([], pa.binary())}
)  # fmt: skip
