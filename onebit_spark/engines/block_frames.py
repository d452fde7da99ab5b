"""Blocks of ratings: the placement of rows in blocks, and blocks as lines of a DataFrame.

Rows with many ratings are placed one by one, the others by a hash. The arrays of a block are binary cells, which are
read without a copy.
"""

from __future__ import annotations

import gc
import heapq
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.engine import PlacedBlock
from onebit_spark.errors import FitFailed
from onebit_spark.platform.arrow_stream import Batches
from onebit_spark.platform.binary_cells import cell_array, schema_of
from onebit_spark.platform.plans import JOB_ERRORS, rows_are_lost

RATINGS_PER_BLOCK = 8_000_000  # 32 MB of codes; a task holds a few copies of them
BLOCKS_PER_TASK = 4
HEAVY = 4  # a row with more than n/(4P) ratings is heavy; there are at most 4P of them


@dataclass(frozen=True)
class Placement:
    """The block of any row, from a hash and a short list. Its size does not grow with the number of rows."""

    n_blocks: int  # number of blocks
    heavy: NDArray[np.int64]  # rows that were placed one by one, ascending
    heavy_blocks: NDArray[np.int32]  # their blocks

    def of(self, rows: NDArray[np.integer]) -> NDArray[np.int32]:
        """The block of every row."""
        blocks = _hashed(rows, self.n_blocks)
        if len(self.heavy):
            place = np.minimum(np.searchsorted(self.heavy, rows), len(self.heavy) - 1)
            blocks = np.where(self.heavy[place] == rows, self.heavy_blocks[place], blocks)
        return blocks

    def rows_of(self, n_rows: int) -> list[NDArray[np.int64]]:
        """The rows of every block, ascending."""
        block_of = self.of(np.arange(n_rows))
        order = np.argsort(block_of, kind="stable")
        edges = np.searchsorted(block_of[order], np.arange(self.n_blocks + 1))
        return [order[edges[b] : edges[b + 1]] for b in range(self.n_blocks)]


def placement_by_counts(counts: NDArray[np.int64], n_blocks: int) -> Placement:
    """The placement of rows with these numbers of ratings."""
    rows = np.arange(len(counts))
    heavy = counts > counts.sum() / (HEAVY * n_blocks)
    light_load = block_loads(rows[~heavy], counts[~heavy], n_blocks)
    return place(n_blocks, rows[heavy], counts[heavy], light_load)


def place(
    n_blocks: int, heavy: NDArray[np.int64], counts: NDArray[np.int64], light_load: NDArray[np.int64]
) -> Placement:
    """Place the heavy rows, the heaviest first, each in the block that has the fewest ratings so far.

    ``light_load`` are the ratings that the hash puts into each block. So a few rows with most of the ratings do not
    come into one block, and no table of the other rows is needed.
    """
    queue = [(load, block) for block, load in enumerate(light_load.tolist())]
    heapq.heapify(queue)
    blocks = np.zeros(len(heavy), np.int32)
    for k in np.argsort(-counts, kind="stable"):
        load, block = heapq.heappop(queue)
        blocks[k] = block
        heapq.heappush(queue, (load + int(counts[k]), block))
    return Placement(n_blocks, heavy, blocks)


def block_loads(rows: NDArray[np.int64], counts: NDArray[np.int64], n_blocks: int) -> NDArray[np.int64]:
    """Number of ratings that the hash puts into each block."""
    loads = np.zeros(n_blocks, np.int64)
    np.add.at(loads, _hashed(rows, n_blocks), counts)
    return loads


