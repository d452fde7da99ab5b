"""SparkEngine: work as Spark jobs over cached blocks of ratings.

A block gets the rows of a table by broadcast if the driver holds it, and by a join if it is stored
on the cluster::

    stored table of the other side ─┐
    routes of its blocks ───────────┴─► Send ─► each block's rows, once ──┐
    stored tables of this side ────────────────────────────────────────────┤ shuffled by block
    blocks of this side (cached; their ratings do not move) ───────────────┴─► RunWork ─► rows, sums

The new rows are stored again, or collected if the driver holds the tables of this side; the sums
are collected. If the driver holds both sides, nothing is shuffled and a step is one job. Every job
starts from the cache and from stored tables. So neither plan nor lineage grows, and Spark computes
again from there what it loses with an executor.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import pairwise
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark import Broadcast
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from onebit_spark.core.losses import OTHER, SIDES, Side
from onebit_spark.core.posterior import FloatArray, Form, RowPosterior
from onebit_spark.core.randomness import Split
from onebit_spark.core.spectral import CountedRows
from onebit_spark.core.work import (
    NO_SUMS,
    BlockWork,
    Own,
    PlacedBlock,
    Result,
    Rows,
    RowTransform,
    RowWork,
    Sums,
    posterior_of,
)
from onebit_spark.data.ratings import not_deterministic
from onebit_spark.engines.base import Engine, Numbers
from onebit_spark.engines.block_engine import BlockEngine
from onebit_spark.engines.layout import RowLayout, Sending, written
from onebit_spark.engines.spark.blocking import (
    BLOCKS,
    Batches,
    BlockedSide,
    Blocking,
    Placement,
    gathered,
    read_ascending,
    read_block,
    taken,
    worker_errors,
)
from onebit_spark.engines.spark.frames import (
    arrow_batches,
    binary_line,
    cell_array,
    cogrouped,
    schema_of,
    truncate_plan,
)
from onebit_spark.engines.spark.sessions import broadcast, described, is_connect, is_local
from onebit_spark.engines.threads import ThreadEngine
from onebit_spark.kernels.jit import adopt_kernels, compiled_kernels
from onebit_spark.records import Fields
from onebit_spark.settings import FitConfig

CELLS = schema_of("key int, place int, sender int, values binary")
PLACED = schema_of("key int, rows binary, values binary")
RESULTS = schema_of("key int, values binary, sums binary, n long, checksum long")
NUMBERED = schema_of("number long, values binary")
NO_CELLS = pa.schema(
    {"key": pa.int32(), "place": pa.int32(), "sender": pa.int32(), "values": pa.binary()}
).empty_table()
OTHERS = -1  # the place of rows of the other side; tables of the same side have the places 0, 1, …
ReadRows = Callable[[pa.RecordBatch], tuple[NDArray[np.int64], FloatArray]]
FrameWork = Callable[[NDArray[np.int64], Own], pa.Table]
# (ratings, ids) ─► whether the driver holds so many while settings are chosen
Takes = Callable[[int, int], bool]
# Of a batch that goes to Spark; it travels in a task, which may have 128 MB
BATCH_BYTES = 16 * 2**20


# ---- tables ------------------------------------------------------------------------------------


class Broadcasts:
    """All broadcasts of a fit.

    Each is destroyed with its owner, and at the latest at the end of the fit.

    The first one has the kernels that the driver has compiled, unless the workers are on its
    machine.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._ends: list[weakref.finalize] = []
        self.kernels = (
            None if is_connect(spark) or is_local(spark) else self.send(compiled_kernels())
        )

    def send(self, value: Any, owner: object = None) -> Broadcast[Any]:
        """Broadcast a value until the owner is garbage-collected; without an owner, until the end
        of the fit.
        """
        sent = broadcast(self._spark, value)
        end = weakref.finalize(owner or self, sent.destroy)
        end.atexit = False
        self._ends = [*(earlier for earlier in self._ends if earlier.alive), end]
        return sent

    def close(self) -> None:
        for end in self._ends:
            end()  # once


class Held:
    """Rows on the driver. They are broadcast when a job first needs them."""

    def __init__(self, lines: Rows, broadcasts: Broadcasts) -> None:
        self.lines = lines
        self.broadcasts = broadcasts
        self._sent: Broadcast[Rows] | None = None

    @property
    def sent(self) -> Broadcast[Rows]:
        if self._sent is None:
            self._sent = self.broadcasts.send(self.lines, self)
        return self._sent


