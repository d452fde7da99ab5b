"""What to ask next: the columns whose answers say most about a row, by mutual information (docs/MATH.md, §17)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import entr, expit

from onebit_spark.core.posterior import FloatArray

Matrix = NDArray[np.float64]

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(9)
WEIGHTS = WEIGHTS / WEIGHTS.sum()


def information(mean: Matrix, variance: Matrix) -> tuple[Matrix, Matrix]:
    """I and E σ'(u) of u ~ N(mean, variance), in nats."""
    p = expit(mean[:, None] + NODES * np.sqrt(np.maximum(variance, 0.0))[:, None])
    expected = p @ WEIGHTS
    entropy = entr(expected) + entr(1 - expected) - (entr(p) + entr(1 - p)) @ WEIGHTS
    return np.maximum(entropy, 0.0), (p * (1 - p)) @ WEIGHTS


def best_questions(
    mean: FloatArray, covariance: FloatArray, columns: FloatArray, intercepts: bool, n: int, allowed: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], Matrix]:
    """The n columns to ask a row with this posterior, in order, and the information of each given those before."""
    x, offset = columns.astype(np.float64), np.zeros(len(columns))
    if intercepts:
        offset, x = x[:, 0].copy(), np.insert(x[:, 1:], 0, 1.0, axis=1)
    c, score = covariance.astype(np.float64), offset + x @ mean
    variance, left = np.einsum("ja,ja->j", x @ c, x), np.flatnonzero(allowed)
    chosen, gains = np.empty(min(n, len(left)), np.int64), np.empty(min(n, len(left)))
    for number in range(len(chosen)):
        gain, curvature = information(score[left], variance[left])
        best = int(np.argmax(gain))
        j, gains[number] = int(left[best]), gain[best]
        along = c @ x[j]
        share = curvature[best] / (1.0 + curvature[best] * variance[j])
        c, variance = c - share * np.outer(along, along), variance - share * (x @ along) ** 2
        chosen[number], left = j, np.delete(left, best)
    return chosen, gains
