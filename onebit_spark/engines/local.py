"""LocalEngine: the map steps on the cores of this machine, without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial, reduce
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core.blocks import RatingBlock, Sums
from onebit_spark.core.confidence import Histogram, count_confidences, every_so_many
from onebit_spark.core.config import FitConfig
from onebit_spark.core.draws import Draws, GibbsErrors, count_errors
from onebit_spark.core.engine import LeftOut, with_prior
from onebit_spark.core.implicit_features import weight_gram
from onebit_spark.core.losses import OTHER, HalfStep, Loss, PriorLines, RowPrior, Side
from onebit_spark.core.machine import available_cores
from onebit_spark.core.posterior import RowPosterior
from onebit_spark.core.row_map import RowMap
from onebit_spark.core.side_features import rated_gram
from onebit_spark.core.side_tables import SideTables, recoded
from onebit_spark.core.split import Split
from onebit_spark.core.statistics import SideStatistics
from onebit_spark.engines.map_step import StartTable, Table, left_out_loss, signed_sums, updated
from onebit_spark.engines.start import start_posteriors

Result = TypeVar("Result")


class LocalEngine:
    """Both orientations of the ratings (8 bytes per rating, 16 with weights) and both posteriors, in memory.

    Compiled kernels release the interpreter lock, so plain threads share the work: ranges of rows, cut by the ratings
    alone, whose sums are added in order. Any number of threads gives the same bits.
    """

    def __init__(self, ratings: RatingBlock, threads: int | None = None) -> None:
        self.blocks: dict[Side, RatingBlock] = {"rows": ratings, "cols": ratings.transpose()}
        self.n_ratings = ratings.n_ratings
        self.features: SideTables = {}
        self.weighted = ratings.weights is not None
        self.total_weight = float(ratings.row_weights.sum())
        self.posteriors: dict[Side, RowPosterior] = {}
        self._ranges = {side: block.row_ranges() for side, block in self.blocks.items()}
        self._threads = threads or available_cores()
        self._pool: ThreadPoolExecutor | None = None

    @contextmanager
    def running(self) -> Iterator[Self]:
        """Keep the threads alive for the length of a fit."""
        with ThreadPoolExecutor(self._threads) as self._pool:
            yield self
        self._pool = None

    def count(self, side: Side) -> int:
        return int(np.count_nonzero(self.counts(side)))

    def start(self, config: FitConfig, loss: Loss) -> None:
        self.posteriors = start_posteriors(self, config, loss)

    def start_from(self, posteriors: dict[Side, RowPosterior]) -> None:
        self.posteriors = {side: posterior.copy() for side, posterior in posteriors.items()}

    def half_step(self, loss: Loss, step: HalfStep[RowPosterior]) -> SideStatistics:
        side = step.side
        if isinstance(step.prior, PriorLines):
            step = step.under(RowPrior.at(step.prior.lines))
        block, rows, over = self.blocks[side], self.posteriors[side], partial(self._over_rows, side)
        known = self.features.get(side)
        features = None if known is None else known.coded
        return updated(loss, block, self.posteriors[OTHER[side]], rows, step, over, features)

    def apply(self, maps: dict[Side, RowMap]) -> None:
        for side, by in maps.items():
            self._over_rows(side, partial(by.apply_to, self.posteriors[side]))

    def weight_gram(self, side: Side) -> Table:
        return weight_gram(self.posteriors[side])

    def feature_gram(self, side: Side) -> Table | None:
        known = self.features.get(side)
        return None if known is None else rated_gram(known.coded, self.counts(side))

    def posterior(
        self, side: Side, unseen: RowPrior | None = None, feature_weights: Table | None = None
    ) -> RowPosterior:
        known = None if feature_weights is None else self.features[side].coded @ feature_weights
        return with_prior(self.posteriors[side], self.counts(side) == 0, unseen, known)

    def combined(self, side: Side, make: Callable[..., RowPosterior], *posteriors: RowPosterior) -> RowPosterior:
        return make(*posteriors)

    def gibbs_errors(self, draws: Draws) -> GibbsErrors:
        block, rows, cols = self.blocks["rows"], self.posteriors["rows"], self.posteriors["cols"]
        numbers = np.arange(block.n_rows)
        parts = self._over_rows("rows", lambda lo, hi: count_errors(block, lo, hi, numbers, rows, cols, draws))
        return GibbsErrors(*map(sum, zip(*parts, strict=True)))

    def confidences(self, posterior: dict[Side, RowPosterior], noise: float) -> Histogram:
        block, rows, cols = self.blocks["rows"], posterior["rows"], posterior["cols"]
        numbers, stride = np.arange(block.n_rows), every_so_many(self.n_ratings)
        parts = self._over_rows(
            "rows", lambda lo, hi: count_confidences(block, lo, hi, numbers, rows, cols, noise, stride)
        )
        return reduce(np.add, parts)

    def left_out_loss(self, loss: str, posterior: dict[Side, RowPosterior], split: Split) -> LeftOut:
        block = self.blocks["rows"]
        return left_out_loss(loss, block, np.arange(block.n_rows), posterior["rows"], posterior["cols"], split)

    @contextmanager
    def restricted(self, split: Split) -> Iterator[LocalEngine]:
        ratings = self.blocks["rows"]
        chosen = split.chosen_of(ratings, np.arange(ratings.n_rows))
        with LocalEngine(chosen, self._threads).running() as engine:
            engine.features = recoded(self.features, engine.counts)
            yield engine

    def counts(self, side: Side) -> NDArray[np.int64]:
        """Number of ratings of every row of the side."""
        return self.blocks[side].row_counts

    # The sign matrix, for the start.

    def row_weights(self, side: Side) -> tuple[Sums, Sums]:
        return self.blocks[side].row_weights, self.blocks[side].row_positive_weights

    def signed_sums(self, side: Side, table: StartTable) -> StartTable:
        block = self.blocks[side]
        sums = np.empty((block.n_rows, table.shape[1]), np.float32)
        self._over_rows(side, lambda lo, hi: signed_sums(block, lo, hi, table, sums))
        return sums

    def _over_rows(self, side: Side, work: Callable[[int, int], Result]) -> list[Result]:
        """``work(lo, hi)`` for every range of the side's rows, results in the order of the rows."""
        ranges = self._ranges[side]
        if self._pool is None or self._threads == 1 or len(ranges) == 1:
            return [work(lo, hi) for lo, hi in ranges]
        return list(self._pool.map(lambda edge: work(*edge), ranges))
