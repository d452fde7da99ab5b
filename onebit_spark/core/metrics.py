"""Metrics of predictions: functions of labels in {−1, +1} and of scores or probabilities of +1.

A score s predicts sign(s), which is right if y·s > 0. A score of 0 is an error.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betainccinv, betaincinv

from onebit_spark.core.posterior import DoubleArray

_SMALLEST_PROBABILITY = 1e-15  # log_loss stays finite; 1 − 1e−15 is still below 1 in double precision


def error_rate(labels: ArrayLike, scores: ArrayLike) -> float:
    """(1/n) Σ_l 1(y_l s_l ≤ 0). With the strict "<" of the paper, the zero matrix would make no error."""
    y, s = _checked(labels, scores, "scores")
    return int(np.count_nonzero(y * s <= 0)) / y.size


def error_interval(errors: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """The exact (Clopper–Pearson) two-sided interval of an error probability, from k errors in n trials.

    With a = 1 − confidence it is [p₋, p₊] where P(Bin(n, p₋) ≥ k) = a/2 and P(Bin(n, p₊) ≤ k) = a/2:
    p₋ = Beta⁻¹(a/2; k, n−k+1) and p₊ = Beta⁻¹(1−a/2; k+1, n−k), or 0 and 1 if k = 0 or k = n.
    """
    if n < 1:
        raise ValueError(f"an interval needs at least one trial, got n = {n}")
    if not 0 <= errors <= n:
        raise ValueError(f"errors must lie in 0..{n}, got {errors}")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie strictly between 0 and 1, got {confidence}")
    tail = (1 - confidence) / 2
    low = 0.0 if errors == 0 else float(betaincinv(errors, n - errors + 1, tail))
    high = 1.0 if errors == n else float(betainccinv(errors + 1, n - errors, tail))
    return low, high


def hinge_loss(labels: ArrayLike, scores: ArrayLike) -> float:
    """(1/n) Σ_l (1 − y_l s_l)_+, which is never below the error rate."""
    y, s = _checked(labels, scores, "scores")
    return float(np.mean(np.maximum(1 - y * s, 0)))


def log_loss(labels: ArrayLike, probabilities: ArrayLike) -> float:
    """−(1/n) Σ_l [1(y_l = 1) log p_l + 1(y_l = −1) log(1 − p_l)], p_l the probability of a +1.

    p is clipped to [1e−15, 1 − 1e−15], so a certain and wrong prediction costs 34.5 and not infinity.
    """
    y, p = _checked_probabilities(labels, probabilities)
    p = np.clip(p, _SMALLEST_PROBABILITY, 1 - _SMALLEST_PROBABILITY)
    return -float(np.mean(np.where(y > 0, np.log(p), np.log1p(-p))))


def brier(labels: ArrayLike, probabilities: ArrayLike) -> float:
    """(1/n) Σ_l (p_l − 1(y_l = 1))², p_l the probability of a +1."""
    y, p = _checked_probabilities(labels, probabilities)
    return float(np.mean((p - (y > 0)) ** 2))


def auc(labels: ArrayLike, scores: ArrayLike) -> float:
    """P(s₊ > s₋) + ½ P(s₊ = s₋) for a random positive and a random negative rating; nan if there is only one class.

    It is the rank statistic of Mann and Whitney, in which equal scores get their mean rank:
    (Σ_{y_l = 1} rank_l − n₊(n₊+1)/2) / (n₊ n₋).
    """
    y, s = _checked(labels, scores, "scores")
    positive = y > 0
    n_positive = int(np.count_nonzero(positive))
    n_negative = y.size - n_positive
    if n_positive == 0 or n_negative == 0:
        return float("nan")
    _, places, counts = np.unique(s, return_inverse=True, return_counts=True)
    mean_ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]
    rank_sum = float(mean_ranks[positive].sum())
    return (rank_sum - n_positive * (n_positive + 1) / 2) / (n_positive * n_negative)


RELIABILITY_BINS = 15  # of equal width, as in Guo et al. (2017)


@dataclass(frozen=True)
class Reliability:
    """Predicted probabilities against observed frequencies, per bin of the probability. Empty bins are left out."""

    n: DoubleArray  # number of predictions in each bin
    probability: DoubleArray  # mean of the predicted probabilities
    frequency: DoubleArray  # share of positive labels

    @property
    def error(self) -> float:
        """The expected calibration error Σ_b n_b/n |frequency_b − probability_b|."""
        return float(np.sum(self.n * np.abs(self.frequency - self.probability)) / np.sum(self.n))

    def as_dict(self) -> dict[str, list[float]]:
        return {name: values.tolist() for name, values in vars(self).items()}

    @classmethod
    def of_bins(cls, bins: ArrayLike, n: ArrayLike, probability: ArrayLike, positives: ArrayLike) -> Reliability:
        """The curve from lines with a bin, n ratings, the sum of their probabilities, and the number of positive ones.

        A bin may have several lines.
        """
        place = np.unique(np.asarray(bins), return_inverse=True)[1]
        sums = [np.bincount(place, weights=np.asarray(w, float)).astype(float) for w in (n, probability, positives)]
        return cls(sums[0], sums[1] / sums[0], sums[2] / sums[0])


def reliability(labels: ArrayLike, probabilities: ArrayLike) -> Reliability:
    """The reliability of probabilities of +1.

    >>> curve = reliability([1, 1, -1, -1], [0.9, 0.9, 0.9, 0.1])
    >>> curve.frequency.round(3).tolist(), round(curve.error, 3)
    ([0.0, 0.667], 0.2)
    """
    y, p = _checked_probabilities(labels, probabilities)
    bins = np.minimum(np.floor(p * RELIABILITY_BINS), RELIABILITY_BINS - 1)
    return Reliability.of_bins(bins, np.ones_like(p), p, y > 0)


def _checked_probabilities(labels: ArrayLike, probabilities: ArrayLike) -> tuple[DoubleArray, DoubleArray]:
    y, p = _checked(labels, probabilities, "probabilities")
    if p.min() < 0 or p.max() > 1:
        raise ValueError(f"probabilities must lie in [0, 1], got {p.min()} to {p.max()}")
    return y, p


def _checked(labels: ArrayLike, values: ArrayLike, name: str) -> tuple[DoubleArray, DoubleArray]:
    """Both as float vectors of one length. nan is refused: y·s ≤ 0 is false for nan, which would count as right."""
    y, v = np.asarray(labels, dtype=np.float64), np.asarray(values, dtype=np.float64)
    if y.ndim != 1 or y.shape != v.shape:
        raise ValueError(f"labels and {name} must be vectors of one length, got {y.shape} and {v.shape}")
    if y.size == 0:
        raise ValueError(f"labels and {name} are empty: there is nothing to evaluate")
    if not np.all(np.abs(y) == 1):
        raise ValueError("labels must be −1 or +1")
    if np.isnan(v).any():
        raise ValueError(f"{name} contain nan")
    return y, v
