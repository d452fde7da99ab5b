"""Score, variance, probability and confidence of pairs (docs/MATH.md, §8.1 and §10.1).

confidence |z| = |score| / √(c + variance)      c: the noise of the loss (logistic 8/π, hinge 0)
"""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.calibration import Calibration
from onebit_spark.core.losses import LOSSES
from onebit_spark.core.posterior import DoubleArray, FloatArray, RowPosterior
from onebit_spark.kernels.jit import inner, jit

SLICE = 2**20  # numbers in one unpacked covariance array; larger batches are scored in slices
HIGHEST_OCTAVE = 16
LARGEST = 2.0**HIGHEST_OCTAVE  # confidences are clipped to ±LARGEST


def compute_scores(rows: RowPosterior, cols: RowPosterior) -> DoubleArray:
    """E[u] = b_i + d_j + E[L_i]·E[R_j], line by line."""
    return compute_scores_of_means(rows.location, cols.location, rows.has_intercept)


def compute_scores_of_means(rows: FloatArray, cols: FloatArray, intercepts: bool) -> DoubleArray:
    """The same from the means of all coordinates; with intercepts, these are first."""
    first = int(intercepts)
    total = np.einsum("lk,lk->l", rows[:, first:], cols[:, first:], dtype=np.float64)
    if intercepts:
        total += rows[:, 0].astype(np.float64) + cols[:, 0]
    return total


def compute_variances(rows: RowPosterior, cols: RowPosterior) -> DoubleArray:
    """var u = tr V_iV_j + M_jᵀV_iM_j + M_iᵀV_jM_i on the augmented coordinates, line by line."""
    if rows.kind == "spread":
        row_mean = rows.mean.astype(np.float64)
        col_mean = cols.mean.astype(np.float64)
        row_var = rows.spread.astype(np.float64) ** 2
        col_var = cols.spread.astype(np.float64) ** 2
        total = np.sum(row_var * col_mean**2 + (row_mean**2 + row_var) * col_var, axis=1)
        if rows.has_intercept:
            total += rows.std[:, 0].astype(np.float64) ** 2 + cols.std[:, 0].astype(np.float64) ** 2
        return np.asarray(total)
    first = int(rows.has_intercept)
    row_cov = rows.covariance.astype(np.float64)
    col_cov = cols.covariance.astype(np.float64)
    # In the free coordinates of row i the partner is z_j = [1, R_j], with the covariance of R_j.
    # d_j adds its variance and its covariance with R_j times E[L_i].
    row_partner = _as_partner(cols)
    col_partner = _as_partner(rows)
    total = np.einsum("la,lab,lb->l", row_partner, row_cov, row_partner)
    total += np.einsum("la,lab,lb->l", col_partner, col_cov, col_partner)
    total += np.einsum("lab,lab->l", row_cov[:, first:, first:], col_cov[:, first:, first:])
    return np.asarray(total)


def _as_partner(side: RowPosterior) -> DoubleArray:
    """E[z] in the other side's free coordinates: [1, R_j] with intercepts, R_j without."""
    mean = side.mean.astype(np.float64)
    return np.insert(mean, 0, 1.0, axis=1) if side.has_intercept else mean


def compute_probabilities(
    loss: str, scores: FloatArray, variances: FloatArray, calibration: Calibration | None = None
) -> DoubleArray:
    """P(+) by the formula of the loss (see ``probability`` of each loss), or by a calibration."""
    if calibration is not None:
        return calibration.probability(
            np.asarray(scores, np.float64), np.asarray(variances, np.float64)
        )
    return LOSSES[loss].probability(scores, variances)


def score_noise(loss: str, calibration: Calibration | None = None) -> float:
    """c: the probability is a function of score/√(c + variance)."""
    return LOSSES[loss].score_noise if calibration is None else calibration.noise


