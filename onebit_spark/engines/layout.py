"""Which rows live in which block: heavy rows placed one by one, the others by hash."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

RATINGS_PER_BLOCK = 4_000_000  # 16 MB of codes a block, far below the 256 MB that a block may have


@dataclass(frozen=True)
class SideLayout:
    """The blocks of one side: ``block_of[i]`` is the block of row i."""

    block_of: NDArray[np.int32]
    n_blocks: int

    @cached_property
    def rows_of(self) -> list[NDArray[np.int64]]:
        """The rows of every block, ascending."""
        order = np.argsort(self.block_of, kind="stable")
        edges = np.searchsorted(self.block_of[order], np.arange(self.n_blocks + 1))
        return [order[edges[b] : edges[b + 1]] for b in range(self.n_blocks)]


def side_layout(counts: NDArray[np.int64], n_blocks: int) -> SideLayout:
    """Rows with more than n/(4P) ratings go to the lightest block in turn, heaviest first; the rest by hash.

    So a few rows that hold most ratings do not meet in one block, and the placement needs no table of the others.
    """
    index = np.arange(len(counts), dtype=np.uint64)
    mixed = (index + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    block_of = ((mixed >> np.uint64(32)) % np.uint64(n_blocks)).astype(np.int32)
    heavy = np.flatnonzero(counts > counts.sum() / (4 * n_blocks))
    light = np.setdiff1d(np.arange(len(counts)), heavy, assume_unique=True)
    load = np.bincount(block_of[light], weights=counts[light], minlength=n_blocks)
    queue = [(weight, block) for block, weight in enumerate(load.tolist())]
    heapq.heapify(queue)
    for row in heavy[np.argsort(-counts[heavy], kind="stable")]:
        weight, block = heapq.heappop(queue)
        block_of[row] = block
        heapq.heappush(queue, (weight + float(counts[row]), block))
    return SideLayout(block_of, n_blocks)


def default_blocks(n_ratings: int, n_rows: int, cores: int) -> int:
    """One block a core, more where that would make blocks larger than 4 million ratings, never more than rows."""
    return max(1, min(n_rows, max(cores, -(-n_ratings // RATINGS_PER_BLOCK))))
