"""From the ratings of an engine to a fit with its certificates.

With a prior split, the prior is learnt from a part of the ratings, and the posterior stays near it (MATH.md, §9.5)::

    ratings ─coin─► A ─fit─► ρ_A ─sharpen─► π = N(E_A, diag(var_A)/t)     ratings A and B ─fit under π─► ρ
                    B ─────────────────────────────────────────────────► the Gibbs risk of ρ: draws on B alone

Learning more from B does not pay: on MovieLens-1M, with half of the ratings in A, each nat of divergence lowers the
Gibbs risk by less than it raises the bound. A *narrow* prior does pay: draws from ρ_A err on 28.2%, draws with spreads
eight times narrower err on 26.2%, like the mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from onebit_spark.certificate.certificates import (
    NARROWING,
    Certificate,
    gibbs_certificates,
    prior_split_certificate,
    theorem1_certificate,
)
from onebit_spark.core.config import FitConfig, Terms
from onebit_spark.core.engine import Engine, final_posteriors
from onebit_spark.core.features import FeatureCoding, codings_of
from onebit_spark.core.hyper_posterior import FixedPrior, HyperPosterior
from onebit_spark.core.losses import LOSSES, SIDES, PriorLines, Side
from onebit_spark.core.model_selection import SelectedModel, select_model
from onebit_spark.core.positions import Axes
from onebit_spark.core.posterior import MODEL_VECTORS, RowPosterior
from onebit_spark.core.prediction import Thresholds, thresholds_of
from onebit_spark.core.randomness import Draws, Split
from onebit_spark.core.solver import AfterIteration, Iteration, Outcome, Start, descend, solve
from onebit_spark.errors import RequestError

P = TypeVar("P")  # a posterior of a side, in the engine's own form

REFIT_WEIGHT = 0.03  # κ of the second fit
REFIT_ITERATIONS = 20


SPLIT_STREAM, DRAW_STREAM = 0x5B117, 0xD7A35  # so that the coins and the draws of one seed differ


@dataclass(frozen=True)
class CertifiedFit(Generic[P]):
    scales: HyperPosterior  # q(γ) and q(μ), and π^γ with the α and β that were used
    history: list[Iteration]
    converged: bool
    reason: str  # why the fit stopped
    posterior: dict[Side, P]
    certificates: list[Certificate]
    choice: SelectedModel[P]  # rank, κ and features, and how they were chosen
    codings: dict[Side, FeatureCoding]  # of side features in the fit: after a prior split, in that of A
    drawn: dict[Side, P] | None = None  # after a prior split: the posterior whose draws are certified
    thresholds: Thresholds | None = None  # of every call, from the fitted ratings; None at a checkpoint
    axes: Axes | None = None  # of positions, and the tables of ``engine.Measure``; None at a checkpoint
    measured: dict[Side, Any] | None = None

    def tables(self, side: Side) -> list[Any]:
        """The posterior of the model, after a prior split that of the certified draws, and ``measured``."""
        kept = (self.posterior, self.drawn, self.measured)
        return [tables[side] for tables in kept if tables is not None]


class Checkpoints(NamedTuple):
    """An unfinished fit is stored after every level of the choice, and after every ``interval`` iterations."""

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
    ``NARROWING``. ``start`` replaces the start of the configuration.
    """
    majority_error = min(positives, engine.n_ratings - positives) / engine.n_ratings
    if terms is not None and terms.prior_split is not None:
        split = Split(config.seed ^ SPLIT_STREAM, terms.prior_split)
        fit = _under_learnt_prior(engine, config, terms, split, majority_error, on_iteration, start, checkpoints)
    else:
        choice = select_model(engine, config, start, _after_level(checkpoints))
        outcome = solve(engine, choice.config, on_iteration, choice.start, _after_iteration(checkpoints, choice))
        fit = _under_given_prior(engine, terms, choice, outcome, majority_error)
    counts = engine.confidences(fit.posterior, LOSSES[config.loss].score_noise)
    fit = replace(fit, thresholds=thresholds_of(counts))
    if fit.choice.config.implicit_features:
        without = partial(RowPosterior.with_vectors, kept=MODEL_VECTORS, vectors=MODEL_VECTORS)  # without directions
        posterior = {side: engine.combined(side, without, lines) for side, lines in fit.posterior.items()}
        fit = replace(fit, posterior=posterior, scales=fit.scales.without_directions())
    loss = fit.choice.config.make_loss()
    axes, measured = engine.measured(fit.posterior, loss, {side: fit.scales.row_prior(side) for side in SIDES})
    return replace(fit, axes=axes, measured=measured)


