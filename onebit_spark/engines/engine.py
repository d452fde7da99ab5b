"""BlockEngine: the one engine. It says which steps run on which tables; a runner says where.

runner                   a side's table                     how a block gets its lines
threads (this process)   arrays                             they are here
GPU (this process)       arrays on the device               they are there
Spark, broadcast         both sides held on the driver      by broadcast
Spark, mixed             one held, one stored               by broadcast; by a join
Spark, shuffle           both stored on the cluster         by a join
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core.config import FitConfig
from onebit_spark.core.draws import Draws, GibbsErrors
from onebit_spark.core.holdout_loss import HoldoutLoss
from onebit_spark.core.implicit_features import CoefStep
from onebit_spark.core.losses import OTHER, SIDES, HalfStep, Loss, PriorLines, RowPrior, Side
from onebit_spark.core.posterior import RowPosterior
from onebit_spark.core.prediction import Histogram, every_so_many
from onebit_spark.core.randomness import Split
from onebit_spark.core.row_map import RowMap
from onebit_spark.core.side_features import SideTables, coded_by_rated, rated_gram
from onebit_spark.core.statistics import SideStatistics
from onebit_spark.engines import steps
from onebit_spark.engines.runner import LineFormat, Runner, ToPartners
from onebit_spark.engines.steps import Step, Sums

T = TypeVar("T")  # a table of a side, as the runner keeps it
Matrix = NDArray[np.float64]

# Of a map that waits. A row is rounded to float32 as it is, and the map makes the square of this of the rounding.
MOST_STRETCH = 30.0


class BlockEngine(Generic[T]):
    """An ``Engine`` (``core.engine``): both posteriors as tables, and the steps that change them.

    Attributes
    ----------
    runner : Runner
        Runs the steps.
    features : dict of Side to SideFeatures
        Side features, on the driver.

    Rows with covariances are not mapped after every iteration. The maps wait, and a half step works on the rows as they
    are, under the prior that these rows have (``HalfStep.before``); only its sums are mapped. This takes nothing per
    row, where the map itself would cost as much as an update.
    """

    def __init__(self, runner: Runner[T]) -> None:
        self.runner = runner
        self.n_ratings = runner.n_ratings
        self.weighted = runner.weighted
        self.total_weight = runner.total_weight
        self.features: SideTables = {}
        self._tables: dict[Side, Any] = {}
        self._maps: dict[Side, RowMap] = {}  # what waits for the rows in the tables
        self._feature_tables: dict[Side, tuple[Any, T]] = {}
        self._data = 0.0  # of the last half step

    def count(self, side: Side) -> int:
        return self.runner.count(side)

    def counts(self, side: Side) -> NDArray[Any]:
        """Number of ratings of every row of the side."""
        return self.runner.counts(side)

    @property
    def posteriors(self) -> dict[Side, Any]:
        """Both posteriors as they stand."""
        self._apply_maps()
        return self._tables

    @posteriors.setter
    def posteriors(self, tables: dict[Side, Any]) -> None:
        self._tables, self._maps = tables, {}

    def start(self, config: FitConfig, loss: Loss) -> None:
        with self.runner.described("start"):
            self.posteriors = self.runner.start(config, loss)

    def shortage(self, config: FitConfig) -> str | None:
        return self.runner.shortage(config)

    def grown(self, config: FitConfig, loss: Loss) -> dict[Side, Any]:
        with self.runner.described("more factors"):
            return self.runner.grown(self.posteriors, config, loss)

    def start_from(self, posteriors: dict[Side, Any]) -> None:
        self.posteriors = {side: posterior.copy() for side, posterior in posteriors.items()}

    def half_step(self, loss: Loss, step: HalfStep[Any]) -> SideStatistics:
        if isinstance(step.prior, PriorLines):
            self._apply_maps()
        side, by = step.side, self._maps.get(step.side)
        if by is not None:
            step = step.before(by)
        own, partners, prior = [self._tables[side]], self._tables[OTHER[side]], step.prior
        if isinstance(prior, PriorLines):
            own.append(prior.lines)
            prior = PriorLines(None)
        if step.feature_coef is not None:
            own.append(self._feature_table(side))
        form, update = own[0].form, steps.Update(loss, step.under(prior))
        with self.runner.described(f"iteration {step.iteration + 1}, {side}"):
            send = ToPartners(partners.form) if form.has_implicit else None
            self._tables[side], sums = self.runner.run(side, update, own, partners, LineFormat.of(form), send)
        statistics = reduce(SideStatistics.__add__, (SideStatistics.from_vector(part, form) for part in sums))
        self._data = statistics.data
        return statistics if by is None else statistics.mapped(by)

    def data_term(self) -> float:
        return self.runner.data_term(self._data)

    def apply(self, maps: dict[Side, RowMap]) -> None:
        self._maps = {side: self._maps[side].then(by) if self._maps else by for side, by in maps.items()}
        kinds = {table.form.kind for table in self._tables.values()}
        if kinds != {"covariance"} or any(by.stretch > MOST_STRETCH for by in self._maps.values()):
            self._apply_maps()

    def _apply_maps(self) -> None:
        for side, by in self._maps.items():
            self._tables[side] = self.runner.mapped(side, self._tables[side], by)
        self._maps = {}

    def move_coef(self, side: Side, step: CoefStep) -> None:
        if not step.matrix.any():
            return
        if self._maps:
            step = step.before(self._maps[side])
        for whose, by in ((side, step.of_residuals), (OTHER[side], step.of_coef)):
            self._tables[whose] = self.runner.mapped(whose, self._tables[whose], by)

    def coef_gram(self, side: Side) -> Matrix:
        posterior = self.posteriors[side]
        if not posterior.form.has_implicit:
            return np.zeros((0, 0))
        size = 3 * posterior.form.rank
        return np.sum(self.runner.row_sums(side, steps.coef_gram, [posterior]), axis=0).reshape(size, size)

    def column_norms(self, side: Side, posterior: Any) -> Matrix:
        return np.sqrt(np.sum(self.runner.row_sums(side, steps.column_squares, [posterior]), axis=0))

    def feature_gram(self, side: Side) -> Matrix | None:
        known = self.features.get(side)
        return None if known is None else rated_gram(known.coded, self.counts(side))

    def posterior(self, side: Side, unseen: RowPrior | None = None, feature_coef: Matrix | None = None) -> Any:
        posterior = self.posteriors[side]
        if unseen is None or self.count(side) == self.runner.n_rows(side):
            return posterior
        own = [posterior] if feature_coef is None else [posterior, self._feature_table(side)]
        fill = steps.FillUnrated(unseen, feature_coef)
        return self.runner.run_rows(side, fill, own, LineFormat.of(posterior.form))

    def combined(self, side: Side, make: Callable[..., RowPosterior], *posteriors: Any) -> Any:
        form = make(*(posterior.form.empty() for posterior in posteriors)).form
        return self.runner.run_rows(side, steps.Combine(make), posteriors, LineFormat.of(form))

    def gibbs_errors(self, draws: Draws) -> GibbsErrors:
        with self.runner.described("certificate"):
            total = self._over_ratings(steps.Draw(draws), self.posteriors)
        return GibbsErrors(*map(int, total))

    def confidences(self, posterior: dict[Side, Any], noise: float) -> Histogram:
        with self.runner.described("confidences"):
            total = self._over_ratings(steps.Confidences(noise, every_so_many(self.n_ratings)), posterior)
        return total.astype(np.int64)

    def holdout_loss(self, loss: str, posterior: dict[Side, Any], split: Split) -> HoldoutLoss:
        with self.runner.described("loss of the last tenth"):
            total = self._over_ratings(steps.MeasureHoldoutLoss(loss, split), posterior)
        return HoldoutLoss.of_sums(total)

    @contextmanager
    def restricted(self, split: Split) -> Iterator[BlockEngine[T]]:
        with self.runner.restricted(split) as runner:
            part = BlockEngine(runner)
            part.features = coded_by_rated(self.features, part.counts)
            yield part

    def _over_ratings(self, step: Step, posterior: dict[Side, Any]) -> Sums:
        rows, cols = (posterior[side] for side in SIDES)
        return np.asarray(np.sum(self.runner.sums("rows", step, [rows], cols), axis=0))

    def _feature_table(self, side: Side) -> T:
        """The side features as a table, made once."""
        coded = self.features[side].coded
        if side not in self._feature_tables or self._feature_tables[side][0] is not coded:
            self._feature_tables[side] = coded, self.runner.table(side, coded)
        return self._feature_tables[side][1]