class Stored:
    """Rows on the cluster, one binary cell per block.

    They are deleted when nothing refers to them.
    """

    def __init__(self, frame: DataFrame, delete: Callable[[], object]) -> None:
        self.frame = frame
        weakref.finalize(self, delete).atexit = False  # the engine has deleted it by then

    def cells(self, place: int = 0) -> DataFrame:
        return self.frame.select(
            "key", F.lit(place).alias("place"), F.lit(0).alias("sender"), "values"
        )


@dataclass(frozen=True)
class Table:
    """The rows of a side: where they are, and how they are read."""

    at: Held | Stored
    layout: RowLayout

    @property
    def form(self) -> Form:
        assert self.layout.form is not None
        return self.layout.form

    def copy(self) -> Table:
        """The same rows, which never change. A copy does not keep a broadcast alive."""
        return (
            replace(self, at=Held(self.at.lines, self.at.broadcasts))
            if isinstance(self.at, Held)
            else self
        )

    @property
    def lines(self) -> Rows:
        assert isinstance(self.at, Held)
        return self.layout.whole(self.at.lines)


@dataclass(frozen=True)
class SumWeights(RowWork):
    """The sum of the weights of all ratings."""

    def on_rows(self, counted: CountedRows, own: Own) -> Result:
        return None, np.array([counted.counts.sum()], np.float64)


# ---- the engine --------------------------------------------------------------------------------


