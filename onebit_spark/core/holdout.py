"""The loss of held-out ratings, which chooses settings (docs/MATH.md, §14)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.calibration import TemperatureScaling
from onebit_spark.core.losses import LOSSES
from onebit_spark.core.posterior import DoubleArray, RowPosterior
from onebit_spark.core.scores import predictions_of

WIDEST = 12.0  # margins are clipped to ±12
BINS = 2048


@dataclass(frozen=True)
class HoldoutLoss:
    """Sums over held-out ratings under a posterior. The sums of several blocks are added."""

    total: float  # Σ w_l times the held-out loss
    squares: float  # Σ w_l times its square
    total_weight: float  # Σ w_l
    errors: int  # wrong signs; a score of 0 counts as wrong
    n: int  # number of ratings
    # Σ w_l in each bin of the margins y·score/√(c + variance), where c is the noise of the loss
    margins: DoubleArray

    @classmethod
    def of_ratings(
        cls, loss: str, block: RatingBlock, lo: int, hi: int, rows: RowPosterior, cols: RowPosterior
    ) -> HoldoutLoss:
        first = block.row_pointers[lo]
        last = block.row_pointers[hi]
        signs = np.where(block.codes[first:last] & 1, 1.0, -1.0)
        weights = (
            np.ones(len(signs))
            if block.weights is None
            else block.weights[first:last].astype(np.float64)
        )
        scores, variances = predictions_of(block, lo, hi, rows, cols, block.row_pointers[lo:hi])
        losses = LOSSES[loss].held_out(scores, variances, signs)
        with np.errstate(divide="ignore", invalid="ignore"):
            margins = np.where(
                scores == 0, 0.0, signs * scores / np.sqrt(LOSSES[loss].score_noise + variances)
            )
        place = np.clip((margins + WIDEST) * (BINS / (2 * WIDEST)), 0, BINS - 1).astype(np.int64)
        return cls(
            float(losses @ weights),
            float(losses**2 @ weights),
            float(weights.sum()),
            int(np.count_nonzero(scores * signs <= 0)),
            len(signs),
            np.bincount(place, weights, BINS).astype(np.float64),
        )

    def to_vector(self) -> DoubleArray:
        return np.concatenate(
            [[self.total, self.squares, self.total_weight, self.errors, self.n], self.margins]
        )

    @classmethod
    def of_sums(cls, sums: NDArray[np.float64]) -> HoldoutLoss:
        """The inverse of ``to_vector``, for the sum over all blocks."""
        total, squares, total_weight, errors, n = sums[:5]
        return cls(float(total), float(squares), float(total_weight), int(errors), int(n), sums[5:])

    @property
    def loss(self) -> float:
        return self.total / self.total_weight if self.total_weight else 0.0

    @property
    def standard_error(self) -> float:
        return (
            math.sqrt(max(self.squares / self.total_weight - self.loss**2, 0.0) / self.n)
            if self.n
            else 0.0
        )

    def temperature_scaling(self, score_noise: float) -> TemperatureScaling | None:
        """The calibration that these ratings prefer to the plain link, if any."""
        if not self.total_weight > 0:
            return None
        margins = margin_of_bins() * math.sqrt(score_noise)
        return TemperatureScaling.fit(margins, self.margins / self.total_weight, self.n)


def margin_of_bins() -> DoubleArray:
    return np.asarray((np.arange(BINS) + 0.5) * (2 * WIDEST / BINS) - WIDEST, np.float64)
