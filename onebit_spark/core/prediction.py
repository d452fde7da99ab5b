"""Score, variance, probability, confidence and held-out loss of cells, from the posteriors of rows and columns.

See docs/MATH.md, §8.1, §10.1–2 and §14.

    confidence |z| = |score| / √(c + variance)      c: the noise of the loss (logistic 8/π, hinge 0)

The uncalibrated probability is a function of z. For large z it rounds to 1, while z still orders the pairs. A fit keeps
a histogram of the confidences of its ratings, with fine bins of equal width in log₂ |z|. The ``ConfidenceThresholds``
are computed from this histogram, so no threshold depends on held-out ratings.
"""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.calibration import Calibration, TemperatureScaling
from onebit_spark.core.compiled import inner, jit
from onebit_spark.core.losses import LOSSES
from onebit_spark.core.posterior import DoubleArray, FloatArray, RowPosterior

SLICE = 2**20  # numbers in one unpacked covariance array; larger batches are scored in slices


def score(rows: RowPosterior, cols: RowPosterior) -> DoubleArray:
    """E[u] = b_i + d_j + E[L_i]·E[R_j], line by line."""
    return score_of_means(rows.location, cols.location, rows.has_intercept)


def score_of_means(rows: FloatArray, cols: FloatArray, intercepts: bool) -> DoubleArray:
    """The same from the means of all coordinates; with intercepts, these are first."""
    first = int(intercepts)
    total = np.einsum("lk,lk->l", rows[:, first:], cols[:, first:], dtype=np.float64)
    if intercepts:
        total += rows[:, 0].astype(np.float64) + cols[:, 0]
    return total


def variance(rows: RowPosterior, cols: RowPosterior) -> DoubleArray:
    """var u = tr V_iV_j + M_jᵀV_iM_j + M_iᵀV_jM_i on the augmented coordinates, line by line.

    With independent coordinates (hinge, diagonal logistic) this is Σ_k (sL²R² + L²sR² + sL²sR²).
    """
    if rows.kind == "spread":
        row_mean, col_mean = rows.mean.astype(np.float64), cols.mean.astype(np.float64)
        row_var, col_var = rows.spread.astype(np.float64) ** 2, cols.spread.astype(np.float64) ** 2
        total = np.sum(row_var * col_mean**2 + (row_mean**2 + row_var) * col_var, axis=1)
        if rows.has_intercept:
            total += rows.std[:, 0].astype(np.float64) ** 2 + cols.std[:, 0].astype(np.float64) ** 2
        return np.asarray(total)
    first = int(rows.has_intercept)
    row_cov, col_cov = rows.covariance.astype(np.float64), cols.covariance.astype(np.float64)
    # In the free coordinates of row i the partner is z_j = [1, R_j], with the covariance of R_j. d_j adds its variance
    # and its covariance with R_j times E[L_i].
    row_partner, col_partner = _as_partner(cols), _as_partner(rows)
    total = np.einsum("la,lab,lb->l", row_partner, row_cov, row_partner)
    total += np.einsum("la,lab,lb->l", col_partner, col_cov, col_partner)
    total += np.einsum("lab,lab->l", row_cov[:, first:, first:], col_cov[:, first:, first:])
    return np.asarray(total)


def _as_partner(side: RowPosterior) -> DoubleArray:
    """E[z] in the other side's free coordinates: [1, R_j] with intercepts, R_j without."""
    mean = side.mean.astype(np.float64)
    return np.insert(mean, 0, 1.0, axis=1) if side.has_intercept else mean


def probability(
    loss: str, scores: FloatArray, variances: FloatArray, calibration: Calibration | None = None
) -> DoubleArray:
    """P(+) by the formula of the loss (see ``probability`` of each loss), or by a calibration."""
    if calibration is not None:
        return calibration.probability(np.asarray(scores, np.float64), np.asarray(variances, np.float64))
    return LOSSES[loss].probability(scores, variances)


def score_noise(loss: str, calibration: Calibration | None = None) -> float:
    """c: the probability is a function of score/√(c + variance)."""
    return LOSSES[loss].score_noise if calibration is None else calibration.noise


# ---- confidence ------------------------------------------------------------------------------------------------------

Histogram = NDArray[np.int64]

LOWEST_OCTAVE, HIGHEST_OCTAVE = -8, 16  # range of log₂ |z|; the first and the last bin take what is outside
PER_OCTAVE = 512
HISTOGRAM_BINS = (HIGHEST_OCTAVE - LOWEST_OCTAVE) * PER_OCTAVE
LEVEL_STEP = 1.02  # the ratio of the numbers of ratings that a level and the next higher one answer
ENOUGH = 4_000_000  # ratings for the histogram; fits of at least twice as many ratings take a sample
FEWEST = 10  # fitted ratings that the highest level answers


def confidence(score: NDArray[np.float64], std: NDArray[np.float64], noise: float) -> NDArray[np.float64]:
    """|score| / √(noise + std²): infinite if noise and std are 0, and 0 if the score is 0."""
    root = np.sqrt(noise + std * std)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(score == 0, 0.0, np.abs(score) / root)


