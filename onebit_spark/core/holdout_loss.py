"""The loss of ratings that a fit has not seen (docs/MATH.md, §14)."""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.calibration import TemperatureScaling
from onebit_spark.core.compiled import jit
from onebit_spark.core.losses import LOSSES
from onebit_spark.core.posterior import DoubleArray, RowPosterior
from onebit_spark.core.prediction import fill_row_terms, pair_moments

WIDEST = 12.0  # margins beyond ±12 are counted there
BINS = 2048


@dataclass(frozen=True)
class HoldoutLoss:
    """Sums over held-out ratings under a posterior. The sums of several blocks are added."""

    total: float  # Σ w_l times the held-out loss
    squares: float  # Σ w_l times its square
    total_weight: float  # Σ w_l
    errors: int  # Wrong signs. A score of 0 counts as wrong.
    n: int  # number of ratings
    margins: DoubleArray  # Σ w_l in each bin of the margins y·score/√(c + variance), c the noise of the loss

    @classmethod
    def of_ratings(
        cls, loss: str, block: RatingBlock, lo: int, hi: int, rows: RowPosterior, cols: RowPosterior
    ) -> HoldoutLoss:
        """The sums over the ratings of the rows lo … hi−1."""
        first, last = block.row_pointers[lo], block.row_pointers[hi]
        signs = np.where(block.codes[first:last] & 1, 1.0, -1.0)
        weights = np.ones(len(signs)) if block.weights is None else block.weights[first:last].astype(np.float64)
        scores, variances = np.empty(len(signs)), np.empty(len(signs))
        form = rows.kind == "covariance", rows.has_intercept
        _fill_predictions(
            block.row_pointers, block.codes, lo, hi, rows.location, rows.scale, cols.location, cols.scale, form,
            scores, variances,
        )  # fmt: skip
        losses = LOSSES[loss].held_out(scores, variances, signs)
        with np.errstate(divide="ignore", invalid="ignore"):
            margins = np.where(scores == 0, 0.0, signs * scores / np.sqrt(LOSSES[loss].score_noise + variances))
        place = np.clip((margins + WIDEST) * (BINS / (2 * WIDEST)), 0, BINS - 1).astype(np.int64)
        return cls(
            float(losses @ weights), float(losses**2 @ weights), float(weights.sum()),
            int(np.count_nonzero(scores * signs <= 0)), len(signs),
            np.bincount(place, weights, BINS).astype(np.float64),
        )  # fmt: skip

    def to_vector(self) -> DoubleArray:
        """The numbers as one vector."""
        return np.concatenate([[self.total, self.squares, self.total_weight, self.errors, self.n], self.margins])

    @classmethod
    def of_sums(cls, sums: NDArray[np.float64]) -> HoldoutLoss:
        """The inverse of ``to_vector``, for the sum over all blocks."""
        total, squares, total_weight, errors, n = sums[:5]
        return cls(float(total), float(squares), float(total_weight), int(errors), int(n), sums[5:])

    @property
    def loss(self) -> float:
        """The weighted mean loss."""
        return self.total / self.total_weight if self.total_weight else 0.0

    @property
    def standard_error(self) -> float:
        """The standard error of ``loss``."""
        return math.sqrt(max(self.squares / self.total_weight - self.loss**2, 0.0) / self.n) if self.n else 0.0

    def temperature_scaling(self, score_noise: float) -> TemperatureScaling | None:
        """The calibration that these ratings prefer to the plain link, if any."""
        if not self.total_weight > 0:
            return None
        margins = margin_of_bins() * math.sqrt(score_noise)
        return TemperatureScaling.fit(margins, self.margins / self.total_weight, self.n)


def margin_of_bins() -> DoubleArray:
    """The margin at the centre of every bin."""
    return np.asarray((np.arange(BINS) + 0.5) * (2 * WIDEST / BINS) - WIDEST, np.float64)


@jit
def _fill_predictions(
    pointers, codes, first, last, row_location, row_scale, col_location, col_scale, form, scores, variances
):
    """Score and variance of every rating of the rows."""
    full, has_intercept = form
    size, offset = row_location.shape[1], pointers[first]
    w, z = np.empty(size), np.empty(size)
    own, met = np.empty(row_scale.shape[1]), np.empty(row_scale.shape[1])
    for i in range(first, last):
        if pointers[i] == pointers[i + 1]:
            continue
        fill_row_terms(row_location[i], row_scale[i], full, has_intercept, w, own, met)
        base = np.float64(row_location[i, 0]) if has_intercept else 0.0
        for l in range(pointers[i], pointers[i + 1]):
            j = codes[l] >> 1
            score, variance = pair_moments(w, own, met, base, col_location[j], col_scale[j], full, has_intercept, z)
            scores[l - offset], variances[l - offset] = score, max(variance, 0.0)
