"""LocalEngine: the map steps on the cores of this machine, without Spark."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import reduce
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from onebit_spark.blocks import RatingBlock
from onebit_spark.compiled import jit
from onebit_spark.config import FitConfig
from onebit_spark.losses import HalfStep, Loss, Side
from onebit_spark.losses.rowsums import add_signed_rows
from onebit_spark.posterior import RowPosterior
from onebit_spark.spectral import STARTS, Table
from onebit_spark.statistics import SideStatistics

Result = TypeVar("Result")


class LocalEngine:
    """Both orientations of the ratings (8 bytes a rating) and both posteriors, in memory.

    Compiled kernels release the interpreter lock, so plain threads share the work: ranges of rows, cut by the ratings
    alone, whose sums are added in order. Any number of threads gives the same bits.
    """

    def __init__(self, ratings: RatingBlock, threads: int | None = None) -> None:
        self.blocks: dict[Side, RatingBlock] = {"rows": ratings, "cols": ratings.transpose()}
        self.n_ratings = ratings.n_ratings
        self.posteriors: dict[Side, RowPosterior] = {}
        self._ranges = {side: block.row_ranges() for side, block in self.blocks.items()}
        self._threads = threads or available_cores()
        self._pool: ThreadPoolExecutor | None = None

    @contextmanager
    def running(self) -> Iterator[LocalEngine]:
        """Keep the threads alive for the length of a fit."""
        with ThreadPoolExecutor(self._threads) as self._pool:
            yield self
        self._pool = None

    def count(self, side: Side) -> int:
        return int(np.count_nonzero(self.counts(side)))

    def start(self, config: FitConfig, loss: Loss) -> None:
        rows, cols = STARTS[config.start](self, config.rank, config.seed)
        starts: dict[Side, Table] = {"rows": rows, "cols": cols}
        for side, factors in starts.items():
            if config.intercepts:
                factors = np.insert(factors * loss.start_shrinkage, 0, 0.0, axis=1)
            location = factors.astype(config.precision)
            self.posteriors[side] = RowPosterior.isotropic(location, loss.start_deviation, loss.kind, config.intercepts)

    def half_step(self, loss: Loss, step: HalfStep) -> SideStatistics:
        side = step.side
        block, rows = self.blocks[side], self.posteriors[side]
        partners = loss.partners(self.posteriors["cols" if side == "rows" else "rows"])
        active = self.counts(side) > 0

        def update(lo: int, hi: int) -> SideStatistics:
            old = rows.location[lo:hi].copy()
            sums = loss.update_rows(block, lo, hi, partners, rows, step)
            return SideStatistics.of_rows(old, rows.take(slice(lo, hi)), step.prior.rows(lo, hi), active[lo:hi], sums)

        return reduce(SideStatistics.__add__, self._over_rows(side, update))

    # The sign matrix, for the start.

    def counts(self, side: Side) -> NDArray[np.int64]:
        return self.blocks[side].row_counts

    def positives(self, side: Side) -> NDArray[np.int64]:
        return self.blocks[side].row_positives

    def signed_sums(self, side: Side, table: Table) -> Table:
        block = self.blocks[side]
        table = np.ascontiguousarray(table)
        sums = np.zeros((block.n_rows, table.shape[1]))
        self._over_rows(side, lambda lo, hi: _signed_sums(block.row_pointers, block.codes, lo, hi, table, sums))
        return sums

    def mean_absolute_score(self, rows: Table, cols: Table) -> float:
        block = self.blocks["rows"]
        rows, cols = np.ascontiguousarray(rows), np.ascontiguousarray(cols)
        sums = self._over_rows(
            "rows", lambda lo, hi: _absolute_scores(block.row_pointers, block.codes, lo, hi, rows, cols)
        )
        return sum(sums) / self.n_ratings

    def _over_rows(self, side: Side, work: Callable[[int, int], Result]) -> list[Result]:
        """``work(lo, hi)`` for every range of the side's rows, results in the order of the rows."""
        ranges = self._ranges[side]
        if self._pool is None or self._threads == 1 or len(ranges) == 1:
            return [work(lo, hi) for lo, hi in ranges]
        return list(self._pool.map(lambda edge: work(*edge), ranges))


def available_cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@jit
def _signed_sums(pointers, codes, first, last, table, out):  # type: ignore[no-untyped-def]
    for i in range(first, last):
        add_signed_rows(table, codes, pointers[i], pointers[i + 1], out[i])


@jit
def _absolute_scores(pointers, codes, first, last, rows, cols):  # type: ignore[no-untyped-def]
    total = 0.0
    for i in range(first, last):
        for l in range(pointers[i], pointers[i + 1]):
            u = 0.0
            for k in range(rows.shape[1]):
                u += rows[i, k] * cols[codes[l] >> 1, k]
            total += abs(u)
    return total
