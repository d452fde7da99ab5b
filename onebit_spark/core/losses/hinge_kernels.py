"""The row updates of the hinge loss: ``update_rows_mm`` and Algorithm 1's ``update_rows_gradient`` (``hinge``).

Both read the same sums over a row's ratings. The chunks of a row's partners stay gathered in ``partners``: a row of one
chunk is gathered once, however often its scores are needed.
"""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from onebit_spark.core.compiled import jit
from onebit_spark.core.losses.batched_solve import LANES, cholesky, fill_up, next_batch, room, solve, sum_of_logs
from onebit_spark.core.losses.row_sums import (
    CHUNK,
    CHUNK_STRIDE,
    add_gram,
    add_projection_and_absolute,
    chunk_of,
    gather,
    gather_and_add,
    line_of,
    scores,
    signed_weight,
    weight_of,
)

SPREAD_FACTOR = math.sqrt(2 / math.pi)  # c: E|Z| of a standard normal Z
HALVINGS = 3


class ChunkRoom(NamedTuple):
    """Room for the numbers of one chunk of ratings."""

    u: Any
    gram_weights: Any
    signed_weights: Any
    scratch: Any


class HingeSums(NamedTuple):
    """Sums over the ratings of a row, in the augmented layout."""

    gram: Any  # Σ h_l R Rᵀ, packed
    linear: Any  # Σ (weights of the loss's linear term) R
    absolute: Any  # Σ w_l |R|
    deviations: Any  # Σ w_l s


@jit
def _chunk_room():
    return ChunkRoom(np.empty(CHUNK), np.empty(CHUNK), np.empty(CHUNK), np.empty(CHUNK))


