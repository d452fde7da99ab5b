"""ThreadRunner: the steps on the cores of this machine, without Spark. All ratings are one block.

The runners of other exchanges have the same methods. ``layout`` is that of the new table, and ``send`` is what stored
tables of the other side send: both are for Spark. Sums are in the order of the blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import starmap
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core.blocks import RatingBlock, Repeats, repeats_of
from onebit_spark.core.config import FitConfig, available_cores
from onebit_spark.core.engine import Engine, PlacedBlock, RowLayout, Rows, RowStep, RowTransform, Sending, Step, Sums
from onebit_spark.core.losses import OTHER, Side
from onebit_spark.core.posterior import RowPosterior
from onebit_spark.core.randomness import Split
from onebit_spark.core.spectral import CountedRows
from onebit_spark.engines.start import grown_posteriors, start_posteriors

Part = TypeVar("Part")


class ThreadRunner:
    """Both orientations of the ratings (8 bytes per rating, 16 with weights), in memory. A table is an array of rows.

    Compiled kernels release the interpreter lock, so plain threads share the work: ranges of rows, cut by the ratings
    alone, whose sums are added in order. Any number of threads gives the same bits.
    """

    def __init__(self, ratings: RatingBlock, threads: int | None = None) -> None:
        self.ratings: dict[Side, RatingBlock] = {"rows": ratings, "cols": ratings.transpose()}
        self.n_ratings = ratings.n_ratings
        self.weighted = ratings.weights is not None
        self.total_weight = float(ratings.row_weights.sum())
        self.threads = threads or available_cores()
        self._pool: ThreadPoolExecutor | None = None
        self._ranges = {side: block.row_ranges() for side, block in self.ratings.items()}
        self._numbers = {side: np.arange(block.n_rows) for side, block in self.ratings.items()}

    def _block(self, side: Side) -> PlacedBlock:
        """A new object for every step: one that is kept would form a reference cycle with this runner."""
        numbers, in_parallel = self._numbers, partial(self._over_rows, side)
        return PlacedBlock(0, numbers[side], numbers[OTHER[side]], self.ratings[side], in_parallel=in_parallel)

    @contextmanager
    def running(self) -> Iterator[Self]:
        """Keep the threads alive for the length of a fit."""
        with ThreadPoolExecutor(self.threads) as self._pool:
            yield self
        self._pool = None

    def count(self, side: Side) -> int:
        """Number of rows with at least one rating."""
        return int(np.count_nonzero(self.counts(side)))

    def n_rows(self, side: Side) -> int:
        """Number of rows."""
        return self.ratings[side].n_rows

    def counts(self, side: Side) -> NDArray[np.int64]:
        """Number of ratings of every row."""
        return self.ratings[side].row_counts

    def positive_counts(self, side: Side) -> NDArray[np.int64]:
        """Number of positive ratings of every row."""
        return self.ratings[side].row_positives

    @property
    def positives(self) -> int:
        """Number of positive ratings."""
        return int(self.ratings["rows"].row_positives.sum())

    @property
    def repeats(self) -> Repeats:
        """Cells that were rated more than once."""
        return repeats_of(self.ratings["rows"])

    def held_rows(self, side: Side) -> CountedRows:
        """The rows; None if the tables of this side are not in this process."""
        return self._block(side).counted_rows

    def run(
        self, side: Side, step: Step, tables: Sequence[Any], others: Any, layout: RowLayout, send: Sending | None = None
    ) -> tuple[Any, list[Sums]]:
        """The table that a step computes from tables of the side and one of the other side, and its sums."""
        rows, sums = step(self._block(side), list(tables), others)
        return rows, [sums]

    def sums(self, side: Side, step: Step, tables: Sequence[Any], others: Any) -> list[Sums]:
        """The sums of a step alone."""
        return [step(self._block(side), list(tables), others)[1]]

    def run_rows(self, side: Side, step: RowStep, tables: Sequence[Any], layout: RowLayout) -> Any:
        """The table that a step computes without reading ratings."""
        return step(self.held_rows(side), list(tables))[0]

    def row_sums(self, side: Side, step: RowStep, tables: Sequence[Any] = ()) -> list[Sums]:
        """The sums of such a step alone."""
        return [step(self.held_rows(side), list(tables))[1]]

    def table(self, side: Side, rows: Rows) -> Any:
        """A table of rows in this process."""
        return rows

    def lines(self, table: Rows) -> Any:
        """The rows of a table in this process."""
        return table

    def mapped(self, side: Side, table: RowPosterior, by: RowTransform) -> RowPosterior:
        """The table with every row mapped: here in place with all threads, on Spark when a task reads it."""
        self._over_rows(side, partial(by.apply_to, table))
        return table

    # start(config, loss): both posteriors at the start of a fit; grown(posteriors, config, loss): with more factors
    start, grown = start_posteriors, grown_posteriors

    def data_term(self, summed: float) -> float:
        """The data term of the objective after a half step with ``want_data``, whose sums contain ``summed``."""
        return summed

    def shortage(self, config: FitConfig) -> str | None:
        """Why there is no room for a fit with these settings; None if there is, or if that is not known."""
        return None

    @contextmanager
    def restricted(self, split: Split) -> Iterator[ThreadRunner]:
        """A runner on the ratings that the split chooses. Rows keep their numbers, so both runners share tables."""
        rows = self._block("rows")
        with ThreadRunner(split.part_of(rows.ratings, rows.rows), self.threads).running() as runner:
            yield runner

    def described(self, what: str) -> AbstractContextManager[None]:
        """Name the work, for Spark's UI."""
        return nullcontext()

    def _over_rows(self, side: Side, work: Callable[[int, int], Part]) -> list[Part]:
        """``work(lo, hi)`` for every range of the side's rows, results in the order of the rows."""
        ranges = self._ranges[side]
        if self._pool is None or self.threads == 1 or len(ranges) == 1:
            return list(starmap(work, ranges))
        return list(self._pool.map(work, *zip(*ranges, strict=True)))


def local_engine(ratings: RatingBlock, threads: int | None = None) -> Engine[Any]:
    """The engine of this process, on its cores."""
    return Engine(ThreadRunner(ratings, threads))
