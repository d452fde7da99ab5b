"""From the ratings of an engine to a fit with its certificates."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from onebit_spark.certificate.certificates import (
    Certificate,
    gibbs_certificates,
    prior_split_certificate,
    theorem1_certificate,
)
from onebit_spark.certificate.learnt_prior import LearntPrior, fit_near, learn_prior, with_spreads_of
from onebit_spark.core.config import FitConfig, Terms
from onebit_spark.core.engine import Engine, final_posteriors
from onebit_spark.core.features import FeatureCoding, codings_of
from onebit_spark.core.hyper_posterior import HyperPosterior
from onebit_spark.core.losses import LOSSES, SIDES, Side
from onebit_spark.core.model_selection import SelectedModel, select_model
from onebit_spark.core.posterior import MODEL_VECTORS, RowPosterior
from onebit_spark.core.prediction import ConfidenceThresholds
from onebit_spark.core.randomness import Draws, Split
from onebit_spark.core.solver import AfterIteration, Iteration, Outcome, Start, solve

P = TypeVar("P")  # a posterior of a side, in the engine's own form

SPLIT_STREAM, DRAW_STREAM = 0x5B117, 0xD7A35  # so that the coins and the draws of one seed differ


@dataclass(frozen=True)
class CertifiedFit(Generic[P]):
    """A fit with its certificates."""

    scales: HyperPosterior  # q(γ) and q(μ), and π^γ with the α and β that were used
    history: list[Iteration]
    converged: bool
    reason: str  # why the fit stopped
    posterior: dict[Side, P]
    certificates: list[Certificate]
    choice: SelectedModel[P]  # rank, κ and features, and how they were chosen
    codings: dict[Side, FeatureCoding]  # of side features in the fit: after a prior split, in that of A
    drawn: dict[Side, P] | None = None  # after a prior split: the posterior whose draws are certified
    confidence_thresholds: ConfidenceThresholds | None = None  # from the fitted ratings; None at a checkpoint


class Checkpoints(NamedTuple):
    """An unfinished fit is stored after every ``interval`` iterations."""

    interval: int
    write: Callable[[CertifiedFit[Any]], None]


def certified_fit(
    engine: Engine[P],
    config: FitConfig,
    terms: Terms | None,
    positives: int,
    on_iteration: Callable[[Iteration], None] | None = None,
    start: Start[P] | None = None,
    checkpoints: Checkpoints | None = None,
) -> CertifiedFit[P]:
    """Fit the ratings of an engine, and certify the posterior. Without ``terms``, nothing is certified.

    With a prior split the model keeps the spreads of the first fit. The certified draws are narrower by
    ``learnt_prior.NARROWING``. ``start`` replaces the start of the configuration.
    """
    majority_error = min(positives, engine.n_ratings - positives) / engine.n_ratings
    if terms is not None and terms.prior_split is not None:
        split = Split(config.seed ^ SPLIT_STREAM, terms.prior_split)
        learnt = learn_prior(engine, config, split, on_iteration, start, partial(_after_iteration, checkpoints))
        fit = _near_learnt_prior(engine, terms, learnt, majority_error)
    else:
        choice = select_model(engine, config, start)
        outcome = solve(engine, choice.config, on_iteration, choice.start, _after_iteration(checkpoints, choice))
        fit = _under_given_prior(engine, terms, choice, outcome, majority_error)
    counts = engine.confidences(fit.posterior, LOSSES[config.loss].score_noise)
    fit = replace(fit, confidence_thresholds=ConfidenceThresholds.of_histogram(counts))
    if not fit.choice.config.implicit_features:
        return fit
    posterior = {side: engine.combined(side, _model_vectors, lines) for side, lines in fit.posterior.items()}
    return replace(fit, posterior=posterior, scales=fit.scales.without_directions())


def _after_iteration(
    checkpoints: Checkpoints | None, choice: SelectedModel[P]
) -> AfterIteration[P, HyperPosterior] | None:
    """What the solver calls after an iteration of a fit with these settings."""
    if checkpoints is None:
        return None

    def write(engine: Engine[P], hierarchy: HyperPosterior, history: list[Iteration]) -> None:
        if len(history) % checkpoints.interval == 0:
            posterior, codings = final_posteriors(engine, hierarchy), codings_of(engine.features)
            checkpoints.write(CertifiedFit(hierarchy, history, False, "a checkpoint", posterior, [], choice, codings))

    return write


def _model_vectors(posterior: RowPosterior) -> RowPosterior:
    """The posterior without the directions of the implicit weights, which only further iterations would need."""
    return posterior.with_vectors(MODEL_VECTORS, MODEL_VECTORS)


def _under_given_prior(
    engine: Engine[P],
    terms: Terms | None,
    choice: SelectedModel[P],
    outcome: Outcome[HyperPosterior],
    majority_error: float,
) -> CertifiedFit[P]:
    """The fit and its certificates. There are none if features make the prior depend on the sample."""
    config, hierarchy, certificates = choice.config, outcome.hierarchy, list[Certificate]()
    if terms is not None and not config.implicit_features and not hierarchy.features:
        draws = Draws.enough(engine.n_ratings, config.seed ^ DRAW_STREAM)
        counted = engine.gibbs_errors(draws)
        cost = prior_cost(config, engine.count("rows") + engine.count("cols")) + math.log(choice.ranks)
        last, n = outcome.history[-1], counted.ratings
        certificates = gibbs_certificates(last, counted, draws, terms, majority_error, cost)
        if config.loss == "hinge" and not engine.weighted:
            lam = config.kappa * n
            theorem1 = theorem1_certificate(last, n, lam, terms, majority_error, cost, choice.candidates)
            certificates = [theorem1, *certificates]
    return CertifiedFit(
        hierarchy, outcome.history, outcome.converged, outcome.reason,
        final_posteriors(engine, hierarchy), certificates, choice, codings_of(engine.features),
    )  # fmt: skip


def _near_learnt_prior(
    engine: Engine[P], terms: Terms, learnt: LearntPrior[P], majority_error: float
) -> CertifiedFit[P]:
    config, last = learnt.choice.config, fit_near(engine, learnt).history[-1]
    n_unseen = max(1, round((1 - learnt.split.fraction) * engine.n_ratings))
    draws = Draws.enough(n_unseen, config.seed ^ DRAW_STREAM, unseen_by=learnt.split)
    counted = engine.gibbs_errors(draws)
    first, drawn = learnt.first_fit, {side: engine.posterior(side) for side in SIDES}
    return CertifiedFit(
        first.hierarchy,
        first.history,
        first.converged,
        first.reason,
        {side: engine.combined(side, with_spreads_of, drawn[side], by) for side, by in learnt.first_posterior.items()},
        [prior_split_certificate(max(last.divergence, 0.0), counted, draws, terms, majority_error)],
        learnt.choice,
        learnt.codings,
        drawn,
    )


def prior_cost(config: FitConfig, n_lines: int) -> float:
    """What is added to KL(ρ‖π) because the default α depends on the data; 0 if α was given (docs/MATH.md, §9.6).

    α = m/10, where m = ``n_lines`` counts the users and items of the *sample*. So there is one prior per m, and the
    sample selects one of them. The weights 1/(m(m+1)) sum to 1, so a union bound adds log(m(m+1)).
    """
    return math.log(n_lines) + math.log(n_lines + 1) if config.alpha is None else 0.0