class SparkEngine(BlockEngine[Table]):
    """The engine over both orientations of the ratings, in cached blocks.

    The driver itself works on a slice that it ``takes``.
    """

    numbers: dict[Side, Numbers] | None = None

    def __init__(
        self,
        blocking: Blocking,
        sides: dict[Side, BlockedSide],
        broadcasts: Broadcasts,
        weighted: bool,
        takes: Takes | None = None,
        whole: dict[Side, BlockedSide] | None = None,
        splits: Sequence[Split] = (),
    ) -> None:
        self.spark: SparkSession = blocking.session
        self.sides = sides
        self.n_ratings = sides["rows"].n_ratings
        self.repeats = sides["rows"].repeats
        self.weighted = weighted
        self._blocking = blocking
        self._broadcasts = broadcasts
        self._takes = takes
        self._whole = whole or sides
        self._splits = splits  # these splits of ``_whole`` choose the ratings of ``sides``
        self._features: dict[Side, tuple[FloatArray, Table]] = {}
        self.total_weight = float(self.n_ratings)
        if weighted:
            self.total_weight = float(np.sum(self.total("rows", SumWeights(), {})))

    # ---- the ratings ----------------------------------------------------------------------------

    def count(self, side: Side) -> int:
        return self.sides[side].n_rated

    def n_rows(self, side: Side) -> int:
        return self.sides[side].plan.n_rows

    def counts(self, side: Side) -> Numbers:
        return self.sides[side].row_counts

    def is_held(self, side: Side) -> bool:
        """Whether the driver holds the tables of this side."""
        return self.sides[side].plan.held

    # ---- the length of a fit --------------------------------------------------------------------

    @contextmanager
    def running(self) -> Iterator[Self]:
        yield self

    @contextmanager
    def restricted(self, split: Split) -> Iterator[Engine[Any]]:
        """An engine over the chosen ratings: of a slice that the driver takes, one of this process.

        Else it caches two more orientations, made from the cached row blocks.
        """
        if self._driver_takes(split):
            with self.described("a slice of the ratings"), worker_errors():
                lines = self.sides["rows"].ratings.mapInArrow(partial(taken, split), BLOCKS)
                ratings, numbers = gathered(arrow_batches(lines))
            with ThreadEngine(ratings, numbers=numbers).running() as here:
                yield here
            return
        with ExitStack() as release, self.described("a part of the ratings"):
            splits = *self._splits, split
            sides = self._blocking.chosen(self._whole, splits, release)
            yield SparkEngine(
                self._blocking,
                sides,
                self._broadcasts,
                self.weighted,
                self._takes,
                self._whole,
                splits,
            )

    def _driver_takes(self, split: Split) -> bool:
        if split.by not in SIDES or self._takes is None:
            return False
        ids = 0.0
        for side in SIDES:
            ids += self.n_rows(side) * (split.fraction if side == split.by else 1.0)
        return self._takes(int(self.n_ratings * split.fraction), int(ids))

    def described(self, what: str) -> AbstractContextManager[None]:
        return described(self.spark, what)

    def shortage(self, config: FitConfig) -> str | None:
        return None

    # ---- tables ---------------------------------------------------------------------------------

    def table(self, side: Side, rows: Rows) -> Table:
        layout = RowLayout.of_rows(rows)
        if self.is_held(side):
            return Table(Held(rows, self._broadcasts), layout)
        values = written(rows)
        empty = np.zeros((1, values.shape[1]), values.dtype)
        return self._spread(side, np.arange(len(values)), values, empty, layout)

    def rows_here(self, table: Table) -> RowPosterior:
        return posterior_of(table.lines)

    def take(self, side: Side, table: Table, numbers: Numbers) -> RowPosterior:
        if isinstance(table.at, Held):
            return posterior_of(table.layout.taken(table.at.lines, numbers))
        frame = self.frame(side, {"rows": table}, partial(some_rows, numbers), NUMBERED)
        found = [
            read_numbered_rows(table.layout.dtype, batch)
            for batch in arrow_batches(frame)
            if batch.num_rows
        ]
        places, values = (np.concatenate(part) for part in zip(*found, strict=True))
        return table.form.unpacked(values[np.argsort(places)])

    def place(
        self,
        side: Side,
        rows: RowPosterior,
        numbers: Numbers,
        prior: RowPosterior,
    ) -> Table:
        if self.is_held(side):
            return self.table(side, rows.among(prior, self.n_rows(side), numbers))
        layout = RowLayout.of(rows.form)
        return self._spread(side, numbers, rows.packed(), prior.packed(), layout)

    def _spread(
        self,
        side: Side,
        numbers: Numbers,
        values: FloatArray,
        empty: FloatArray,
        layout: RowLayout,
    ) -> Table:
        """A stored table from rows on the driver. Those that it lacks get the line ``empty``."""
        frame = self.spark.createDataFrame(numbered_rows(numbers, values), NUMBERED)
        return self.adopted(side, frame, partial(read_numbered_rows, layout.dtype), empty, layout)

    def feature_table(self, side: Side, features: FloatArray) -> Table:
        """The side features as a table, made once."""
        if side not in self._features or self._features[side][0] is not features:
            self._features[side] = features, self.table(side, features)
        return self._features[side][1]

    # ---- work -----------------------------------------------------------------------------------

    def apply(self, side: Side, table: Table, by: RowTransform) -> Table:
        """The table with a pending map, which tasks apply when they read it.

        Nothing is broadcast or stored again.
        """
        return replace(table, layout=table.layout.then(by))

    def run(
        self,
        side: Side,
        work: BlockWork,
        own: Mapping[str, Table],
        layout: RowLayout,
        others: Table | None = None,
        send: Sending | None = None,
    ) -> tuple[Table, list[Sums]]:
        if isinstance(work, RowWork) and self.is_held(side):
            rows, sums = self._on_driver(side, work, own)
            assert rows is not None
            return self.table(side, rows), [sums]
        return self._kept(side, self._results(side, work, own, others, send), layout)

    def total(
        self,
        side: Side,
        work: BlockWork,
        own: Mapping[str, Table],
        others: Table | None = None,
    ) -> list[Sums]:
        if isinstance(work, RowWork) and self.is_held(side):
            return [self._on_driver(side, work, own)[1]]
        return self._collected_sums(side, self._results(side, work, own, others))

    def _on_driver(self, side: Side, work: RowWork, own: Mapping[str, Table]) -> Result:
        """The work on the driver, which holds the tables of this side."""
        counted = self.sides[side].counted_rows
        return work.on_rows(counted, {name: table.lines for name, table in own.items()})

    # ---- to and from DataFrames -----------------------------------------------------------------

    def frame(
        self,
        side: Side,
        own: Mapping[str, Table],
        work: FrameWork,
        schema: StructType,
    ) -> DataFrame:
        """A DataFrame from stored tables of a side, by ``work(row numbers, rows)`` for each
        block.
        """
        here = self.sides[side]
        sources, cells = _sources(own)
        blocks = here.blocks.select("key", "rows")
        sent = here.sent(reduce(DataFrame.unionAll, cells))
        return cogrouped(blocks, sent, "key", partial(each_row, work, sources), schema)

    def adopted(
        self, side: Side, lines: DataFrame, pack: ReadRows, empty: FloatArray, layout: RowLayout
    ) -> Table:
        """A table from a DataFrame in any order.

        ``pack`` turns its lines into row numbers and values.

        Rows without a line get the line ``empty``.
        """
        here = self.sides[side]
        group = partial(group_by_block, pack, here.plan.placement, here.keys)
        placed = here.sent(truncate_plan(lines.mapInArrow(group, PLACED), self.spark))
        results = cogrouped(here.ratings, placed, "key", partial(build_table, empty), RESULTS)
        return self._kept(side, results, layout)[0]

    def persist(self, frame: DataFrame, schema: StructType) -> DataFrame:
        return self._blocking.storage.persist(frame, schema)

    # ---- jobs -----------------------------------------------------------------------------------

    def _results(
        self,
        side: Side,
        work: BlockWork,
        own: Mapping[str, Table],
        others: Table | None,
        send: Sending | None = None,
    ) -> DataFrame:
        """One line for each block: the new rows, and the sums."""
        here = self.sides[side]
        there = self.sides[OTHER[side]]
        sources, cells = _sources(own)
        from_others: Source | None = None
        if others is not None and isinstance(others.at, Held):
            from_others = BroadcastRows(others.at.sent, others.layout)
        elif others is not None and isinstance(others.at, Stored):
            routes = there.blocks.select(
                "key", "block", "pointers", "routes", "ends", "row_weights"
            )
            sent = partial(send_rows, here.keys, others.layout, send)
            cells.append(cogrouped(routes, there.sent(others.at.cells()), "key", sent, CELLS))
            from_others = others.layout.mapped if send is None else send.layout
        run = RunWork(work, there.plan.placement, sources, from_others, self._broadcasts.kernels)
        if not cells:
            return here.ratings.mapInArrow(run.alone, RESULTS)
        return cogrouped(
            here.ratings, here.sent(reduce(DataFrame.unionAll, cells)), "key", run, RESULTS
        )

    def _kept(self, side: Side, results: DataFrame, layout: RowLayout) -> tuple[Table, list[Sums]]:
        """The new table, held or stored as all tables of this side, and the sums."""
        here = self.sides[side]
        if not here.plan.held:
            with worker_errors():
                stored, delete = self._blocking.storage.keep(results, RESULTS)
            return Table(Stored(stored, delete), layout), self._collected_sums(side, stored)
        lines: Any = None if layout.form is None else layout.form.empty(here.plan.n_rows)
        sums: dict[int, Sums] = {}
        # One at a time: together they are as large as the table
        for line in self._collected(side, results):
            rows = here.rows_of[line["key"]]
            part: Any = layout.read(np.frombuffer(line["values"], layout.dtype), len(rows))
            if layout.form is not None:
                lines.put(rows, part)
            else:
                lines = (
                    np.empty((here.plan.n_rows, part.shape[1]), layout.dtype)
                    if lines is None
                    else lines
                )
                lines[rows] = part
            sums[line["key"]] = _sums_of(line)
        return Table(Held(lines, self._broadcasts), layout), here.in_order(sums)

    def _collected_sums(self, side: Side, results: DataFrame) -> list[Sums]:
        lines = self._collected(side, results.select("key", "sums", "n", "checksum"))
        return self.sides[side].in_order({line["key"]: _sums_of(line) for line in lines})

    def _collected(self, side: Side, results: DataFrame) -> Iterator[Fields]:
        """The lines of a job as its tasks end.

        The count and checksum of every block are checked.
        """
        seen = {}
        with worker_errors():
            for batch in arrow_batches(results):
                for cells in zip(*batch.columns, strict=True):
                    # the bytes of a binary cell stay where they are
                    values = (
                        cell.as_buffer() if pa.types.is_binary(cell.type) else cell.as_py()
                        for cell in cells
                    )
                    line = dict(zip(batch.schema.names, values, strict=True))
                    seen[line["key"]] = (line["n"], line["checksum"])
                    yield line
        if seen != self.sides[side].checksums:
            raise not_deterministic("a block of ratings was computed again and came out different")


