"""The logistic update of a row that keeps only variances, for large K."""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import math

import numpy as np

from onebit_spark.core.compiled import jit
from onebit_spark.core.losses.quadraticbound import softplus_sum, tau_weights
from onebit_spark.core.losses.rowsums import CHUNK, add_gram, add_projection, gather, scores
from onebit_spark.core.losses.smallsolve import cholesky, solve


@jit
def _expected_squares(partners, variances, x, v, n, u, out):
    """out_l = E[u²] = (x·z)² + Σ_k [v_k (z_k² + var z_k) + x_k² var z_k]; u is left with x·z."""
    scores(partners, x, n, u)
    for l in range(n):
        out[l] = u[l] * u[l]
    for k in range(len(x)):
        z, vz = partners[k], variances[k]
        v_k, square = v[k], x[k] * x[k]
        for l in range(n):
            out[l] += v_k * (z[l] * z[l] + vz[l]) + square * vz[l]


@jit
def update_rows_diagonal(
    pointers, codes, first, last, partner_mean, partner_variance, location, spread, prior_mean, precision,
    fixed, kappa, want_data, relaxation,
):  # fmt: skip
    size = partner_mean.shape[1]
    free = size - fixed
    partners, variances = np.empty((size, CHUNK)), np.empty((size, CHUNK))
    xi_squared, u, scratch = np.empty(CHUNK), np.empty(CHUNK), np.empty(CHUNK)
    gram, system = np.empty((size, size)), np.empty((free, free))
    diagonal, linear, x, v, solution = np.empty(size), np.empty(size), np.ones(size), np.zeros(size), np.empty(free)
    log_volume, data = 0.0, 0.0
    for i in range(first, last):
        start, stop = pointers[i], pointers[i + 1]
        if start == stop:
            continue
        p = prior_mean[i if len(prior_mean) > 1 else 0]
        g = precision[i if len(precision) > 1 else 0]
        for k in range(free):
            x[fixed + k] = location[i, k]
            v[fixed + k] = np.float64(spread[i, k]) ** 2
        gram[:] = 0.0
        diagonal[:] = 0.0
        linear[:] = 0.0
        for lo in range(start, stop, CHUNK):
            hi = min(lo + CHUNK, stop)
            n = hi - lo
            gather(partner_mean, codes, lo, hi, partners)
            gather(partner_variance, codes, lo, hi, variances)
            _expected_squares(partners, variances, x, v, n, u, xi_squared)
            tau_weights(xi_squared, n, 2.0 * kappa)
            add_gram(partners, xi_squared, n, scratch, gram)
            add_projection(variances, xi_squared, n, diagonal)
            for l in range(n):
                u[l] = 0.5 * kappa * (2.0 * (codes[lo + l] & 1) - 1.0)
            add_projection(partners, u, n, linear)

        for k in range(free):
            for m in range(k + 1):
                system[k, m] = gram[fixed + k, fixed + m]
            system[k, k] += diagonal[fixed + k] + g[k]
            solution[k] = linear[fixed + k] + g[k] * p[k]
            if fixed == 1:
                solution[k] -= gram[1 + k, 0]
            spread[i, k] = 1.0 / math.sqrt(system[k, k])
            log_volume += math.log(spread[i, k])
        cholesky(system)
        solve(system, solution)
        for k in range(free):
            location[i, k] = x[fixed + k] + relaxation * (solution[k] - x[fixed + k])

        if want_data:
            for k in range(free):
                x[fixed + k] = location[i, k]
                v[fixed + k] = np.float64(spread[i, k]) ** 2
            for lo in range(start, stop, CHUNK):
                hi = min(lo + CHUNK, stop)
                n = hi - lo
                if stop - start > CHUNK:
                    gather(partner_mean, codes, lo, hi, partners)
                    gather(partner_variance, codes, lo, hi, variances)
                _expected_squares(partners, variances, x, v, n, u, xi_squared)
                data += kappa * softplus_sum(xi_squared, n)
            for k in range(size):
                data -= linear[k] * x[k]
    return log_volume, data
