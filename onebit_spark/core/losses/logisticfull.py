"""The logistic update of a row with its whole covariance, D×D and packed."""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import numpy as np

from onebit_spark.core.compiled import jit
from onebit_spark.core.losses.quadraticbound import softplus_sum, tau_weights
from onebit_spark.core.losses.rowsums import CHUNK, add_signed_rows, add_weighted_rows, table_dots
from onebit_spark.core.losses.smallsolve import cholesky, inverse, solve


@jit
def fill_partner_moments(location, covariance, has_intercept, out):
    """E[z zᵀ], packed, of every partner z = [d, 1, R] (or R): the constant 1 stands at position 1."""
    for j in range(len(location)):
        x, v = location[j], covariance[j]
        q = 0
        for a in range(len(x) + has_intercept):
            fa = a - 1 if has_intercept and a > 1 else a
            for b in range(a + 1):
                fb = b - 1 if has_intercept and b > 1 else b
                if has_intercept and a == 1 and b == 1:
                    out[j, q] = 1.0
                elif has_intercept and a == 1:
                    out[j, q] = x[fb]
                elif has_intercept and b == 1:
                    out[j, q] = x[fa]
                else:
                    out[j, q] = np.float64(x[fa]) * x[fb] + v[fa * (fa + 1) // 2 + fb]
                q += 1


@jit
def _row_moments(x, covariance, fixed, out):
    """E[x xᵀ], packed, of the row [1, b, L] (or L), off-diagonal entries doubled: ⟨out, E[z zᵀ]⟩ = E[(x·z)²]."""
    q = 0
    for a in range(len(x)):
        for b in range(a + 1):
            s = x[a] * x[b]
            if b >= fixed:
                fa, fb = a - fixed, b - fixed
                s += covariance[fa * (fa + 1) // 2 + fb]
            out[q] = s if a == b else 2.0 * s
            q += 1


@jit
def update_rows_full(
    pointers, codes, first, last, partner_mean, partner_moments, location, covariance, prior_mean, precision,
    fixed, kappa, want_data, relaxation,
):  # fmt: skip
    size = partner_mean.shape[1]
    free = size - fixed
    xi_squared = np.empty(CHUNK)
    row_moments = np.zeros(partner_moments.shape[1], partner_moments.dtype)
    packed = np.empty(partner_moments.shape[1])
    system, inverted = np.empty((free, free)), np.empty((free, free))
    linear, x, solution = np.empty(size), np.ones(size), np.empty(free)
    packed_inverse = np.empty(free * (free + 1) // 2)
    log_volume, data = 0.0, 0.0
    for i in range(first, last):
        start, stop = pointers[i], pointers[i + 1]
        if start == stop:
            continue
        p = prior_mean[i if len(prior_mean) > 1 else 0]
        g = precision[i if len(precision) > 1 else 0]
        for k in range(free):
            x[fixed + k] = location[i, k]
        _row_moments(x, covariance[i], fixed, row_moments)
        packed[:] = 0.0
        linear[:] = 0.0
        for lo in range(start, stop, CHUNK):
            hi = min(lo + CHUNK, stop)
            table_dots(partner_moments, codes, lo, hi, row_moments, xi_squared)
            tau_weights(xi_squared, hi - lo, 2.0 * kappa)
            add_weighted_rows(partner_moments, codes, lo, hi, xi_squared, packed)
            add_signed_rows(partner_mean, codes, lo, hi, linear)
        for k in range(size):
            linear[k] *= 0.5 * kappa

        q = 0
        for a in range(size):
            for b in range(a + 1):
                if b >= fixed:
                    system[a - fixed, b - fixed] = packed[q]
                elif a >= fixed:  # A_Ff: the offset that the fixed coordinate brings in
                    solution[a - fixed] = -packed[q]
                q += 1
        for k in range(free):
            system[k, k] += g[k]
            if fixed == 0:
                solution[k] = 0.0
            solution[k] += linear[fixed + k] + g[k] * p[k]
        log_volume -= 0.5 * cholesky(system)
        solve(system, solution)
        inverse(system, inverted, packed_inverse)
        for k in range(free):
            location[i, k] = x[fixed + k] + relaxation * (solution[k] - x[fixed + k])
            x[fixed + k] = location[i, k]
        for q in range(len(packed_inverse)):
            covariance[i, q] = packed_inverse[q]

        if want_data:
            _row_moments(x, covariance[i], fixed, row_moments)
            for lo in range(start, stop, CHUNK):
                hi = min(lo + CHUNK, stop)
                table_dots(partner_moments, codes, lo, hi, row_moments, xi_squared)
                data += kappa * softplus_sum(xi_squared, hi - lo)
            for k in range(size):
                data -= linear[k] * x[k]
    return log_volume, data
