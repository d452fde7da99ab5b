"""The alternation of L step, R step and γ step, with its objective and stopping rule. It runs on any engine."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from onebit_spark.core.config import FitConfig
from onebit_spark.core.engine import Engine
from onebit_spark.core.features import FeatureRidge, of_known_size
from onebit_spark.core.gauge import GaugeStep
from onebit_spark.core.hyper_posterior import HyperPosterior
from onebit_spark.core.losses import OTHER, SIDES, HalfStep, Loss, Side
from onebit_spark.core.losses.base import Move
from onebit_spark.core.posterior import FIT_VECTORS, MODEL_VECTORS, RowMap, RowPosterior
from onebit_spark.core.statistics import SideStatistics, relative_change
from onebit_spark.errors import FitFailed

P = TypeVar("P")  # a posterior of a side in the engine's own form: a RowPosterior, or a table in files


WINDOW = 5  # the stopping rule compares the objective with that of so many iterations before
MOST_RELAXED = 1.85  # the largest ω; a step with ω = 2 no longer descends


def relaxation(t: int) -> float:
    """ω after t iterations: the mean of a row moves ω times as far as the minimum of its majoriser (MATH.md, §7.3)."""
    return min(1.0 + t / (t + 3.0), MOST_RELAXED)


def unrelaxed(t: int) -> float:
    return 1.0


class NotConverged(UserWarning):
    """The fit stopped at ``max_iter`` before the stopping rule held."""


@dataclass(frozen=True)
class Iteration:
    """The result of one iteration, for the history, the log and the progress display."""

    number: int  # from 1
    objective: float  # λ·AVB or −ELBO, minimised
    divergence: float  # KL(ρ‖π), a part of the objective
    decrease: float  # relative decrease of the objective; inf in the first iteration
    change: float  # ‖M_t − M_{t−1}‖²_F / ‖M_t‖²_F of the scores (``statistics.relative_change``)
    seconds: float  # wall time


@dataclass(frozen=True)
class Outcome:
    hierarchy: HyperPosterior  # the prior of the rows, with q(γ) and q(μ)
    history: list[Iteration]
    converged: bool  # whether the stopping rule held (docs/MATH.md, §7.4)
    reason: str  # why the fit ended


class IterationPlan(NamedTuple):
    """A number of iterations that was chosen in advance, and why. A fit that reaches it has converged."""

    iterations: int
    reason: str


@dataclass(frozen=True)
class Start(Generic[P]):
    """The posterior of an earlier fit, from which another one starts."""

    posteriors: dict[Side, P]
    scales: HyperPosterior
    history: list[Iteration] = field(default_factory=list)  # of an interrupted fit, which is continued
    settings: Mapping[str, Any] = field(default_factory=dict)  # rank, κ and implicit features of the earlier fit
    record: Mapping[str, Any] | None = None  # how they were chosen: see ``model_selection.SelectedModel.as_dict``
    earlier: int = 0  # iterations on a part of the ratings, which count for the relaxation
    first: Side = "rows"  # the side that moves first: that with rows whose ratings are new to the posteriors
    planned: IterationPlan | None = None


# The last step of an iteration: the updated prior of the rows, KL(ρ‖π), and maps of the rows, if any.
DriverResult = tuple[HyperPosterior, float, dict[Side, RowMap]]
DriverStep = Callable[[HyperPosterior, SideStatistics, SideStatistics], DriverResult]


def without_maps(
    hierarchy: HyperPosterior,
    rows: SideStatistics,
    cols: SideStatistics,
) -> DriverResult:
    """The γ step alone."""
    return *hierarchy.at(rows.moments, cols.moments), {}


# Called with the engine, the hierarchy and the history after every iteration that does not end the fit.
AfterIteration = Callable[[Engine[P], HyperPosterior, list[Iteration]], None]


def solve(
    engine: Engine[P],
    config: FitConfig,
    on_iteration: Callable[[Iteration], None] | None = None,
    start: Start[P] | None = None,
    after_iteration: AfterIteration[P] | None = None,
    *,
    gauge: bool = True,
    relaxed: bool = True,
    want_objective: bool = True,
) -> Outcome:
    """Fit the paper's model, over-relaxed, and with a gauge if the loss has a symmetry.

    The iterations in the history of ``start`` count. Without ``want_objective`` the objective lacks its data
    term, a third product per rating.
    """
    loss = config.make_loss()
    hierarchy = _begin(engine, config, loss, start)
    driver_step: DriverStep = without_maps
    if gauge and loss.symmetry is not None:
        driver_step = GaugeStep(loss.symmetry, may_centre=not config.implicit_features)
    earlier = 0 if start is None else start.earlier
    pace = (lambda t: relaxation(t + earlier)) if relaxed else unrelaxed
    alternation = _Alternation(engine, config, hierarchy, driver_step, pace, want_objective)
    return _descend(alternation, loss, start, on_iteration, after_iteration)


def _begin(
    engine: Engine[P],
    config: FitConfig,
    loss: Loss,
    start: Start[P] | None,
) -> HyperPosterior:
    """Set the engine's posteriors to those of the start. Returns the prior there."""
    prior, own = config.make_prior(engine.count("rows") + engine.count("cols")), config.make_intercept_prior()
    if start is None:
        engine.start(config, loss)
        scales = HyperPosterior(prior, own, np.ones(config.factors))
    else:
        posteriors, scales = start.posteriors, start.scales
        if config.implicit_features and not start.history:  # the directions belong to the earlier ratings
            without = partial(RowPosterior.with_vectors, kept=MODEL_VECTORS, vectors=FIT_VECTORS)
            posteriors = {side: engine.convert(side, without, old) for side, old in posteriors.items()}
            scales = scales.without_directions()
        engine.start_from(posteriors)
        scales = replace(scales, prior=prior, intercept_prior=own)
    grams = {side: gram for side in SIDES if (gram := engine.feature_gram(side)) is not None}
    return replace(scales, features=of_known_size(scales.features, grams, config.dimension))