def _after_iteration(
    checkpoints: Checkpoints | None, choice: SelectedModel[P]
) -> AfterIteration[P, HyperPosterior] | None:
    if checkpoints is None:
        return None

    def write(engine: Engine[P], hierarchy: HyperPosterior, history: list[Iteration]) -> None:
        if len(history) % checkpoints.interval == 0:
            posterior, codings = final_posteriors(engine, hierarchy), codings_of(engine.features)
            checkpoints.write(CertifiedFit(hierarchy, history, False, "a checkpoint", posterior, [], choice, codings))

    return write


def _after_level(checkpoints: Checkpoints | None) -> Callable[[SelectedModel[P]], None] | None:
    if checkpoints is None:
        return None

    def write(choice: SelectedModel[P]) -> None:
        assert choice.start is not None
        start = choice.start
        checkpoints.write(CertifiedFit(start.scales, [], False, "a checkpoint", start.posteriors, [], choice, {}))

    return write


def _under_given_prior(
    engine: Engine[P], terms: Terms | None, choice: SelectedModel[P], outcome: Outcome[HyperPosterior],
    majority_error: float,
) -> CertifiedFit[P]:  # fmt: skip
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


def _under_learnt_prior(
    engine: Engine[P], config: FitConfig, terms: Terms, split: Split, majority_error: float,
    on_iteration: Callable[[Iteration], None] | None, start: Start[P] | None, checkpoints: Checkpoints | None,
) -> CertifiedFit[P]:  # fmt: skip
    """Fit the ratings A that the split chooses, make the spreads narrower, and fit all ratings under this prior."""
    with engine.restricted(split) as part:
        if not 0 < part.n_ratings < engine.n_ratings:
            raise RequestError(
                f"a prior split of {split.fraction:g} leaves {part.n_ratings:,} of {engine.n_ratings:,} ratings "
                "for the prior, but both parts need some: choose another fraction or give more ratings"
            )
        # on A: the prior must not depend on the other ratings
        choice = select_model(part, config, start, _after_level(checkpoints))
        config = choice.config
        first = solve(part, config, on_iteration, choice.start, _after_iteration(checkpoints, choice))
        learnt, codings = final_posteriors(part, first.hierarchy), codings_of(part.features)
    lines = {side: engine.combined(side, _sharpened, learnt[side]) for side in SIDES}
    engine.start_from(lines)
    gentle = replace(
        config, likelihood_weight=REFIT_WEIGHT, covariance="diagonal", max_iter=REFIT_ITERATIONS,
        tol=max(config.tol, 1e-5),
    )  # fmt: skip
    last = descend(engine, gentle, FixedPrior(PriorLines(lines["rows"]), PriorLines(lines["cols"]))).history[-1]
    n_unseen = max(1, round((1 - split.fraction) * engine.n_ratings))
    draws = Draws.enough(n_unseen, config.seed ^ DRAW_STREAM, unseen_by=split)
    counted = engine.gibbs_errors(draws)
    drawn = {side: engine.posterior(side) for side in SIDES}
    return CertifiedFit(
        first.hierarchy,
        first.history,
        first.converged,
        first.reason,
        {side: engine.combined(side, _with_spreads_of, drawn[side], by) for side, by in learnt.items()},
        [prior_split_certificate(max(last.divergence, 0.0), counted, draws, terms, majority_error)],
        choice,
        codings,
        drawn,
    )


def _sharpened(posterior: RowPosterior) -> RowPosterior:
    deviation = posterior.std * np.float32(NARROWING)
    return RowPosterior(posterior.location, deviation, "spread", posterior.has_intercept)


def _with_spreads_of(posterior: RowPosterior, like: RowPosterior) -> RowPosterior:
    return RowPosterior(posterior.location, like.scale, like.kind, like.has_intercept, like.implicit)


def prior_cost(config: FitConfig, n_lines: int) -> float:
    """What KL(ρ‖π) pays because the default α depends on m = ``n_lines``; 0 if α was given (docs/MATH.md, §9.6)."""
    return math.log(n_lines) + math.log(n_lines + 1) if config.alpha is None else 0.0
