"""Code of the workers: how a block gets its lines. See ``spark_runner``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark import Broadcast

from onebit_spark.core.posterior import FloatArray
from onebit_spark.engines.block_frames import BLOCK_CELLS, Batches, Placement, read_ascending, read_block
from onebit_spark.engines.runner import LineFormat, written
from onebit_spark.engines.steps import NO_SUMS, Lines, PlacedBlock, Step, Sums
from onebit_spark.platform.binary_cells import binary_line, cell_array, schema_of

ROUTED = schema_of(f"key int, {BLOCK_CELLS}, routes binary, ends binary, row_weights binary, rated long")
CELLS = schema_of("key int, place int, sender int, values binary")
PLACED = schema_of("key int, rows binary, values binary")
RESULTS = schema_of("key int, values binary, sums binary, n long, checksum long")
NUMBERED = schema_of("number long, values binary")
BATCH_BYTES = 16 * 2**20  # of a batch that goes to Spark; it travels in a task, which may have 128 MB
PARTNERS = -1  # the place of lines of the other side; tables of the same side have the places 0, 1, …

Packing = Callable[[pa.RecordBatch], tuple[NDArray[np.int64], FloatArray]]


class Transform(Protocol):
    """What of some lines is sent, from the weights of their ratings and the lines."""

    def __call__(self, weights: NDArray[Any], lines: Any, /) -> FloatArray: ...

    @property
    def format(self) -> LineFormat:
        """Of what arrives."""


@dataclass(frozen=True)
class Everywhere:
    """Lines that every worker holds."""

    sent: Broadcast[Lines]
    format: LineFormat

    def at(self, numbers: NDArray[np.int64]) -> Lines:
        return self.format.taken(self.sent.value, numbers)


Source = LineFormat | Everywhere  # of a block's lines: they arrive in cells of this format, or are here already


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
    format: LineFormat
    transform: Transform | None

    def __call__(self, block: pa.Table, cells: pa.Table) -> pa.Table:
        pointers, ends = cell_array(block["pointers"][0], np.int64), cell_array(block["ends"][0], np.int64)
        routes, weights = cell_array(block["routes"][0], np.int32), cell_array(block["row_weights"][0], np.float64)
        numbers, n_rows = cell_array(cells["values"][0], self.format.dtype), len(pointers) - 1
        if self.transform is not None:
            lines = self.format.read(numbers, n_rows)
            values = self.transform(weights if len(weights) else np.diff(pointers), lines)
        elif self.format.maps:
            values = written(self.format.read(numbers, n_rows))
        else:
            values = numbers.reshape(n_rows, -1)
        sender = block["block"][0].as_py()
        parts = [
            binary_line(key=self.keys[to], place=PARTNERS, sender=sender, values=values[routes[lo:hi]])
            for to, (lo, hi) in enumerate(pairwise(ends))
            if lo < hi
        ]
        return pa.Table.from_batches(parts) if parts else NO_CELLS


@dataclass(frozen=True)
class RunStep:
    """Runs a step on each block, with its own lines and those of its partners."""

    step: Step
    there: Placement
    own: list[Source]
    partners: Source | None

    def __call__(self, blocks: pa.Table, cells: pa.Table) -> pa.Table:
        return pa.Table.from_batches([self._result({name: blocks[name][0] for name in blocks.schema.names}, cells)])

    def alone(self, batches: Batches) -> Batches:
        """The same for blocks that no cells arrive for."""
        for batch in batches:
            for i in range(batch.num_rows):
                yield self._result({name: batch.column(name)[i] for name in batch.schema.names}, NO_CELLS)

    def _result(self, block_cells: dict[str, Any], cells: pa.Table) -> pa.RecordBatch:
        block = read_block(block_cells)
        own = _own_lines(cells, self.own, block.rows)
        lines, sums = self.step(block, own, self._partners(block, cells))
        return _result_line(block_cells["key"].as_py(), block, np.empty(0) if lines is None else written(lines), sums)

    def _partners(self, block: PlacedBlock, cells: pa.Table) -> Lines | None:
        """The partners in the order of the block's columns. The columns and the lines of each sender ascend.

        A block that a split has emptied has no partners. No cell says then how many numbers a line has.
        """
        if self.partners is None or isinstance(self.partners, Everywhere):
            return None if self.partners is None else self.partners.at(block.columns)
        places, senders = cells["place"].to_pylist(), cells["sender"].to_pylist()
        arrived = {senders[i]: cells["values"][i] for i, place in enumerate(places) if place == PARTNERS}
        sender_of = self.there.of(block.columns)
        order = np.argsort(sender_of, kind="stable")
        edges = np.searchsorted(sender_of[order], np.arange(self.there.n_blocks + 1))
        partners = np.empty((0, 0), self.partners.dtype)
        for sender in np.flatnonzero(np.diff(edges)):
            positions = order[edges[sender] : edges[sender + 1]]
            values = cell_array(arrived[int(sender)], self.partners.dtype).reshape(len(positions), -1)
            if not len(partners):
                partners = np.empty((len(block.columns), values.shape[1]), self.partners.dtype)
            partners[positions] = values
        return self.partners.read(partners, len(partners))


def numbered_lines(numbers: NDArray[np.int64], values: FloatArray) -> pa.Table:
    """(number, values): one line for each row, in batches that can travel in a task."""
    values = np.ascontiguousarray(values)
    size = max(1, values.shape[1] * values.itemsize)
    cells = pa.FixedSizeBinaryArray.from_buffers(pa.binary(size), len(values), [None, pa.py_buffer(values)])
    table = pa.table({"number": numbers, "values": cells.cast(pa.binary())})
    return pa.Table.from_batches(table.to_batches(max_chunksize=max(1, BATCH_BYTES // size)), table.schema)


@dataclass(frozen=True)
class ReadNumbered:
    """Row numbers and values from such lines."""

    dtype: str

    def __call__(self, batch: pa.RecordBatch) -> tuple[NDArray[np.int64], FloatArray]:
        values = np.frombuffer(b"".join(batch.column("values").to_pylist()), self.dtype)
        return batch.column("number").to_numpy(), values.reshape(batch.num_rows, -1)


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

    def __call__(self, blocks: pa.Table, placed: pa.Table) -> pa.Table:
        block = read_block({name: blocks[name][0] for name in blocks.schema.names})
        values = np.repeat(self.empty, len(block.rows), axis=0)
        for i in range(placed.num_rows):
            numbers = cell_array(placed["rows"][i], np.int64)
            places = np.searchsorted(block.rows, numbers)
            values[places] = cell_array(placed["values"][i], values.dtype).reshape(len(numbers), -1)
        return pa.Table.from_batches([_result_line(blocks["key"][0].as_py(), block, values, NO_SUMS)])


@dataclass(frozen=True)
class EachRow:
    """Applies ``work`` to the numbers of a block's rows and their lines in the tables."""

    work: Callable[[NDArray[np.int64], list[Any]], pa.Table]
    own: list[Source]

    def __call__(self, blocks: pa.Table, cells: pa.Table) -> pa.Table:
        return self._done(blocks["rows"][0], cells)

    def alone(self, batches: Batches) -> Batches:
        """The same for blocks that no cells arrive for."""
        for batch in batches:
            for rows in batch.column("rows"):
                yield from self._done(rows, NO_CELLS).to_batches()

    def _done(self, rows: Any, cells: pa.Table) -> pa.Table:
        numbers = read_ascending(rows)
        return self.work(numbers, _own_lines(cells, self.own, numbers))


def _result_line(key: int, block: PlacedBlock, values: FloatArray, sums: Sums) -> pa.RecordBatch:
    n, sums = block.ratings.n_ratings, np.asarray(sums, np.float64)
    return binary_line(key=key, values=values, sums=sums, n=n, checksum=block.checksum)


def _own_lines(cells: pa.Table, sources: list[Source], rows: NDArray[np.int64]) -> list[Lines]:
    """The block's lines of each table of its own side, in the order of their places."""
    at = {place: i for i, place in enumerate(cells["place"].to_pylist()) if place != PARTNERS}
    return [
        source.at(rows)
        if isinstance(source, Everywhere)
        else source.read(cell_array(cells["values"][at[place]], source.dtype), len(rows))
        for place, source in enumerate(sources)
    ]


NO_ROUTES = np.empty(0, np.int32), np.zeros(1, np.int64)
NO_CELLS = pa.table(
    {"key": pa.array([], pa.int32()), "place": pa.array([], pa.int32()), "sender": pa.array([], pa.int32()),
     "values": pa.array([], pa.binary())}
)  # fmt: skip
