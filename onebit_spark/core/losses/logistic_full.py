"""The logistic update of a row with its whole covariance, D×D and packed.

A partner's line is [E[R Rᵀ] packed, E[R], 1, 0 …]. With z = [R, 1] that is the lower triangle of E[z zᵀ], whose last
row is E[z]. So one line is all that a rating reads, and its first entries stand where the row's own covariance has
them. With intercepts R begins with d; the row has its 1 there, and its b at the end.
"""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import numpy as np

from onebit_spark.core.compiled import inner, jit
from onebit_spark.core.losses.batched_inverse import half_log_det_inverse, room_to_sweep, sweep_all
from onebit_spark.core.losses.batched_solve import LANES, fill_up, next_batch
from onebit_spark.core.losses.quadratic_bound import softplus_sum, tau_weights
from onebit_spark.core.losses.row_sums import CHUNK, add_signed_rows, add_weighted_rows, table_dots


@inner
def _fill_moments(x, covariance, scale, out):
    """out = x xᵀ + V, packed, off the diagonal times ``scale``. In slices no index could be negative (``chunk_of``)."""
    q = 0
    for a in range(len(x)):
        v, line, x_a = covariance[q : q + a + 1], out[q : q + a + 1], x[a]
        for b in range(a):
            line[b] = scale * (x_a * x[b] + v[b])
        line[a] = x_a * x_a + v[a]
        q += a + 1


@jit
def fill_partner_moments(location, covariance, out):
    """[E[R Rᵀ] packed, E[R], 1, 0 …] of every partner R = [d, …] (or without d)."""
    size = location.shape[1]
    packed = size * (size + 1) // 2
    x = np.empty(size)
    for j in range(len(location)):
        line = out[j]
        for a in range(size):
            x[a] = location[j, a]
        _fill_moments(x, covariance[j], 1.0, line)
        mean, rest = line[packed : packed + size], line[packed + size :]
        for a in range(size):
            mean[a] = x[a]
        rest[:] = 0.0
        rest[0] = 1.0


@inner
def _row_moments(x, covariance, fixed, out):
    """E[x xᵀ] of the row [1, L, b] (or [L, 0]), packed, off-diagonal entries doubled: ⟨out, E[z zᵀ]⟩ = E[(x·z)²]."""
    size = len(x)
    packed = size * (size + 1) // 2
    _fill_moments(x, covariance, 2.0, out)
    if fixed:  # b is first in x and last in ``out``
        last = out[packed : packed + size + 1]
        last[0] = 2.0 * x[0]
        last[size] = out[0]
        out[0] = 1.0
        for a in range(1, size):
            q = a * (a + 1) // 2
            last[a] = out[q]
            out[q] = 2.0 * x[a]


@inner
def _place_coupling(coupling, fixed, out):
    """The prior's coupling where the sums over a row's ratings have the same pairs of coordinates."""
    size = len(coupling)
    last = size * (size + 1) // 2
    for a in range(size):
        for b in range(a):
            out[last + a if b < fixed else a * (a + 1) // 2 + b] = coupling[a, b]


@inner
def _fill_system(sums, signed, g, coupling, p, fixed, lane, system, solution):
    """A = Σ 2κτ E[z zᵀ] + G and b = κ/2 Σ y E[z] − A_Ff + Gp of one row, in its order [b, L] (or L).

    G is diag g and the coupling, which ``sums`` has already.
    """
    size = len(g)
    last = size * (size + 1) // 2
    for q in range(last):
        system[q, lane] = sums[q]
    for a in range(fixed, size):
        solution[a, lane] = signed[a] + g[a] * p[a]
    if fixed:
        system[0, lane] = sums[last + size]
        solution[0, lane] = signed[size] - sums[last] + g[0] * p[0]
        for a in range(1, size):
            q = a * (a + 1) // 2
            system[q, lane] = sums[last + a]
            solution[a, lane] -= sums[q]
    for a in range(size):
        system[a * (a + 3) // 2, lane] += g[a]
        pull, line = 0.0, coupling[a]
        for b in range(size):
            pull += line[b] * p[b]
        solution[a, lane] += pull


@jit
def update_rows_full(ratings, span, partners, rows, prior, numbers):
    """Rows span[0] … span[1] − 1: x ~ N(A⁻¹ b, A⁻¹). Returns ½ Σ_i log det V_i and the data term."""
    (first, last), (location, covariance, fixed) = span, rows
    pointers, codes, weights = ratings
    prior_mean, precision, coupling = prior
    kappa, relaxation, want_data = numbers
    size = location.shape[1]
    packed = size * (size + 1) // 2
    xi_squared = np.empty(CHUNK, partners.dtype)
    row_moments = np.zeros(partners.shape[1], partners.dtype)
    blank, sums, x = np.zeros(partners.shape[1]), np.empty(partners.shape[1]), np.empty(size)
    _place_coupling(coupling, fixed, blank)
    signed = np.empty((LANES, size + 1))
    system, pivots, scratch = room_to_sweep(size)
    solution = system[packed : packed + size]
    members = np.empty(LANES, np.int64)
    log_volume, data = 0.0, 0.0
    while first < last:
        count, first = next_batch(pointers, first, last, members)
        if count == 0:
            break
        for b in range(count):
            i = members[b]
            for k in range(size):
                x[k] = location[i, k]
            _row_moments(x, covariance[i], fixed, row_moments)
            for q in range(len(blank)):  # a copy by slices would compile words for shapes that differ: three seconds
                sums[q] = blank[q]
            signed[b] = 0.0
            for lo in range(pointers[i], pointers[i + 1], CHUNK):
                hi = min(lo + CHUNK, pointers[i + 1])
                table_dots(partners, codes, lo, hi, 0, row_moments, xi_squared, True)
                tau_weights(xi_squared, hi - lo, 2.0 * kappa, weights, lo)
                add_weighted_rows(partners, codes, lo, hi, 0, xi_squared, sums, False)
                add_signed_rows(partners, codes, weights, lo, hi, signed[b], packed)
            for k in range(size + 1):
                signed[b, k] *= 0.5 * kappa
            g = precision[i if len(precision) > 1 else 0]
            p = prior_mean[i if len(prior_mean) > 1 else 0]
            _fill_system(sums, signed[b], g, coupling, p, fixed, b, system, solution)
        fill_up(system, solution, size, count)
        sweep_all(system, pivots, scratch, size)
        for b in range(count):
            i = members[b]
            log_volume += half_log_det_inverse(pivots, b)
            for k in range(size):
                location[i, k] += relaxation * (solution[k, b] - location[i, k])
            for q in range(packed):
                covariance[i, q] = -system[q, b]
            if want_data:
                for k in range(size):
                    x[k] = location[i, k]
                _row_moments(x, covariance[i], fixed, row_moments)
                for lo in range(pointers[i], pointers[i + 1], CHUNK):
                    hi = min(lo + CHUNK, pointers[i + 1])
                    table_dots(partners, codes, lo, hi, 0, row_moments, xi_squared, False)
                    data += kappa * softplus_sum(xi_squared, hi - lo, weights, lo)
                if fixed:
                    data -= signed[b, 0] + signed[b, size] * x[0]
                for k in range(fixed, size):
                    data -= signed[b, k] * x[k]
    return log_volume, data
