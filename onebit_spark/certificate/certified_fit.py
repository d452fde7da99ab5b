"""From the ratings of an engine to a fit with its certificates."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from onebit_spark.certificate.certificates import (
    Certificate,
    Terms,
    certificates_of,
    nine_tenths_certificate,
    prior_split_certificate,
)
from onebit_spark.certificate.learnt_prior import fit_near, learn_prior, moved
from onebit_spark.core.confidence import Ladder
from onebit_spark.core.config import FitConfig
from onebit_spark.core.draws import Draws
from onebit_spark.core.engine import Engine, settled
from onebit_spark.core.feature_coding import FeatureCoding
from onebit_spark.core.losses import LOSSES, SIDES, Side
from onebit_spark.core.priors import ScalePrior
from onebit_spark.core.scales import Scales
from onebit_spark.core.side_features import codings_of
from onebit_spark.core.solver import Iteration, Start, Watch, solve
from onebit_spark.core.split import Split
from onebit_spark.core.weight_choice import WeightChoice, choose_weight

P = TypeVar("P")  # a posterior of a side, in the engine's own form

SPLIT_STREAM, DRAW_STREAM = 0x5B117, 0xD7A35  # so that the coins and the draws of one seed differ


@dataclass(frozen=True)
class CertifiedFit(Generic[P]):
    """A fit with its certificates."""

    scales: Scales  # q(γ) and q(μ)
    prior: ScalePrior  # π^γ with the α and β that were used
    history: list[Iteration]
    converged: bool
    reason: str  # why the fit stopped
    posterior: dict[Side, P]
    certificates: list[Certificate]
    choice: WeightChoice  # κ, and how it was chosen
    codings: dict[Side, FeatureCoding]  # of side features in the fit: after a prior split, in that of A
    drawn: dict[Side, P] | None = None  # after a prior split: the posterior whose draws are certified
    nine_tenths: Certificate | None = None  # if κ was chosen: a limit for the fit that chose it, not for this one
    ladder: Ladder | None = None  # thresholds of the confidence, from the fitted ratings; None at a checkpoint


def certified_fit(
    engine: Engine[P],
    config: FitConfig,
    terms: Terms | None,
    positives: int,
    on_iteration: Callable[[Iteration], None] | None = None,
    start: Start[P] | None = None,
    watch: Watch[P] | None = None,
) -> CertifiedFit[P]:
    """Fit the ratings of an engine, and certify the posterior. Without ``terms``, nothing is certified.

    With a prior split the model keeps the spreads of the first fit. The certified draws are narrower by
    ``learnt_prior.NARROWING``. ``watch`` watches the fit and may end it; ``start`` is another start than that of the
    configuration.
    """
    made = _certified(engine, config, terms, positives, on_iteration, start, watch)
    counts = engine.confidences(made.posterior, LOSSES[config.loss].score_noise)
    return replace(made, ladder=Ladder.of_histogram(counts))


def _certified(
    engine: Engine[P], config: FitConfig, terms: Terms | None, positives: int,
    on_iteration: Callable[[Iteration], None] | None, start: Start[P] | None, watch: Watch[P] | None,
) -> CertifiedFit[P]:  # fmt: skip
    majority_error = min(positives, engine.n_ratings - positives) / engine.n_ratings
    if terms is not None and terms.prior_split is not None:
        return _with_learnt_prior(engine, config, terms, terms.prior_split, majority_error, on_iteration, start, watch)
    choice = choose_weight(engine, config, start)
    config = replace(config, likelihood_weight=choice.weight)
    outcome = solve(engine, config, on_iteration, start, watch)
    found = []
    learns = config.implicit_features or outcome.hierarchy.feature_weights
    if terms is not None and not learns:  # features make the prior depend on the sample
        draws = Draws.enough(engine.n_ratings, config.seed ^ DRAW_STREAM)
        counted = engine.gibbs_errors(draws)
        cost = prior_cost(config, engine.count("rows") + engine.count("cols"))
        last, kappas = outcome.history[-1], choice.candidates
        found = certificates_of(config, last, counted, draws, terms, majority_error, cost, kappas, engine.weighted)
    hierarchy = outcome.hierarchy
    posterior = settled(engine, hierarchy)
    return CertifiedFit(
        hierarchy.scales, hierarchy.prior, outcome.history, outcome.converged, outcome.reason, posterior, found, choice,
        codings_of(engine.features), nine_tenths=_of_nine_tenths(choice, terms, majority_error),
    )  # fmt: skip


def _with_learnt_prior(
    engine: Engine[P], config: FitConfig, terms: Terms, fraction: float, majority_error: float,
    on_iteration: Callable[[Iteration], None] | None, start: Start[P] | None, watch: Watch[P] | None,
) -> CertifiedFit[P]:  # fmt: skip
    learnt = learn_prior(engine, config, Split(config.seed ^ SPLIT_STREAM, fraction), on_iteration, start, watch)
    last = fit_near(engine, config, learnt).history[-1]
    n_unseen = max(1, round((1 - fraction) * engine.n_ratings))
    draws = Draws.enough(n_unseen, config.seed ^ DRAW_STREAM, unseen_by=learnt.split)
    counted = engine.gibbs_errors(draws)
    first, drawn = learnt.first_fit, {side: engine.posterior(side) for side in SIDES}
    return CertifiedFit(
        first.hierarchy.scales,
        first.hierarchy.prior,
        first.history,
        first.converged,
        first.reason,
        {side: engine.combined(side, moved, drawn[side], like) for side, like in learnt.first_posterior.items()},
        [prior_split_certificate(max(last.divergence, 0.0), counted, draws, terms, majority_error)],
        learnt.choice,
        learnt.codings,
        drawn,
        _of_nine_tenths(learnt.choice, terms, majority_error),
    )


def _of_nine_tenths(choice: WeightChoice, terms: Terms | None, majority_error: float) -> Certificate | None:
    left_out = choice.left_out
    if terms is None or left_out is None or not left_out.n:
        return None
    return nine_tenths_certificate(left_out.errors, left_out.n, choice.fits, terms, majority_error)


def prior_cost(config: FitConfig, n_lines: int) -> float:
    """What is added to KL(ρ‖π) because the default α depends on the data; 0 if α was given (docs/MATH.md, §9.6).

    α = m/10, where m = ``n_lines`` counts the users and items of the *sample*. So there is one prior per m, and the
    sample selects one of them. The weights 1/(m(m+1)) sum to 1, so a union bound adds log(m(m+1)).
    """
    return math.log(n_lines) + math.log(n_lines + 1) if config.alpha is None else 0.0
