"""Score, variance, probability and confidence of cells, their held-out loss, calibration and metrics.

See docs/MATH.md, §8.1, §10.1–2 and §14.

    confidence |z| = |score| / √(c + variance)      c: the noise of the loss (logistic 8/π, hinge 0)

The uncalibrated probability is a function of z. For large z it rounds to 1, while z still orders the pairs. A fit keeps
a histogram of z over its ratings, with fine bins of equal width in log₂ |z| for either sign. The
``ConfidenceThresholds`` are computed from this histogram, so no threshold depends on held-out ratings.
"""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainccinv, betaincinv, expit

from onebit_spark.compiled import inner, jit
from onebit_spark.core.blocks import RatingBlock
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
    """var u = tr V_iV_j + M_jᵀV_iM_j + M_iᵀV_jM_i on the augmented coordinates, line by line."""
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
Call = Literal["answered", "positive", "negative"]  # what a model can say of a pair; each is a boolean column

LOWEST_OCTAVE, HIGHEST_OCTAVE = -8, 16  # range of log₂ |z|; the first and the last bin take what is outside
PER_OCTAVE = 512
HISTOGRAM_BINS = (HIGHEST_OCTAVE - LOWEST_OCTAVE) * PER_OCTAVE  # of |z|; the histogram of z has as many per sign
LARGEST = 2.0**HIGHEST_OCTAVE  # z is clipped to ±LARGEST
# A model makes a call where this function of z reaches the threshold of the call.
TOWARDS: dict[Call, Callable[[Any], Any]] = {"answered": np.abs, "positive": np.positive, "negative": np.negative}
LEVEL_STEP = 1.02  # the ratio of the numbers of ratings that a level and the next higher one answer
ENOUGH = 4_000_000  # ratings for the histogram; fits of at least twice as many ratings take a sample
FEWEST = 10  # fitted ratings that the highest level answers


def confidence(score: NDArray[np.float64], std: NDArray[np.float64], noise: float) -> NDArray[np.float64]:
    """z = score / √(noise + std²), clipped to ±LARGEST; 0 if the score is 0."""
    root = np.sqrt(noise + std * std)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(score == 0, 0.0, np.clip(score / root, -LARGEST, LARGEST))


@dataclass(frozen=True)
class ConfidenceThresholds:
    """Thresholds of |z|, z or −z (``TOWARDS``). Level j calls a pair if its value is at least ``values[j]``::

    level         0      1      2    …
    threshold     0    0.013  0.027  …
    share         1    0.980  0.961  …
    """

    shares: tuple[float, ...]  # share of the fitted ratings that each level calls; the first is 1
    values: tuple[float, ...]  # the thresholds, ascending; the first is 0 or −LARGEST, so level 0 calls everything
    class_share: float = 1.0  # share of the fitted ratings that are of the called class; 1 for |z|

    def __post_init__(self) -> None:
        first = self.shares[:1] == (1,) and self.values[:1] in ((0,), (-LARGEST,))
        if not first or len(self.shares) != len(self.values):
            raise ValueError("the first confidence threshold calls all pairs (share 1), and each threshold has a share")
        if np.any(np.diff(self.values) <= 0) or np.any(np.diff(self.shares) > 0):
            raise ValueError("confidence thresholds must ascend, and their shares must not")

    @classmethod
    def of_histogram(cls, counts: Histogram, lower: DoubleArray) -> ConfidenceThresholds:
        """Levels at ``lower`` edges of bins. Each calls 2% more ratings than the next higher one, or one bin more."""
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

    def as_dict(self) -> dict[str, Any]:
        return {"shares": list(self.shares), "thresholds": list(self.values)}

    @classmethod
    def from_dict(cls, fields: dict[str, Any], class_share: float = 1.0) -> ConfidenceThresholds:
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
    block: RatingBlock, lo: int, hi: int, row_numbers: NDArray[np.int64], rows: RowPosterior, cols: RowPosterior,
    noise: float, stride: int = 1,
) -> Histogram:  # fmt: skip
    """The histogram of z over every ``stride``-th rating of the rows lo … hi−1, in ascending bins (MATH.md, §10.2)."""
    starts = block.row_pointers[lo:hi] + -row_numbers[lo:hi] % stride
    scores, variances = predictions_of(block, lo, hi, rows, cols, starts, stride)
    bins = bin_of(confidence(scores, np.sqrt(variances), noise))
    return np.bincount(np.where(scores < 0, -1 - bins, bins) + HISTOGRAM_BINS, minlength=2 * HISTOGRAM_BINS)


