"""Histograms of the confidence over the fitted ratings, and the thresholds that follow from them
(docs/MATH.md, §10.2).

The uncalibrated probability is a function of the confidence z. For large z it rounds to 1, while z
still orders the pairs. A fit keeps a histogram of z over its ratings, with fine bins of equal width
in log₂ |z| for either sign. The ``ConfidenceThresholds`` are computed from this histogram, so no
threshold depends on held-out ratings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.posterior import DoubleArray, RowPosterior
from onebit_spark.core.scores import HIGHEST_OCTAVE, LARGEST, compute_confidences, predictions_of
from onebit_spark.records import Fields

Histogram = NDArray[np.int64]
# What a model can say of a pair; each is a boolean column
Call = Literal["answered", "positive", "negative"]

# log₂ |z| ranges up to HIGHEST_OCTAVE; the first and the last bin take what is outside
LOWEST_OCTAVE = -8
PER_OCTAVE = 512
HISTOGRAM_BINS = (
    HIGHEST_OCTAVE - LOWEST_OCTAVE
) * PER_OCTAVE  # of |z|; the histogram of z has as many per sign
# A model makes a call where this function of z reaches the threshold of the call.
TOWARDS: dict[Call, Callable[[Any], Any]] = {
    "answered": np.abs,
    "positive": np.positive,
    "negative": np.negative,
}
LEVEL_STEP = 1.02  # the ratio of the numbers of ratings that a level and the next higher one answer
ENOUGH = (
    4_000_000  # ratings for the histogram; fits of at least twice as many ratings take a sample
)
FEWEST = 10  # fitted ratings that the highest level answers


@dataclass(frozen=True)
class ConfidenceThresholds:
    """Thresholds of |z|, z or −z (``TOWARDS``). Level j calls a pair if its value is at least
    ``values[j]``::

    level         0      1      2    …
    threshold     0    0.013  0.027  …
    share         1    0.980  0.961  …
    """

    shares: tuple[float, ...]  # share of the fitted ratings that each level calls; the first is 1
    # The thresholds, ascending; the first is 0 or −LARGEST, so level 0 calls everything
    values: tuple[float, ...]
    class_share: float = 1.0  # share of the fitted ratings that are of the called class; 1 for |z|

    def __post_init__(self) -> None:
        first = self.shares[:1] == (1,) and self.values[:1] in ((0,), (-LARGEST,))
        if not first or len(self.shares) != len(self.values):
            raise ValueError(
                "the first confidence threshold calls all pairs (share 1), and each threshold has "
                "a share"
            )
        if np.any(np.diff(self.values) <= 0) or np.any(np.diff(self.shares) > 0):
            raise ValueError("confidence thresholds must ascend, and their shares must not")

    @classmethod
    def of_histogram(cls, counts: Histogram, lower: DoubleArray) -> ConfidenceThresholds:
        """Levels at ``lower`` edges of bins.

        Each calls 2% more ratings than the next higher one, or one bin more.
        """
        total = int(counts.sum())
        above = np.cumsum(counts[::-1])[::-1]  # ratings in this bin or a higher one
        levels = int(math.log(max(total / FEWEST, 1.0)) / math.log(LEVEL_STEP)) + 1
        wanted = total * LEVEL_STEP ** -np.arange(levels)
        edges = np.unique(np.searchsorted(-above, -wanted + 1e-9 * wanted, side="right") - 1)
        edges = np.union1d(edges, [0])
        thresholds = [float(f"{lower[edge]:.7g}") for edge in edges]
        shares = [float(f"{above[edge] / total:.7g}") for edge in edges[1:]]
        return cls((1.0, *shares), tuple(thresholds))

    def level(self, values: NDArray[np.float64]) -> NDArray[np.int16]:
        return (np.searchsorted(self.values, values, side="right") - 1).astype(np.int16)

    def as_dict(self) -> Fields:
        return {"shares": list(self.shares), "thresholds": list(self.values)}

    @classmethod
    def from_dict(cls, fields: Fields, class_share: float = 1.0) -> ConfidenceThresholds:
        return cls(tuple(fields["shares"]), tuple(fields["thresholds"]), class_share)


EVERYTHING = ConfidenceThresholds((1.0,), (0.0,))
Thresholds = Mapping[Call, ConfidenceThresholds]


def thresholds_of(counts: Histogram) -> dict[Call, ConfidenceThresholds]:
    edges = 2.0 ** (LOWEST_OCTAVE + np.arange(HISTOGRAM_BINS + 1) / PER_OCTAVE)
    unsigned = np.concatenate([[0.0], edges[1:-1]])
    signed = np.concatenate([-edges[:0:-1], unsigned])
    either = counts[:HISTOGRAM_BINS][::-1] + counts[HISTOGRAM_BINS:]
    return {
        "answered": ConfidenceThresholds.of_histogram(either, unsigned),
        "positive": ConfidenceThresholds.of_histogram(counts, signed),
        "negative": ConfidenceThresholds.of_histogram(counts[::-1], signed),
    }


def count_confidences(
    block: RatingBlock,
    lo: int,
    hi: int,
    row_numbers: NDArray[np.int64],
    rows: RowPosterior,
    cols: RowPosterior,
    noise: float,
    stride: int = 1,
) -> Histogram:
    """The histogram of z over every ``stride``-th rating of the rows lo … hi−1, in ascending bins
    (MATH.md, §10.2).
    """
    starts = block.row_pointers[lo:hi] + -row_numbers[lo:hi] % stride
    scores, variances = predictions_of(block, lo, hi, rows, cols, starts, stride)
    bins = bin_of(compute_confidences(scores, np.sqrt(variances), noise))
    return np.bincount(
        np.where(scores < 0, -1 - bins, bins) + HISTOGRAM_BINS, minlength=2 * HISTOGRAM_BINS
    )


def bin_of(z: DoubleArray) -> NDArray[np.int64]:
    """The bins of confidences |z|, 0 … HISTOGRAM_BINS − 1."""
    octaves = np.log2(np.fmax(np.abs(z), 2.0**LOWEST_OCTAVE)) - LOWEST_OCTAVE
    return np.minimum(octaves * PER_OCTAVE, HISTOGRAM_BINS - 1).astype(np.int64)
