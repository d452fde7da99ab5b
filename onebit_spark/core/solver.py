"""The alternation: L step, R step, γ step, objective, stop? One loop, whatever engine runs the map steps."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core.config import FitConfig
from onebit_spark.core.engine import Engine
from onebit_spark.core.gauge import GaugeStep
from onebit_spark.core.hyper_posterior import HierarchicalPrior, Hierarchy, HyperPosterior
from onebit_spark.core.losses import OTHER, SIDES, HalfStep, Side
from onebit_spark.core.losses.base import Move
from onebit_spark.core.posterior import FIT_VECTORS, MODEL_VECTORS, RowMap, RowPosterior
from onebit_spark.core.side_features import FeatureRidge, of_known_size
from onebit_spark.core.statistics import SideStatistics, relative_change
from onebit_spark.errors import FitFailed

H = TypeVar("H", bound=Hierarchy[Any])
P = TypeVar("P")  # a posterior of a side in the engine's own form: a RowPosterior, or a table in files


WINDOW = 5  # iterations over which the objective must stand still
MOST_RELAXED = 1.85  # the largest ω: 2 is where a step no longer descends


def relaxation(t: int) -> float:
    """ω after t iterations: a row's mean moves ω times as far as to the minimum of its majoriser Q.

    Q(x_ω) − min Q = (1 − ω)² (Q(x_old) − min Q), so every step with 0 < ω < 2 descends. The two sides wait for each
    other; to go too far, and ever farther, is to go ahead (over-relaxation, with Nesterov's t/(t + 3)).
    """
    return min(1.0 + t / (t + 3.0), MOST_RELAXED)


def unrelaxed(t: int) -> float:
    """ω = 1: to the minimum, and no further."""
    return 1.0


class NotConverged(UserWarning):
    """The fit stopped at ``max_iter`` before the stopping rule held."""


@dataclass(frozen=True)
class Iteration:
    """What one iteration did, for the history, the log and the progress display.

    Parameters
    ----------
    number : int
        1 for the first.
    objective : float
        λ·AVB or −ELBO, minimised.
    divergence : float
        KL(ρ‖π), a part of it.
    decrease : float
        How far the objective fell, relative to itself; inf in the first iteration.
    change : float
        ‖M_t − M_{t−1}‖²_F / ‖M_t‖²_F of the scores.
    seconds : float
        Wall time.
    """

    number: int
    objective: float
    divergence: float
    decrease: float
    change: float
    seconds: float


@dataclass(frozen=True)
class Outcome(Generic[H]):
    """The end of a fit."""

    hierarchy: H  # the driver's share of the posterior
    history: list[Iteration]  # all iterations
    converged: bool  # whether the stopping rule held (docs/MATH.md, §7.4)
    reason: str  # why the fit ended


class IterationPlan(NamedTuple):
    """A number of iterations that was chosen, and why. A fit that made them all is done."""

    iterations: int
    reason: str


@dataclass(frozen=True)
class Start(Generic[P]):
    """Where a fit may start instead of where its configuration says: the posterior of an earlier one."""

    posteriors: dict[Side, P]  # of the rows and of the columns
    scales: HyperPosterior  # the driver's share
    # of a fit that was interrupted there: the fit goes on as if it had not been
    history: list[Iteration] = field(default_factory=list)
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the earlier fit: rank, κ and implicit features
    record: Mapping[str, Any] | None = None  # how they were chosen: see ``model_selection.SelectedModel.as_dict``
    earlier: int = 0  # iterations that led there on a part of the ratings: steps are as relaxed as after so many
    planned: IterationPlan | None = None  # how long the fit goes on, if that was chosen


# The driver's step of an iteration: the hierarchy after both sides moved, KL(ρ‖π), and maps for the rows, if any.
DriverStep = Callable[[H, SideStatistics, SideStatistics], tuple[H, float, dict[Side, RowMap]]]


def without_maps(hierarchy: H, rows: SideStatistics, cols: SideStatistics) -> tuple[H, float, dict[Side, RowMap]]:
    """The γ step alone."""
    return *hierarchy.updated(rows, cols), {}


@dataclass(frozen=True)
class Acceleration(Generic[H]):
    """What makes the alternation faster: maps of both sides at once, and over-relaxed steps. By default, neither."""

    driver_step: DriverStep[H] = without_maps
    pace: Callable[[int], float] = unrelaxed  # ω after t iterations


# Called with the engine, the hierarchy and the history after every iteration that does not end the fit.
AfterIteration = Callable[[Engine[P], H, list[Iteration]], None]


def solve(
    engine: Engine[P],
    config: FitConfig,
    on_iteration: Callable[[Iteration], None] | None = None,
    start: Start[P] | None = None,
    after_iteration: AfterIteration[P, HierarchicalPrior] | None = None,
    *,
    gauge: bool = True,
    relaxed: bool = True,
) -> Outcome[HierarchicalPrior]:
    """Fit the paper's model: start, then descend, relaxed and with a gauge where the loss has a symmetry."""
    prior = config.make_prior(engine.count("rows") + engine.count("cols"))
    if start is None:
        engine.start(config, config.make_loss())
    elif start.history or not config.implicit_features:
        engine.start_from(start.posteriors)
    else:  # other ratings: directions of the weights mean nothing there
        engine.start_from(
            {side: engine.combined(side, without_directions, old) for side, old in start.posteriors.items()}
        )
        start = replace(start, scales=start.scales.without_directions())
    scales = HyperPosterior.at_start(config.factors) if start is None else start.scales
    grams = {side: gram for side in SIDES if (gram := engine.feature_gram(side)) is not None}
    scales = replace(scales, features=of_known_size(scales.features, grams, config.dimension))
    hierarchy, symmetry = HierarchicalPrior(scales, prior, config.intercepts), config.make_loss().symmetry
    driver_step = GaugeStep(symmetry, not config.implicit_features) if gauge and symmetry else without_maps
    earlier = 0 if start is None else start.earlier
    pace = (lambda t: relaxation(t + earlier)) if relaxed else unrelaxed
    return descend(engine, config, hierarchy, on_iteration, start, after_iteration, Acceleration(driver_step, pace))


def descend(
    engine: Engine[P],
    config: FitConfig,
    hierarchy: H,
    on_iteration: Callable[[Iteration], None] | None = None,
    start: Start[P] | None = None,
    after_iteration: AfterIteration[P, H] | None = None,
    acceleration: Acceleration[H] | None = None,
) -> Outcome[H]:
    """Iterate from the engine's posteriors until the objective and M stand still or ``max_iter`` is reached.

    The iterations that led to the ``start`` count.
    """
    history, planned = ([], None) if start is None else (list(start.history), start.planned)
    last = config.max_iter if planned is None else min(config.max_iter, planned.iterations)
    loss, alternation = config.make_loss(), _Alternation(engine, config, hierarchy, acceleration or Acceleration())
    for number in range(len(history) + 1, last + 1):
        began, previous = time.perf_counter(), history[-1].objective if history else np.inf
        for step in alternation.half_steps(loss.plan(), number):
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


class _Alternation(Generic[P, H]):
    """The driver's share of the iterations: what it says to a half step, and what it learns from one."""

    def __init__(self, engine: Engine[P], config: FitConfig, hierarchy: H, acceleration: Acceleration[H]) -> None:
        self.hierarchy = hierarchy
        self._engine, self._config, self._acceleration = engine, config, acceleration
        self._ratings_per_row = 2 * engine.total_weight / (engine.count("rows") + engine.count("cols"))
        self._weights = hierarchy.coef_grams or {side: engine.coef_gram(side) for side in SIDES}
        self._ridges = {side: FeatureRidge.of(_gram(engine, side)) for side in hierarchy.feature_coef}
        self._latest: dict[Side, SideStatistics] = {}
        self._moved: dict[Side, SideStatistics] = {}  # of the last half step that moved means

    def half_steps(self, plan: Sequence[Move], number: int) -> Iterator[HalfStep[P]]:
        """The half steps of one iteration. ``learn`` is called after each of them."""
        for position, move in enumerate(plan):
            yield HalfStep(
                side=move.side,
                iteration=number - 1,
                kappa=self._config.kappa,
                prior=self.hierarchy.row_prior(move.side),
                ratings_per_row=self._ratings_per_row,
                move_means=move.means,
                move_covariances=move.covariances,
                want_data=position == len(plan) - 1,
                relaxation=self._acceleration.pace(number - 1),
                feature_coef=self.hierarchy.feature_coef.get(move.side),
            )

    def learn(self, step: HalfStep[P], statistics: SideStatistics) -> None:
        """The step of the implicit weights, and the sums of the side that has moved."""
        side, weights = step.side, self._weights
        other = OTHER[side]
        weights[side] = statistics.coef_gram
        if len(statistics.coef_gram):
            better = statistics.best_step(weights[other])
            self._engine.move_coef(side, better)
            statistics, weights[other] = statistics.after(better), better.moved(weights[other])
        self._latest[side] = statistics.with_ridge(weights[other], step.feature_coef)
        if step.move_means:
            self._moved[side] = self._latest[side]

    def end(self, number: int) -> tuple[float, float, float]:
        """The driver's step. Gives the objective, KL(ρ‖π) in it, and how far the scores moved."""
        latest, data, pace = self._latest, self._engine.data_term(), self._acceleration.pace(number - 1)
        features = {
            side: ridge.moved(self.hierarchy.feature_coef[side], latest[side].feature_cross, pace)
            for side, ridge in self._ridges.items()
        }
        hierarchy, divergence, maps = self._acceleration.driver_step(self.hierarchy, latest["rows"], latest["cols"])
        mean_grams = {side: statistics.implicit_gram for side, statistics in latest.items()}
        if maps:
            self._engine.apply(maps)
            self._weights = {side: _mapped(gram, maps[OTHER[side]]) for side, gram in self._weights.items()}
            features = {side: learnt @ maps[side].matrix for side, learnt in features.items()}
            mean_grams = {side: maps[side].of_implicit_gram(gram) for side, gram in mean_grams.items()}
        self.hierarchy = hierarchy.with_grams(self._weights, mean_grams).with_feature_coef(features)
        change = relative_change(self._moved["rows"], self._moved["cols"], self._config.intercepts)
        return data + divergence, divergence, change


def _how_far(history: Sequence[Iteration], tol: float) -> str:
    """How far a fit is from convergence, as a sentence."""
    if len(history) <= WINDOW:
        return f"at least {WINDOW + 1} iterations are needed to tell"
    fall, change = recent_fall(history), history[-1].change
    return (
        f"in the last {WINDOW} iterations the objective fell by {fall:.1e}, in the last one the scores changed by "
        f"{change:.1e} (relative); both must be within tol = {tol:g}"
    )


def recent_fall(history: Sequence[Iteration]) -> float:
    """How far the objective fell in the last ``WINDOW`` iterations, relative to itself; inf after fewer.

    A single iteration says little: one that falls by a millionth may be followed by a hundred such.
    """
    if len(history) <= WINDOW:
        return np.inf
    first, last = history[-1 - WINDOW].objective, history[-1].objective
    return (first - last) / max(abs(last), 1e-300)


def distance(history: Sequence[Iteration]) -> float:
    """How far a fit is from its end: the larger of what must both be at most ``tol`` (docs/MATH.md, §7.4)."""
    return max(abs(recent_fall(history)), history[-1].change)


def without_directions(posterior: RowPosterior) -> RowPosterior:
    """The posterior with the weights of its implicit features, and no direction for them yet."""
    return posterior.with_vectors(MODEL_VECTORS, FIT_VECTORS)


def _mapped(gram: NDArray[np.float64], by: RowMap) -> NDArray[np.float64]:
    """The Gram matrix of [w z d] after a map of these."""
    whole = by.of_vectors(len(gram) // 3, 3) if len(gram) else gram
    return whole.T @ gram @ whole


def _gram(engine: Engine[P], side: Side) -> NDArray[np.float64]:
    gram = engine.feature_gram(side)
    assert gram is not None
    return gram


class PhaseTimer:
    """Seconds of the phases of a fit."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def end(self, phase: str) -> None:
        """The phase that began with the end of the last one is over."""
        now = time.perf_counter()
        self.seconds[phase], self._last = now - self._last, now

    def divide_fit(self, iterations: list[Iteration]) -> None:
        """Book the seconds of the fit that its iterations did not take as those of the start."""
        self.seconds["start"] = self.seconds["fit"] - sum(step.seconds for step in iterations)
