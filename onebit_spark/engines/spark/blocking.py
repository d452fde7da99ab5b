"""Ratings into cached block DataFrames, one line per block, a few blocks per partition, both
orientations.

    bundles ─number─► a chunk for each (bundle, row block) ─shuffle─► build ─► row blocks
    row blocks ─transpose─► a chunk for each pair of blocks ─shuffle─► build ─► column blocks

A rating crosses the network as 8 bytes, 12 with a weight, never as a row of its own. All of this
runs in Python workers on Arrow. ``BlockedSide`` is one orientation, and ``Blocking`` makes both.
The driver numbers the ids if it holds all of them; else a distributed sort does.
"""

from __future__ import annotations

import gc
import heapq
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark import Broadcast, StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, LongType, StructType

from onebit_spark.core.blocks import RatingBlock, Repeats, repeats_of
from onebit_spark.core.losses import OTHER, SIDES, Side
from onebit_spark.core.randomness import Split
from onebit_spark.core.spectral import CountedRows
from onebit_spark.core.work import PlacedBlock
from onebit_spark.data.id_index import IdIndex
from onebit_spark.data.locations import Location
from onebit_spark.data.ratings import ITEM, USER, joined, not_deterministic
from onebit_spark.data.user_tables import in_utc, one_array
from onebit_spark.engines.spark.frames import (
    JOB_ERRORS,
    ROWS_LOST,
    Batches,
    TemporaryFolders,
    binary_line,
    cached,
    cell_array,
    cogrouped,
    forget,
    in_partitions,
    on_executors,
    partition_keys,
    schema_of,
    truncate_plan,
    working_session,
)
from onebit_spark.engines.spark.packing import (
    BUNDLES,
    NO_WEIGHTS,
    SIDE_NUMBERS,
    Bundle,
    read_bundles,
)
from onebit_spark.engines.spark.sessions import is_connect, parallelism
from onebit_spark.engines.spark.survey import PARTS_PER_CORE, PackedRatings, RatingSurvey
from onebit_spark.errors import FitFailed
from onebit_spark.records import Fields

RATINGS_PER_BLOCK = 8_000_000  # 32 MB of codes; a task holds a few copies of them
BLOCKS_PER_TASK = 4
HEAVY = 4  # a row with more than n/(4P) ratings is heavy; there are at most 4P of them


