"""Which rows are in which block: rows with many ratings are placed one by one, the others by a hash."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RATINGS_PER_BLOCK = 8_000_000  # 32 MB of codes; a task holds a few copies of them, and its partners once per block
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
