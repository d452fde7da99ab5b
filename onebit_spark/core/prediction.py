"""Score, variance and probability of a cell from the posteriors of its row and its column (docs/MATH.md, §8.1)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core.calibration import Calibration
from onebit_spark.core.losses import LOSSES
from onebit_spark.core.posterior import DoubleArray, FloatArray, RowPosterior

SLICE = 2**20  # numbers in one unpacked covariance array; larger batches are scored in slices


def score(rows: RowPosterior, cols: RowPosterior) -> DoubleArray:
    """E[u] = b_i + d_j + E[L_i]·E[R_j], line by line."""
    total = np.einsum("lk,lk->l", rows.mean, cols.mean, dtype=np.float64)
    if rows.intercept is not None and cols.intercept is not None:
        total += rows.intercept.astype(np.float64) + cols.intercept
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
            total += rows.deviation[:, 0].astype(np.float64) ** 2 + cols.deviation[:, 0].astype(np.float64) ** 2
        return np.asarray(total)
    first = int(rows.has_intercept)
    row_cov, col_cov = rows.covariance.astype(np.float64), cols.covariance.astype(np.float64)
    # In the free coordinates of row i the partner is z_j = [1, R_j], whose covariance is that of R_j alone. d_j adds
    # its own variance, and its covariance with R_j times E[L_i].
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


def held_out_sums(
    loss: str, rows: RowPosterior, cols: RowPosterior, row: NDArray[np.integer], col: NDArray[np.integer],
    signs: DoubleArray, weights: FloatArray | None = None,
) -> tuple[float, int]:  # fmt: skip
    """Σ w_l times the held-out loss, and the number of wrong signs, over pairs (row[l], col[l]) with labels ±1."""
    total, wrong, step = 0.0, 0, max(1, SLICE // rows.dimension**2)
    for lo in range(0, len(signs), step):
        part = slice(lo, lo + step)
        pairs = rows.take(row[part]), cols.take(col[part])
        scores = score(*pairs)
        losses = LOSSES[loss].held_out(scores, variance(*pairs), signs[part])
        total += float(np.sum(losses if weights is None else losses * weights[part]))
        wrong += int(np.count_nonzero(scores * signs[part] <= 0))
    return total, wrong