def _sources(own: Mapping[str, Table]) -> tuple[dict[str, Source], list[DataFrame]]:
    """The source of the rows of each table, and the cells of those that are stored.

    The place of a table among the cells is its place in the mapping.
    """
    sources: dict[str, Source] = {}
    cells: list[DataFrame] = []
    for place, (name, table) in enumerate(own.items()):
        if isinstance(table.at, Held):
            sources[name] = BroadcastRows(table.at.sent, table.layout)
        else:
            sources[name] = table.layout
            cells.append(table.at.cells(place))
    return sources, cells


def _sums_of(line: Fields) -> Sums:
    return np.frombuffer(line["sums"], np.float64).copy()  # a view would keep the whole batch


# ---- code of the workers: how a block gets its rows --------------------------------------------


@dataclass(frozen=True)
class BroadcastRows:
    sent: Broadcast[Rows]
    layout: RowLayout

    def at(self, numbers: NDArray[np.int64]) -> Rows:
        return self.layout.taken(self.sent.value, numbers)


# Of a block's lines: they arrive in cells of this layout, or are here already
Source = RowLayout | BroadcastRows


def send_rows(
    keys: NDArray[np.int32],
    layout: RowLayout,
    send: Sending | None,
    block: pa.Table,
    cells: pa.Table,
) -> pa.Table:
    """Send each block of the other side the rows that it refers to."""
    pointers = cell_array(block["pointers"][0], np.int64)
    ends = cell_array(block["ends"][0], np.int64)
    routes = cell_array(block["routes"][0], np.int32)
    weights = cell_array(block["row_weights"][0], np.float64)
    numbers = cell_array(cells["values"][0], np.dtype(layout.dtype))
    n_rows = len(pointers) - 1
    if send is not None:
        values = send.make(
            weights if len(weights) else np.diff(pointers), layout.read(numbers, n_rows)
        )
    elif layout.maps:
        values = written(layout.read(numbers, n_rows))
    else:
        values = numbers.reshape(n_rows, -1)
    sender = block["block"][0].as_py()
    parts = [
        binary_line(key=keys[to], place=OTHERS, sender=sender, values=values[routes[lo:hi]])
        for to, (lo, hi) in enumerate(pairwise(ends))
        if lo < hi
    ]
    return pa.Table.from_batches(parts) if parts else NO_CELLS