def default_blocks(n_ratings: int, n_rows: int, cores: int, ratings_per_block: int = RATINGS_PER_BLOCK) -> int:
    """One block per core, or more so that no block exceeds ``ratings_per_block``; at most one per row."""
    return max(1, min(n_rows, max(cores, -(-n_ratings // ratings_per_block))))


def multiple_of(cores: int, n_blocks: int) -> int:
    """At least ``n_blocks``, the same number for each core."""
    return cores * -(-n_blocks // cores)


def default_tasks(n_blocks: int, cores: int) -> int:
    """The same number of tasks for each core, with up to four blocks per task.

    Few tasks with several small blocks need less memory than many tasks. A task holds one block at a time. Spark keeps
    this memory for up to two seconds after the end of the task, because the thread that watches its Python worker
    refers to it. So memory grows with the number of tasks that end within two seconds.
    """
    return min(n_blocks, cores * -(-n_blocks // (BLOCKS_PER_TASK * cores)))


def _hashed(rows: NDArray[np.integer], n_blocks: int) -> NDArray[np.int32]:
    mixed = (rows.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    return ((mixed >> np.uint64(32)) % np.uint64(n_blocks)).astype(np.int32)


# ---- blocks as lines -------------------------------------------------------------------------------------------------

BLOCK_CELLS = (
    "block int, rows binary, columns binary, pointers binary, codes binary, weights binary, "
    "n long, checksum long, repeated_cells long, repeated long, conflicting long"
)
BLOCKS = schema_of(BLOCK_CELLS)
MANY_OBJECTS = 20_000  # that the garbage collector visits in a millisecond
SMALL = 2**26  # up to this number, an array indexed by row number is cheaper than a sort

Numbers = NDArray[np.integer]


def read_blocks(batches: Batches) -> Iterator[PlacedBlock]:
    """The blocks of a task, without copying their ratings."""
    for batch in batches:
        for i in range(batch.num_rows):
            yield read_block({name: batch.column(name)[i] for name in batch.schema.names})


def read_block(cell: dict[str, Any]) -> PlacedBlock:
    # Spark's worker runs ``gc.collect()`` after each task, which takes longer than a small block if it visits every
    # object of every imported package. Frozen objects are still freed by their reference counts.
    if len(gc.get_objects()) > MANY_OBJECTS:
        gc.freeze()
    rows, columns = read_ascending(cell["rows"]), read_ascending(cell["columns"])
    weights = cell_array(cell["weights"], np.float32)
    ratings = RatingBlock(
        cell_array(cell["pointers"], np.int64),
        cell_array(cell["codes"], np.int32),
        len(columns),
        weights if len(weights) else None,
    )
    return PlacedBlock(cell["block"].as_py(), rows, columns, ratings, cell["checksum"].as_py())


def ascending_cell(numbers: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Ascending numbers, stored as the first number and the gaps in the narrowest type: mostly one byte per number.

    A block refers to most rows of the other side. With eight bytes per number they would need as much memory as its
    ratings.
    """
    if len(numbers) == 0:
        return np.empty(0, np.uint8)
    gaps = np.diff(numbers)
    gaps = gaps.astype(np.min_scalar_type(int(gaps.max(initial=0))))
    head = np.array([numbers[0], gaps.itemsize], np.int64)
    return np.concatenate([head.view(np.uint8), gaps.view(np.uint8)])


def read_ascending(cell: Any) -> NDArray[np.int64]:
    """The numbers of an ``ascending_cell``."""
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
    """The different numbers, ascending."""
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


# ---- faults ----------------------------------------------------------------------------------------------------------

_RAISED = re.compile(r"onebit_spark\.errors\.FitFailed: (.+)")


@contextmanager
def worker_errors() -> Iterator[None]:
    """Raise a FitFailed of a worker, or the loss of a table with its executor, as a FitFailed of the driver.

    Spark reports both only as a traceback in a message.
    """
    try:
        yield
    except JOB_ERRORS as error:
        if rows_are_lost(error):
            raise FitFailed(
                "an executor was lost, and factors with it: fit again, with checkpointDir in a folder that all "
                "executors can reach"
            ) from None
        raised = _RAISED.search(str(error))
        if raised is None:
            raise
        raise FitFailed(raised.group(1)) from None
