"""The alternation of L step, R step and γ step, with objective and stopping rule, on any engine."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, NamedTuple

import numpy as np

from onebit_spark.core.features import FeatureRidge, of_known_size
from onebit_spark.core.fit_state import FitState
from onebit_spark.core.gauge import GaugeStep
from onebit_spark.core.hyper_posterior import HyperPosterior
from onebit_spark.core.loss import Move
from onebit_spark.core.losses import OTHER, SIDES, HalfStep, Loss, Side
from onebit_spark.core.posterior import FIT_VECTORS, RowMap
from onebit_spark.core.setup import factor_prior, intercept_prior, kappa_of, loss_of
from onebit_spark.core.statistics import SideStatistics, relative_change
from onebit_spark.core.work import Matrix
from onebit_spark.engines.base import T
from onebit_spark.errors import FitFailed
from onebit_spark.records import Record
from onebit_spark.settings import FitConfig

WINDOW = 5  # the stopping rule compares the objective with that of so many iterations before
MOST_RELAXED = 1.85  # the largest ω; a step with ω = 2 no longer descends


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
    """A number of iterations that was chosen in advance, and why.

    A fit that reaches it has converged.
    """

    iterations: int
    reason: str


@dataclass(frozen=True)
class Start(Generic[T]):
    """The posterior of an earlier fit, from which another one starts."""

    posteriors: dict[Side, T]
    scales: HyperPosterior
    # of an interrupted fit, which is continued
    history: list[Iteration] = field(default_factory=list)
    # rank, κ and implicit features of the earlier fit
    settings: Record = field(default_factory=dict)
    # how they were chosen: see ``model_selection.SelectedModel.as_dict``
    record: Record | None = None
    earlier: int = 0  # iterations on a part of the ratings, which count for the relaxation
    # the side that moves first: that with rows whose ratings are new to the posteriors
    first: Side = "rows"
    planned: IterationPlan | None = None


# Called with state, hierarchy and history after every iteration that does not end the fit.
AfterIteration = Callable[[FitState[T], HyperPosterior, list[Iteration]], None]


# ---- the loop ----------------------------------------------------------------------------------


def solve(
    state: FitState[T],
    config: FitConfig,
    on_iteration: Callable[[Iteration], None] | None = None,
    start: Start[T] | None = None,
    after_iteration: AfterIteration[T] | None = None,
    *,
    gauge: bool = True,
    relaxed: bool = True,
    want_objective: bool = True,
) -> Outcome:
    """Fit the paper's model, over-relaxed, and with a gauge if the loss has a symmetry.

    The iterations in the history of ``start`` count. Without ``want_objective`` the objective lacks
    its data term, a third product per rating.
    """
    loss = loss_of(config)
    history = [] if start is None else list(start.history)
    planned = None if start is None else start.planned
    hierarchy = begin(state, config, loss, start)
    rules = Rules.of(state, config, loss, hierarchy, start, gauge, relaxed, want_objective)
    now = Alternation.at(state, hierarchy)
    while len(history) < rules.last:
        began = time.perf_counter()
        for place, move in enumerate(rules.moves):
            step = rules.half_step(now, move, place, len(history))
            statistics = state.half_step(loss, step)
            now = learn_coefficients(state, now, step, statistics)
        data = state.data_term()
        now, ended = take_prior_step(state, rules, now, len(history))
        seconds = time.perf_counter() - began
        history.append(iteration_of(history, data + ended.divergence, ended, seconds))
        if on_iteration is not None:
            on_iteration(history[-1])
        check_objective(history[-1])
        if config.tol > 0 and distance(history) <= config.tol:
            reason = f"objective and scores changed by less than tol = {config.tol:g}"
            return Outcome(now.hierarchy, history, True, reason)
        if after_iteration is not None:
            after_iteration(state, now.hierarchy, history)
    if planned is not None and len(history) >= planned.iterations:
        return Outcome(now.hierarchy, history, True, planned.reason)
    reason = f"max_iter = {rules.last} reached"
    if config.tol > 0:
        far = how_far(history, config.tol)
        warnings.warn(f"not converged: {reason}; {far}", NotConverged, stacklevel=2)
    return Outcome(now.hierarchy, history, False, reason)


# ---- the start ---------------------------------------------------------------------------------


def begin(
    state: FitState[T],
    config: FitConfig,
    loss: Loss,
    start: Start[T] | None,
) -> HyperPosterior:
    """Set the posteriors to those of the start. Returns the prior there."""
    n_rows = state.engine.count("rows") + state.engine.count("cols")
    prior = factor_prior(config, n_rows)
    own = intercept_prior(config)
    if start is None:
        state.start(config, loss)
        scales = HyperPosterior(prior, own, np.ones(config.factors))
    else:
        posteriors = start.posteriors
        scales = start.scales
        # the directions belong to the earlier ratings
        if config.implicit_features and not start.history:
            posteriors = state.without_directions(posteriors, FIT_VECTORS)
            scales = scales.without_directions()
        state.start_from(posteriors)
        scales = replace(scales, prior=prior, intercept_prior=own)
    features = of_known_size(scales.features, feature_grams(state), config.dimension)
    return replace(scales, features=features)


def feature_grams(state: FitState[T]) -> dict[Side, Matrix]:
    grams = {side: state.feature_gram(side) for side in SIDES}
    return {side: gram for side, gram in grams.items() if gram is not None}


# ---- what stays the same during a fit ----------------------------------------------------------

# The γ step: the updated prior of the rows, KL(ρ‖π), and maps of the rows, if any.
PriorStep = Callable[
    [HyperPosterior, SideStatistics, SideStatistics],
    tuple[HyperPosterior, float, dict[Side, RowMap]],
]


def without_maps(
    hierarchy: HyperPosterior,
    rows: SideStatistics,
    cols: SideStatistics,
) -> tuple[HyperPosterior, float, dict[Side, RowMap]]:
    """The γ step without a gauge."""
    updated, divergence = hierarchy.at(rows.moments, cols.moments)
    return updated, divergence, {}


def relaxation(t: int) -> float:
    """ω after t iterations: means move ω times as far as the minimum of their majoriser (§7.3)."""
    return min(1.0 + t / (t + 3.0), MOST_RELAXED)


@dataclass(frozen=True)
class Rules:
    """What the iterations of a fit have in common."""

    config: FitConfig
    moves: Sequence[Move]  # the half steps of an iteration
    last: int  # number of the last iteration
    prior_step: PriorStep
    relaxed: bool
    earlier: int  # iterations before, on a part of the ratings
    want_objective: bool
    ratings_per_row: float
    ridges: Mapping[Side, FeatureRidge]  # of the sides with side features

    @classmethod
    def of(
        cls,
        state: FitState[T],
        config: FitConfig,
        loss: Loss,
        hierarchy: HyperPosterior,
        start: Start[T] | None,
        gauge: bool,
        relaxed: bool,
        want_objective: bool,
    ) -> Rules:
        moves = loss.plan()
        last = config.max_iter
        if start is not None and start.first == "cols":
            moves = [move._replace(side=OTHER[move.side]) for move in moves]
        if start is not None and start.planned is not None:
            last = min(last, start.planned.iterations)
        prior_step: PriorStep = without_maps
        if gauge and loss.symmetry is not None:
            prior_step = GaugeStep(loss.symmetry, may_centre=not config.implicit_features)
        engine = state.engine
        grams = feature_grams(state)
        return cls(
            config=config,
            moves=moves,
            last=last,
            prior_step=prior_step,
            relaxed=relaxed,
            earlier=0 if start is None else start.earlier,
            want_objective=want_objective,
            ratings_per_row=2 * engine.total_weight / (engine.count("rows") + engine.count("cols")),
            ridges={side: FeatureRidge.of(grams[side]) for side in hierarchy.features},
        )

    def omega(self, iteration: int) -> float:
        return relaxation(iteration + self.earlier) if self.relaxed else 1.0

    def half_step(self, now: Alternation, move: Move, place: int, iteration: int) -> HalfStep:
        """The half step of a move; the last one of an iteration computes the data term."""
        is_last = place == len(self.moves) - 1
        return HalfStep(
            side=move.side,
            iteration=iteration,
            kappa=kappa_of(self.config),
            prior=now.hierarchy.row_prior(move.side),
            ratings_per_row=self.ratings_per_row,
            move_means=move.means,
            move_covariances=move.covariances,
            want_data=self.want_objective and is_last,
            relaxation=self.omega(iteration),
            feature_coef=now.hierarchy.features.get(move.side),
        )


# ---- one iteration -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Alternation:
    """What the driver knows between two steps; the posteriors are in the ``FitState``."""

    hierarchy: HyperPosterior
    coef_grams: Mapping[Side, Matrix]  # the Gram matrices of [w z d]
    latest: Mapping[Side, SideStatistics]  # of the last half step of each side
    moved: Mapping[Side, SideStatistics]  # of the last one that moved means

    @classmethod
    def at(cls, state: FitState[T], hierarchy: HyperPosterior) -> Alternation:
        grams = hierarchy.coef_grams or {side: state.coef_gram(side) for side in SIDES}
        return cls(hierarchy, grams, {}, {})


class IterationEnd(NamedTuple):
    divergence: float  # KL(ρ‖π)
    change: float  # of the scores, relative


def learn_coefficients(
    state: FitState[T],
    now: Alternation,
    step: HalfStep,
    statistics: SideStatistics,
) -> Alternation:
    """Move the implicit coefficients that explain the rows of a half step; keep its statistics."""
    side = step.side
    other = OTHER[side]
    grams = {**now.coef_grams, side: statistics.coef_gram}
    if len(statistics.coef_gram):
        best = statistics.best_step(grams[other])
        state.move_coef(side, best)
        statistics = statistics.after(best)
        grams[other] = best.moved(grams[other])
    statistics = statistics.with_ridge(grams[other], step.feature_coef)
    latest = {**now.latest, side: statistics}
    moved = {**now.moved, side: statistics} if step.move_means else now.moved
    return Alternation(now.hierarchy, grams, latest, moved)


def take_prior_step(
    state: FitState[T],
    rules: Rules,
    now: Alternation,
    iteration: int,
) -> tuple[Alternation, IterationEnd]:
    """Update the prior, and map the rows of both sides if a gauge says so."""
    latest = now.latest
    omega = rules.omega(iteration)
    features: dict[Side, Matrix] = {}
    for side, ridge in rules.ridges.items():
        cross = latest[side].feature_cross
        features[side] = ridge.moved(now.hierarchy.features[side], cross, omega)
    step = rules.prior_step(now.hierarchy, latest["rows"], latest["cols"])
    hierarchy, divergence, maps = step
    mean_grams = {side: statistics.implicit_gram for side, statistics in latest.items()}
    coef_grams = dict(now.coef_grams)
    if maps:
        state.apply(maps)
        rank = rules.config.factors
        features = {side: learnt @ maps[side].matrix for side, learnt in features.items()}
        mean_grams = {side: mapped_means(maps[side], mean_grams[side], rank) for side in SIDES}
        coef_grams = {side: mapped_coef(maps[OTHER[side]], coef_grams[side]) for side in SIDES}
    hierarchy = hierarchy.with_coef(coef_grams, mean_grams, features)
    change = relative_change(now.moved["rows"], now.moved["cols"], rules.config.intercepts)
    now = replace(now, hierarchy=hierarchy, coef_grams=coef_grams)
    return now, IterationEnd(divergence, change)


def mapped_means(by: RowMap, gram: Matrix, rank: int) -> Matrix:
    """The Gram matrix of [1, p] after a map of the rows."""
    means = by.of_means(rank)
    return np.asarray(means.T @ gram @ means)


def mapped_coef(by: RowMap, gram: Matrix) -> Matrix:
    """The Gram matrix of [w z d] after a map of the other side's rows."""
    if not len(gram):
        return gram
    coef = by.of_vectors(len(gram) // 3, 3)
    return np.asarray(coef.T @ gram @ coef)


def iteration_of(
    history: Sequence[Iteration],
    objective: float,
    ended: IterationEnd,
    seconds: float,
) -> Iteration:
    decrease = np.inf
    if history:
        fall = history[-1].objective - objective
        decrease = fall / max(abs(objective), 1e-300)
    number = len(history) + 1
    return Iteration(number, objective, ended.divergence, decrease, ended.change, seconds)


def check_objective(step: Iteration) -> None:
    if not np.isfinite(step.objective):
        raise FitFailed(
            f"the objective became {step.objective} in iteration {step.number}; please report this "
            "with the configuration"
        )


# ---- the stopping rule -------------------------------------------------------------------------


def how_far(history: Sequence[Iteration], tol: float) -> str:
    if len(history) <= WINDOW:
        return f"at least {WINDOW + 1} iterations are needed to tell"
    fall = recent_fall(history)
    change = history[-1].change
    return (
        f"in the last {WINDOW} iterations the objective fell by {fall:.1e}, in the last one the "
        f"scores changed by {change:.1e} (relative); both must be within tol = {tol:g}"
    )


def recent_fall(history: Sequence[Iteration]) -> float:
    """The relative decrease of the objective in the last ``WINDOW`` iterations; inf after fewer.

    A single iteration is not enough: a decrease by a millionth may be followed by a hundred of the
    same size.
    """
    if len(history) <= WINDOW:
        return np.inf
    first = history[-1 - WINDOW].objective
    last = history[-1].objective
    return (first - last) / max(abs(last), 1e-300)


def distance(history: Sequence[Iteration]) -> float:
    """The larger of the two quantities that the stopping rule compares with ``tol`` (§7.4)."""
    return max(abs(recent_fall(history)), history[-1].change)


# ---- seconds -----------------------------------------------------------------------------------


class PhaseTimer:
    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def end(self, phase: str) -> None:
        """End the phase that began at the end of the last one."""
        now = time.perf_counter()
        self.seconds[phase] = now - self._last
        self._last = now

    def divide_fit(self, choosing: float, iterations: list[Iteration]) -> None:
        """Book the seconds that neither the choice nor iterations took as those of the start."""
        self.seconds["choosing"] = choosing
        iterating = sum(step.seconds for step in iterations)
        self.seconds["start"] = self.seconds["fit"] - choosing - iterating
