"""How good predictions are: error, losses, AUC, precision, reliability, and lists.

Functions of labels in {−1, +1} and of scores or probabilities of +1. A score s predicts sign(s),
which is right if y·s > 0. A score of 0 is an error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainccinv, betaincinv

from onebit_spark.core.posterior import DoubleArray

SMALLEST_PROBABILITY = (
    1e-15  # log_loss stays finite; 1 − 1e−15 is still below 1 in double precision
)


def error_rate(labels: ArrayLike, scores: ArrayLike) -> float:
    """(1/n) Σ_l 1(y_l s_l ≤ 0).

    With the strict "<" of the paper, the zero matrix would make no error.
    """
    return float(np.mean(~(np.asarray(labels) * np.asarray(scores) > 0)))


def error_interval(errors: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """The exact two-sided interval of an error probability, from k errors in n trials (Clopper and
    Pearson, 1934).

    p₋ = Beta⁻¹(a/2; k, n−k+1) and p₊ = Beta⁻¹(1−a/2; k+1, n−k) with a = 1 − confidence, or 0 and 1
    if k = 0 or k = n.
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
    return float(np.mean(np.maximum(1 - np.asarray(labels) * np.asarray(scores), 0)))


def log_loss(labels: ArrayLike, probabilities: ArrayLike) -> float:
    """−(1/n) Σ_l [1(y_l = 1) log p_l + 1(y_l = −1) log(1 − p_l)], p_l the probability of a +1.

    p is clipped to [1e−15, 1 − 1e−15], so a certain and wrong prediction costs 34.5 and not
    infinity.
    """
    p = np.clip(probabilities, SMALLEST_PROBABILITY, 1 - SMALLEST_PROBABILITY)
    return -float(np.mean(np.where(np.asarray(labels) > 0, np.log(p), np.log1p(-p))))


def brier(labels: ArrayLike, probabilities: ArrayLike) -> float:
    """(1/n) Σ_l (p_l − 1(y_l = 1))², p_l the probability of a +1."""
    return float(np.mean((np.asarray(probabilities) - (np.asarray(labels) > 0)) ** 2))


def auc_of_counts(
    positives: NDArray[np.int64], negatives: NDArray[np.int64]
) -> tuple[float, float] | None:
    """P(s₊ > s₋) + ½ P(s₊ = s₋) for a random positive and a random negative rating; None if there
    is only one class.

    Both arrays count the ratings of every score, or of every bin of scores, ascending. Within a bin
    any order is possible: the second number is the largest error.
    """
    pairs = float(positives.sum()) * float(negatives.sum())
    ties = float(np.dot(positives, negatives)) / 2
    below = float(np.dot(positives, np.cumsum(negatives) - negatives))
    return ((below + ties) / pairs, ties / pairs) if pairs else None


def auc(labels: ArrayLike, scores: ArrayLike) -> float:
    """The AUC of single ratings; nan if there is only one class."""
    place = np.unique(scores, return_inverse=True)[1]
    positive = np.asarray(labels) > 0
    counts = (np.bincount(place[of], minlength=place.max() + 1) for of in (positive, ~positive))
    return (auc_of_counts(*counts) or (math.nan,))[0]


def class_figures(
    positives: NDArray[np.int64], negatives: NDArray[np.int64], called: int, wrong: int
) -> dict[str, float | None]:
    """Precision, recall and average precision of positives and, as ``negative_…``, of negatives;
    None if undefined.

    Both arrays count the ratings of every score, ascending. ``called`` ratings are predicted
    positive, and ``wrong`` = FP + FN predictions are wrong, so TP = (called + positives − wrong)/2.
    With precision P_s and recall R_s of calling all ratings down to score s, the average precision
    is Σ_s (R_s − R_{s−1}) P_s; in random order it is the share of the class.
    """
    n = positives + negatives
    figures: dict[str, float | None] = {}
    for prefix, own, of, calls in (
        ("", positives[::-1], n[::-1], called),
        ("negative_", negatives, n, int(n.sum()) - called),
    ):
        total = float(own.sum())
        found = (calls + own.sum() - wrong) / 2
        area = np.dot(own, np.cumsum(own) / np.maximum(np.cumsum(of), 1))
        figures[f"{prefix}precision"] = float(found / calls) if calls else None
        figures[f"{prefix}recall"] = float(found / total) if total else None
        figures[f"{prefix}average_precision"] = float(area / total) if total else None
    return figures


def ranking_figures(hits: NDArray[np.bool_], relevant: NDArray[np.integer]) -> dict[str, float]:
    """How good lists of n items are, as means over the users; the names are those of Spark's
    ``RankingEvaluator``.

    h_ip is 1 if place p of the list of user i has one of the r_i relevant items of i::

        precision  Σ_p h_ip / n      NDCG  Σ_p h_ip/log₂(p + 1) / Σ_{p ≤ min(r_i, n)} 1/log₂(p + 1)
        recall     Σ_p h_ip / r_i    MAP   Σ_p h_ip (Σ_{q ≤ p} h_iq)/p / min(r_i, n)

    >>> figures = ranking_figures(np.array([[True, False], [False, True]]), np.array([1, 4]))
    >>> {name: round(value, 3) for name, value in figures.items()}
    {'precisionAtK': 0.5, 'recallAtK': 0.625, 'ndcgAtK': 0.693, 'meanAveragePrecisionAtK': 0.625}
    """
    place = np.arange(1, hits.shape[1] + 1)
    gains = 1 / np.log2(place + 1)
    found = hits.sum(axis=1)
    most = np.minimum(relevant, len(place))
    means = {
        "precisionAtK": found / len(place),
        "recallAtK": found / relevant,
        "ndcgAtK": hits @ gains / np.cumsum(gains)[most - 1],
        "meanAveragePrecisionAtK": (hits * np.cumsum(hits, axis=1) / place).sum(axis=1) / most,
    }
    return {name: float(values.mean()) for name, values in means.items()}


RELIABILITY_BINS = 15  # of equal width, as in Guo et al. (2017)


@dataclass(frozen=True)
class Reliability:
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
    def of_sums(cls, sums: DoubleArray) -> Reliability:
        """From the number of predictions, the sum of their probabilities and the positive labels of
        each bin.
        """
        n, probability, positives = sums[:, sums[0] > 0]
        return cls(n, probability / n, positives / n)


def reliability_sums(labels: ArrayLike, probabilities: ArrayLike) -> DoubleArray:
    """What ``Reliability.of_sums`` takes (3 × bins).

    The sums of several sets of ratings are added.
    """
    p = np.asarray(probabilities, np.float64)
    bins = np.minimum(np.floor(p * RELIABILITY_BINS), RELIABILITY_BINS - 1).astype(np.int64)
    weights = np.ones_like(p), p, np.asarray(labels) > 0
    return np.stack(
        [np.bincount(bins, each, RELIABILITY_BINS).astype(np.float64) for each in weights]
    )


def reliability(labels: ArrayLike, probabilities: ArrayLike) -> Reliability:
    """The reliability of probabilities of +1.

    >>> curve = reliability([1, 1, -1, -1], [0.9, 0.9, 0.9, 0.1])
    >>> curve.frequency.round(3).tolist(), round(curve.error, 3)
    ([0.0, 0.667], 0.2)
    """
    return Reliability.of_sums(reliability_sums(labels, probabilities))