def _descend(
    alternation: _Alternation[P],
    loss: Loss,
    start: Start[P] | None,
    on_iteration: Callable[[Iteration], None] | None,
    after_iteration: AfterIteration[P] | None,
) -> Outcome:
    """Iterate from the engine's posteriors until the stopping rule holds, or ``max_iter`` times."""
    engine, config = alternation.engine, alternation.config
    history, planned = ([], None) if start is None else (list(start.history), start.planned)
    last = config.max_iter if planned is None else min(config.max_iter, planned.iterations)
    plan = loss.plan()
    if start is not None and start.first == "cols":
        plan = [move._replace(side=OTHER[move.side]) for move in plan]
    for number in range(len(history) + 1, last + 1):
        began, previous = time.perf_counter(), history[-1].objective if history else np.inf
        for step in alternation.half_steps(plan, number):
            alternation.learn(step, engine.half_step(loss, step))
        objective, divergence, change = alternation.end(number)
        decrease = (previous - objective) / max(abs(objective), 1e-300) if number > 1 else np.inf
        history.append(Iteration(number, objective, divergence, decrease, change, time.perf_counter() - began))
        if on_iteration is not None:
            on_iteration(history[-1])
        if not np.isfinite(objective):
            raise FitFailed(
                f"the objective became {objective} in iteration {number}; please report this with the configuration"
            )
        if config.tol > 0 and distance(history) <= config.tol:
            reason = f"objective and scores changed by less than tol = {config.tol:g}"
            return Outcome(alternation.hierarchy, history, True, reason)
        if after_iteration is not None:
            after_iteration(engine, alternation.hierarchy, history)
    if planned is not None and len(history) >= planned.iterations:
        return Outcome(alternation.hierarchy, history, True, planned.reason)
    reason = f"max_iter = {last} reached"
    if config.tol > 0:
        warnings.warn(f"not converged: {reason}; {_how_far(history, config.tol)}", NotConverged, stacklevel=3)
    return Outcome(alternation.hierarchy, history, False, reason)


