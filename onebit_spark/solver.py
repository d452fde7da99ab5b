"""The alternation: L step, R step, γ step, objective, stop? One loop, whatever engine runs the map steps."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from onebit_spark.config import FitConfig
from onebit_spark.errors import FitFailed
from onebit_spark.losses import HalfStep, Loss, RowPrior, Side
from onebit_spark.posterior import RowPosterior
from onebit_spark.priors import ScalePosterior, ScalePrior
from onebit_spark.statistics import SideStatistics, relative_change

INTERCEPT_MEAN_VARIANCE = 1.0  # σ0², the prior variance of μ


class NotConverged(UserWarning):
    """The fit stopped at ``max_iter`` before the stopping rule held."""


class Engine(Protocol):
    """Holds the ratings and both sides' posteriors, and runs a map step over the rows of one side."""

    n_ratings: int

    def count(self, side: Side) -> int:
        """Rows of the side with at least one rating."""

    def start(self, config: FitConfig, loss: Loss) -> None:
        """Set both posteriors to the start."""

    def start_from(self, posteriors: dict[Side, RowPosterior]) -> None:
        """Set both posteriors to these."""

    def half_step(self, loss: Loss, step: HalfStep) -> SideStatistics:
        """Update the posterior of ``step.side`` given the other side's."""


@dataclass(frozen=True)
class Scales:
    """The driver's share of the posterior: q(γ), and q(μ) = N(m_μ, v_μ) of the rows' intercepts."""

    factor: NDArray[np.float64]  # g_k = E[1/γ_k], the K factors
    row_intercept: float = 1.0  # E[1/γ_b]
    col_intercept: float = 1.0  # E[1/γ_d]
    mean: float = 0.0  # m_μ
    mean_variance: float = INTERCEPT_MEAN_VARIANCE  # v_μ

    @classmethod
    def at_start(cls, rank: int) -> Scales:
        return cls(np.ones(rank))

    def prior(self, side: Side, intercepts: bool) -> RowPrior:
        """The normal prior of one side's rows under q(γ), q(μ)."""
        if not intercepts:
            return RowPrior(np.zeros((1, len(self.factor))), self.factor[None, :])
        own = self.row_intercept if side == "rows" else self.col_intercept
        mean = np.zeros((1, len(self.factor) + 1))
        mean[0, 0] = self.mean if side == "rows" else 0.0
        return RowPrior(mean, np.concatenate([[own], self.factor])[None, :])


@dataclass(frozen=True)
class Iteration:
    """What one iteration did, for the history, the log and the progress display."""

    number: int  # 1 for the first
    objective: float  # λ·AVB or −ELBO, minimised
    decrease: float  # relative to the last objective; inf in the first iteration
    change: float  # ‖M_t − M_{t−1}‖²_F / ‖M_t‖²_F
    seconds: float


@dataclass(frozen=True)
class Outcome:
    """The end of a fit."""

    scales: Scales
    history: list[Iteration]
    converged: bool
    reason: str


@dataclass(frozen=True)
class Start:
    """Where a fit may start instead of where its configuration says: the posterior of an earlier one."""

    posteriors: dict[Side, RowPosterior]
    scales: Scales


Watch = Callable[[Scales, Iteration], str | None]  # called after every iteration; a reason ends the fit


def solve(
    engine: Engine,
    config: FitConfig,
    on_iteration: Callable[[Iteration], None] | None = None,
    start: Start | None = None,
    watch: Watch | None = None,
) -> Outcome:
    """Fit: start, then iterate until the objective and M stand still or ``max_iter`` is reached."""
    loss = config.make_loss()
    prior = config.make_prior(engine.count("rows") + engine.count("cols"))
    if start is None:
        engine.start(config, loss)
    else:
        engine.start_from(start.posteriors)
    history: list[Iteration] = []
    first = Scales.at_start(config.rank) if start is None else start.scales
    for scales, iteration in _iterate(engine, config, loss, prior, first):
        history.append(iteration)
        if on_iteration is not None:
            on_iteration(iteration)
        if not np.isfinite(iteration.objective):
            raise FitFailed(
                f"the objective became {iteration.objective} in iteration {iteration.number}; "
                "please report this with the configuration"
            )
        if config.tol > 0 and abs(iteration.decrease) <= config.tol and iteration.change <= config.tol:
            reason = f"objective and scores changed by less than tol = {config.tol:g}"
            return Outcome(scales, history, True, reason)
        stop = watch(scales, iteration) if watch is not None else None
        if stop:
            return Outcome(scales, history, False, stop)
    reason = f"max_iter = {config.max_iter} reached"
    if config.tol > 0:
        last = history[-1]
        warnings.warn(
            f"not converged: {reason}; in the last iteration the objective fell by {last.decrease:.1e} "
            f"and the scores changed by {last.change:.1e} (relative); both must be within tol = {config.tol:g}",
            NotConverged,
            stacklevel=3,
        )
    return Outcome(scales, history, False, reason)


