"""What a fit says of ratings that it has not seen (``LeftOut``), and calibration on them (``LabelNoise``).

See docs/MATH.md, §14. The calibrated probability of a label y is

    P(y) = ε/2 + (1 − ε) σ(τ y z),     z = score/√(1 + π·variance/8)

ε is the share of labels that say nothing, τ a temperature. Signs and order of the scores stay, and ½ stays at score 0.
Each is used only if it lowers the loss of these ratings by more than the standard error of what it gains.
"""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.calibration import Calibration, minimise
from onebit_spark.core.compiled import jit
from onebit_spark.core.losses import LOSSES
from onebit_spark.core.posterior import DoubleArray, RowPosterior
from onebit_spark.core.prediction import fill_row_terms, pair_moments

WIDEST = 12.0  # margins beyond ±12 are counted there
BINS = 2048


@dataclass(frozen=True)
class LeftOut:
    """Sums over ratings that were left out, under a posterior. Those of several blocks are added."""

    total: float  # Σ w_l times the held-out loss
    squares: float  # Σ w_l times its square
    weight: float  # Σ w_l
    errors: int  # Wrong signs. A score of 0 counts as wrong.
    n: int  # number of ratings
    margins: DoubleArray  # Σ w_l in each bin of the margins y·score/√(c + variance), c the noise of the loss

    @classmethod
    def of_ratings(
        cls, loss: str, block: RatingBlock, lo: int, hi: int, rows: RowPosterior, cols: RowPosterior
    ) -> LeftOut:
        """The sums over the ratings of the rows lo … hi−1."""
        first, last = block.row_pointers[lo], block.row_pointers[hi]
        signs = np.where(block.codes[first:last] & 1, 1.0, -1.0)
        weights = np.ones(len(signs)) if block.weights is None else block.weights[first:last].astype(np.float64)
        scores, variances = np.empty(len(signs)), np.empty(len(signs))
        form = rows.kind == "covariance", rows.has_intercept
        _fill_moments(
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
        """All numbers in a row."""
        return np.concatenate([[self.total, self.squares, self.weight, self.errors, self.n], self.margins])

    @classmethod
    def of_sums(cls, sums: NDArray[np.float64]) -> LeftOut:
        """The inverse of ``to_vector``, of the sum over all blocks."""
        total, squares, weight, errors, n = sums[:5]
        return cls(float(total), float(squares), float(weight), int(errors), int(n), sums[5:])

    @property
    def loss(self) -> float:
        """The mean loss by weight."""
        return self.total / self.weight if self.weight else 0.0

    @property
    def standard_error(self) -> float:
        """The standard error of ``loss``."""
        return math.sqrt(max(self.squares / self.weight - self.loss**2, 0.0) / self.n) if self.n else 0.0


def margin_of_bins() -> DoubleArray:
    """The margin in the middle of every bin."""
    return np.asarray((np.arange(BINS) + 0.5) * (2 * WIDEST / BINS) - WIDEST, np.float64)


@jit
def _fill_moments(
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


# ---- calibration -----------------------------------------------------------------------------------------------------

MOST_NOISE = 0.5
FARTHEST, KNOTS = 40.0, 161  # of the piecewise linear function that stores it: to where, and how many


@dataclass(frozen=True)
class LabelNoise:
    """ε and τ."""

    noise: float  # ε
    temperature: float  # τ

    @classmethod
    def of_left_out(cls, left_out: LeftOut, score_noise: float) -> LabelNoise | None:
        """The best ε and τ for the margins of ratings that were left out. None: the plain link is as good."""
        if not left_out.weight > 0:
            return None
        z, shares = margin_of_bins() * math.sqrt(score_noise), left_out.margins / left_out.weight

        def losses(link: LabelNoise) -> DoubleArray:
            return -np.log(link.probability(z))

        def fitted(with_noise: bool) -> LabelNoise:
            def loss(x: DoubleArray) -> tuple[float, DoubleArray]:
                link = cls(float(x[1]) if with_noise else 0.0, math.exp(x[0]))
                p, s = link.probability(z), expit(link.temperature * z)
                by_temperature = (1 - link.noise) * s * (1 - s) * link.temperature * z
                slopes = [by_temperature, 0.5 - s] if with_noise else [by_temperature]
                return float(shares @ losses(link)), np.array([-(shares @ (slope / p)) for slope in slopes])

            start, bounds = np.array([0.0, 0.05]), [(-3.0, 3.0), (0.0, MOST_NOISE)]
            x = minimise(loss, start[: 1 + with_noise], bounds[: 1 + with_noise])
            return cls(float(x[1]) if with_noise else 0.0, float(np.exp(x[0])))

        def pays(link: LabelNoise, before: LabelNoise) -> bool:
            gain = losses(before) - losses(link)
            mean = shares @ gain
            return bool(mean > math.sqrt(shares @ (gain - mean) ** 2 / left_out.n))

        best = plain = cls(0.0, 1.0)
        for with_noise in (False, True):
            candidate = fitted(with_noise)
            if pays(candidate, best):
                best = candidate
        return None if best is plain else best

    def probability(self, z: DoubleArray) -> DoubleArray:
        """P of the label of this sign, from its margin z."""
        return np.asarray(0.5 * self.noise + (1.0 - self.noise) * expit(self.temperature * z))

    def calibration(self, score_noise: float) -> Calibration:
        """The same as a piecewise linear function of score/√(c + variance), c the noise of the score."""
        scale = math.sqrt(score_noise)
        if self.noise == 0:
            knots = np.array([-FARTHEST, FARTHEST])
            return Calibration(score_noise, knots.tolist(), (self.temperature * scale * knots).tolist())
        inner = np.linspace(-1.0, 1.0, KNOTS)
        knots = FARTHEST * inner**3 / (self.temperature * scale)  # denser around 0
        p = self.probability(scale * knots)
        return Calibration(score_noise, knots.tolist(), (np.log(p) - np.log1p(-p)).tolist())
