"""A prior learnt on some of the ratings, and a posterior near it, so that the bound on the others is sharp.

    ratings ─coin─► A ─fit─► ρ_A ─sharpen─► π = N(E_A, diag(var_A)/t)     ratings A and B ─fit under π─► ρ
                    B ─────────────────────────────────────────────────► the Gibbs risk of ρ: draws on B alone

ρ has independent coordinates, whatever ρ_A has: a model keeps one number per coordinate to draw from it. A row that has
no rating in A has π = N(p, diag(1/g)/t), p and 1/g the prior of the fit on A. So has a row with no rating at all, where
ρ = π: it costs nothing.

The bound on B pays for KL(ρ‖π), and what ρ can still learn from B is worth less than it costs: on MovieLens-1M (A half
of the ratings) every nat a row spends lowers the Gibbs risk by less than it raises the bound. What pays is a *narrow*
prior: drawing from ρ_A itself errs on 28.2%, with spreads eight times narrower on 26.2%, like the mean. The width is a
constant of this file: it may not depend on B.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np

from onebit_spark.core.config import FitConfig
from onebit_spark.core.losses import SIDES, PriorLines, Side
from onebit_spark.core.posterior import RowPosterior
from onebit_spark.core.scales import FixedPrior, ScaleHierarchy
from onebit_spark.core.solver import Engine, Iteration, Outcome, Start, Watch, descend, solve
from onebit_spark.core.split import Split
from onebit_spark.errors import RequestError

P = TypeVar("P")  # a posterior of a side, in the engine's own form

SHARPNESS = 64.0  # t
NARROWING = SHARPNESS**-0.5  # what π's spreads are, as a share of the learnt ones
REFIT_WEIGHT = 0.03  # κ of the second fit
REFIT_ITERATIONS = 20


@dataclass(frozen=True)
class LearntPrior(Generic[P]):
    """π, what it was learnt from, and the fit behind it. Only ratings that ``split`` did not choose may certify it."""

    split: Split
    first_fit: Outcome[ScaleHierarchy]
    first_posterior: dict[Side, P]  # ρ_A; rows without a rating in A have the prior's
    prior: FixedPrior[P]


def learn_prior(
    engine: Engine[P],
    config: FitConfig,
    split: Split,
    on_iteration: Callable[[Iteration], None] | None = None,
    start: Start[P] | None = None,
    watch: Watch[P] | None = None,
) -> LearntPrior[P]:
    """Fit the chosen ratings, and sharpen."""
    with engine.restricted(split) as chosen:
        if not 0 < chosen.n_ratings < engine.n_ratings:
            raise RequestError(
                f"a prior split of {split.fraction:g} leaves the prior {chosen.n_ratings:,} of {engine.n_ratings:,} "
                "ratings: both parts need some, so choose another fraction or give more ratings"
            )
        outcome = solve(chosen, config, on_iteration, start, watch)
        learnt = {side: chosen.posterior(side, outcome.hierarchy.row_prior(side)) for side in SIDES}
    prior = FixedPrior(*(PriorLines(engine.combined(side, _sharpened, learnt[side])) for side in SIDES))
    return LearntPrior(split, outcome, learnt, prior)


def fit_near(engine: Engine[P], config: FitConfig, learnt: LearntPrior[P]) -> Outcome[FixedPrior[P]]:
    """ρ: fitted to all ratings of the engine under the learnt prior, from its mean."""
    engine.start_from({side: learnt.prior.row_prior(side).lines for side in SIDES})
    gentle = replace(
        config, likelihood_weight=REFIT_WEIGHT, covariance="diagonal", max_iter=REFIT_ITERATIONS,
        tol=max(config.tol, 1e-5),
    )  # fmt: skip
    return descend(engine, gentle, learnt.prior)


def _sharpened(posterior: RowPosterior) -> RowPosterior:
    """N(E x_i, diag(var x_i)/t), a line for every row."""
    deviation = posterior.deviation * np.float32(NARROWING)
    return RowPosterior(posterior.location, deviation, "spread", posterior.has_intercept)


def moved(posterior: RowPosterior, like: RowPosterior) -> RowPosterior:
    """The means of one posterior with the spreads of another."""
    return RowPosterior(posterior.location, like.scale, like.kind, like.has_intercept)
