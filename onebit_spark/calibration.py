"""Calibration: a map from (score, variance) to a probability that comes true as often as it says, learnt on held-out
ratings. Three numbers, after Platt (1999)."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

Vector = NDArray[np.float64]

SMALLEST = 1e-12  # of a slope or a noise: both stay positive, so that the order of two scores is never turned


@dataclass(frozen=True)
class Calibration:
    """P(+) = σ(intercept + slope · score/√(noise + variance)), increasing in the score.

    The logistic loss's own probability is of this form with intercept 0 and noise 8/π; the hinge's Φ(score/std) has
    noise 0 and hardly ever comes true as often as it says.

    >>> learnt = Calibration(intercept=0.0, slope=2.0, noise=0.5)
    >>> learnt.probability(np.array([0.0, 1.0]), np.array([0.5, 0.5])).round(3).tolist()
    [0.5, 0.881]
    """

    intercept: float
    slope: float
    noise: float

    def probability(self, scores: Vector, variances: Vector) -> Vector:
        return np.asarray(expit(self.intercept + self.slope * scores / np.sqrt(self.noise + variances)))

    def as_dict(self) -> dict[str, float]:
        return asdict(self)

    @classmethod
    def fit(cls, scores: Vector, variances: Vector, positives: Vector, negatives: Vector) -> Calibration:
        """Maximum likelihood; each line stands for so many positive and negative ratings of like score and variance.

        One more rating of either class at the mean line keeps the slope finite where the classes separate.
        """
        weights = positives + negatives
        total = weights.sum()
        scores = np.append(scores, np.dot(weights, scores) / total)
        variances = np.append(variances, np.dot(weights, variances) / total)
        positives, negatives = np.append(positives, 1.0), np.append(negatives, 1.0)
        spread = float(np.mean(variances)) + SMALLEST

        def loss(x: Vector) -> tuple[float, Vector]:
            slope, noise = np.exp(x[1]), spread * np.exp(x[2])
            t = scores / np.sqrt(noise + variances)
            u = x[0] + slope * t
            value = np.dot(positives, np.logaddexp(0, -u)) + np.dot(negatives, np.logaddexp(0, u))
            pull = negatives * expit(u) - positives * expit(-u)
            gradient = [
                pull.sum(),
                np.dot(pull, slope * t),
                np.dot(pull, -0.5 * slope * t * noise / (noise + variances)),
            ]
            return value / total, np.array(gradient) / total

        bounds = [(None, None), (np.log(SMALLEST), np.log(1e6)), (-12.0, 12.0)]
        found = minimize(loss, np.zeros(3), jac=True, method="L-BFGS-B", bounds=bounds).x
        return cls(float(found[0]), float(np.exp(found[1])), float(spread * np.exp(found[2])))
