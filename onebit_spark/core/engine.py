"""Engine: both posteriors of a fit, and the steps that change them. A runner determines where the steps run.

runner                   the tables of the two sides        how a block gets their rows
threads (this process)   arrays                             they are in memory
GPU (this process)       arrays on the device               they are on the device
Spark, broadcast         both held on the driver            by broadcast
Spark, mixed             one held, one stored               by broadcast, and by a join
Spark, shuffle           both stored on the cluster         by a join
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from typing import Any, Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core import steps
from onebit_spark.core.blocks import Repeats
from onebit_spark.core.config import FitConfig
from onebit_spark.core.hyper_posterior import HyperPosterior
from onebit_spark.core.implicit_features import CoefStep
from onebit_spark.core.losses import OTHER, SIDES, HalfStep, Loss, PriorLines, RowPrior, Side
from onebit_spark.core.posterior import RowMap, RowPosterior
from onebit_spark.core.prediction import ENOUGH, Histogram, HoldoutLoss
from onebit_spark.core.randomness import Draws, GibbsErrors, Split
from onebit_spark.core.side_features import SideTables, coded_by_rated, rated_gram
from onebit_spark.core.statistics import SideStatistics
from onebit_spark.core.steps import RowLayout, Step, Sums

P = TypeVar("P")  # the posterior of a side, as the runner keeps it: a RowPosterior, or a table of Spark
Matrix = NDArray[np.float64]

# The largest stretch of a pending map. Rows are rounded to float32 before they are mapped, and the map amplifies this
# rounding by the square of its stretch.
MOST_STRETCH = 30.0


class Engine(Generic[P]):
    """Both posteriors as tables, and the map steps that change them.

    Attributes
    ----------
    runner : ThreadRunner, CudaRunner or SparkRunner
        Keeps the ratings in blocks of both orientations, and runs the steps on them. All runners have the methods of
        ``threads.ThreadRunner``.
    ids : dict of Side to ids
        The ids of the rows, if they have any, in the type of the caller.
    n_ratings : int
        Number of ratings.
    weighted : bool
        Whether the ratings have weights.
    total_weight : float
        The sum of the weights; n without weights.
    features : dict of Side to SideFeatures
        Side features, on the driver.

    The gauge maps all rows after every iteration, which would cost as much as an update where they have covariances. So
    these maps stay pending: a half step works on unmapped rows under the unmapped prior (``HalfStep.before``), and only
    its sums are mapped (docs/MATH.md, §7.2).
    """

    def __init__(self, runner: Any, ids: dict[Side, Any] | None = None) -> None:
        self.runner = runner
        self.ids = ids or {}
        self.n_ratings: int = runner.n_ratings
        self.weighted: bool = runner.weighted
        self.total_weight: float = runner.total_weight
        self.features: SideTables = {}
        self._tables: dict[Side, Any] = {}
        self._maps: dict[Side, RowMap] = {}  # pending maps of the rows in the tables
        self._feature_tables: dict[Side, tuple[Any, Any]] = {}
        self._data = 0.0  # the data term of the last half step

    @contextmanager
    def running(self) -> Iterator[Self]:
        """The engine for the length of a fit in this process: its threads, or the buffers of its GPU, are kept."""
        with self.runner.running():
            yield self

    @property
    def positives(self) -> int:
        """Number of positive ratings, in this process."""
        return int(self.runner.positives)

    @property
    def repeats(self) -> Repeats:
        """Cells that were rated more than once."""
        return self.runner.repeats

    def count(self, side: Side) -> int:
        """Number of rows of the side with at least one rating."""
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
        """Set both posteriors to the start."""
        with self.runner.described("start"):
            self.posteriors = self.runner.start(config, loss)

    def start_from(self, posteriors: dict[Side, P]) -> None:
        """Set both posteriors to results of ``posterior`` or ``combined``."""
        self.posteriors = {side: posterior.copy() for side, posterior in posteriors.items()}  # type: ignore[attr-defined]

    def shortage(self, config: FitConfig) -> str | None:
        """Why there is no room for a fit with these settings; None if there is."""
        return self.runner.shortage(config)

    def grown(self, config: FitConfig, loss: Loss) -> dict[Side, P]:
        """Both posteriors with more factors, as many as ``config`` says: the leading directions of the residuals."""
        with self.runner.described("more factors"):
            return self.runner.grown(self.posteriors, config, loss)

    def half_step(self, loss: Loss, step: HalfStep[Any]) -> SideStatistics:
        """Update the posterior of ``step.side`` given the other side's."""
        if isinstance(step.prior, PriorLines):
            self._apply_maps()
        side, by = step.side, self._maps.get(step.side)
        if by is not None:
            step = step.before(by)
        tables, others, prior = [self._tables[side]], self._tables[OTHER[side]], step.prior
        if isinstance(prior, PriorLines):
            tables.append(prior.lines)
            prior = PriorLines(None)
        if step.feature_coef is not None:
            tables.append(self._feature_table(side))
        form, update = tables[0].form, steps.Update(loss, step.under(prior))
        with self.runner.described(f"iteration {step.iteration + 1}, {side}"):
            send = steps.implicit_sent(others.form) if form.vectors else None
            self._tables[side], sums = self.runner.run(side, update, tables, others, RowLayout.of(form), send)
        statistics = reduce(SideStatistics.__add__, (SideStatistics.from_vector(part, form) for part in sums))
        self._data = statistics.data
        return statistics if by is None else statistics.mapped(by)

    def data_term(self) -> float:
        """The data term of the objective, after the last half step and the step of the implicit coefficients."""
        return self.runner.data_term(self._data)

    def apply(self, maps: dict[Side, RowMap]) -> None:
        """Map every row of both sides, now or when it is next read."""
        self._maps = {side: self._maps[side].then(by) if self._maps else by for side, by in maps.items()}
        kinds = {table.form.kind for table in self._tables.values()}
        if kinds != {"covariance"} or any(np.linalg.cond(by.matrix) > MOST_STRETCH for by in self._maps.values()):
            self._apply_maps()

    def _apply_maps(self) -> None:
        for side, by in self._maps.items():
            self._tables[side] = self.runner.mapped(side, self._tables[side], by)
        self._maps = {}

    def move_coef(self, side: Side, step: CoefStep) -> None:
        """Move the other side's implicit weights, of which the prior means of this side are made."""
        if not step.matrix.any():
            return
        if self._maps:
            step = step.before(self._maps[side])
        for whose, by in ((side, step.of_residuals), (OTHER[side], step.of_coef)):
            self._tables[whose] = self.runner.mapped(whose, self._tables[whose], by)

    def coef_gram(self, side: Side) -> Matrix:
        """The Gram matrix of [w z d], the side's implicit weights for the other side; 0 × 0 without."""
        posterior = self.posteriors[side]
        if not posterior.form.vectors:
            return np.zeros((0, 0))
        size = 3 * posterior.form.rank
        return np.sum(self.runner.row_sums(side, steps.coef_gram, [posterior]), axis=0).reshape(size, size)

    def column_norms(self, side: Side, posterior: P) -> Matrix:
        """‖E L_k‖ for every factor of a posterior."""
        return np.sqrt(np.sum(self.runner.row_sums(side, steps.column_squares, [posterior]), axis=0))

    def feature_gram(self, side: Side) -> Matrix | None:
        """Σ_i f_i f_iᵀ of the side features of the rows with ratings, p × p; None if the side has no features."""
        known = self.features.get(side)
        return None if known is None else rated_gram(known.coded, self.counts(side))

    def posterior(self, side: Side, unseen: RowPrior | None = None, feature_coef: Matrix | None = None) -> P:
        """The side's posterior as it stands.

        Rows without ratings have the prior ``unseen``, if it is given, with the mean that their side features explain.
        """
        posterior = self.posteriors[side]
        if unseen is None or self.count(side) == self.runner.n_rows(side):
            return posterior
        tables = [posterior] if feature_coef is None else [posterior, self._feature_table(side)]
        fill = steps.FillUnrated(unseen, feature_coef)
        return self.runner.run_rows(side, fill, tables, RowLayout.of(posterior.form))

    def combined(self, side: Side, make: Callable[..., RowPosterior], *posteriors: Any) -> P:
        """The posterior that ``make`` gives for any rows, from their lines in other posteriors of the side."""
        form = make(*(posterior.form.empty() for posterior in posteriors)).form
        return self.runner.run_rows(side, steps.Combine(make), posteriors, RowLayout.of(form))

    def gibbs_errors(self, draws: Draws) -> GibbsErrors:
        """Errors of draws from the posteriors on the ratings: one map step over the rows."""
        with self.runner.described("certificate"):
            total = self._over_ratings(steps.Draw(draws), self.posteriors)
        return GibbsErrors(*map(int, total))

    def confidences(self, posterior: dict[Side, P], noise: float) -> Histogram:
        """The histogram of the ratings' confidences (``prediction``) under this posterior: one map step."""
        with self.runner.described("confidences"):
            total = self._over_ratings(steps.Confidences(noise, max(1, self.n_ratings // ENOUGH)), posterior)
        return total.astype(np.int64)

    def holdout_loss(self, loss: str, posterior: dict[Side, P], split: Split) -> HoldoutLoss:
        """Held-out loss and errors of the ratings that the split does *not* choose, under a posterior: one map step."""
        with self.runner.described("loss of the last tenth"):
            total = self._over_ratings(steps.MeasureHoldoutLoss(loss, split), posterior)
        return HoldoutLoss.of_sums(total)

    def _over_ratings(self, step: Step, posterior: dict[Side, Any]) -> Sums:
        rows, cols = (posterior[side] for side in SIDES)
        return np.asarray(np.sum(self.runner.sums("rows", step, [rows], cols), axis=0))

    @contextmanager
    def restricted(self, split: Split) -> Iterator[Engine[P]]:
        """An engine on the ratings that the split chooses; rows and columns keep their numbers.

        It depends on these ratings alone: side features are coded anew.
        """
        with self.runner.restricted(split) as runner:
            part = Engine[P](runner)
            part.features = coded_by_rated(self.features, part.counts)
            yield part

    def _feature_table(self, side: Side) -> Any:
        """The side features as a table, made once."""
        coded = self.features[side].coded
        if side not in self._feature_tables or self._feature_tables[side][0] is not coded:
            self._feature_tables[side] = coded, self.runner.table(side, coded)
        return self._feature_tables[side][1]


def final_posteriors(engine: Engine[P], hierarchy: HyperPosterior) -> dict[Side, P]:
    """Both posteriors, with the prior in the rows without ratings."""
    return {side: engine.posterior(side, hierarchy.unseen(side), hierarchy.features.get(side)) for side in SIDES}
