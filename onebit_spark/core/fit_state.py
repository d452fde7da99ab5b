"""FitState: the posteriors of both sides during a fit on an engine, and what changes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Generic, Self

import numpy as np

from onebit_spark.core.confidences import ENOUGH, Histogram
from onebit_spark.core.features import CoefStep, rated_gram
from onebit_spark.core.holdout import HoldoutLoss
from onebit_spark.core.hyper_posterior import HyperPosterior
from onebit_spark.core.losses import OTHER, SIDES, HalfStep, Loss, RowPrior, Side
from onebit_spark.core.positions import Axes
from onebit_spark.core.posterior import MODEL_VECTORS, FloatArray, RowMap, RowPosterior
from onebit_spark.core.randomness import Draws, GibbsErrors, Split
from onebit_spark.core.statistics import SideStatistics
from onebit_spark.core.work import (
    CoefGram,
    ColumnNorms,
    ConvertRows,
    CountConfidences,
    CountDrawErrors,
    FillUnrated,
    HalfStepInputs,
    Matrix,
    MeasureSpreads,
    PositionCubes,
    RatedGram,
    SumHoldoutLoss,
    UpdateRows,
    prior_rows,
)
from onebit_spark.data.features import SideTables, coded_by_rated
from onebit_spark.data.id_index import Ids
from onebit_spark.engines.base import Engine, Numbers, T
from onebit_spark.settings import FitConfig

# The largest stretch of a pending map. Rows are rounded to float32 before they are mapped, and the
# map amplifies this rounding by the square of its stretch.
MOST_STRETCH = 30.0


class FitState(Generic[T]):
    """Both posteriors of a fit, as tables of its engine.

    Attributes
    ----------
    engine : Engine
        Holds the ratings, and runs the work on them.
    features : dict of Side to SideFeatures
        Side features, on the driver.
    ids : mapping of Side to Ids
        The ids of the rows, if they have any, in the type of the caller.

    The gauge maps all rows after every iteration, which would cost as much as an update where they
    have covariances. So these maps stay pending: a half step works on unmapped rows under the
    unmapped prior (``HalfStep.before``), and only its sums are mapped (docs/MATH.md, §7.2).
    """

    def __init__(
        self,
        engine: Engine[T],
        features: SideTables | None = None,
        ids: Mapping[Side, Ids] | None = None,
    ) -> None:
        self.engine = engine
        self.features: SideTables = {} if features is None else features
        self.ids: Mapping[Side, Ids] = {} if ids is None else ids
        self._tables: dict[Side, T] = {}
        self._maps: dict[Side, RowMap] = {}  # pending maps of the rows in the tables
        self._data = 0.0  # the data term of the last half step

    @contextmanager
    def running(self) -> Iterator[Self]:
        """The state for the length of a fit: the engine keeps its threads or buffers."""
        with self.engine.running():
            yield self

    @property
    def posteriors(self) -> dict[Side, T]:
        self._apply_maps()
        return self._tables

    @posteriors.setter
    def posteriors(self, tables: dict[Side, T]) -> None:
        self._tables = tables
        self._maps = {}

    # ---- start ----------------------------------------------------------------------------------

    def start(self, config: FitConfig, loss: Loss) -> None:
        with self.engine.described("start"):
            self.posteriors = self.engine.start(config, loss)

    def start_from(self, posteriors: dict[Side, T]) -> None:
        """Set both posteriors to copies of tables of the engine."""
        self.posteriors = {side: posterior.copy() for side, posterior in posteriors.items()}

    def grow(self, config: FitConfig, loss: Loss) -> dict[Side, T]:
        """Both posteriors with more factors: the leading directions of the residuals."""
        with self.engine.described("more factors"):
            return self.engine.grow(self.posteriors, config, loss)

    # ---- half steps and maps --------------------------------------------------------------------

    def half_step(self, loss: Loss, step: HalfStep) -> SideStatistics:
        """Update the posterior of ``step.side`` given the other side's."""
        side = step.side
        pending = self._maps.get(side)
        if pending is not None:
            step = step.before(pending)
        features = None if step.feature_coef is None else self.features[side].coded
        inputs = HalfStepInputs(self._tables[side], self._tables[OTHER[side]], features)
        with self.engine.described(f"iteration {step.iteration + 1}, {side}"):
            rows, statistics = self.engine.half_step(UpdateRows(loss, step), inputs)
        self._tables[side] = rows
        self._data = statistics.data
        return statistics if pending is None else statistics.mapped(pending)

    def data_term(self) -> float:
        """The data term of the objective, once the implicit coefficients have moved."""
        return self.engine.data_term(self._data)

    def apply(self, maps: dict[Side, RowMap]) -> None:
        """Map every row of both sides, now or when it is next read."""
        if self._maps:
            maps = {side: self._maps[side].then(by) for side, by in maps.items()}
        self._maps = dict(maps)
        kinds = {table.form.kind for table in self._tables.values()}
        stretches = [np.linalg.cond(by.matrix) for by in self._maps.values()]
        if kinds != {"covariance"} or max(stretches, default=0.0) > MOST_STRETCH:
            self._apply_maps()

    def _apply_maps(self) -> None:
        for side, by in self._maps.items():
            self._tables[side] = self.engine.apply(side, self._tables[side], by)
        self._maps = {}

    def move_coef(self, side: Side, step: CoefStep) -> None:
        """Move the other side's implicit weights, which make the prior means of this side."""
        if not step.matrix.any():
            return
        if self._maps:
            step = step.before(self._maps[side])
        for whose, by in ((side, step.of_residuals), (OTHER[side], step.of_coef)):
            self._tables[whose] = self.engine.apply(whose, self._tables[whose], by)

    # ---- sums over rows -------------------------------------------------------------------------

    def coef_gram(self, side: Side) -> Matrix:
        """The Gram matrix of [w z d], the side's implicit weights for the other side.

        It is 0 × 0 without implicit features.
        """
        posterior = self.posteriors[side]
        if not posterior.form.vectors:
            return np.zeros((0, 0))
        return self.engine.sum_rows(CoefGram(), side, posterior)

    def column_norms(self, side: Side, posterior: T) -> Matrix:
        """‖E L_k‖ for every factor of a posterior."""
        return self.engine.sum_rows(ColumnNorms(), side, posterior)

    def feature_gram(self, side: Side) -> Matrix | None:
        """Σ_i f_i f_iᵀ of the side features of the rows with ratings, p × p.

        None if the side has no features.
        """
        known = self.features.get(side)
        return None if known is None else rated_gram(known.coded, self.engine.counts(side))

    # ---- other posteriors -----------------------------------------------------------------------

    def posterior(
        self,
        side: Side,
        unseen: RowPrior | None = None,
        feature_coef: Matrix | None = None,
    ) -> T:
        """The side's posterior as it stands.

        Rows without ratings have the prior ``unseen``, if it is given, with the mean that their
        side features explain.
        """
        posterior = self.posteriors[side]
        if unseen is None or self.engine.count(side) == self.engine.n_rows(side):
            return posterior
        features = None if feature_coef is None else self.features[side].coded
        fill = FillUnrated(unseen, feature_coef)
        return self.engine.map_rows(fill, side, posterior, features)

    def convert(
        self,
        side: Side,
        make: Callable[[RowPosterior], RowPosterior],
        posterior: T,
    ) -> T:
        """The posterior that ``make`` gives for any rows, from their lines in ``posterior``."""
        return self.engine.map_rows(ConvertRows(make), side, posterior)

    def final_posteriors(self, hierarchy: HyperPosterior) -> dict[Side, T]:
        """Both posteriors, with the prior in the rows without ratings."""
        final: dict[Side, T] = {}
        for side in SIDES:
            coef = hierarchy.features.get(side)
            final[side] = self.posterior(side, hierarchy.unseen(side), coef)
        return final

    def without_directions(self, posteriors: dict[Side, T], vectors: int) -> dict[Side, T]:
        """The posteriors with so many implicit vectors: the coefficients, and directions of 0."""
        make = partial(RowPosterior.with_vectors, kept=MODEL_VECTORS, vectors=vectors)
        return {side: self.convert(side, make, rows) for side, rows in posteriors.items()}

    # ---- over all ratings -----------------------------------------------------------------------

    def gibbs_errors(self, draws: Draws) -> GibbsErrors:
        """Errors of draws from the posteriors on the ratings: one pass over the ratings."""
        tables = self.posteriors
        work = CountDrawErrors(draws, self.engine.n_ratings)
        with self.engine.described("certificate"):
            return self.engine.over_ratings(work, tables["rows"], tables["cols"])

    def confidences(self, posterior: dict[Side, T], noise: float) -> Histogram:
        """The histogram of the ratings' signed confidences (``prediction``): one pass."""
        work = CountConfidences(noise, max(1, self.engine.n_ratings // ENOUGH))
        with self.engine.described("confidences"):
            return self.engine.over_ratings(work, posterior["rows"], posterior["cols"])

    def holdout_loss(self, loss: str, posterior: dict[Side, T], split: Split) -> HoldoutLoss:
        """Held-out loss and errors of the ratings that the split does *not* choose: one pass."""
        work = SumHoldoutLoss(loss, split)
        with self.engine.described("loss of the last tenth"):
            return self.engine.over_ratings(work, posterior["rows"], posterior["cols"])

    def measure(
        self,
        posterior: dict[Side, T],
        loss: Loss,
        priors: dict[Side, RowPrior],
    ) -> tuple[Axes, dict[Side, FloatArray | T]]:
        """The axes of a posterior, and the numbers of ``MeasureSpreads``: one pass a side."""
        engine = self.engine
        rows = posterior["rows"]
        with engine.described("positions"):
            row_gram = engine.sum_rows(RatedGram(), "rows", rows)
            col_gram = engine.sum_rows(RatedGram(), "cols", posterior["cols"])
            axes = Axes.of(row_gram, col_gram, rows.form.has_intercept)
            axes = axes.towards(engine.sum_rows(PositionCubes(axes), "rows", rows))
            measured = {}
            for side in SIDES:
                work = MeasureSpreads(loss, side, priors[side], axes)
                partners = posterior[OTHER[side]]
                measured[side] = engine.measure(work, side, posterior[side], partners)
        return axes, measured

    # ---- parts of the ratings -------------------------------------------------------------------

    @contextmanager
    def restricted(self, split: Split) -> Iterator[FitState[Any]]:
        """A state on the ratings that the split chooses, with the rows and columns of this one.

        It depends on these ratings alone: side features are coded anew. A slice may have fewer
        rows: see ``Engine.numbers``.
        """
        with self.engine.restricted(split) as part:
            features = self.features
            if split.by in SIDES and part.numbers is not None:
                features = _features_at(features, part.numbers)
            yield FitState(part, coded_by_rated(features, part.counts))

    def take(
        self,
        posteriors: dict[Side, T],
        numbers: dict[Side, Numbers],
    ) -> dict[Side, RowPosterior]:
        """The rows of a slice in this process, by their numbers."""
        return {side: self.engine.take(side, posteriors[side], numbers[side]) for side in SIDES}

    def place(
        self,
        posteriors: dict[Side, RowPosterior],
        numbers: dict[Side, Numbers],
        hierarchy: HyperPosterior,
    ) -> dict[Side, T]:
        """The posteriors of a slice for all rows of this state; the other rows have the prior."""
        placed: dict[Side, T] = {}
        for side, rows in posteriors.items():
            prior = rows.form.empty(1)
            prior.put(np.array([0]), prior_rows(hierarchy.unseen(side), 1, rows))
            placed[side] = self.engine.place(side, rows, numbers[side], prior)
        return placed


def _features_at(features: SideTables, numbers: dict[Side, Numbers]) -> SideTables:
    """The side features of the rows with these numbers."""
    chosen: SideTables = {}
    for side, known in features.items():
        chosen[side] = replace(known, table=known.table.take(numbers[side]))
    return chosen
