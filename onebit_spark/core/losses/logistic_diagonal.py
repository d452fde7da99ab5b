"""The logistic update of a row that keeps only variances, for large K."""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import math

import numpy as np

from onebit_spark.core.compiled import inner, jit
from onebit_spark.core.losses.batched_solve import LANES, cholesky, fill_up, next_batch, room, solve, sum_of_logs
from onebit_spark.core.losses.quadratic_bound import softplus_sum, tau_weights
from onebit_spark.core.losses.row_sums import (
    CHUNK,
    CHUNK_STRIDE,
    add_gram,
    add_signed_rows,
    add_weighted_rows,
    gather,
    scores,
    table_dots,
)


@inner
def _add_squares(partners, n, x, v, u, out):
    """out_l += (x·z)² + Σ_k v_k z_k²."""
    scores(partners, n, x, u)
    for l in range(n):
        out[l] += u[l] * u[l]
    for k in range(len(x)):
        z, v_k = partners[k], v[k]
        for l in range(n):
            out[l] += v_k * z[l] * z[l]


@inner
def _set_row(location, spread, i, fixed, x, v, both):
    """The row's mean x = [1, b, L] (or L), its variances v, and v + x²."""
    for k in range(location.shape[1]):
        x[fixed + k] = location[i, k]
        v[fixed + k] = np.float64(spread[i, k]) ** 2
    for k in range(len(x)):
        both[k] = v[k] + x[k] * x[k]


@jit
def update_rows_diagonal(ratings, span, partner_table, rows, prior, numbers):
    """Rows span[0] … span[1] − 1: means A⁻¹ b, variances 1/A_kk. Returns Σ_i Σ_k log s_ik and the data term."""
    (first, last), (location, spread, fixed) = span, rows
    pointers, codes, weights = ratings
    prior_mean, precision, _ = prior
    kappa, relaxation, want_data = numbers
    size = partner_table.shape[1] // 2
    free = size - fixed
    partners = np.empty((LANES, size, CHUNK_STRIDE))
    xi_squared, u, scratch = np.empty(CHUNK), np.empty(CHUNK), np.empty(CHUNK)
    gram, variances = np.empty(size * (size + 1) // 2), np.empty(size)
    x, v, both = np.ones(size), np.zeros(size), np.empty(size, partner_table.dtype)
    linear = np.empty((LANES, size))
    system, solution = room(free)
    members = np.empty(LANES, np.int64)
    log_volume, data = 0.0, 0.0
    while first < last:
        count, first = next_batch(pointers, first, last, members)
        if count == 0:
            break
        for b in range(count):
            i = members[b]
            p = prior_mean[i if len(prior_mean) > 1 else 0]
            g = precision[i if len(precision) > 1 else 0]
            _set_row(location, spread, i, fixed, x, v, both)
            gram[:] = 0.0
            variances[:] = 0.0
            linear[b] = 0.0
            for lo in range(pointers[i], pointers[i + 1], CHUNK):
                hi = min(lo + CHUNK, pointers[i + 1])
                # ξ² = (x·z)² + Σ_k (v_k z_k² + (v_k + x_k²) var z_k)
                gather(partner_table, codes, lo, hi, partners[b])
                table_dots(partner_table, codes, lo, hi, size, both, xi_squared, False)
                _add_squares(partners[b], hi - lo, x, v, u, xi_squared)
                tau_weights(xi_squared, hi - lo, 2.0 * kappa, weights, lo)
                add_gram(partners[b], hi - lo, xi_squared, scratch, gram)
                add_weighted_rows(partner_table, codes, lo, hi, size, xi_squared, variances, False)
                add_signed_rows(partner_table, codes, weights, lo, hi, linear[b])
            for k in range(size):
                linear[b, k] *= 0.5 * kappa
            for k in range(free):
                row, shifted = k * (k + 1) // 2, (k + fixed) * (k + fixed + 1) // 2 + fixed
                for m in range(k + 1):
                    system[row + m, b] = gram[shifted + m]
                system[row + k, b] += variances[fixed + k] + g[k]
                solution[k, b] = linear[b, fixed + k] + g[k] * p[k]
                if fixed == 1:
                    solution[k, b] -= gram[shifted - 1]
                spread[i, k] = 1.0 / math.sqrt(system[row + k, b])
            log_volume += sum_of_logs(spread, i)
        fill_up(system, solution, free, count)
        cholesky(system, free)
        solve(system, solution, free)
        for b in range(count):
            i = members[b]
            for k in range(free):
                location[i, k] += relaxation * (solution[k, b] - location[i, k])
            if want_data:
                _set_row(location, spread, i, fixed, x, v, both)
                for lo in range(pointers[i], pointers[i + 1], CHUNK):
                    hi = min(lo + CHUNK, pointers[i + 1])
                    if pointers[i + 1] - pointers[i] > CHUNK:  # else its partners are still there
                        gather(partner_table, codes, lo, hi, partners[b])
                    table_dots(partner_table, codes, lo, hi, size, both, xi_squared, False)
                    _add_squares(partners[b], hi - lo, x, v, u, xi_squared)
                    data += kappa * softplus_sum(xi_squared, hi - lo, weights, lo)
                for k in range(size):
                    data -= linear[b, k] * x[k]
    return log_volume, data