@jit
def _sums_room(size):
    return HingeSums(np.empty(size * (size + 1) // 2), np.empty(size), np.empty(size), np.empty(size))


@jit
def _clear(sums):
    sums.gram[:] = 0.0
    sums.linear[:] = 0.0
    sums.absolute[:] = 0.0
    sums.deviations[:] = 0.0


@jit
def _majorise(codes, weights, lo, n, u, floor, gram_weights, signed_weights):
    """Weights of (1−yu)_+ ≤ ½(1−yu) + (1−yu)²/(4ω) + ω/4 at ω = max(|1−yu|, floor); returns Σ w(1−yu)_+."""
    total = 0.0
    codes, weights = chunk_of(codes, lo, n), chunk_of(weights, lo, n)
    for l in range(n):
        y, w = signed_weight(codes, None, l), weight_of(weights, l)
        margin = 1.0 - y * u[l]
        total += w * max(margin, 0.0)
        h = 0.5 / max(abs(margin), floor)
        gram_weights[l] = w * h
        signed_weights[l] = w * y * (0.5 + h)
    return total


@jit
def _subgradient(codes, weights, lo, n, u, signed_weights):
    """−∂/∂u of Σ w(1−yu)_+: w y where yu < 1; returns Σ w(1−yu)_+."""
    total = 0.0
    codes, weights = chunk_of(codes, lo, n), chunk_of(weights, lo, n)
    for l in range(n):
        y, w = signed_weight(codes, None, l), weight_of(weights, l)
        margin = 1.0 - y * u[l]
        total += w * max(margin, 0.0)
        signed_weights[l] = w * y if margin > 0.0 else 0.0
    return total


@jit
def _hinge_sum(codes, weights, lo, n, u):
    """Σ w(1−yu)_+."""
    total = 0.0
    for l in range(n):
        total += weight_of(weights, lo + l) * max(1.0 - signed_weight(codes, None, lo + l) * u[l], 0.0)
    return total


@jit
def _hinge_at(ratings, i, partner_table, x, partners, u):
    """Σ_l w_l (1 − y_l x·R_j)_+ of row i at the mean x."""
    first, last = ratings.pointers[i], ratings.pointers[i + 1]
    total = 0.0
    for lo in range(first, last, CHUNK):
        hi = min(lo + CHUNK, last)
        if last - first > CHUNK:
            gather(partner_table, ratings.codes, lo, hi, partners)
        scores(partners, hi - lo, x, u)
        total += _hinge_sum(ratings.codes, ratings.weights, lo, hi - lo, u)
    return total


@jit
def _slopes(sums, kappa, a, w):
    """a_k = κ c Σ_l (|R_jk| + c s_jk) and w_k = κ c Σ_l s_jk: the slopes of F in s_k and in |x_k|."""
    c = SPREAD_FACTOR
    for k in range(len(a)):
        a[k] = kappa * c * (sums.absolute[k] + c * sums.deviations[k])
        w[k] = kappa * c * sums.deviations[k]


@jit
def _set_spread(spread, i, a, precision, fixed):
    """s_k = 2 / (a_k + √(a_k² + 4 g_k))."""
    for k in range(len(precision)):
        a_k = a[fixed + k]
        spread[i, k] = 2.0 / (a_k + math.sqrt(a_k * a_k + 4.0 * precision[k]))


@jit
def _data_term(hinge, x, a, w, spread, i, kappa, fixed):
    """κ Σ_l (1 − y u)_+ + Σ_k (w_k |x_k| + a_k s_k)."""
    data = kappa * hinge
    for k in range(len(x)):
        data += w[k] * abs(x[k])
    for k in range(spread.shape[1]):
        data += a[fixed + k] * spread[i, k]
    return data


@jit
def _penalty(x, fixed, w, prior_mean, precision):
    """Σ_k w_k|x_k| + ½ Σ_k g_k (x_k − p_k)² over the free coordinates of the augmented x."""
    total = 0.0
    for k in range(len(precision)):
        total += w[fixed + k] * abs(x[fixed + k])
        total += 0.5 * precision[k] * (x[fixed + k] - prior_mean[k]) ** 2
    return total


@jit
def _sum_up_majorised(ratings, i, partner_table, x, floor, partners, chunk, sums):
    """The sums of row i for its majorised system; returns Σ w(1−yu)_+ at x."""
    _clear(sums)
    codes, weights, hinge = ratings.codes, ratings.weights, 0.0
    for lo in range(ratings.pointers[i], ratings.pointers[i + 1], CHUNK):
        hi = min(lo + CHUNK, ratings.pointers[i + 1])
        n = hi - lo
        gather_and_add(partner_table, codes, weights, lo, hi, partners, sums.deviations)
        scores(partners, n, x, chunk.u)
        hinge += _majorise(codes, weights, lo, n, chunk.u, floor, chunk.gram_weights, chunk.signed_weights)
        add_gram(partners, n, chunk.gram_weights, chunk.scratch, sums.gram)
        add_projection_and_absolute(partners, n, chunk.signed_weights, weights, lo, sums.linear, sums.absolute)
    return hinge


@jit
def _fill_system(sums, x, w, prior_mean, precision, fixed, kappa, floor, lane, system, solution):
    """A = κ Σ h R Rᵀ + diag(g + w/ξ) and b = κ Σ y(½+h) R − A_Ff + g∘p of one row, at ξ = max(|x|, floor)."""
    for k in range(len(precision)):
        row, shifted = k * (k + 1) // 2, (k + fixed) * (k + fixed + 1) // 2 + fixed
        for m in range(k + 1):
            system[row + m, lane] = kappa * sums.gram[shifted + m]
        system[row + k, lane] += precision[k] + w[fixed + k] / max(abs(x[fixed + k]), floor)
        solution[k, lane] = kappa * sums.linear[fixed + k] + precision[k] * prior_mean[k]
        if fixed == 1:
            solution[k, lane] -= kappa * sums.gram[shifted - 1]


@jit
def update_rows_mm(ratings, span, partner_table, rows, prior, numbers):
    """Rows span[0] … span[1] − 1: one majorised step of the means, and the exact spreads.

    The floors make the majoriser loose at the old point. So a step that does not lower the row's own part of F is
    halved, at most ``HALVINGS`` times; then the old mean stays. Returns Σ_i Σ_k log s_ik and the data term.
    """
    (first, last), (location, spread, fixed) = span, rows
    kappa, relaxation, margin_floor, mean_floor, want_data = numbers
    size = partner_table.shape[1] // 2
    free = size - fixed
    partners = np.empty((LANES, size, CHUNK_STRIDE))
    chunk, sums = _chunk_room(), _sums_room(size)
    hinge, old, candidate = np.empty(LANES), np.ones((LANES, size)), np.ones(size)
    a, w = np.empty((LANES, size)), np.empty((LANES, size))
    system, solution = room(free)
    members = np.empty(LANES, np.int64)
    rounded = np.empty(1, location.dtype)
    log_volume, data = 0.0, 0.0
    while first < last:
        count, first = next_batch(ratings.pointers, first, last, members)
        if count == 0:
            break
        for b in range(count):
            i, x = members[b], old[b]
            for k in range(free):
                x[fixed + k] = location[i, k]
            hinge[b] = _sum_up_majorised(ratings, i, partner_table, x, margin_floor, partners[b], chunk, sums)
            _slopes(sums, kappa, a[b], w[b])
            p, g = line_of(prior.mean, i), line_of(prior.precision, i)
            _fill_system(sums, x, w[b], p, g, fixed, kappa, mean_floor, b, system, solution)
        fill_up(system, solution, free, count)
        cholesky(system, free)
        solve(system, solution, free)
        for b in range(count):
            i, x = members[b], old[b]
            p, g = line_of(prior.mean, i), line_of(prior.precision, i)
            old_value = kappa * hinge[b] + _penalty(x, fixed, w[b], p, g)
            fraction = relaxation
            for _ in range(HALVINGS + 1):
                for k in range(free):
                    rounded[0] = x[fixed + k] + fraction * (solution[k, b] - x[fixed + k])
                    candidate[fixed + k] = rounded[0]
                new_hinge = _hinge_at(ratings, i, partner_table, candidate, partners[b], chunk.u)
                if kappa * new_hinge + _penalty(candidate, fixed, w[b], p, g) <= old_value:
                    hinge[b] = new_hinge
                    for k in range(fixed, size):
                        x[k] = candidate[k]
                    break
                fraction *= 0.5
            for k in range(free):
                location[i, k] = x[fixed + k]
            _set_spread(spread, i, a[b], g, fixed)
            log_volume += sum_of_logs(spread, i)
            if want_data:
                data += _data_term(hinge[b], x, a[b], w[b], spread, i, kappa, fixed)
    return log_volume, data


@jit
def update_rows_gradient(ratings, span, partner_table, rows, prior, numbers):
    """Rows span[0] … span[1] − 1 by Algorithm 1: a gradient step of the means, or the exact spreads, or both.

    ∂F/∂x_k = −κ Σ_l y_l R_jk 1(y_l u_l < 1) + w_k sign(x_k) + g_k (x_k − p_k).
    """
    (first, last), (location, spread, fixed) = span, rows
    kappa, rate, move_means, move_spreads, want_data = numbers
    codes, weights = ratings.codes, ratings.weights
    size = partner_table.shape[1] // 2
    partners = np.empty((size, CHUNK_STRIDE))
    chunk, sums = _chunk_room(), _sums_room(size)
    x, a, w = np.ones(size), np.empty(size), np.empty(size)
    log_volume, data = 0.0, 0.0
    for i in range(first, last):
        if ratings.pointers[i] == ratings.pointers[i + 1]:
            continue
        p, g = line_of(prior.mean, i), line_of(prior.precision, i)
        for k in range(len(g)):
            x[fixed + k] = location[i, k]
        _clear(sums)
        hinge = 0.0
        for lo in range(ratings.pointers[i], ratings.pointers[i + 1], CHUNK):
            hi = min(lo + CHUNK, ratings.pointers[i + 1])
            gather_and_add(partner_table, codes, weights, lo, hi, partners, sums.deviations)
            scores(partners, hi - lo, x, chunk.u)
            hinge += _subgradient(codes, weights, lo, hi - lo, chunk.u, chunk.signed_weights)
            add_projection_and_absolute(
                partners, hi - lo, chunk.signed_weights, weights, lo, sums.linear, sums.absolute
            )
        _slopes(sums, kappa, a, w)
        if move_means:
            for k in range(len(g)):
                slope = w[fixed + k] * np.sign(x[fixed + k]) + g[k] * (x[fixed + k] - p[k])
                x[fixed + k] -= rate * (slope - kappa * sums.linear[fixed + k])
                location[i, k] = x[fixed + k]
            if want_data:
                hinge = _hinge_at(ratings, i, partner_table, x, partners, chunk.u)
        if move_spreads:
            _set_spread(spread, i, a, g, fixed)
        log_volume += sum_of_logs(spread, i)
        if want_data:
            data += _data_term(hinge, x, a, w, spread, i, kappa, fixed)
    return log_volume, data