@dataclass(frozen=True)
class ConfidenceThresholds:
    """Thresholds of the confidence. Level j answers a pair if its confidence is at least ``values[j]``::

    level         0      1      2    …
    threshold     0    0.013  0.027  …
    share         1    0.980  0.961  …
    """

    shares: tuple[float, ...]  # share of the fitted ratings that each level answers; the first is 1
    values: tuple[float, ...]  # the thresholds, ascending; the first is 0, so level 0 answers everything

    def __post_init__(self) -> None:
        if not (len(self.shares) == len(self.values) > 0 and self.shares[0] == 1 and self.values[0] == 0):
            raise ValueError("the first confidence threshold is 0 with the share 1, and each threshold has a share")
        if np.any(np.diff(self.values) <= 0) or np.any(np.diff(self.shares) > 0):
            raise ValueError("confidence thresholds must ascend, and their shares must not")

    @classmethod
    def of_histogram(cls, counts: Histogram) -> ConfidenceThresholds:
        """Levels at the edges of bins. Each level answers 2% more ratings than the next higher one, or one bin more."""
        total = int(counts.sum())
        above = np.cumsum(counts[::-1])[::-1]  # ratings in this bin or a higher one
        levels = int(math.log(max(total / FEWEST, 1.0)) / math.log(LEVEL_STEP)) + 1
        wanted = total * LEVEL_STEP ** -np.arange(levels)
        edges = np.unique(np.searchsorted(-above, -wanted + 1e-9 * wanted, side="right") - 1)
        edges = np.union1d(edges, [0])
        thresholds = [float(f"{2.0 ** (LOWEST_OCTAVE + edge / PER_OCTAVE):.7g}") for edge in edges[1:]]
        shares = [float(f"{above[edge] / total:.7g}") for edge in edges[1:]]
        return cls((1.0, *shares), (0.0, *thresholds))

    def level(self, confidences: NDArray[np.float64]) -> NDArray[np.int16]:
        """The highest level that answers each confidence."""
        return (np.searchsorted(self.values, confidences, side="right") - 1).astype(np.int16)

    def as_dict(self) -> dict[str, Any]:
        return {"shares": list(self.shares), "thresholds": list(self.values)}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> ConfidenceThresholds:
        return cls(tuple(fields["shares"]), tuple(fields["thresholds"]))


EVERYTHING = ConfidenceThresholds((1.0,), (0.0,))


def count_confidences(
    block: RatingBlock, lo: int, hi: int, row_numbers: NDArray[np.int64], rows: RowPosterior, cols: RowPosterior,
    noise: float, stride: int = 1,
) -> Histogram:  # fmt: skip
    """The histogram of the confidences of the ratings of rows lo … hi−1. Histograms of several rows are added.

    With a ``stride`` s, every s-th rating of a row counts. The position of the first one depends on the number of the
    row. So short rows are sampled at different positions, and the layout of the blocks does not matter.
    """
    counts = np.zeros(HISTOGRAM_BINS, np.int64)
    _count(
        block.row_pointers, block.codes, lo, hi, row_numbers, stride,
        rows.location, rows.scale, cols.location, cols.scale,
        rows.kind == "covariance", rows.has_intercept, noise, counts,
    )  # fmt: skip
    return counts


@jit
def bin_of(z):
    """The bin of a confidence, 0 … HISTOGRAM_BINS − 1."""
    if not z > 2.0**LOWEST_OCTAVE:
        return 0
    return min(int((math.log2(min(z, 2.0**HIGHEST_OCTAVE)) - LOWEST_OCTAVE) * PER_OCTAVE), HISTOGRAM_BINS - 1)


@inner
def fill_row_terms(location, scale, full, has_intercept, w, own, met):
    """For one row: w = [1, L_i], and the factors of its partner's terms in the variance.

    var u = <own, z_j z_jᵀ> + <met, V_j> with own = V_i and met = w wᵀ + V_i, the latter without its intercept. Both are
    packed, with off-diagonal entries doubled. With independent coordinates they are the diagonals only.
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


@inner
def pair_moments(w, own, met, base, location, scale, full, has_intercept, z):
    """Score and variance of the row of ``fill_row_terms``, whose intercept is ``base``, and one partner."""
    score, size = base, len(w)
    for a in range(size):
        z[a] = location[a]
        score += w[a] * z[a]
    if has_intercept:
        z[0] = 1.0
    variance, q = 0.0, 0
    for a in range(size):
        for b in range(0 if full else a, a + 1):
            v = np.float64(scale[q]) if full else np.float64(scale[q]) ** 2
            variance += own[q] * z[a] * z[b] + met[q] * v
            q += 1
    return score, variance


@jit
def _count(
    pointers, codes, first, last, numbers, stride, row_location, row_scale, col_location, col_scale, full,
    has_intercept, noise, counts,
):  # fmt: skip
    size = row_location.shape[1]
    w, z = np.empty(size), np.empty(size)
    own, met = np.empty(row_scale.shape[1]), np.empty(row_scale.shape[1])
    for i in range(first, last):
        start = pointers[i] + (stride - numbers[i] % stride) % stride
        if start >= pointers[i + 1]:
            continue
        fill_row_terms(row_location[i], row_scale[i], full, has_intercept, w, own, met)
        base = np.float64(row_location[i, 0]) if has_intercept else 0.0
        for l in range(start, pointers[i + 1], stride):
            j = codes[l] >> 1
            score, variance = pair_moments(w, own, met, base, col_location[j], col_scale[j], full, has_intercept, z)
            root = math.sqrt(noise + max(variance, 0.0))
            if score == 0.0:
                counts[0] += 1
            elif root == 0.0:
                counts[HISTOGRAM_BINS - 1] += 1
            else:
                counts[bin_of(abs(score) / root)] += 1


# ---- the loss of held-out ratings ------------------------------------------------------------------------------------

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
    margins: DoubleArray  # Σ w_l in each bin of the margins y·score/√(c + variance), where c is the noise of the loss

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
        return np.concatenate([[self.total, self.squares, self.total_weight, self.errors, self.n], self.margins])

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