@dataclass(frozen=True)
class RunWork:
    """Runs a work on each block, with its rows and those of the other side."""

    work: BlockWork
    there: Placement
    own: dict[str, Source]
    others: Source | None
    kernels: Broadcast[dict[str, bytes]] | None = None  # the driver's

    def __call__(self, blocks: pa.Table, cells: pa.Table) -> pa.Table:
        return pa.Table.from_batches(
            [self._result({name: blocks[name][0] for name in blocks.schema.names}, cells)]
        )

    def alone(self, batches: Batches) -> Batches:
        """The same for blocks without cells."""
        for batch in batches:
            for i in range(batch.num_rows):
                yield self._result(
                    {name: batch.column(name)[i] for name in batch.schema.names}, NO_CELLS
                )

    def _result(self, block_cells: Fields, cells: pa.Table) -> pa.RecordBatch:
        if self.kernels is not None:
            adopt_kernels(self.kernels.value)
        block = read_block(block_cells)
        own = _block_rows(cells, self.own, block.rows)
        rows, sums = self.work.on_block(block, own, self._other_rows(block, cells))
        return _result_line(
            block_cells["key"].as_py(), block, np.empty(0) if rows is None else written(rows), sums
        )

    def _other_rows(self, block: PlacedBlock, cells: pa.Table) -> Rows | None:
        """The rows of the other side in the order of the block's columns.

        Columns, and rows of each sender, ascend.

        A block that a split has emptied has none, and no cell from which the width of a row could
        be read.
        """
        if self.others is None or isinstance(self.others, BroadcastRows):
            return None if self.others is None else self.others.at(block.columns)
        places = cells["place"].to_pylist()
        senders = cells["sender"].to_pylist()
        arrived = {
            senders[i]: cells["values"][i] for i, place in enumerate(places) if place == OTHERS
        }
        sender_of = self.there.of(block.columns)
        order = np.argsort(sender_of, kind="stable")
        edges = np.searchsorted(sender_of[order], np.arange(self.there.n_blocks + 1))
        others = np.empty((0, 0), self.others.dtype)
        for sender in np.flatnonzero(np.diff(edges)):
            positions = order[edges[sender] : edges[sender + 1]]
            values = cell_array(arrived[int(sender)], np.dtype(self.others.dtype))
            values = values.reshape(len(positions), -1)
            if not len(others):
                others = np.empty((len(block.columns), values.shape[1]), self.others.dtype)
            others[positions] = values
        return self.others.read(others, len(others))