def _iterate(
    engine: Engine, config: FitConfig, loss: Loss, prior: ScalePrior, scales: Scales
) -> Iterator[tuple[Scales, Iteration]]:
    objective = np.inf
    ratings_per_row = 2 * engine.n_ratings / (engine.count("rows") + engine.count("cols"))
    plan = loss.plan()
    for number in range(1, config.max_iter + 1):
        began = time.perf_counter()
        latest: dict[Side, SideStatistics] = {}
        moved: dict[Side, SideStatistics] = {}
        for position, move in enumerate(plan):
            step = HalfStep(
                side=move.side,
                iteration=number - 1,
                weight=config.weight,
                prior=scales.prior(move.side, config.intercepts),
                ratings_per_row=ratings_per_row,
                move_means=move.means,
                move_spreads=move.spreads,
                want_data=position == len(plan) - 1,
            )
            latest[move.side] = engine.half_step(loss, step)
            if move.means:
                moved[move.side] = latest[move.side]
        previous = objective
        scales, divergence = update_scales(scales, latest["rows"], latest["cols"], prior, config.intercepts)
        objective = latest["cols"].data + divergence
        decrease = (previous - objective) / max(abs(objective), 1e-300) if number > 1 else np.inf
        change = relative_change(moved["rows"], moved["cols"], config.intercepts)
        yield scales, Iteration(number, objective, decrease, change, time.perf_counter() - began)


def update_scales(
    scales: Scales, rows: SideStatistics, cols: SideStatistics, prior: ScalePrior, intercepts: bool
) -> tuple[Scales, float]:
    """The γ step (and μ before γ_b), and KL(ρ‖π) right after it.

    With every γ at its optimum, KL(ρ‖π) = −Σ log s − Σ_k (log Z_k + m_k/2) + KL(q(μ)‖π(μ)), free of cancellation.
    """
    first = int(intercepts)  # the intercept's coordinate, if any, stands before the factors
    second_moment = (rows.square + rows.variance)[first:] + (cols.square + cols.variance)[first:]
    factors = prior.posterior(second_moment, rows.count + cols.count)
    updated = replace(scales, factor=factors.inverse_mean)
    divergence = -rows.log_volume - cols.log_volume - _log_evidence(factors)
    if intercepts:
        variance = 1.0 / (1.0 / INTERCEPT_MEAN_VARIANCE + rows.count * scales.row_intercept)
        # The rows' sums are about the old m_μ: Σ E b = Σ(E b − m_old) + m1·m_old.
        total = rows.shift[0] + rows.count * scales.mean
        mean = variance * scales.row_intercept * total
        moved = mean - scales.mean
        about_mean = rows.square[0] - 2 * moved * rows.shift[0] + rows.count * moved**2
        row_gamma = prior.posterior(about_mean + rows.variance[0] + rows.count * variance, rows.count)
        col_gamma = prior.posterior(cols.square[0] + cols.variance[0], cols.count)
        updated = replace(
            updated,
            row_intercept=float(row_gamma.inverse_mean),
            col_intercept=float(col_gamma.inverse_mean),
            mean=float(mean),
            mean_variance=float(variance),
        )
        ratio = variance / INTERCEPT_MEAN_VARIANCE
        divergence += 0.5 * (ratio + mean**2 / INTERCEPT_MEAN_VARIANCE - 1 - np.log(ratio))
        divergence -= _log_evidence(row_gamma) + _log_evidence(col_gamma)
    return updated, float(divergence)


def _log_evidence(gamma: ScalePosterior) -> float:
    """Σ_k (log Z_k + m_k/2)."""
    return float(np.sum(gamma.log_normaliser + 0.5 * gamma.count))