def bin_of(z: DoubleArray) -> NDArray[np.int64]:
    """The bins of confidences |z|, 0 … HISTOGRAM_BINS − 1."""
    octaves = np.log2(np.fmax(np.abs(z), 2.0**LOWEST_OCTAVE)) - LOWEST_OCTAVE
    return np.minimum(octaves * PER_OCTAVE, HISTOGRAM_BINS - 1).astype(np.int64)


def predictions_of(
    block: RatingBlock, lo: int, hi: int, rows: RowPosterior, cols: RowPosterior, starts: NDArray[np.int64],
    stride: int = 1,
) -> tuple[DoubleArray, DoubleArray]:  # fmt: skip
    """Score and variance of every s-th rating of the rows lo … hi−1, the first of which are at ``starts``."""
    n = int(np.sum(np.maximum(-(-(block.row_pointers[lo + 1 : hi + 1] - starts) // stride), 0)))
    scores, variances = np.empty(n), np.empty(n)
    _fill_predictions(
        starts, block.row_pointers[lo + 1 : hi + 1], stride, block.codes, lo,
        (rows.location, rows.scale, cols.location, cols.scale), (rows.kind == "covariance", rows.has_intercept),
        scores, variances,
    )  # fmt: skip
    return scores, variances


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
    score, variance, size = base, 0.0, len(w)
    for a in range(size):
        z[a] = location[a]
        score += w[a] * z[a]
    if has_intercept:
        z[0] = 1.0
    if full:  # two loops, and no index that a branch changes: these compile to vector instructions, five times faster
        for q in range(len(met)):
            variance += met[q] * scale[q]
        q = 0
        for a in range(size):
            line, s = own[q : q + a + 1], 0.0
            for b in range(a + 1):
                s += line[b] * z[b]
            variance += s * z[a]
            q += a + 1
    else:
        for a in range(size):
            v = np.float64(scale[a]) ** 2
            variance += own[a] * z[a] * z[a] + met[a] * v
    return score, variance


@jit
def _fill_predictions(starts, ends, stride, codes, first, tables, form, scores, variances):
    row_location, row_scale, col_location, col_scale = tables
    full, has_intercept = form
    w, z = np.empty(row_location.shape[1]), np.empty(row_location.shape[1])
    own, met = np.empty(row_scale.shape[1]), np.empty(row_scale.shape[1])
    n = 0
    for r in range(len(starts)):
        if starts[r] >= ends[r]:
            continue
        location = row_location[first + r]
        fill_row_terms(location, row_scale[first + r], full, has_intercept, w, own, met)
        base = np.float64(location[0]) if has_intercept else 0.0
        for l in range(starts[r], ends[r], stride):
            j = codes[l] >> 1
            score, variance = pair_moments(w, own, met, base, col_location[j], col_scale[j], full, has_intercept, z)
            scores[n], variances[n] = score, max(variance, 0.0)
            n += 1


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
        first, last = block.row_pointers[lo], block.row_pointers[hi]
        signs = np.where(block.codes[first:last] & 1, 1.0, -1.0)
        weights = np.ones(len(signs)) if block.weights is None else block.weights[first:last].astype(np.float64)
        scores, variances = predictions_of(block, lo, hi, rows, cols, block.row_pointers[lo:hi])
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
    return np.asarray((np.arange(BINS) + 0.5) * (2 * WIDEST / BINS) - WIDEST, np.float64)


# ---- calibration -----------------------------------------------------------------------------------------------------

# A calibration maps score and variance to a probability that agrees with observed frequencies. ``Calibration`` is
# piecewise linear in the logit and is fitted to held-out ratings in two steps (docs/MATH.md, §8.4): a slope (Platt,
# 1999) and a noise, then a piecewise linear function instead of the straight line. ``TemperatureScaling`` has two
# parameters (Guo et al., 2017, with label noise; §14). Both give the probability ½ at score 0.

MOST_KNOTS = 12
RATINGS_PER_KNOT = 200
BOUND = 12.0  # of a step of the logit, and of the logarithms of slope and noise; no data reach it
LEAST_STEP = 1e-3  # the smallest step of the logit from score 0 to the next knot on either side


@dataclass(frozen=True)
class Calibration:
    """P(+) = σ(f(t)) with t = score/√(noise + variance), where f is non-decreasing and piecewise linear.

    f is linear between the knots and constant outside.

    Without calibration, the logistic loss gives σ(t·√(8/π)) with noise 8/π. The hinge gives Φ(t) with noise 0, which
    rarely agrees with observed frequencies.

    >>> learnt = Calibration(noise=0.5, knots=[-1.0, 1.0], logits=[-2.0, 2.0])
    >>> learnt.probability(np.array([0.0, 1.0, 9.0]), np.array([0.5, 0.5, 0.5])).round(3).tolist()
    [0.5, 0.881, 0.881]
    """

    noise: float  # added to the variance of the score
    knots: Sequence[float]  # values of t between which f is linear, ascending
    logits: Sequence[float]  # values of f at the knots

    def probability(self, scores: DoubleArray, variances: DoubleArray) -> DoubleArray:
        return np.asarray(expit(np.interp(scores / np.sqrt(self.noise + variances), self.knots, self.logits)))

    @classmethod
    def fit(
        cls, scores: DoubleArray, variances: DoubleArray, positives: DoubleArray, negatives: DoubleArray
    ) -> Calibration:
        """The calibration of largest likelihood.

        A score and a variance stand for a group of similar ratings; ``positives`` and ``negatives`` count its labels.
        f(0) = 0 and f increases there. So a probability is above ½ if and only if the score is positive.
        """
        slope, noise = _platt(scores, variances, positives, negatives)
        t = scores / np.sqrt(noise + variances)
        knots = _knots(t, positives + negatives)
        logits = _piecewise_linear(t, knots, positives, negatives, slope)
        return cls(noise, knots.tolist(), logits.tolist())


def _platt(
    scores: DoubleArray, variances: DoubleArray, positives: DoubleArray, negatives: DoubleArray
) -> tuple[float, float]:
    """Slope and noise of σ(slope·score/√(noise + variance)): Platt's method without an intercept."""
    total = np.sum(positives) + np.sum(negatives)
    spread = float(np.dot(positives + negatives, variances) / total) + 1e-12

    def loss(x: DoubleArray) -> tuple[float, DoubleArray]:
        slope, noise = np.exp(x[0]), spread * np.exp(x[1])
        t = scores / np.sqrt(noise + variances)
        value, pull = _log_loss(slope * t, positives, negatives)
        by_noise = -0.5 * slope * t * noise / (noise + variances)
        return value / total, np.array([np.dot(pull, slope * t), np.dot(pull, by_noise)]) / total

    x = minimise(loss, np.zeros(2), [(-BOUND, BOUND)] * 2)
    return float(np.exp(x[0])), float(spread * np.exp(x[1]))


def _knots(t: DoubleArray, weights: DoubleArray) -> DoubleArray:
    """The knots: 0, at least one on either side of 0, and more quantiles of t the more ratings there are."""
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
    """The non-decreasing logits of largest likelihood. Half a rating of each class per knot keeps them finite."""
    place = np.clip(np.searchsorted(knots, t) - 1, 0, len(knots) - 2)
    share = np.clip((t - knots[place]) / np.diff(knots)[place], 0.0, 1.0)
    total = np.sum(positives) + np.sum(negatives)
    half = np.full(len(knots), 0.5)
    zero = int(np.searchsorted(knots, 0.0))
    knot, step = np.indices((len(knots), len(knots) - 1))
    climb = ((zero <= step) & (step < knot)).astype(float) - ((knot <= step) & (step < zero))  # logits = climb @ steps

    def loss(steps: DoubleArray) -> tuple[float, DoubleArray]:
        logits = climb @ steps
        value, pull = _log_loss((1 - share) * logits[place] + share * logits[place + 1], positives, negatives)
        extra, pull_extra = _log_loss(logits, half, half)
        gradient = pull_extra + np.bincount(place, (1 - share) * pull, len(knots))
        gradient += np.bincount(place + 1, share * pull, len(knots))
        return (value + extra) / total, climb.T @ gradient / total

    lowest = np.zeros(len(knots) - 1)
    lowest[zero - 1 : zero + 1] = LEAST_STEP
    first = np.clip(np.diff(np.clip(slope * knots, -BOUND, BOUND)), lowest, BOUND)
    bounds = [(low, BOUND) for low in lowest]
    return np.asarray(climb @ minimise(loss, first, bounds))


def _log_loss(u: DoubleArray, positives: DoubleArray, negatives: DoubleArray) -> tuple[float, DoubleArray]:
    """−log likelihood of logits, and its derivatives."""
    value = np.dot(positives, np.logaddexp(0, -u)) + np.dot(negatives, np.logaddexp(0, u))
    return float(value), negatives * expit(u) - positives * expit(-u)


MOST_NOISE = 0.5
LAST_KNOT, N_KNOTS = 40.0, 161  # of the piecewise linear function that stores a ``TemperatureScaling``


@dataclass(frozen=True)
class TemperatureScaling:
    """P(y) = ε/2 + (1 − ε) σ(τ y z) with z = score/√(1 + π·variance/8).

    The signs and the order of the scores are kept.
    """

    noise: float  # ε, the share of random labels
    temperature: float  # τ

    @classmethod
    def fit(cls, z: DoubleArray, shares: DoubleArray, n: int) -> TemperatureScaling | None:
        """The best ε and τ for held-out margins y·z, given the share of the n ratings at each margin, by weight.

        None: the plain link is as good.
        """

        def losses(link: TemperatureScaling) -> DoubleArray:
            return -np.log(link.probability(z))

        def fitted(with_noise: bool) -> TemperatureScaling:
            def loss(x: DoubleArray) -> tuple[float, DoubleArray]:
                link = cls(float(x[1]) if with_noise else 0.0, math.exp(x[0]))
                p, s = link.probability(z), expit(link.temperature * z)
                by_temperature = (1 - link.noise) * s * (1 - s) * link.temperature * z
                slopes = [by_temperature, 0.5 - s] if with_noise else [by_temperature]
                return float(shares @ losses(link)), np.array([-(shares @ (slope / p)) for slope in slopes])

            start, bounds = np.array([0.0, 0.05]), [(-3.0, 3.0), (0.0, MOST_NOISE)]
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
        """The same as a piecewise linear function of score/√(c + variance), where c is the noise of the score."""
        scale = math.sqrt(score_noise)
        if self.noise == 0:
            knots = np.array([-LAST_KNOT, LAST_KNOT])
            return Calibration(score_noise, knots.tolist(), (self.temperature * scale * knots).tolist())
        inner = np.linspace(-1.0, 1.0, N_KNOTS)
        knots = LAST_KNOT * inner**3 / (self.temperature * scale)  # denser around 0
        p = self.probability(scale * knots)
        return Calibration(score_noise, knots.tolist(), (np.log(p) - np.log1p(-p)).tolist())


def minimise(
    loss: Callable[[DoubleArray], Any], start: DoubleArray, bounds: Sequence[tuple[float, float]]
) -> DoubleArray:
    from scipy.optimize import minimize  # slow to import, and few processes calibrate

    return np.asarray(minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds).x)


# ---- metrics ---------------------------------------------------------------------------------------------------------

# Functions of labels in {−1, +1} and of scores or probabilities of +1. A score s predicts sign(s), which is right if
# y·s > 0. A score of 0 is an error.

SMALLEST_PROBABILITY = 1e-15  # log_loss stays finite; 1 − 1e−15 is still below 1 in double precision


def error_rate(labels: ArrayLike, scores: ArrayLike) -> float:
    """(1/n) Σ_l 1(y_l s_l ≤ 0). With the strict "<" of the paper, the zero matrix would make no error."""
    return float(np.mean(~(np.asarray(labels) * np.asarray(scores) > 0)))


def error_interval(errors: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """The exact two-sided interval of an error probability, from k errors in n trials (Clopper and Pearson, 1934).

    p₋ = Beta⁻¹(a/2; k, n−k+1) and p₊ = Beta⁻¹(1−a/2; k+1, n−k) with a = 1 − confidence, or 0 and 1 if k = 0 or k = n.
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

    p is clipped to [1e−15, 1 − 1e−15], so a certain and wrong prediction costs 34.5 and not infinity.
    """
    p = np.clip(probabilities, SMALLEST_PROBABILITY, 1 - SMALLEST_PROBABILITY)
    return -float(np.mean(np.where(np.asarray(labels) > 0, np.log(p), np.log1p(-p))))


def brier(labels: ArrayLike, probabilities: ArrayLike) -> float:
    """(1/n) Σ_l (p_l − 1(y_l = 1))², p_l the probability of a +1."""
    return float(np.mean((np.asarray(probabilities) - (np.asarray(labels) > 0)) ** 2))


def auc_of_counts(positives: NDArray[Any], negatives: NDArray[Any]) -> tuple[float, float] | None:
    """P(s₊ > s₋) + ½ P(s₊ = s₋) for a random positive and a random negative rating; None if there is only one class.

    Both arrays count the ratings of every score, or of every bin of scores, ascending. Within a bin any order is
    possible: the second number is the largest error.
    """
    pairs = float(positives.sum()) * float(negatives.sum())
    ties = float(np.dot(positives, negatives)) / 2
    below = float(np.dot(positives, np.cumsum(negatives) - negatives))
    return ((below + ties) / pairs, ties / pairs) if pairs else None


def auc(labels: ArrayLike, scores: ArrayLike) -> float:
    """The AUC of single ratings; nan if there is only one class."""
    place, positive = np.unique(scores, return_inverse=True)[1], np.asarray(labels) > 0
    counts = (np.bincount(place[of], minlength=place.max() + 1) for of in (positive, ~positive))
    return (auc_of_counts(*counts) or (math.nan,))[0]


def class_figures(positives: NDArray[Any], negatives: NDArray[Any], called: int, wrong: int) -> dict[str, Any]:
    """Precision, recall and average precision of positives and, as ``negative_…``, of negatives; None if undefined.

    Both arrays count the ratings of every score, ascending. ``called`` ratings are predicted positive, and ``wrong`` =
    FP + FN predictions are wrong, so TP = (called + positives − wrong)/2. With precision P_s and recall R_s of calling
    all ratings down to score s, the average precision is Σ_s (R_s − R_{s−1}) P_s; in random order it is the share of
    the class.
    """
    n, figures = positives + negatives, {}
    for prefix, own, of, calls in (
        ("", positives[::-1], n[::-1], called),
        ("negative_", negatives, n, int(n.sum()) - called),
    ):
        total, found = float(own.sum()), (calls + own.sum() - wrong) / 2
        area = np.dot(own, np.cumsum(own) / np.maximum(np.cumsum(of), 1))
        figures[f"{prefix}precision"] = float(found / calls) if calls else None
        figures[f"{prefix}recall"] = float(found / total) if total else None
        figures[f"{prefix}average_precision"] = float(area / total) if total else None
    return figures


def ranking_figures(hits: NDArray[np.bool_], relevant: NDArray[np.integer]) -> dict[str, float]:
    """How good lists of n items are, as means over the users; the names are those of Spark's ``RankingEvaluator``.

    h_ip is 1 if place p of the list of user i has one of the r_i relevant items of i::

        precision  Σ_p h_ip / n                       NDCG  Σ_p h_ip/log₂(p + 1) / Σ_{p ≤ min(r_i, n)} 1/log₂(p + 1)
        recall     Σ_p h_ip / r_i                     MAP   Σ_p h_ip (Σ_{q ≤ p} h_iq)/p / min(r_i, n)

    >>> figures = ranking_figures(np.array([[True, False], [False, True]]), np.array([1, 4]))
    >>> {name: round(value, 3) for name, value in figures.items()}
    {'precisionAtK': 0.5, 'recallAtK': 0.625, 'ndcgAtK': 0.693, 'meanAveragePrecisionAtK': 0.625}
    """
    place = np.arange(1, hits.shape[1] + 1)
    gains, found, most = 1 / np.log2(place + 1), hits.sum(axis=1), np.minimum(relevant, len(place))
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
        """From the number of predictions, the sum of their probabilities and the positive labels of each bin."""
        n, probability, positives = sums[:, sums[0] > 0]
        return cls(n, probability / n, positives / n)


def reliability_sums(labels: ArrayLike, probabilities: ArrayLike) -> DoubleArray:
    """What ``Reliability.of_sums`` takes (3 × bins). The sums of several sets of ratings are added."""
    p = np.asarray(probabilities, np.float64)
    bins = np.minimum(np.floor(p * RELIABILITY_BINS), RELIABILITY_BINS - 1).astype(np.int64)
    weights = np.ones_like(p), p, np.asarray(labels) > 0
    return np.stack([np.bincount(bins, each, RELIABILITY_BINS).astype(np.float64) for each in weights])


def reliability(labels: ArrayLike, probabilities: ArrayLike) -> Reliability:
    """The reliability of probabilities of +1.

    >>> curve = reliability([1, 1, -1, -1], [0.9, 0.9, 0.9, 0.1])
    >>> curve.frequency.round(3).tolist(), round(curve.error, 3)
    ([0.0, 0.667], 0.2)
    """
    return Reliability.of_sums(reliability_sums(labels, probabilities))
