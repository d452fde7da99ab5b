"""ThreadEngine: the engine on the cores of this machine. All ratings are one block."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Self

import numpy as np

from onebit_spark.core.blocks import RatingBlock, Repeats, repeats_of
from onebit_spark.core.fit_state import FitState
from onebit_spark.core.losses import OTHER, SIDES, Side
from onebit_spark.core.posterior import RowPosterior
from onebit_spark.core.randomness import Split
from onebit_spark.core.work import BlockWork, Own, PlacedBlock, Rows, RowTransform, Sums
from onebit_spark.engines.base import Engine, Numbers
from onebit_spark.engines.block_engine import BlockEngine
from onebit_spark.engines.blocks import Table
from onebit_spark.engines.layout import RowLayout, Sending
from onebit_spark.settings import FitConfig, available_cores


class ThreadEngine(BlockEngine[RowPosterior]):
    """Both orientations of the ratings (8 bytes per rating, 16 with weights), in memory.

    A table is the rows themselves. Compiled kernels release the interpreter lock, so plain threads
    share the work: ranges of rows, cut by the ratings alone, whose sums are added in order. Any
    number of threads gives the same bits.
    """

    def __init__(
        self,
        ratings: RatingBlock,
        threads: int | None = None,
        numbers: dict[Side, Numbers] | None = None,
    ) -> None:
        self.ratings: dict[Side, RatingBlock] = {"rows": ratings, "cols": ratings.transpose()}
        self.n_ratings = ratings.n_ratings
        self.weighted = ratings.weights is not None
        self.total_weight = float(ratings.row_weights.sum())
        self.threads = threads or available_cores()
        self.numbers: dict[Side, Numbers] | None = numbers
        if numbers is None:
            self.numbers = {side: np.arange(block.n_rows) for side, block in self.ratings.items()}
        self._pool: ThreadPoolExecutor | None = None
        self._left_out: dict[Side, dict[Split, RatingBlock]] = {side: {} for side in SIDES}

    def _block(self, side: Side) -> PlacedBlock:
        """A new object for every step: one that is kept would form a reference cycle."""
        return PlacedBlock(
            number=0,
            rows=self._numbers[side],
            columns=self._numbers[OTHER[side]],
            ratings=self.ratings[side],
            pool=None if self.threads == 1 else self._pool,
            left_out=self._left_out[side],
        )

    @property
    def _numbers(self) -> dict[Side, Numbers]:
        assert self.numbers is not None
        return self.numbers

    # ---- the ratings ----------------------------------------------------------------------------

    @property
    def positives(self) -> int:
        return int(self.ratings["rows"].row_positives.sum())

    @property
    def repeats(self) -> Repeats:
        return repeats_of(self.ratings["rows"])

    def n_rows(self, side: Side) -> int:
        return self.ratings[side].n_rows

    def count(self, side: Side) -> int:
        return int(np.count_nonzero(self.counts(side)))

    def counts(self, side: Side) -> Numbers:
        return self.ratings[side].row_counts

    # ---- the length of a fit --------------------------------------------------------------------

    @contextmanager
    def running(self) -> Iterator[Self]:
        """Keep the threads alive for the length of a fit."""
        with ThreadPoolExecutor(self.threads) as self._pool:
            yield self
        self._pool = None

    @contextmanager
    def restricted(self, split: Split) -> Iterator[ThreadEngine]:
        """An engine on the ratings that the split chooses.

        Both share tables, unless it is a slice: see ``place``.
        """
        numbers = self._numbers
        part = split.part_of(self.ratings["rows"], numbers["rows"], numbers["cols"])
        if split.by in SIDES:
            part, rows, cols = part.compacted()
            numbers = {"rows": numbers["rows"][rows], "cols": numbers["cols"][cols]}
        with ThreadEngine(part, self.threads, numbers).running() as engine:
            yield engine

    def described(self, what: str) -> AbstractContextManager[None]:
        return nullcontext()

    def shortage(self, config: FitConfig) -> str | None:
        return None

    # ---- tables ---------------------------------------------------------------------------------

    def table(self, side: Side, rows: RowPosterior) -> RowPosterior:
        return rows

    def rows_here(self, table: RowPosterior) -> RowPosterior:
        return table

    def take(self, side: Side, table: RowPosterior, numbers: Numbers) -> RowPosterior:
        return table.take(np.searchsorted(self._numbers[side], numbers))

    def place(
        self,
        side: Side,
        rows: RowPosterior,
        numbers: Numbers,
        prior: RowPosterior,
    ) -> RowPosterior:
        places = np.searchsorted(self._numbers[side], numbers)
        return rows.among(prior, self.n_rows(side), places)

    # ---- work -----------------------------------------------------------------------------------

    def is_held(self, side: Side) -> bool:
        return True

    def run(
        self,
        side: Side,
        work: BlockWork,
        own: Own,
        layout: RowLayout,
        others: Rows | None = None,
        send: Sending | None = None,
    ) -> tuple[Table, list[Sums]]:
        rows, sums = work.on_block(self._block(side), own, others)
        return rows, [sums]

    def total(
        self,
        side: Side,
        work: BlockWork,
        own: Own,
        others: Rows | None = None,
    ) -> list[Sums]:
        return [work.on_block(self._block(side), own, others)[1]]

    def apply(self, side: Side, table: RowPosterior, by: RowTransform) -> RowPosterior:
        """Map the rows in place, with all threads."""
        self._block(side).over_rows(partial(by.apply_to, table), reads_ratings=False)
        return table


def _is_engine(engine: ThreadEngine) -> Engine[RowPosterior]:
    return engine  # mypy holds the class to the Protocol


def local_state(ratings: RatingBlock, threads: int | None = None) -> FitState[RowPosterior]:
    """The state of a fit of these ratings in this process."""
    return FitState(ThreadEngine(ratings, threads))
