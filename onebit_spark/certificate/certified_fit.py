"""From the ratings of an engine to a fit with its certificates."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from onebit_spark.certificate.certificates import (
    Certificate,
    gibbs_certificates,
    theorem1_certificate,
)
from onebit_spark.core.config import FitConfig, Terms
from onebit_spark.core.engine import Engine, final_posteriors
from onebit_spark.core.features import FeatureCoding, codings_of
from onebit_spark.core.hyper_posterior import HyperPosterior
from onebit_spark.core.losses import SIDES, Side
from onebit_spark.core.model_selection import SelectedModel, select_model
from onebit_spark.core.positions import Axes
from onebit_spark.core.posterior import MODEL_VECTORS, RowPosterior
from onebit_spark.core.prediction import Thresholds, thresholds_of
from onebit_spark.core.randomness import Draws
from onebit_spark.core.solver import AfterIteration, Iteration, Outcome, Start, solve

P = TypeVar("P")  # a posterior of a side, in the engine's own form

DRAW_STREAM = 0xD7A35  # so that the draws of a seed differ from the coins of the same seed


@dataclass(frozen=True)
class CertifiedFit(Generic[P]):
    scales: HyperPosterior  # q(γ) and q(μ), and π^γ with the α and β that were used
    history: list[Iteration]
    converged: bool
    reason: str  # why the fit stopped
    posterior: dict[Side, P]
    certificates: list[Certificate]
    choice: SelectedModel[P]  # rank, κ and features, and how they were chosen
    codings: dict[Side, FeatureCoding]  # of the side features
    thresholds: Thresholds | None = None  # of every call, from the fitted ratings; None at a checkpoint
    axes: Axes | None = None  # of positions, and the tables of ``engine.Measure``; None at a checkpoint
    measured: dict[Side, Any] | None = None

    def tables(self, side: Side) -> list[Any]:
        """The posterior of a side, and ``measured`` unless this is a checkpoint."""
        posterior = self.posterior[side]
        return [posterior] if self.measured is None else [posterior, self.measured[side]]


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

    ``start`` replaces the start of the configuration.
    """
    choice = select_model(engine, config, start, _after_level(checkpoints))
    write = _after_iteration(checkpoints, choice)
    outcome = solve(engine, choice.config, on_iteration, choice.start, write)
    certificates = list[Certificate]()
    if terms is not None:
        majority_error = min(positives, engine.n_ratings - positives) / engine.n_ratings
        certificates = _certificates_of_draws(engine, terms, choice, outcome, majority_error)
    scales = outcome.hierarchy
    posterior = final_posteriors(engine, scales)
    loss = choice.config.make_loss()
    thresholds = thresholds_of(engine.confidences(posterior, loss.score_noise))
    if choice.config.implicit_features:
        posterior = {side: _without_directions(engine, side, posterior[side]) for side in SIDES}
        scales = scales.without_directions()
    priors = {side: scales.row_prior(side) for side in SIDES}
    axes, measured = engine.measured(posterior, loss, priors)
    return CertifiedFit(
        scales=scales,
        history=outcome.history,
        converged=outcome.converged,
        reason=outcome.reason,
        posterior=posterior,
        certificates=certificates,
        choice=choice,
        codings=codings_of(engine.features),
        thresholds=thresholds,
        axes=axes,
        measured=measured,
    )


def _after_iteration(
    checkpoints: Checkpoints | None,
    choice: SelectedModel[P],
) -> AfterIteration[P] | None:
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


def _certificates_of_draws(
    engine: Engine[P],
    terms: Terms,
    choice: SelectedModel[P],
    outcome: Outcome,
    majority_error: float,
) -> list[Certificate]:
    """The certificates of draws from the posterior.

    There are none if features make the prior depend on the sample.
    """
    config = choice.config
    if config.implicit_features or outcome.hierarchy.features:
        return []
    n = engine.n_ratings
    last = outcome.history[-1]
    cost = prior_cost(config, engine.count("rows") + engine.count("cols")) + math.log(choice.ranks)
    draws = Draws.enough(n, config.seed ^ DRAW_STREAM)
    counted = engine.gibbs_errors(draws)
    certificates = gibbs_certificates(last, counted, draws, terms, majority_error, cost)
    if config.loss == "hinge" and not engine.weighted:
        lam = config.kappa * n
        weights = choice.candidates
        theorem1 = theorem1_certificate(last, n, lam, terms, majority_error, cost, weights)
        certificates.insert(0, theorem1)
    return certificates


def _without_directions(engine: Engine[P], side: Side, posterior: P) -> P:
    """The posterior with the implicit coefficients, but without directions for their next step."""
    without = partial(RowPosterior.with_vectors, kept=MODEL_VECTORS, vectors=MODEL_VECTORS)
    return engine.convert(side, without, posterior)


def prior_cost(config: FitConfig, n_lines: int) -> float:
    """What KL(ρ‖π) pays because the default α depends on m = ``n_lines`` (docs/MATH.md, §9.5).

    It is 0 if α was given.
    """
    return math.log(n_lines) + math.log(n_lines + 1) if config.alpha is None else 0.0