def numbered_rows(numbers: NDArray[np.int64], values: FloatArray) -> pa.Table:
    """(number, values): one line for each row, in batches that can travel in a task."""
    values = np.ascontiguousarray(values)
    size = max(1, values.shape[1] * values.itemsize)
    cells = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(size), len(values), [None, pa.py_buffer(values)]
    )
    table = pa.table({"number": numbers, "values": cells.cast(pa.binary())})
    return pa.Table.from_batches(
        table.to_batches(max_chunksize=max(1, BATCH_BYTES // size)), table.schema
    )


def some_rows(wanted: NDArray[np.int64], numbers: NDArray[np.int64], own: Own) -> pa.Table:
    """Those of the rows that are wanted, as lines of ``numbered_rows``."""
    rows = posterior_of(own["rows"])
    here = np.flatnonzero(np.isin(numbers, wanted))
    return numbered_rows(numbers[here], rows.take(here).packed())


def read_numbered_rows(dtype: str, batch: pa.RecordBatch) -> tuple[NDArray[np.int64], FloatArray]:
    values = np.frombuffer(b"".join(batch.column("values").to_pylist()), dtype)
    return batch.column("number").to_numpy(), values.reshape(batch.num_rows, -1)


def group_by_block(
    pack: ReadRows, placement: Placement, keys: NDArray[np.int32], batches: Batches
) -> Batches:
    """Group lines in any order by the block of their rows."""
    for batch in batches:
        numbers, values = pack(batch)
        blocks = placement.of(numbers)
        for block in np.unique(blocks):
            here = blocks == block
            yield binary_line(key=int(keys[block]), rows=numbers[here], values=values[here])


def build_table(empty: FloatArray, blocks: pa.Table, placed: pa.Table) -> pa.Table:
    """One block of a table from values of some of its rows. The other rows get ``empty``."""
    block = read_block({name: blocks[name][0] for name in blocks.schema.names})
    values = np.repeat(empty, len(block.rows), axis=0)
    for i in range(placed.num_rows):
        numbers = cell_array(placed["rows"][i], np.int64)
        places = np.searchsorted(block.rows, numbers)
        values[places] = cell_array(placed["values"][i], values.dtype).reshape(len(numbers), -1)
    return pa.Table.from_batches([_result_line(blocks["key"][0].as_py(), block, values, NO_SUMS)])


def each_row(
    work: FrameWork,
    own: dict[str, Source],
    blocks: pa.Table,
    cells: pa.Table,
) -> pa.Table:
    numbers = read_ascending(blocks["rows"][0])
    return work(numbers, _block_rows(cells, own, numbers))


def _result_line(key: int, block: PlacedBlock, values: FloatArray, sums: Sums) -> pa.RecordBatch:
    n = block.ratings.n_ratings
    sums = np.asarray(sums, np.float64)
    return binary_line(key=key, values=values, sums=sums, n=n, checksum=block.checksum)


def _block_rows(
    cells: pa.Table,
    own: Mapping[str, Source],
    rows: NDArray[np.int64],
) -> dict[str, Rows]:
    """The block's rows in each table of its side, by name."""
    places = cells["place"].to_pylist()
    at = {place: line for line, place in enumerate(places) if place != OTHERS}
    found: dict[str, Rows] = {}
    for place, (name, source) in enumerate(own.items()):
        if isinstance(source, BroadcastRows):
            found[name] = source.at(rows)
        else:
            values = cell_array(cells["values"][at[place]], np.dtype(source.dtype))
            found[name] = source.read(values, len(rows))
    return found


def _is_engine(engine: SparkEngine) -> Engine[Table]:
    return engine  # mypy holds the class to the Protocol
