"""How sure a model is of a prediction, and thresholds of that which are fixed by the fitted ratings.

    confidence |z| = |score| / √(c + variance)      c: the loss's own noise (8/π logistic, 0 hinge)

The probability before any calibration grows with z and with nothing else, but rounds to 1 where z still tells pairs
apart. A histogram over fine bins, equally wide on log₂ |z|, is all that a fit keeps of its ratings' confidences; a
``Ladder`` of thresholds is read off it. Whatever is counted later on other ratings, no threshold depends on them.
"""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.compiled import jit
from onebit_spark.core.posterior import RowPosterior

Histogram = NDArray[np.int64]

LOWEST_OCTAVE, HIGHEST_OCTAVE = -8, 16  # log₂ of the confidences that bins tell apart; the outermost bins take the rest
PER_OCTAVE = 512
HISTOGRAM_BINS = (HIGHEST_OCTAVE - LOWEST_OCTAVE) * PER_OCTAVE
RUNG_STEP = 1.02  # each rung of a ladder answers so many times what the one above it does
FEWEST = 10  # fitted ratings that the highest rung answers, at least


def confidence(score: NDArray[np.float64], std: NDArray[np.float64], noise: float) -> NDArray[np.float64]:
    """|score| / √(noise + std²); a score without any spread and noise is certain, unless it is 0."""
    root = np.sqrt(noise + std * std)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(score == 0, 0.0, np.abs(score) / root)


@dataclass(frozen=True)
class Ladder:
    """Thresholds in ascending order: rung j answers where the confidence is at least ``thresholds[j]``.

    ``shares[j]`` of the fitted ratings have that confidence; rung 0 answers everything::

        rung          0      1      2    …
        threshold     0    0.013  0.027  …
        share         1    0.980  0.961  …
    """

    shares: tuple[float, ...]
    thresholds: tuple[float, ...]

    def __post_init__(self) -> None:
        if not (len(self.shares) == len(self.thresholds) > 0 and self.shares[0] == 1 and self.thresholds[0] == 0):
            raise ValueError("a ladder begins with the threshold 0, which answers all, and has a share for each rung")
        if np.any(np.diff(self.thresholds) <= 0) or np.any(np.diff(self.shares) > 0):
            raise ValueError("the thresholds of a ladder ascend, and their shares descend")

    @classmethod
    def of_histogram(cls, counts: Histogram) -> Ladder:
        """Rungs at the bins' edges, each next one down answering 2% more, or one bin more where a bin holds more."""
        total = int(counts.sum())
        above = np.cumsum(counts[::-1])[::-1]  # ratings in this bin or a higher one
        rungs = int(math.log(max(total / FEWEST, 1.0)) / math.log(RUNG_STEP)) + 1
        wanted = total * RUNG_STEP ** -np.arange(rungs)
        edges = np.unique(np.searchsorted(-above, -wanted + 1e-9 * wanted, side="right") - 1)
        edges = np.union1d(edges, [0])
        thresholds = [float(f"{2.0 ** (LOWEST_OCTAVE + edge / PER_OCTAVE):.7g}") for edge in edges[1:]]
        shares = [float(f"{above[edge] / total:.7g}") for edge in edges[1:]]
        return cls((1.0, *shares), (0.0, *thresholds))

    def rung(self, confidences: NDArray[np.float64]) -> NDArray[np.int16]:
        """The highest rung that answers each."""
        return (np.searchsorted(self.thresholds, confidences, side="right") - 1).astype(np.int16)

    def as_dict(self) -> dict[str, Any]:
        return {"shares": list(self.shares), "thresholds": list(self.thresholds)}

    @classmethod
    def from_dict(cls, told: dict[str, Any]) -> Ladder:
        return cls(tuple(told["shares"]), tuple(told["thresholds"]))


EVERYTHING = Ladder((1.0,), (0.0,))


def count_confidences(
    block: RatingBlock, lo: int, hi: int, rows: RowPosterior, cols: RowPosterior, noise: float
) -> Histogram:
    """The histogram of the ratings of rows lo … hi−1. Adding them up joins rows."""
    counts = np.zeros(HISTOGRAM_BINS, np.int64)
    _count(
        block.row_pointers, block.codes, lo, hi, rows.location, rows.scale, cols.location, cols.scale,
        rows.kind == "covariance", rows.has_intercept, noise, counts,
    )  # fmt: skip
    return counts


@jit
def bin_of(z):
    """The bin of a confidence, 0 … HISTOGRAM_BINS − 1."""
    if not z > 2.0**LOWEST_OCTAVE:
        return 0
    return min(int((math.log2(min(z, 2.0**HIGHEST_OCTAVE)) - LOWEST_OCTAVE) * PER_OCTAVE), HISTOGRAM_BINS - 1)


@jit
def _fill_row_terms(location, scale, full, has_intercept, w, own, met):
    """Of a row: w = [1, L_i], and what its partner's terms are multiplied with in the variance.

    var u = <own, z_j z_jᵀ> + <met, V_j> with own = V_i, met = w wᵀ + V_i without its intercept; packed, off-diagonal
    entries twice. With independent coordinates only the diagonals.
    """
    for a in range(len(w)):
        w[a] = location[a]
    if has_intercept:
        w[0] = 1.0
    q = 0
    for a in range(len(w)):
        for b in range(0 if full else a, a + 1):
            v = np.float64(scale[q]) if full else np.float64(scale[q]) ** 2
            twice = 1.0 if a == b else 2.0
            own[q] = twice * v
            met[q] = twice * (w[a] * w[b] + (0.0 if has_intercept and b == 0 else v))
            q += 1


@jit
def _count(
    pointers, codes, first, last, row_location, row_scale, col_location, col_scale, full, has_intercept, noise, counts
):
    size = row_location.shape[1]
    w, z = np.empty(size), np.empty(size)
    own, met = np.empty(row_scale.shape[1]), np.empty(row_scale.shape[1])
    for i in range(first, last):
        if pointers[i] == pointers[i + 1]:
            continue
        _fill_row_terms(row_location[i], row_scale[i], full, has_intercept, w, own, met)
        for l in range(pointers[i], pointers[i + 1]):
            j = codes[l] >> 1
            score = np.float64(row_location[i, 0]) if has_intercept else 0.0
            for a in range(size):
                z[a] = col_location[j, a]
                score += w[a] * z[a]
            if has_intercept:
                z[0] = 1.0
            variance, q = 0.0, 0
            for a in range(size):
                for b in range(0 if full else a, a + 1):
                    v = np.float64(col_scale[j, q]) if full else np.float64(col_scale[j, q]) ** 2
                    variance += own[q] * z[a] * z[b] + met[q] * v
                    q += 1
            root = math.sqrt(noise + max(variance, 0.0))
            if score == 0.0:
                counts[0] += 1
            elif root == 0.0:
                counts[HISTOGRAM_BINS - 1] += 1
            else:
                counts[bin_of(abs(score) / root)] += 1
