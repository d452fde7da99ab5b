"""A prior that is learnt from a part of the ratings, and a posterior near it (docs/MATH.md, §9.5).

    ratings ─coin─► A ─fit─► ρ_A ─sharpen─► π = N(E_A, diag(var_A)/t)     ratings A and B ─fit under π─► ρ
                    B ─────────────────────────────────────────────────► the Gibbs risk of ρ: draws on B alone

ρ has independent coordinates, also if ρ_A has full covariances. So a model stores one number per coordinate for the
draws. A row without a rating in A has π = N(p, diag(1/g)/t), where N(p, diag(1/g)) is the prior of the fit on A. For a
row without any rating ρ = π, which adds nothing to the divergence.

The bound on B contains KL(ρ‖π). Learning more from B does not pay: on MovieLens-1M, with half of the ratings in A, each
nat of divergence lowers the Gibbs risk by less than it raises the bound. A *narrow* prior does pay: draws from ρ_A err
on 28.2%, draws with spreads eight times narrower err on 26.2%, like the mean. The factor is a constant, because it must
not depend on B.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np

from onebit_spark.core.config import FitConfig
from onebit_spark.core.engine import Engine, final_posteriors
from onebit_spark.core.features import FeatureCoding, codings_of
from onebit_spark.core.hyper_posterior import FixedPrior, HyperPosterior
from onebit_spark.core.losses import SIDES, PriorLines, Side
from onebit_spark.core.model_selection import SelectedModel, select_model
from onebit_spark.core.posterior import RowPosterior
from onebit_spark.core.randomness import Split
from onebit_spark.core.solver import AfterIteration, Iteration, Outcome, Start, descend, solve
from onebit_spark.errors import RequestError

P = TypeVar("P")  # a posterior of a side, in the engine's own form

SHARPNESS = 64.0  # t
NARROWING = SHARPNESS**-0.5  # spreads of π divided by those of ρ_A
REFIT_WEIGHT = 0.03  # κ of the second fit
REFIT_ITERATIONS = 20


@dataclass(frozen=True)
class LearntPrior(Generic[P]):
    """A learnt prior, and the fit that it comes from."""

    split: Split  # chooses the ratings A; only the others may be used to certify
    first_fit: Outcome[HyperPosterior]  # the fit of A
    first_posterior: dict[Side, P]  # ρ_A; rows without a rating in A have the prior
    prior: FixedPrior[P]  # π
    choice: SelectedModel[P]  # the settings of the fit of A
    codings: dict[Side, FeatureCoding]  # of side features, from the rows with ratings in A


def learn_prior(
    engine: Engine[P],
    config: FitConfig,
    split: Split,
    on_iteration: Callable[[Iteration], None] | None = None,
    start: Start[P] | None = None,
    after_iteration: Callable[[SelectedModel[P]], AfterIteration[P, HyperPosterior] | None] = lambda choice: None,
) -> LearntPrior[P]:
    """Fit the ratings that the split chooses, and make the spreads narrower."""
    with engine.restricted(split) as chosen:
        if not 0 < chosen.n_ratings < engine.n_ratings:
            raise RequestError(
                f"a prior split of {split.fraction:g} leaves {chosen.n_ratings:,} of {engine.n_ratings:,} ratings "
                "for the prior, but both parts need some: choose another fraction or give more ratings"
            )
        choice = select_model(chosen, config, start)  # on A: the prior must not depend on the other ratings
        outcome = solve(chosen, choice.config, on_iteration, choice.start, after_iteration(choice))
        learnt, codings = final_posteriors(chosen, outcome.hierarchy), codings_of(chosen.features)
    rows, cols = (PriorLines(engine.combined(side, _sharpened, learnt[side])) for side in SIDES)
    prior = FixedPrior(rows=rows, cols=cols)
    return LearntPrior(split, outcome, learnt, prior, choice, codings)


def fit_near(engine: Engine[P], learnt: LearntPrior[P]) -> Outcome[FixedPrior[P]]:
    """ρ: the fit of all ratings under the learnt prior. It starts at the prior."""
    engine.start_from({side: learnt.prior.row_prior(side).lines for side in SIDES})
    gentle = replace(
        learnt.choice.config, likelihood_weight=REFIT_WEIGHT, covariance="diagonal", max_iter=REFIT_ITERATIONS,
        tol=max(learnt.choice.config.tol, 1e-5),
    )  # fmt: skip
    return descend(engine, gentle, learnt.prior)


def _sharpened(posterior: RowPosterior) -> RowPosterior:
    """N(E x_i, diag(var x_i)/t) of every row."""
    deviation = posterior.std * np.float32(NARROWING)
    return RowPosterior(posterior.location, deviation, "spread", posterior.has_intercept)


def with_spreads_of(posterior: RowPosterior, like: RowPosterior) -> RowPosterior:
    """The means of one posterior with the spreads of another."""
    return RowPosterior(posterior.location, like.scale, like.kind, like.has_intercept, like.implicit)