class _Alternation(Generic[P]):
    """The driver's part of the iterations: the parameters of half steps, and updates from their statistics."""

    def __init__(
        self,
        engine: Engine[P],
        config: FitConfig,
        hierarchy: HyperPosterior,
        driver_step: DriverStep,
        pace: Callable[[int], float],
        want_objective: bool,
    ) -> None:
        """``pace`` gives ω after t iterations."""
        self.engine = engine
        self.config = config
        self.hierarchy = hierarchy
        self._driver_step = driver_step
        self._pace = pace
        self._want_objective = want_objective
        self._ratings_per_row = 2 * engine.total_weight / (engine.count("rows") + engine.count("cols"))
        self._coef_grams = hierarchy.coef_grams or {side: engine.coef_gram(side) for side in SIDES}
        grams = {side: engine.feature_gram(side) for side in hierarchy.features}
        self._ridges = {side: FeatureRidge.of(gram) for side, gram in grams.items() if gram is not None}
        self._latest: dict[Side, SideStatistics] = {}
        self._moved: dict[Side, SideStatistics] = {}  # from the last half step that moved means

    def half_steps(self, plan: Sequence[Move], number: int) -> Iterator[HalfStep]:
        """The half steps of one iteration. ``learn`` is called after each of them."""
        for position, move in enumerate(plan):
            yield HalfStep(
                side=move.side,
                iteration=number - 1,
                kappa=self.config.kappa,
                prior=self.hierarchy.row_prior(move.side),
                ratings_per_row=self._ratings_per_row,
                move_means=move.means,
                move_covariances=move.covariances,
                want_data=self._want_objective and position == len(plan) - 1,
                relaxation=self._pace(number - 1),
                feature_coef=self.hierarchy.features.get(move.side),
            )

    def learn(self, step: HalfStep, statistics: SideStatistics) -> None:
        """Update the implicit coefficients, and keep the statistics of the side that has moved."""
        side, grams = step.side, self._coef_grams
        other = OTHER[side]
        grams[side] = statistics.coef_gram
        if len(statistics.coef_gram):
            best = statistics.best_step(grams[other])
            self.engine.move_coef(side, best)
            statistics, grams[other] = statistics.after(best), best.moved(grams[other])
        self._latest[side] = statistics.with_ridge(grams[other], step.feature_coef)
        if step.move_means:
            self._moved[side] = self._latest[side]

    def end(self, number: int) -> tuple[float, float, float]:
        """Update the prior. Returns the objective, KL(ρ‖π) and the relative change of the scores."""
        latest, data, pace = self._latest, self.engine.data_term(), self._pace(number - 1)
        features = {
            side: ridge.moved(self.hierarchy.features[side], latest[side].feature_cross, pace)
            for side, ridge in self._ridges.items()
        }
        hierarchy, divergence, maps = self._driver_step(self.hierarchy, latest["rows"], latest["cols"])
        mean_grams = {side: statistics.implicit_gram for side, statistics in latest.items()}
        if maps:
            self.engine.apply(maps)
            features = {side: learnt @ maps[side].matrix for side, learnt in features.items()}
            for side in SIDES:
                means = maps[side].of_means(self.config.factors)
                mean_grams[side] = means.T @ mean_grams[side] @ means
                if len(gram := self._coef_grams[side]):  # of [w z d]
                    coef = maps[OTHER[side]].of_vectors(len(gram) // 3, 3)
                    self._coef_grams[side] = coef.T @ gram @ coef
        self.hierarchy = hierarchy.with_coef(self._coef_grams, mean_grams, features)
        change = relative_change(self._moved["rows"], self._moved["cols"], self.config.intercepts)
        return data + divergence, divergence, change


def _how_far(history: Sequence[Iteration], tol: float) -> str:
    if len(history) <= WINDOW:
        return f"at least {WINDOW + 1} iterations are needed to tell"
    fall, change = recent_fall(history), history[-1].change
    return (
        f"in the last {WINDOW} iterations the objective fell by {fall:.1e}, in the last one the scores changed by "
        f"{change:.1e} (relative); both must be within tol = {tol:g}"
    )


def recent_fall(history: Sequence[Iteration]) -> float:
    """The relative decrease of the objective in the last ``WINDOW`` iterations; inf after fewer.

    A single iteration is not enough: a decrease by a millionth may be followed by a hundred of the same size.
    """
    if len(history) <= WINDOW:
        return np.inf
    first, last = history[-1 - WINDOW].objective, history[-1].objective
    return (first - last) / max(abs(last), 1e-300)


def distance(history: Sequence[Iteration]) -> float:
    """The larger of the two quantities that the stopping rule compares with ``tol`` (docs/MATH.md, §7.4)."""
    return max(abs(recent_fall(history)), history[-1].change)


class PhaseTimer:
    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def end(self, phase: str) -> None:
        """End the phase that began at the end of the last one."""
        now = time.perf_counter()
        self.seconds[phase], self._last = now - self._last, now

    def divide_fit(self, choosing: float, iterations: list[Iteration]) -> None:
        """Book the seconds of the fit that neither the choice of settings nor iterations took as those of the start."""
        self.seconds["choosing"] = choosing
        self.seconds["start"] = self.seconds["fit"] - choosing - sum(step.seconds for step in iterations)
