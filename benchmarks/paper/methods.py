"""The methods that are compared: how each is fitted to a sample, and the settings among which it is
tuned.

The grids contain α and β *per row and column* (α/m, β/m). So one grid serves matrices of any size.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core.solver import NotConverged
from onebit_spark.in_process import fit_arrays
from onebit_spark.settings import FitConfig
from paper.baselines.davenport import fit_davenport
from paper.baselines.simple import fit_logistic, fit_majority
from paper.samples import Sample, folds

RANK = 10  # K, as in the paper
TOLERANCE = 1e-4

TriedSetting = Mapping[str, Any]  # of JSON values


class FittedMethod(Protocol):
    """A fitted method: the sign of the score is its prediction."""

    def score(self, rows: NDArray, cols: NDArray) -> NDArray[np.float64]: ...


@dataclass(frozen=True)
class Method:
    """A way to fit a sample, under each of some settings."""

    fit: Callable[[Sample, TriedSetting], FittedMethod]
    grid: tuple[TriedSetting, ...]


def count_wrong_signs(scorer: FittedMethod, train: Sample, test: Sample) -> int:
    """Number of wrong signs on the test part.

    A score of exactly 0 counts as the majority of the training part.
    """
    scores = scorer.score(test.rows, test.cols)
    majority = 1 if 2 * np.count_nonzero(train.labels > 0) >= len(train) else -1
    return int(np.count_nonzero(np.where(scores == 0, majority, np.sign(scores)) != test.labels))


def cross_validate(
    method: Method, sample: Sample, setting: TriedSetting, n_folds: int, seed: int
) -> dict[str, Any]:
    """The errors of every fold, and its size."""
    parts = list(folds(sample, n_folds, seed))
    errors = [count_wrong_signs(method.fit(train, setting), train, test) for train, test in parts]
    return {"errors": errors, "sizes": [len(test) for _, test in parts]}


def _bayesian(
    loss: str, prior: str, intercepts: bool = False, rank: int = RANK
) -> Callable[[Sample, TriedSetting], FittedMethod]:
    def fit(sample: Sample, setting: TriedSetting) -> FittedMethod:
        lines = len(np.unique(sample.rows)) + len(np.unique(sample.cols))
        config = FitConfig(
            loss=loss,
            prior=prior,
            rank=rank,
            likelihood_weight=setting["kappa"],
            alpha=setting["alpha"] * lines,
            beta=setting["beta"] * lines,
            intercepts=intercepts,
            implicit_features=False,
            tol=TOLERANCE,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NotConverged)
            return fit_arrays(
                sample.rows, sample.cols, sample.labels, config, sample.shape, threads=1
            )

    return fit


def _davenport(sample: Sample, setting: TriedSetting) -> FittedMethod:
    """The radius in the grid is in units of √(m1 m2)."""
    radius = setting["radius"] * math.sqrt(sample.shape[0] * sample.shape[1])
    return fit_davenport(sample.rows, sample.cols, sample.labels, sample.shape, radius, tol=1e-2)


def _ridge(sample: Sample, setting: TriedSetting) -> FittedMethod:
    return fit_logistic(sample.rows, sample.cols, sample.labels, sample.shape, **setting)


def _grid(kappas: tuple[float, ...], *priors: tuple[float, float]) -> tuple[TriedSetting, ...]:
    return tuple({"kappa": k, "alpha": a, "beta": b} for (a, b), k in product(priors, kappas))


# For the hinge a strong prior (α ≈ m) wants a larger κ.
_WEAK = (1.0, 1.4, 2.0, 2.8, 4.0, 8.0)
_BETWEEN = (1.4, 2.0, 2.8)
_STRONG = (2.0, 2.8, 4.0, 8.0)
_LOGIT_IG = (
    (0.0025, 0.0025),
    (0.0025, 0.025),
    (0.0025, 0.125),
    (0.05, 0.015),
    (0.1, 0.03),
    (0.25, 0.025),
    (0.25, 0.075),
    (0.25, 0.25),
    (1.0, 0.25),
)
_LOGIT_G = (
    (0.0025, 0.0025),
    (0.0025, 0.075),
    (0.0025, 0.75),
    (0.025, 0.025),
    (0.075, 0.0025),
    (0.075, 0.025),
    (0.25, 0.0025),
    (0.25, 0.25),
    (0.1, 0.33),
)
_SCALE_ONE = (1e4, 1e4)  # keeps γ at 1, which is the prior of the matrices of type B

METHODS: dict[str, Method] = {
    "Logit-G": Method(_bayesian("logistic", "gamma"), _grid((1.0,), *_LOGIT_G)),
    "Logit-IG": Method(_bayesian("logistic", "inverse-gamma"), _grid((1.0,), *_LOGIT_IG)),
    "HL-G": Method(
        _bayesian("hinge", "gamma"), _grid(_WEAK, (0.0025, 0.0025)) + _grid(_STRONG, (0.0025, 7.5))
    ),
    "HL-IG": Method(
        _bayesian("hinge", "inverse-gamma"),
        _grid(_WEAK, (0.0025, 0.00025))
        + _grid(_STRONG, (1.0, 0.00025))
        + _grid(_BETWEEN, (0.23, 0.05)),
    ),
    "freq. Logit": Method(
        _davenport,
        tuple(
            {"radius": radius}
            for radius in (0.18, 0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 8.0)
        ),
    ),
    "Logit-IG, intercepts": Method(
        _bayesian("logistic", "inverse-gamma", intercepts=True), _grid((1.0, 1.2), *_LOGIT_IG)
    ),
    "majority class": Method(lambda sample, _: fit_majority(sample.labels, sample.shape), ({},)),
    "row + column intercepts": Method(_ridge, tuple({"ridge": ridge} for ridge in (0.3, 1.0, 3.0))),
    "ridge factors": Method(
        _ridge, tuple({"rank": 5, "ridge": ridge} for ridge in (4.0, 6.0, 9.0))
    ),
    "known prior, K = 3": Method(
        _bayesian("logistic", "inverse-gamma", rank=3), _grid((1.0,), _SCALE_ONE)
    ),
    "known prior, K = 5": Method(
        _bayesian("logistic", "inverse-gamma", rank=5), _grid((1.0,), _SCALE_ONE)
    ),
}
