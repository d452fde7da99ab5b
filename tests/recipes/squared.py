"""A third loss, as docs/ARCHITECTURE.md says: this file in onebit_spark/core/losses/, and nothing
else.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from onebit_spark.core.loss import Loss, RowSums, other_location


@dataclass(frozen=True)
class Squared(Loss):
    """½(y − u)². The update of a row is exact, x ~ N(A⁻¹b, A⁻¹)."""

    default_kappa = 1.0
    start_std = 0.3
    start_shrinkage = 0.5
    score_noise = 1.0
    kind = "covariance"

    @staticmethod
    def probability(scores, variances):
        return ndtr(scores / np.sqrt(1.0 + variances))

    @staticmethod
    def held_out(scores, variances, signs):
        return 0.5 * ((signs - scores) ** 2 + variances)

    def other_lines(self, posterior):
        """[E z, E[z zᵀ]] of every row of the other side, z = [d, 1, R] or R."""
        mean = other_location(posterior).astype(np.float64)
        covariance = posterior.covariance
        if posterior.has_intercept:
            covariance = np.insert(np.insert(covariance, 1, 0.0, axis=1), 1, 0.0, axis=2)
        moments = covariance + mean[:, :, None] * mean[:, None, :]
        return np.hstack([mean, moments.reshape(len(mean), -1)])

    def update_rows(self, block, lo, hi, others, rows, step):
        free = rows.dimension
        fixed = int(rows.has_intercept)
        size = free + fixed
        log_volume = 0.0
        data = 0.0
        for i in range(lo, hi):
            part = slice(block.row_pointers[i], block.row_pointers[i + 1])
            codes = block.codes[part]
            if not len(codes):
                continue
            weights = step.kappa * (
                np.ones(len(codes)) if block.weights is None else block.weights[part]
            )
            lines = others[codes >> 1]
            moments = (weights @ lines[:, size:]).reshape(size, size)
            linear = (weights * np.where(codes & 1, 1.0, -1.0)) @ lines[:, :size]
            prior = step.prior.take(slice(i, i + 1))
            precision = np.diag(prior.precision[0]) + (
                0.0 if prior.coupling is None else prior.coupling
            )
            right = linear[fixed:] + precision @ prior.mean[0]
            if fixed:
                right -= moments[1:, 0]
            covariance = np.linalg.inv(moments[fixed:, fixed:] + precision)
            rows.location[i] += step.relaxation * (covariance @ right - rows.location[i])
            rows.scale[i] = covariance[np.tril_indices(free)]
            log_volume += 0.5 * np.linalg.slogdet(covariance)[1]
            x = np.insert(rows.location[i].astype(np.float64), 0, [1.0] * fixed)
            data += 0.5 * (weights.sum() + x @ moments @ x) - linear @ x
            data += 0.5 * np.sum(moments[fixed:, fixed:] * covariance)
        return RowSums(log_volume, data)