def compute_confidences(
    score: NDArray[np.float64], std: NDArray[np.float64], noise: float
) -> NDArray[np.float64]:
    """z = score / √(noise + std²), clipped to ±LARGEST; 0 if the score is 0."""
    root = np.sqrt(noise + std * std)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(score == 0, 0.0, np.clip(score / root, -LARGEST, LARGEST))


def predictions_of(
    block: RatingBlock,
    lo: int,
    hi: int,
    rows: RowPosterior,
    cols: RowPosterior,
    starts: NDArray[np.int64],
    stride: int = 1,
) -> tuple[DoubleArray, DoubleArray]:
    """Score and variance of every s-th rating of the rows lo … hi−1, the first of which are at
    ``starts``.
    """
    n = int(np.sum(np.maximum(-(-(block.row_pointers[lo + 1 : hi + 1] - starts) // stride), 0)))
    scores = np.empty(n)
    variances = np.empty(n)
    _fill_predictions(
        starts,
        block.row_pointers[lo + 1 : hi + 1],
        stride,
        block.codes,
        lo,
        (rows.location, rows.scale, cols.location, cols.scale),
        (rows.kind == "covariance", rows.has_intercept),
        scores,
        variances,
    )
    return scores, variances


def compute_moments(
    pairs: Callable[[slice], tuple[RowPosterior, RowPosterior]],
    n: int,
    dimension: int,
    threads: int = 1,
) -> tuple[DoubleArray, DoubleArray]:
    """Score and variance of n pairs, in slices. ``pairs`` gives the posteriors of a slice."""
    score = np.empty(n)
    variance = np.empty(n)

    def fill(part: slice) -> None:
        both = pairs(part)
        score[part], variance[part] = compute_scores(*both), compute_variances(*both)

    in_slices(fill, n, dimension**2, threads)
    return score, variance


def in_slices(fill: Callable[[slice], None], n: int, size: int, threads: int) -> None:
    """Call ``fill`` for slices of n pairs, each of which needs ``size`` numbers at a time."""
    length = max(1, SLICE // size)
    parts = [slice(lo, lo + length) for lo in range(0, n, length)]
    if threads == 1 or len(parts) <= 1:
        for part in parts:
            fill(part)
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(fill, parts))


# ---- kernels -----------------------------------------------------------------------------------


@inner
def fill_row_terms(location, scale, full, has_intercept, w, own, met):
    """For one row: w = [1, L_i], and the factors of its partner's terms in the variance.

    var u = <own, z_j z_jᵀ> + <met, V_j> with own = V_i and met = w wᵀ + V_i, the latter without its
    intercept. Both are packed, with off-diagonal entries doubled. With independent coordinates they
    are the diagonals only.
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
    """Score and variance of the row of ``fill_row_terms``, whose intercept is ``base``, and one
    partner.
    """
    score = base
    variance = 0.0
    size = len(w)
    for a in range(size):
        z[a] = location[a]
        score += w[a] * z[a]
    if has_intercept:
        z[0] = 1.0
    # Two loops, and no index that a branch changes: these compile to vector instructions, five
    # times faster
    if full:
        for q in range(len(met)):
            variance += met[q] * scale[q]
        q = 0
        for a in range(size):
            line = own[q : q + a + 1]
            s = 0.0
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
    w = np.empty(row_location.shape[1])
    z = np.empty(row_location.shape[1])
    own = np.empty(row_scale.shape[1])
    met = np.empty(row_scale.shape[1])
    n = 0
    for r in range(len(starts)):
        if starts[r] >= ends[r]:
            continue
        location = row_location[first + r]
        fill_row_terms(location, row_scale[first + r], full, has_intercept, w, own, met)
        base = np.float64(location[0]) if has_intercept else 0.0
        for l in range(starts[r], ends[r], stride):
            j = codes[l] >> 1
            score, variance = pair_moments(
                w, own, met, base, col_location[j], col_scale[j], full, has_intercept, z
            )
            scores[n], variances[n] = score, max(variance, 0.0)
            n += 1