@dataclass(frozen=True)
class Placement:
    """The block of any row, from a hash and a short list.

    Its size does not grow with the number of rows.
    """

    n_blocks: int  # number of blocks
    heavy: NDArray[np.int64]  # rows that were placed one by one, ascending
    heavy_blocks: NDArray[np.int32]  # their blocks

    def of(self, rows: NDArray[np.integer]) -> NDArray[np.int32]:
        mixed = (rows.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        blocks = ((mixed >> np.uint64(32)) % np.uint64(self.n_blocks)).astype(np.int32)
        if len(self.heavy):
            place = np.minimum(np.searchsorted(self.heavy, rows), len(self.heavy) - 1)
            blocks = np.where(self.heavy[place] == rows, self.heavy_blocks[place], blocks)
        return blocks

    def rows_of(self, n_rows: int) -> list[NDArray[np.int64]]:
        block_of = self.of(np.arange(n_rows))
        order = np.argsort(block_of, kind="stable")
        edges = np.searchsorted(block_of[order], np.arange(self.n_blocks + 1))
        return [order[edges[b] : edges[b + 1]] for b in range(self.n_blocks)]


def placement_by_counts(
    rows: NDArray[np.int64], counts: NDArray[np.int64], n: int, n_blocks: int
) -> Placement:
    """The placement of n ratings.

    ``counts`` are those of the ``rows``; rows that are not heavy may be left out.

    The heavy rows are placed first, the heaviest before the others, each in the block that has the
    fewest of their ratings so far. So a few rows with most of the ratings do not come into one
    block. The others follow their hash, which gives about as many ratings to each block, and no
    table of them is needed.
    """
    heavy = np.flatnonzero(counts > n / (HEAVY * n_blocks))
    queue = [(0, block) for block in range(n_blocks)]
    blocks = np.zeros(len(heavy), np.int32)
    for k in np.argsort(-counts[heavy], kind="stable"):
        load, block = heapq.heappop(queue)
        blocks[k] = block
        heapq.heappush(queue, (load + int(counts[heavy[k]]), block))
    return Placement(n_blocks, rows[heavy], blocks)


def default_blocks(
    n_ratings: int, n_rows: int, cores: int, ratings_per_block: int = RATINGS_PER_BLOCK
) -> int:
    """One block per core, or more so that no block exceeds ``ratings_per_block``; at most one per
    row.
    """
    return max(1, min(n_rows, max(cores, -(-n_ratings // ratings_per_block))))


def multiple_of(cores: int, n_blocks: int) -> int:
    return cores * -(-n_blocks // cores)


def default_tasks(n_blocks: int, cores: int) -> int:
    """The same number of tasks for each core, with up to four blocks per task.

    Few tasks with several small blocks need less memory than many tasks. A task holds one block at
    a time. Spark keeps this memory for up to two seconds after the end of the task, because the
    thread that watches its Python worker refers to it. So memory grows with the number of tasks
    that end within two seconds.
    """
    return min(n_blocks, cores * -(-n_blocks // (BLOCKS_PER_TASK * cores)))


# ---- blocks as lines ---------------------------------------------------------------------------

BLOCK_CELLS = (
    "block int, rows binary, columns binary, pointers binary, codes binary, weights binary, "
    "n long, checksum long, repeated_cells long, repeated long, conflicting long"
)
MANY_OBJECTS = 20_000  # that the garbage collector visits in a millisecond
SMALL = 2**26  # up to this number, an array indexed by row number is cheaper than a sort

Numbers = NDArray[np.integer]


def read_blocks(batches: Batches) -> Iterator[PlacedBlock]:
    for batch in batches:
        for i in range(batch.num_rows):
            yield read_block({name: batch.column(name)[i] for name in batch.schema.names})


def read_block(cell: Fields) -> PlacedBlock:
    # Spark's worker runs ``gc.collect()`` after each task, which takes longer than a small block if
    # it visits every object of every imported package. Frozen objects are still freed by their
    # reference counts.
    if len(gc.get_objects()) > MANY_OBJECTS:
        gc.freeze()
    rows = read_ascending(cell["rows"])
    columns = read_ascending(cell["columns"])
    weights = cell_array(cell["weights"], np.float32)
    pointers = cell_array(cell["pointers"], np.int64)
    codes = cell_array(cell["codes"], np.int32)
    ratings = RatingBlock(pointers, codes, len(columns), weights if len(weights) else None)
    return PlacedBlock(cell["block"].as_py(), rows, columns, ratings, cell["checksum"].as_py())


def ascending_cell(numbers: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Ascending numbers, stored as the first number and the gaps in the narrowest type: mostly one
    byte per number.

    A block refers to most rows of the other side. With eight bytes per number they would need as
    much memory as its ratings.
    """
    if len(numbers) == 0:
        return np.empty(0, np.uint8)
    gaps = np.diff(numbers)
    gaps = gaps.astype(np.min_scalar_type(int(gaps.max(initial=0))))
    head = np.array([numbers[0], gaps.itemsize], np.int64)
    return np.concatenate([head.view(np.uint8), gaps.view(np.uint8)])


def read_ascending(cell: Any) -> NDArray[np.int64]:
    data = cell_array(cell, np.uint8)
    if len(data) == 0:
        return np.empty(0, np.int64)
    first, width = data[:16].view(np.int64)
    gaps = data[16:].view(f"u{width}")
    numbers = np.empty(len(gaps) + 1, np.int64)
    numbers[0] = 0
    np.cumsum(gaps, dtype=np.int64, out=numbers[1:])
    numbers += first
    return numbers


def distinct(numbers: Numbers) -> NDArray[np.int64]:
    if len(numbers) and numbers.max() >= SMALL:
        return np.unique(numbers).astype(np.int64)
    return np.flatnonzero(np.bincount(numbers))


def positions(ascending: NDArray[np.int64], numbers: Numbers) -> Numbers:
    """The position of each number in an ascending list that contains it."""
    if len(ascending) and ascending[-1] >= SMALL:
        return np.searchsorted(ascending, numbers)
    position = np.zeros(int(ascending[-1]) + 1 if len(ascending) else 0, np.int32)
    position[ascending] = np.arange(len(ascending), dtype=np.int32)
    return position[numbers]


# ---- faults ------------------------------------------------------------------------------------

_RAISED = re.compile(r"onebit_spark\.errors\.FitFailed: (.+)")


@contextmanager
def worker_errors() -> Iterator[None]:
    """Raise a FitFailed of a worker, or the loss of a table with its executor, as a FitFailed of
    the driver.

    Spark reports both only as a traceback in a message.
    """
    try:
        yield
    except JOB_ERRORS as error:
        if ROWS_LOST in str(error):
            raise FitFailed(
                "an executor was lost, and factors with it: fit again, with checkpointDir in a "
                "folder that all "
                "executors can reach"
            ) from None
        raised = _RAISED.search(str(error))
        if raised is None:
            raise
        raise FitFailed(raised.group(1)) from None


# ---- storage -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Storage:
    """Stores DataFrames, so that neither their plan nor their lineage grows.

    They are Parquet files in a folder that all executors can reach; a lost executor loses nothing.
    Without a folder, they are on the disks of the executors; if one of these is lost, the fit ends.
    """

    folder: Location | None = None

    def keep(self, frame: DataFrame, schema: StructType) -> tuple[DataFrame, Callable[[], object]]:
        """The frame, computed now, and a function that deletes it."""
        if self.folder is None:
            kept = on_executors(frame)
            return kept, partial(forget, kept)
        place = self.folder / f"table-{uuid.uuid4().hex}"
        frame.write.parquet(place.uri, compression="uncompressed")  # factors cannot be compressed
        return frame.sparkSession.read.schema(schema).parquet(place.uri), place.delete

    def persist(self, frame: DataFrame, schema: StructType) -> DataFrame:
        """The frame, computed now.

        It remains as long as a plan reads it: see ``frames.TemporaryFolders``.
        """
        if self.folder is None:
            return on_executors(frame)
        folder = self.folder.sibling(f"{self.folder.name}-model")
        part = folder / uuid.uuid4().hex
        frame.write.parquet(part.uri)
        stored = frame.sparkSession.read.schema(schema).parquet(part.uri)
        TemporaryFolders.of(folder.spark).delete_after(folder, stored)
        return stored

    def clear(self) -> None:
        """Delete the files that ``keep`` has written.

        Tables on the executors end with the last reference to them.
        """
        if self.folder is not None:
            self.folder.delete()


# ---- ratings into blocks -----------------------------------------------------------------------

Part = TypeVar("Part")

BLOCKS = schema_of(BLOCK_CELLS)
COUNTS = schema_of("block int, rows binary, ratings binary, weights binary, positives binary")
CHUNKS = schema_of("block int, rows binary, codes binary, weights binary, members binary")
REPEATS = tuple(Repeats.__dataclass_fields__)  # columns of the blocks


@dataclass(frozen=True)
class SideTable:
    """The ids of a side with their blocks and counts, broadcast to the tasks."""

    values: pa.Array  # ids, ascending
    block_of: NDArray[np.int32]
    counts: NDArray[np.int64]  # the ratings of each id, against which the blocks are checked
    positives: NDArray[np.int64]

    @cached_property
    def index(self) -> IdIndex:
        """The index of the ids, made once in every Python worker."""
        return IdIndex(self.values)


def count_rows(batches: Batches) -> Batches:
    """The ratings of every row of the blocks, and the sums of their weights: of all, and of the
    positive ones.
    """
    for block in read_blocks(batches):
        ratings = block.ratings
        weights, positives = (
            part.astype(np.float64) for part in (ratings.row_weights, ratings.row_positive_weights)
        )
        rows = ascending_cell(block.rows)
        counts = ratings.row_counts
        yield binary_line(
            block=block.number, rows=rows, ratings=counts, weights=weights, positives=positives
        )


def number_bundles(
    users_sent: Broadcast[SideTable], items_sent: Broadcast[SideTable], batches: Batches
) -> Batches:
    """Bundles of ratings under the numbers of all ids, in chunks for the blocks of users."""
    users = users_sent.value
    items = items_sent.value
    for bundle in read_bundles(batches):
        rows, codes = numbered(
            bundle, _index(bundle.user_ids, users), _index(bundle.item_ids, items)
        )
        yield from chunks(users.block_of[rows], rows, codes, bundle.weights)


def numbered(bundle: Bundle, users: Numbers, items: Numbers) -> tuple[Numbers, Numbers]:
    codes = items[bundle.codes >> 1] << 1
    codes |= bundle.codes & 1
    return users[bundle.users], codes


def part_of(splits: Sequence[Split], block: PlacedBlock) -> RatingBlock:
    """The ratings of a block that the splits choose, each among those of the splits before it."""
    ratings = block.ratings
    for split in splits:
        ratings = split.part_of(ratings, block.rows, block.columns)
    return ratings


def transpose(
    placement: Placement, wide: bool, splits: Sequence[Split], batches: Batches
) -> Batches:
    """The ratings of row blocks that the splits choose, grouped by the block of their column.

    A column without ratings stays a member of its block.
    """
    dtype = np.int64 if wide else np.int32
    for block in read_blocks(batches):
        ratings = part_of(splits, block)
        codes = ratings.codes
        block_of = placement.of(block.columns)
        rows = np.repeat(block.rows.astype(dtype), ratings.row_counts)
        columns = block.columns.astype(dtype)
        turned = rows << 1 | (codes & 1).astype(dtype)
        yield from chunks(block_of[codes >> 1], columns[codes >> 1], turned, ratings.weights)
        idle = np.bincount(codes >> 1, minlength=len(columns)) == 0
        for number in np.unique(block_of[idle]):
            members = columns[idle & (block_of == number)]
            nothing = columns[:0]
            yield binary_line(
                block=int(number), rows=nothing, codes=nothing, weights=NO_WEIGHTS, members=members
            )


def build(side: Broadcast[SideTable] | None, wide: bool, batches: Batches) -> Batches:
    """Join all chunks of a block, and check its counts if the driver has counted the ratings of
    every id.
    """
    dtype = np.int64 if wide else np.int32
    types = {"rows": dtype, "codes": dtype, "weights": np.float32, "members": dtype}
    arrived: dict[int, list[tuple[NDArray, ...]]] = {}
    for batch in batches:
        for i in range(batch.num_rows):
            cells = tuple(cell_array(batch.column(name)[i], kind) for name, kind in types.items())
            arrived.setdefault(batch.column("block")[i].as_py(), []).append(cells)
    for number, parts in arrived.items():
        rows, codes, weights, idle = (np.concatenate(part) for part in zip(*parts, strict=True))
        members = distinct(np.concatenate([rows, idle]))
        columns = distinct(codes >> 1)
        ratings = RatingBlock.from_coordinates(
            positions(members, rows),
            positions(columns, codes >> 1),
            codes & 1 == 1,
            (len(members), len(columns)),
            weights if len(weights) else None,
        )
        if side is not None:
            counts = side.value.counts[members]
            positives = side.value.positives[members]
            if not (
                np.array_equal(ratings.row_counts, counts)
                and np.array_equal(ratings.row_positives, positives)
            ):
                raise ratings_changed("a row does not have the ratings that were counted")
        yield _block(number, members, columns, ratings)


def choose(splits: Sequence[Split], batches: Batches) -> Batches:
    """The ratings of row blocks that the splits choose.

    All rows stay, and the columns that still have ratings.
    """
    for block in read_blocks(batches):
        ratings = part_of(splits, block)
        kept = distinct(ratings.codes >> 1)
        codes = positions(kept, ratings.codes >> 1) << 1 | ratings.codes & 1
        ratings = RatingBlock(
            ratings.row_pointers, codes.astype(np.int32), len(kept), ratings.weights
        )
        yield _block(block.number, block.rows, block.columns[kept], ratings)


def taken(split: Split, batches: Batches) -> Batches:
    """The ratings of row blocks that a split chooses, with their own rows and columns alone."""
    for block in read_blocks(batches):
        ratings, rows, columns = split.part_of(block.ratings, block.rows, block.columns).compacted()
        yield _block(block.number, block.rows[rows], block.columns[columns], ratings)


def gathered(batches: Batches) -> tuple[RatingBlock, dict[Side, NDArray[np.int64]]]:
    """Blocks of rows as one, and the numbers of its rows and columns."""
    cells = [
        {name: batch.column(name)[i] for name in batch.schema.names}
        for batch in batches
        for i in range(len(batch))
    ]
    rows, columns = ([read_ascending(cell[name]) for cell in cells] for name in ("rows", "columns"))
    numbers: dict[Side, NDArray[np.int64]] = {
        "rows": np.sort(np.concatenate(rows)),
        "cols": distinct(np.concatenate(columns)),
    }
    places = list[NDArray[np.int32]]()
    codes = list[NDArray[np.int32]]()
    for cell, here, there in zip(cells, rows, columns, strict=True):
        own = cell_array(cell["codes"], np.int32)
        counts = np.diff(cell_array(cell["pointers"], np.int64))
        places.append(np.repeat(positions(numbers["rows"], here).astype(np.int32), counts))
        codes.append(positions(numbers["cols"], there).astype(np.int32)[own >> 1] << 1 | own & 1)
    weights = np.concatenate([cell_array(cell["weights"], np.float32) for cell in cells])
    shape = len(numbers["rows"]), len(numbers["cols"])
    joint = np.concatenate(places), np.concatenate(codes)
    return RatingBlock.from_codes(*joint, shape, weights if len(weights) else None), numbers


def _block(
    number: int, rows: NDArray[np.int64], columns: NDArray[np.int64], ratings: RatingBlock
) -> pa.RecordBatch:
    return binary_line(
        block=number,
        rows=ascending_cell(rows),
        columns=ascending_cell(columns),
        pointers=ratings.row_pointers,
        codes=ratings.codes,
        weights=NO_WEIGHTS if ratings.weights is None else ratings.weights,
        n=ratings.n_ratings,
        checksum=_checksum(rows, columns, ratings),
        **asdict(repeats_of(ratings)),
    )


def _index(ids: pa.Array, side: SideTable) -> NDArray[np.int32]:
    numbers = side.index.find(ids)
    missing = np.flatnonzero(numbers < 0)
    if len(missing):
        raise ratings_changed(
            f"id {ids[int(missing[0])]} was not there when the ratings were counted"
        )
    return numbers


def chunks(
    blocks: NDArray[np.int32],
    rows: Numbers,
    codes: Numbers,
    weights: NDArray[np.float32] | None = None,
) -> Batches:
    if len(rows) == 0:
        return
    # On narrow integers numpy sorts by radix.
    order = np.argsort(blocks.astype(np.min_scalar_type(int(blocks.max()))), kind="stable")
    ends = np.cumsum(np.bincount(blocks))
    for block, (lo, hi) in enumerate(pairwise([0, *ends.tolist()])):
        if lo < hi:
            here = order[lo:hi]
            some = NO_WEIGHTS if weights is None or not len(weights) else weights[here]
            yield binary_line(
                block=block, rows=rows[here], codes=codes[here], weights=some, members=rows[:0]
            )


def _checksum(rows: NDArray[np.int64], columns: NDArray[np.int64], ratings: RatingBlock) -> int:
    """The sum over ratings of a hash of (row, column, label, weight).

    It does not depend on their order.
    """
    row = np.repeat(rows.astype(np.uint64), ratings.row_counts)
    code = columns.astype(np.uint64)[ratings.codes >> 1] << np.uint64(1) | (
        ratings.codes & 1
    ).astype(np.uint64)
    with np.errstate(over="ignore"):
        x = row * np.uint64(0x9E3779B97F4A7C15) ^ code
        if ratings.weights is not None:
            x = (x ^ (x >> np.uint64(32))) * np.uint64(0x94D049BB133111EB) + ratings.weights.view(
                np.uint32
            )
        x = (x ^ (x >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9)
        return int(np.sum(x ^ (x >> np.uint64(29)), dtype=np.uint64).astype(np.int64))


def ratings_changed(detail: str) -> FitFailed:
    return not_deterministic(f"the source of the ratings changed while it was read: {detail}")


# ---- routes of rows between blocks -------------------------------------------------------------

ROUTED = schema_of(
    f"key int, {BLOCK_CELLS}, routes binary, ends binary, row_weights binary, rated long"
)


def routed(
    make: Callable[[Batches], Batches],
    keys: NDArray[np.int32],
    there: Placement | None,
    batches: Batches,
) -> Batches:
    """Add to each block its key, the rows that each block of the other side needs, and sums of
    weights.

    ``there`` is None if nothing is sent from here.
    """
    for batch in make(batches):
        block = read_block({name: batch.column(name)[0] for name in batch.schema.names})
        routes, ends = (
            (np.empty(0, np.int32), np.zeros(1, np.int64))
            if there is None
            else routes_of(block, there)
        )
        rated = np.count_nonzero(block.ratings.row_counts)
        key = pa.array([keys[block.number]], pa.int32())
        # Without weights, the sums are the differences of the pointers.
        sums = np.empty(0) if block.ratings.weights is None else block.ratings.row_weights
        extra = binary_line(routes=routes, ends=ends, row_weights=sums, rated=rated)
        names = ["key", *batch.schema.names, *extra.schema.names]
        yield pa.RecordBatch.from_arrays([key, *batch.columns, *extra.columns], names=names)


def routes_of(block: PlacedBlock, there: Placement) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """(routes, ends): block t of the other side refers to the rows at the positions routes[ends[t]
    : ends[t + 1]].
    """
    target = there.of(block.columns)[block.ratings.codes >> 1].astype(np.int64)
    row = np.repeat(np.arange(block.ratings.n_rows), block.ratings.row_counts)
    pairs = np.unique(target * max(1, block.ratings.n_rows) + row)
    target, row = np.divmod(pairs, max(1, block.ratings.n_rows))
    return row.astype(np.int32), np.searchsorted(target, np.arange(there.n_blocks + 1))


# ---- both orientations -------------------------------------------------------------------------

ROUTES = ("routes", "ends", "row_weights")  # columns that only ``spark_runner.send_rows`` reads


@dataclass(frozen=True)
class SidePlan:
    placement: Placement  # the block of each row
    n_rows: int  # number of rows
    n_tasks: int  # Number of partitions. Block b is in partition b mod ``n_tasks``.
    held: bool  # whether the driver holds the tables of this side
    ids: Broadcast[SideTable] | None = (
        None  # against which the blocks are checked, if the driver holds the ids
    )
    rows: CountedRows | None = None  # the counts of all rows, if the driver knows them


@dataclass(frozen=True)
class BlockedSide:
    # The cached blocks, a few in a partition. If tables are stored: with the routes to the blocks
    # of the other side, and where Spark's hash partitioning sends their keys.
    blocks: DataFrame
    plan: SidePlan  # how the rows are divided
    keys: NDArray[np.int32]  # key of each block
    checksums: dict[int, tuple[int, int]]  # key ─► (ratings, checksum)
    n_rated: int  # rows with ratings
    repeats: Repeats  # cells that were rated more than once

    @property
    def n_ratings(self) -> int:
        return sum(n for n, _ in self.checksums.values())

    @property
    def ratings(self) -> DataFrame:
        return self.blocks.drop(*ROUTES)

    def sent(self, cells: DataFrame) -> DataFrame:
        """The cells in the partitions of the blocks' keys, so that Spark moves no block to group
        them.
        """
        return cells.repartition(self.plan.n_tasks, "key")

    def in_order(self, parts: Mapping[int, Part]) -> list[Part]:
        """The results of the blocks by block number, so that sums of floats do not depend on the
        order of the tasks.
        """
        return [parts[key] for key in self.keys.tolist() if key in parts]

    @cached_property
    def rows_of(self) -> dict[int, NDArray[np.int64]]:
        rows_of = self.plan.placement.rows_of(self.plan.n_rows)
        return {key: rows_of[block] for block, key in enumerate(self.keys.tolist())}

    @cached_property
    def counted_rows(self) -> CountedRows:
        """All rows with their counts, on the driver: known before, or by a job."""
        if self.plan.rows is not None:
            return self.plan.rows
        return CountedRows(
            np.arange(self.plan.n_rows), self._counts["weights"], self._counts["positives"]
        )

    @property
    def row_counts(self) -> NDArray[np.int64]:
        return np.asarray(
            self._counts["ratings"] if self.plan.rows is None else self.plan.rows.counts, np.int64
        )

    @cached_property
    def _counts(self) -> dict[str, NDArray[Any]]:
        """The number of ratings of every row, and the sums of the weights of all and of the
        positive ones.
        """
        lines = self.blocks.drop(*ROUTES, "key").mapInArrow(count_rows, COUNTS).toArrow()
        totals: dict[str, NDArray[Any]] = {}
        for name, dtype in (
            ("ratings", np.int64),
            ("weights", np.float64),
            ("positives", np.float64),
        ):
            totals[name] = np.zeros(self.plan.n_rows, dtype)
            for rows, cell in zip(lines["rows"], lines[name], strict=True):
                totals[name][read_ascending(rows)] = cell_array(cell, dtype)
        return totals


@dataclass(frozen=True)
class Blocking:
    """Makes both orientations of the ratings, and keeps them until ``release`` is closed."""

    session: SparkSession  # a working session (``frames.working_session``)
    storage: Storage  # where tables are kept
    release: ExitStack  # deletes what was cached
    plans: dict[Side, SidePlan]  # how the rows of each side are divided
    wide: bool = False  # whether 64-bit numbers travel, for more than 2³⁰ rows or columns

    def blocked(self, chunks: DataFrame) -> dict[Side, BlockedSide]:
        """Both orientations from chunks of ratings by blocks of rows."""
        rows, cols = (self.plans[side] for side in SIDES)
        by_row = self._side("rows", _in_tasks(chunks, rows), partial(build, rows.ids, self.wide))
        turned = by_row.blocks.mapInArrow(partial(transpose, cols.placement, self.wide, ()), CHUNKS)
        return {
            "rows": by_row,
            "cols": self._side(
                "cols", _in_tasks(turned, cols), partial(build, cols.ids, self.wide)
            ),
        }

    def chosen(
        self, sides: dict[Side, BlockedSide], splits: Sequence[Split], release: ExitStack
    ) -> dict[Side, BlockedSide]:
        """Both orientations of the ratings that the splits choose.

        Rows keep their numbers and their blocks.

        ``sides`` have all ratings: a column that lost them to an earlier split would be missing in
        its block.
        """
        uncounted = {side: replace(plan, ids=None, rows=None) for side, plan in self.plans.items()}
        part = replace(self, plans=uncounted, release=release)
        cols = self.plans["cols"]
        blocks = sides["rows"].blocks
        turned = blocks.mapInArrow(partial(transpose, cols.placement, self.wide, splits), CHUNKS)
        return {
            "rows": part._side("rows", blocks, partial(choose, splits)),
            "cols": part._side("cols", _in_tasks(turned, cols), partial(build, None, self.wide)),
        }

    def _side(
        self, side: Side, parts: DataFrame, make: Callable[[Batches], Batches]
    ) -> BlockedSide:
        """Build blocks from the partitions of ``parts``, and cache them.

        If tables will be joined with them, they are cached by key, with the routes of their rows
        unless the driver holds the tables of this side. On Spark Connect a plan cannot be
        truncated, and every job would carry it along, so the blocks are stored first.
        """
        here = self.plans[side]
        there = self.plans[OTHER[side]]
        is_joined = not (here.held and there.held)
        n_blocks = here.placement.n_blocks
        n_tasks = here.n_tasks
        keys = partition_keys(n_tasks, -(-n_blocks // n_tasks))[:n_blocks]
        built = parts.mapInArrow(
            partial(routed, make, keys, None if here.held else there.placement), ROUTED
        )
        with worker_errors():
            if is_connect(self.session):
                built, delete = self.storage.keep(built, ROUTED)
                self.release.callback(delete)
            if is_joined:
                built = built.repartition(n_tasks, "key")
            blocks = cached(built, self.release, StorageLevel.DISK_ONLY)
            lines = blocks.select("key", "n", "checksum", "rated", *REPEATS).toArrow().to_pylist()
        if not is_joined:
            # A truncated plan has lost its partitioning
            blocks = truncate_plan(blocks, self.session)
        checksums = {line["key"]: (line["n"], line["checksum"]) for line in lines}
        rated, *repeated = (sum(line[name] for line in lines) for name in ("rated", *REPEATS))
        return BlockedSide(blocks, here, keys, checksums, rated, Repeats(*repeated))


def _in_tasks(chunks: DataFrame, plan: SidePlan) -> DataFrame:
    return in_partitions(chunks, plan.n_tasks, F.col("block") % plan.n_tasks)


# ---- ids that a distributed sort numbers -------------------------------------------------------


WIDE = 2**30  # from so many rows or columns on, a number with a label bit needs more than 32 bits
RETURNED_LINES = 2_000_000  # numbers that are sorted by bundle at once
BUNDLE_PLACE = StructType().add("bundle", LongType()).add("place", IntegerType())
RETURNED = schema_of("bundle long, side int, places binary, numbers binary")


@dataclass(frozen=True)
class NumberedIds:
    # ``id``, ``number`` (its position in ascending order) and ``n`` (its ratings), one line per id
    frame: DataFrame
    n_rows: int  # number of ids

    @cached_property
    def values(self) -> pa.Array:
        table = self.frame.select("id", "number").toArrow().sort_by("number")
        return in_utc(one_array(table["id"]))


def number_ids(survey: RatingSurvey, release: ExitStack) -> dict[Side, NumberedIds]:
    """Sort the ids of both sides.

    A number is the position in the partition plus the sizes of those before it.
    """
    # With the partitions of the user, for large joins with the ids
    join_session = survey.grouped.sparkSession
    session = working_session(join_session)
    n_parts = PARTS_PER_CORE * parallelism(session)
    order = ("side", USER, ITEM)
    grouped = truncate_plan(survey.grouped, session)
    ordered = cached(
        grouped.repartitionByRange(n_parts, *order).sortWithinPartitions(*order), release
    )
    lines = truncate_plan(ordered)
    part = F.spark_partition_id()
    counts = lines.groupBy("side", part.alias("part")).count().collect()
    numbered: dict[Side, NumberedIds] = {}
    for side, column in zip(SIDES, (USER, ITEM), strict=True):
        number_of_side = SIDE_NUMBERS[column]
        sizes = np.zeros(n_parts, np.int64)
        for line in counts:
            if line["side"] == number_of_side:
                sizes[line["part"]] = line["count"]
        offset = F.element_at(
            F.array(*(F.lit(int(start)) for start in np.cumsum(sizes) - sizes)), part + 1
        )
        # The other bits are the number of the partition.
        place_in_part = F.monotonically_increasing_id().bitwiseAND(F.lit((1 << 33) - 1))
        number = (offset + place_in_part).cast("long").alias("number")
        frame = lines.where(F.col("side") == number_of_side).select(
            F.col(column).alias("id"), number, "n"
        )
        numbered[side] = NumberedIds(
            truncate_plan(cached(frame, release), join_session), int(sizes.sum())
        )
    return numbered


def placement_of(ids: NumberedIds, n: int, n_blocks: int) -> Placement:
    many = (
        ids.frame.where(F.col("n") > n / (HEAVY * n_blocks))
        .select("number", "n")
        .toArrow()
        .sort_by("number")
    )
    return placement_by_counts(many["number"].to_numpy(), many["n"].to_numpy(), n, n_blocks)


def encoded(
    packed: PackedRatings, ids: dict[Side, NumberedIds], placement: Placement, wide: bool
) -> DataFrame:
    """The packed ratings under the numbers of their ids, in chunks for the blocks of rows.

    The ids of every bundle are joined with the numbers, not the ratings. The numbers return to
    their bundle as arrays, and so do the bundles: 8 bytes for each rating.
    """
    session = packed.cached.sparkSession  # it sends many short rows to Python
    n_parts = PARTS_PER_CORE * parallelism(session)
    join_session = working_session(session)
    numbers = []
    for number, side in enumerate(SIDES):
        known = ids[side].frame.select("id", "number")
        kind = StructType([*BUNDLE_PLACE.fields, known.schema["id"]])
        places = truncate_plan(
            packed.bundles.select(*BUNDLES).mapInArrow(partial(_places, number), kind), join_session
        )
        known = truncate_plan(known, join_session).repartition(n_parts, "id")
        joined = (
            places.repartition(n_parts, "id").join(known, "id").select("bundle", "place", "number")
        )
        numbers.append(joined.mapInArrow(partial(_returned, number), RETURNED))
    bundles = packed.bundles.select(*BUNDLES)
    returned = truncate_plan(numbers[0].unionAll(numbers[1]), bundles.sparkSession)
    bundles, returned = (frame.repartition(n_parts, "bundle") for frame in (bundles, returned))
    return cogrouped(bundles, returned, "bundle", partial(_encode_numbers, placement, wide), CHUNKS)


def _places(side: int, batches: Batches) -> Batches:
    """The ids of one side (0 users, 1 items) in every bundle, with their places."""
    for bundle in read_bundles(batches):
        ids = (bundle.user_ids, bundle.item_ids)[side]
        places = pa.array(np.arange(len(ids), dtype=np.int32))
        bundles = pa.array(np.full(len(ids), bundle.number))
        yield pa.RecordBatch.from_arrays([bundles, places, ids], names=["bundle", "place", "id"])


def _returned(side: int, batches: Batches) -> Batches:
    """(bundle, place, number) in any order into arrays, one line for each bundle that occurs."""
    for table in joined(batches, pa.RecordBatch.__len__, RETURNED_LINES):
        bundles, places, numbers = (
            table[name].to_numpy() for name in ("bundle", "place", "number")
        )
        order = np.argsort(bundles, kind="stable")
        starts = np.flatnonzero(np.diff(bundles[order], prepend=-1))
        for here in np.split(order, starts[1:]):
            yield binary_line(
                bundle=bundles[here[0]], side=side, places=places[here], numbers=numbers[here]
            )


def _encode_numbers(
    placement: Placement, wide: bool, bundles: pa.Table, numbers: pa.Table
) -> pa.Table:
    (bundle,) = read_bundles(iter(bundles.to_batches()))
    ids = (bundle.user_ids, bundle.item_ids)
    rows, codes = numbered(
        bundle, *(_numbers_of(numbers, side, ids[side], wide) for side in (0, 1))
    )
    return pa.Table.from_batches(chunks(placement.of(rows), rows, codes, bundle.weights))


def _numbers_of(lines: pa.Table, side: int, ids: pa.Array, wide: bool) -> Numbers:
    """The numbers of a bundle's ids of one side, by their places.

    If the bundle was lost in between and packed again, its ids may stand at other places. So the
    numbers must ascend with the ids.
    """
    numbers: Numbers = np.full(len(ids), -1, np.int64 if wide else np.int32)
    for i, which in enumerate(lines["side"].to_pylist()):
        places = cell_array(lines["places"][i], np.int32)
        if which == side and len(places):
            if places.max() >= len(numbers):
                raise ratings_changed("a part of it has fewer ids than before")
            numbers[places] = cell_array(lines["numbers"][i], np.int64)
    ascending = ids.take(pa.array(np.argsort(numbers)))
    if numbers.min() < 0 or not pc.all(pc.less(ascending[:-1], ascending[1:]), min_count=0).as_py():
        raise ratings_changed("a part of it has other ids than before")
    return numbers
