"""Probabilities that agree with observed frequencies.

A calibration maps score and variance to a probability that agrees with observed frequencies.
``Calibration`` is piecewise linear in the logit and is fitted to held-out ratings in two steps
(docs/MATH.md, §8.4): a slope (Platt, 1999) and a noise, then a piecewise linear function instead of
the straight line. ``TemperatureScaling`` has two parameters (Guo et al., 2017, with label noise;
§14). Both give the probability ½ at score 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import expit

from onebit_spark.core.posterior import DoubleArray

MOST_KNOTS = 12
RATINGS_PER_KNOT = 200
BOUND = 12.0  # of a step of the logit, and of the logarithms of slope and noise; no data reach it
LEAST_STEP = 1e-3  # the smallest step of the logit from score 0 to the next knot on either side


@dataclass(frozen=True)
class Calibration:
    """P(+) = σ(f(t)) with t = score/√(noise + variance), where f is non-decreasing and piecewise
    linear.

    f is linear between the knots and constant outside.

    Without calibration, the logistic loss gives σ(t·√(8/π)) with noise 8/π. The hinge gives Φ(t)
    with noise 0, which rarely agrees with observed frequencies.

    >>> learnt = Calibration(noise=0.5, knots=[-1.0, 1.0], logits=[-2.0, 2.0])
    >>> learnt.probability(np.array([0.0, 1.0, 9.0]), np.array([0.5, 0.5, 0.5])).round(3).tolist()
    [0.5, 0.881, 0.881]
    """

    noise: float  # added to the variance of the score
    knots: Sequence[float]  # values of t between which f is linear, ascending
    logits: Sequence[float]  # values of f at the knots

    def probability(self, scores: DoubleArray, variances: DoubleArray) -> DoubleArray:
        return np.asarray(
            expit(np.interp(scores / np.sqrt(self.noise + variances), self.knots, self.logits))
        )

    @classmethod
    def fit(
        cls,
        scores: DoubleArray,
        variances: DoubleArray,
        positives: DoubleArray,
        negatives: DoubleArray,
    ) -> Calibration:
        """The calibration of largest likelihood.

        A score and a variance stand for a group of similar ratings; ``positives`` and ``negatives``
        count its labels. f(0) = 0 and f increases there. So a probability is above ½ if and only if
        the score is positive.
        """
        slope, noise = _platt(scores, variances, positives, negatives)
        t = scores / np.sqrt(noise + variances)
        knots = _knots(t, positives + negatives)
        logits = _piecewise_linear(t, knots, positives, negatives, slope)
        return cls(noise, knots.tolist(), logits.tolist())


def _platt(
    scores: DoubleArray, variances: DoubleArray, positives: DoubleArray, negatives: DoubleArray
) -> tuple[float, float]:
    """Slope and noise of σ(slope·score/√(noise + variance)): Platt's method without an
    intercept.
    """
    total = np.sum(positives) + np.sum(negatives)
    spread = float(np.dot(positives + negatives, variances) / total) + 1e-12

    def loss(x: DoubleArray) -> tuple[float, DoubleArray]:
        slope = np.exp(x[0])
        noise = spread * np.exp(x[1])
        t = scores / np.sqrt(noise + variances)
        value, pull = _log_loss(slope * t, positives, negatives)
        by_noise = -0.5 * slope * t * noise / (noise + variances)
        return value / total, np.array([np.dot(pull, slope * t), np.dot(pull, by_noise)]) / total

    x = minimise(loss, np.zeros(2), [(-BOUND, BOUND)] * 2)
    return float(np.exp(x[0])), float(spread * np.exp(x[1]))


def _knots(t: DoubleArray, weights: DoubleArray) -> DoubleArray:
    """The knots: 0, at least one on either side of 0, and more quantiles of t the more ratings
    there are.
    """
    total = weights.sum()
    wanted = int(np.clip(total // RATINGS_PER_KNOT, 2, MOST_KNOTS))
    order = np.argsort(t, kind="stable")
    share = np.cumsum(weights[order]) / total
    ends = 0.5 / wanted
    places = np.searchsorted(share, np.linspace(ends, 1 - ends, wanted))
    knots = np.union1d(t[order][np.minimum(places, len(t) - 1)], 0.0)
    farthest = float(np.abs(knots).max()) or 1.0
    return np.union1d(knots, [end for end in (-farthest, farthest) if not np.any(knots * end > 0)])


def _piecewise_linear(
    t: DoubleArray, knots: DoubleArray, positives: DoubleArray, negatives: DoubleArray, slope: float
) -> DoubleArray:
    """The non-decreasing logits of largest likelihood.

    Half a rating of each class per knot keeps them finite.
    """
    place = np.clip(np.searchsorted(knots, t) - 1, 0, len(knots) - 2)
    share = np.clip((t - knots[place]) / np.diff(knots)[place], 0.0, 1.0)
    total = np.sum(positives) + np.sum(negatives)
    half = np.full(len(knots), 0.5)
    zero = int(np.searchsorted(knots, 0.0))
    knot, step = np.indices((len(knots), len(knots) - 1))
    # logits = climb @ steps
    climb = ((zero <= step) & (step < knot)).astype(float) - ((knot <= step) & (step < zero))

    def loss(steps: DoubleArray) -> tuple[float, DoubleArray]:
        logits = climb @ steps
        value, pull = _log_loss(
            (1 - share) * logits[place] + share * logits[place + 1], positives, negatives
        )
        extra, pull_extra = _log_loss(logits, half, half)
        gradient = pull_extra + np.bincount(place, (1 - share) * pull, len(knots))
        gradient += np.bincount(place + 1, share * pull, len(knots))
        return (value + extra) / total, climb.T @ gradient / total

    lowest = np.zeros(len(knots) - 1)
    lowest[zero - 1 : zero + 1] = LEAST_STEP
    first = np.clip(np.diff(np.clip(slope * knots, -BOUND, BOUND)), lowest, BOUND)
    bounds = [(low, BOUND) for low in lowest]
    return np.asarray(climb @ minimise(loss, first, bounds))


def _log_loss(
    u: DoubleArray, positives: DoubleArray, negatives: DoubleArray
) -> tuple[float, DoubleArray]:
    """−log likelihood of logits, and its derivatives."""
    value = np.dot(positives, np.logaddexp(0, -u)) + np.dot(negatives, np.logaddexp(0, u))
    return float(value), negatives * expit(u) - positives * expit(-u)


MOST_NOISE = 0.5
LAST_KNOT = 40.0
N_KNOTS = 161  # of the piecewise linear function that stores a ``TemperatureScaling``


@dataclass(frozen=True)
class TemperatureScaling:
    """P(y) = ε/2 + (1 − ε) σ(τ y z) with z = score/√(1 + π·variance/8).

    The signs and the order of the scores are kept.
    """

    noise: float  # ε, the share of random labels
    temperature: float  # τ

    @classmethod
    def fit(cls, z: DoubleArray, shares: DoubleArray, n: int) -> TemperatureScaling | None:
        """The best ε and τ for held-out margins y·z, given the share of the n ratings at each
        margin, by weight.

        None: the plain link is as good.
        """

        def losses(link: TemperatureScaling) -> DoubleArray:
            return -np.log(link.probability(z))

        def fitted(with_noise: bool) -> TemperatureScaling:
            def loss(x: DoubleArray) -> tuple[float, DoubleArray]:
                link = cls(float(x[1]) if with_noise else 0.0, math.exp(x[0]))
                p = link.probability(z)
                s = expit(link.temperature * z)
                by_temperature = (1 - link.noise) * s * (1 - s) * link.temperature * z
                slopes = [by_temperature, 0.5 - s] if with_noise else [by_temperature]
                return float(shares @ losses(link)), np.array(
                    [-(shares @ (slope / p)) for slope in slopes]
                )

            start = np.array([0.0, 0.05])
            bounds = [(-3.0, 3.0), (0.0, MOST_NOISE)]
            x = minimise(loss, start[: 1 + with_noise], bounds[: 1 + with_noise])
            return cls(float(x[1]) if with_noise else 0.0, float(np.exp(x[0])))

        def better(link: TemperatureScaling, other: TemperatureScaling) -> bool:
            gain = losses(other) - losses(link)
            mean = shares @ gain
            return bool(mean > math.sqrt(shares @ (gain - mean) ** 2 / n))

        best = plain = cls(0.0, 1.0)
        for with_noise in (False, True):
            candidate = fitted(with_noise)
            if better(candidate, best):
                best = candidate
        return None if best is plain else best

    def probability(self, z: DoubleArray) -> DoubleArray:
        """P of the label of this sign, from its margin z."""
        return np.asarray(0.5 * self.noise + (1.0 - self.noise) * expit(self.temperature * z))

    def calibration(self, score_noise: float) -> Calibration:
        """The same as a piecewise linear function of score/√(c + variance), where c is the noise of
        the score.
        """
        scale = math.sqrt(score_noise)
        if self.noise == 0:
            knots = np.array([-LAST_KNOT, LAST_KNOT])
            return Calibration(
                score_noise, knots.tolist(), (self.temperature * scale * knots).tolist()
            )
        inner = np.linspace(-1.0, 1.0, N_KNOTS)
        knots = LAST_KNOT * inner**3 / (self.temperature * scale)  # denser around 0
        p = self.probability(scale * knots)
        return Calibration(score_noise, knots.tolist(), (np.log(p) - np.log1p(-p)).tolist())


def minimise(
    loss: Callable[[DoubleArray], Any], start: DoubleArray, bounds: Sequence[tuple[float, float]]
) -> DoubleArray:
    from scipy.optimize import minimize  # slow to import, and few processes calibrate

    return np.asarray(minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds).x)
