"""The logistic update of a row that keeps only variances, for large K."""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from onebit_spark.core.compiled import jit
from onebit_spark.core.losses.batched_solve import LANES, cholesky, fill_up, next_batch, room, solve, sum_of_logs
from onebit_spark.core.losses.quadratic_bound import softplus_sum, tau_weights
from onebit_spark.core.losses.row_sums import (
    CHUNK,
    CHUNK_STRIDE,
    add_gram,
    add_signed_rows,
    add_weighted_rows,
    gather,
    line_of,
    scores,
    table_dots,
)


class Row(NamedTuple):
    """The row that is being updated, in the augmented layout [1, b, L] (or L)."""

    x: Any  # its means
    v: Any  # its variances
    second_moments: Any  # v + x²


class ChunkRoom(NamedTuple):
    """Room for the numbers of one chunk of ratings."""

    xi_squared: Any
    u: Any
    scratch: Any


class DiagonalSums(NamedTuple):
    """2κ Σ_l τ(ξ_l) z zᵀ, packed, and 2κ Σ_l τ(ξ_l) var z."""

    gram: Any
    variances: Any


@jit
def _set_row(location, spread, i, fixed, row):
    for k in range(location.shape[1]):
        row.x[fixed + k] = location[i, k]
        row.v[fixed + k] = np.float64(spread[i, k]) ** 2
    for k in range(len(row.x)):
        row.second_moments[k] = row.v[k] + row.x[k] * row.x[k]


@jit
def _add_squares(partners, n, x, v, u, out):
    """out_l += (x·z)² + Σ_k v_k z_k²."""
    scores(partners, n, x, u)
    for l in range(n):
        out[l] += u[l] * u[l]
    for k in range(len(x)):
        z, v_k = partners[k], v[k]
        for l in range(n):
            out[l] += v_k * z[l] * z[l]


@jit
def _xi_squared(partner_table, codes, lo, hi, row, partners, chunk):
    """ξ² = (x·z)² + Σ_k (v_k z_k² + (v_k + x_k²) var z_k) of a chunk, whose partners have been gathered."""
    table_dots(partner_table, codes, lo, hi, len(row.x), row.second_moments, chunk.xi_squared, False)
    _add_squares(partners, hi - lo, row.x, row.v, chunk.u, chunk.xi_squared)


@jit
def _sum_up(ratings, i, partner_table, kappa, row, partners, chunk, sums, linear):
    """The sums of row i, and linear = κ/2 Σ_l y_l z."""
    codes, weights = ratings.codes, ratings.weights
    sums.gram[:] = 0.0
    sums.variances[:] = 0.0
    linear[:] = 0.0
    for lo in range(ratings.pointers[i], ratings.pointers[i + 1], CHUNK):
        hi = min(lo + CHUNK, ratings.pointers[i + 1])
        gather(partner_table, codes, lo, hi, partners)
        _xi_squared(partner_table, codes, lo, hi, row, partners, chunk)
        tau_weights(chunk.xi_squared, hi - lo, 2.0 * kappa, weights, lo)
        add_gram(partners, hi - lo, chunk.xi_squared, chunk.scratch, sums.gram)
        add_weighted_rows(partner_table, codes, lo, hi, len(linear), chunk.xi_squared, sums.variances, False)
        add_signed_rows(partner_table, codes, weights, lo, hi, linear)
    for k in range(len(linear)):
        linear[k] *= 0.5 * kappa


@jit
def _fill_system(sums, linear, prior_mean, precision, fixed, lane, system, solution):
    """A = 2κ Σ_l τ(ξ_l) E[z zᵀ] + diag g and b = κ/2 Σ_l y_l z − A_Ff + g∘p of one row."""
    for k in range(len(precision)):
        line, shifted = k * (k + 1) // 2, (k + fixed) * (k + fixed + 1) // 2 + fixed
        for m in range(k + 1):
            system[line + m, lane] = sums.gram[shifted + m]
        system[line + k, lane] += sums.variances[fixed + k] + precision[k]
        solution[k, lane] = linear[fixed + k] + precision[k] * prior_mean[k]
        if fixed == 1:
            solution[k, lane] -= sums.gram[shifted - 1]


@jit
def _data_term(ratings, i, partner_table, kappa, row, partners, chunk, linear):
    """κ Σ_l [log(1 + e^{−ξ}) + (ξ − y u)/2] of row i, after the step."""
    first, last = ratings.pointers[i], ratings.pointers[i + 1]
    data = 0.0
    for lo in range(first, last, CHUNK):
        hi = min(lo + CHUNK, last)
        if last - first > CHUNK:  # else its partners are still there
            gather(partner_table, ratings.codes, lo, hi, partners)
        _xi_squared(partner_table, ratings.codes, lo, hi, row, partners, chunk)
        data += kappa * softplus_sum(chunk.xi_squared, hi - lo, ratings.weights, lo)
    for k in range(len(linear)):
        data -= linear[k] * row.x[k]
    return data


@jit
def update_rows_diagonal(ratings, span, partner_table, rows, prior, numbers):
    """Rows span[0] … span[1] − 1: means A⁻¹ b, variances 1/A_kk. Returns Σ_i Σ_k log s_ik and the data term."""
    (first, last), (location, spread, fixed) = span, rows
    kappa, relaxation, want_data = numbers
    size = partner_table.shape[1] // 2
    free = size - fixed
    partners = np.empty((LANES, size, CHUNK_STRIDE))
    row = Row(np.ones(size), np.zeros(size), np.empty(size, partner_table.dtype))
    chunk = ChunkRoom(np.empty(CHUNK), np.empty(CHUNK), np.empty(CHUNK))
    sums, linear = DiagonalSums(np.empty(size * (size + 1) // 2), np.empty(size)), np.empty((LANES, size))
    system, solution = room(free)
    members = np.empty(LANES, np.int64)
    log_volume, data = 0.0, 0.0
    while first < last:
        count, first = next_batch(ratings.pointers, first, last, members)
        if count == 0:
            break
        for b in range(count):
            i = members[b]
            _set_row(location, spread, i, fixed, row)
            _sum_up(ratings, i, partner_table, kappa, row, partners[b], chunk, sums, linear[b])
            p, g = line_of(prior.mean, i), line_of(prior.precision, i)
            _fill_system(sums, linear[b], p, g, fixed, b, system, solution)
            for k in range(free):
                spread[i, k] = 1.0 / math.sqrt(system[k * (k + 3) // 2, b])
            log_volume += sum_of_logs(spread, i)
        fill_up(system, solution, free, count)
        cholesky(system, free)
        solve(system, solution, free)
        for b in range(count):
            i = members[b]
            for k in range(free):
                location[i, k] += relaxation * (solution[k, b] - location[i, k])
            if want_data:
                _set_row(location, spread, i, fixed, row)
                data += _data_term(ratings, i, partner_table, kappa, row, partners[b], chunk, linear[b])
    return log_volume, data
