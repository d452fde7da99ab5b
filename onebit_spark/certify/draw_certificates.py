"""Certificates of random draws from the posterior of a fit, on the ratings that were fitted."""

from __future__ import annotations

import math
from typing import Any

from onebit_spark.certify.certificates import (
    Certificate,
    gibbs_certificates,
    theorem1_certificate,
)
from onebit_spark.core.fit_state import FitState
from onebit_spark.core.model_selection import SelectedModel
from onebit_spark.core.randomness import Draws
from onebit_spark.core.setup import kappa_of
from onebit_spark.core.solver import Outcome
from onebit_spark.settings import FitConfig, Terms

DRAW_STREAM = 0xD7A35  # so that the draws of a seed differ from the coins of the same seed


def certify_draws(
    state: FitState[Any],
    choice: SelectedModel[Any],
    outcome: Outcome,
    terms: Terms | None,
    positives: int,
) -> list[Certificate]:
    """The certificates of draws from the posteriors of the state; none without ``terms``.

    There are none either if features make the prior depend on the sample.
    """
    config = choice.config
    if terms is None or config.implicit_features or outcome.hierarchy.features:
        return []
    engine = state.engine
    n = engine.n_ratings
    last = outcome.history[-1]
    majority_error = min(positives, n - positives) / n
    n_lines = engine.count("rows") + engine.count("cols")
    cost = prior_cost(config, n_lines) + math.log(choice.ranks)
    draws = Draws.enough(n, config.seed ^ DRAW_STREAM)
    counted = state.gibbs_errors(draws)
    certificates = gibbs_certificates(last, counted, draws, terms, majority_error, cost)
    if config.loss == "hinge" and not engine.weighted:
        lam = kappa_of(config) * n
        weights = choice.candidates
        theorem1 = theorem1_certificate(last, n, lam, terms, majority_error, cost, weights)
        certificates.insert(0, theorem1)
    return certificates


def prior_cost(config: FitConfig, n_lines: int) -> float:
    """What KL(ρ‖π) pays because the default α depends on m = ``n_lines`` (docs/MATH.md, §9.5).

    It is 0 if α was given.
    """
    if config.alpha is not None:
        return 0.0
    return math.log(n_lines) + math.log(n_lines + 1)
