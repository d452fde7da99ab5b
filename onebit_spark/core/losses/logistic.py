"""The logistic loss (Section 5 of the paper), by Jaakkola & Jordan's quadratic bound at ξ_l² =
E[u_l²] (MATH.md, §4).

The update of a row is exact: x ~ N(A⁻¹b, A⁻¹). ``covariance="diagonal"`` keeps only variances, V_kk
= 1/A_kk, for large K. ξ is not stored: it is computed from the moments of both sides just before
the row moves. With weights, κ w_l stands in the place of κ in every sum over ratings (§16).

With full covariances a line of the other side is [E[R Rᵀ] packed, E[R], 1, 0 …]. With z = [R, 1]
that is the lower triangle of E[z zᵀ], whose last row is E[z]. So a rating reads one line, and its
first entries are in the same order as the row's covariance. With intercepts R begins with d; the
row then has its 1 first and its b last.
"""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from onebit_spark.core.batched_solve import (
    LANES,
    cholesky,
    cholesky_solve,
    fill_up,
    half_log_det_inverse,
    next_batch,
    solve_arrays,
    sum_of_logs,
    sweep_all,
    sweep_arrays,
)
from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.loss import (
    HalfStep,
    Loss,
    OtherLines,
    RowSums,
    aligned_table,
    kernel_arguments,
    other_location,
    other_std,
    side_by_side,
)
from onebit_spark.core.posterior import FloatArray, Kind, RowPosterior, packed_size
from onebit_spark.core.row_sums import (
    CHUNK,
    CHUNK_STRIDE,
    add_gram,
    add_signed_rows,
    add_weighted_rows,
    chunk_of,
    gather,
    scores,
    table_dots,
    weight_of,
)
from onebit_spark.kernels.jit import inner, jit

NO_MORE = 40.0  # beyond this ξ, 1 + e^{−ξ} rounds to 1


@dataclass(frozen=True)
class Logistic(Loss):
    """``covariance="full"`` keeps a D×D covariance per row, as the paper does; ``"diagonal"`` D
    variances.
    """

    structure: Literal["full", "diagonal"] = "full"

    # 1 is the paper's posterior. Share of correct signs at 1 and 1.2: Senate .9105, .9127;
    # MovieLens-1M .7520, .7516; MovieLens-100K .7354, .7317.
    default_kappa: ClassVar[float] = 1.0
    chooses_kappa: ClassVar[bool] = True
    start_std: ClassVar[float] = math.sqrt(0.1)
    start_shrinkage: ClassVar[float] = 0.5
    has_curvature: ClassVar[bool] = True
    score_noise: ClassVar[float] = 8.0 / math.pi

    @classmethod
    def from_options(cls, solver: str, covariance: str) -> Logistic:
        return cls(structure="diagonal" if covariance == "diagonal" else "full")

    @staticmethod
    def probability(scores: FloatArray, variances: FloatArray) -> NDArray[np.float64]:
        """The moderated sigmoid σ(score / √(1 + π·var/8)) (MacKay, 1992), the probability of a
        positive label.
        """
        return np.asarray(expit(scores / np.sqrt(1.0 + np.pi * variances / 8.0)))

    @staticmethod
    def held_out(
        scores: FloatArray, variances: FloatArray, signs: FloatArray
    ) -> NDArray[np.float64]:
        """−log P(y), P the probability above."""
        return np.asarray(
            np.logaddexp(0.0, -signs * scores / np.sqrt(1.0 + np.pi * variances / 8.0))
        )

    @property
    def kind(self) -> Kind:
        return "covariance" if self.structure == "full" else "spread"

    def other_lines(self, posterior: RowPosterior) -> OtherLines:
        if self.structure == "diagonal":
            return side_by_side(other_location(posterior), other_std(posterior) ** 2)
        width = -(-packed_size(posterior.dimension + 1) // LANES) * LANES
        table = aligned_table(posterior.n_rows, width, posterior.location.dtype)
        fill_other_moments(posterior.location, posterior.scale, table)
        return table

    def update_rows(
        self,
        block: RatingBlock,
        lo: int,
        hi: int,
        others: OtherLines,
        rows: RowPosterior,
        step: HalfStep,
    ) -> RowSums:
        ratings, updated, prior = kernel_arguments(block, rows, step)
        numbers = (step.kappa, step.relaxation, step.want_data, step.curvature)
        kernel = update_rows_full if self.structure == "full" else update_rows_diagonal
        return RowSums(*kernel(ratings, (lo, hi), others, updated, prior, numbers))


# ---- kernels -----------------------------------------------------------------------------------


@inner
def _decay(xi):
    """e^{−ξ} − 1 to 1e−15 for ξ ≤ 40, by arithmetic alone: unlike ``math.expm1`` it compiles to
    vector instructions.

    It evaluates the series of e^t − 1 at t = −ξ/128, then applies e^{2t} − 1 = (e^t − 1)(e^t − 1 +
    2) seven times. Both preserve the relative precision for small ξ.
    """
    t = xi * (-1.0 / 128.0)
    q = 1.0 / 720.0 + t * (1.0 / 5040.0)
    q = 1.0 / 120.0 + t * q
    q = 1.0 / 24.0 + t * q
    q = 1.0 / 6.0 + t * q
    q = 0.5 + t * q
    q = t + t * t * q
    for _ in range(7):
        q = q * (q + 2.0)
    return q


@jit
def tau_weights(xi_squared, n, scale, weights, lo):
    """Overwrite ξ² with scale·w_l·τ(ξ), τ(ξ) = tanh(ξ/2)/(4ξ) = (1 − e^{−ξ}) / (4ξ (1 + e^{−ξ})).

    The n ratings begin with rating ``lo``.
    """
    weights = chunk_of(weights, lo, n)
    for l in range(n):
        xi = math.sqrt(max(xi_squared[l], 1e-30))  # τ is flat at 0
        q = _decay(min(xi, NO_MORE))
        xi_squared[l] = -0.25 * scale * weight_of(weights, l) * q / ((q + 2.0) * xi)


@jit
def curvature_weights(squares, u, n, scale, weights, lo):
    """Overwrite E[u²] with scale·w_l·E σ'(u) for normal u with the mean ``u``, by the derivative of
    ``probability``.
    """
    weights = chunk_of(weights, lo, n)
    for l in range(n):
        narrow = 1.0 / math.sqrt(1.0 + math.pi / 8.0 * max(squares[l] - u[l] * u[l], 0.0))
        q = math.exp(-abs(narrow * u[l]))
        squares[l] = scale * weight_of(weights, l) * narrow * q / ((1.0 + q) * (1.0 + q))


@jit
def softplus_sum(xi_squared, n, weights, lo):
    """Σ_l w_l [log(1 + e^{−ξ}) + ξ/2], of the n ratings from ``lo`` on.

    Without weights the logarithm of a product of at most CHUNK factors ≤ 2 is taken once.
    """
    if weights is not None:
        return _weighted_softplus_sum(xi_squared, n, chunk_of(weights, lo, n))
    total = 0.0
    product = 1.0
    for l in range(n):
        xi = math.sqrt(max(xi_squared[l], 0.0))
        product *= 2.0 + _decay(min(xi, NO_MORE))
        total += xi
    return 0.5 * total + math.log(product)


@inner
def _weighted_softplus_sum(xi_squared, n, weights):
    total = 0.0
    for l in range(n):
        xi = math.sqrt(max(xi_squared[l], 0.0))
        total += weights[l] * (math.log(2.0 + _decay(min(xi, NO_MORE))) + 0.5 * xi)
    return total


@inner
def _fill_moments(x, covariance, scale, out):
    """out = x xᵀ + V, packed, times ``scale`` off the diagonal.

    Slices avoid negative indices (``chunk_of``).
    """
    q = 0
    for a in range(len(x)):
        v = covariance[q : q + a + 1]
        line = out[q : q + a + 1]
        x_a = x[a]
        for b in range(a):
            line[b] = scale * (x_a * x[b] + v[b])
        line[a] = x_a * x_a + v[a]
        q += a + 1


@jit
def fill_other_moments(location, covariance, out):
    """[E[R Rᵀ] packed, E[R], 1, 0 …] of every row R = [d, …] (or without d) of the other side."""
    size = location.shape[1]
    packed = size * (size + 1) // 2
    x = np.empty(size)
    for j in range(len(location)):
        line = out[j]
        for a in range(size):
            x[a] = location[j, a]
        _fill_moments(x, covariance[j], 1.0, line)
        mean = line[packed : packed + size]
        rest = line[packed + size :]
        for a in range(size):
            mean[a] = x[a]
        rest[:] = 0.0
        rest[0] = 1.0


@inner
def _row_moments(x, covariance, fixed, out):
    """E[x xᵀ] of the row [1, L, b] (or [L, 0]), packed, off-diagonal entries doubled: ⟨out, E[z
    zᵀ]⟩ = E[(x·z)²].
    """
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
    """Write the prior's coupling in the order of the sums over a row's ratings."""
    size = len(coupling)
    last = size * (size + 1) // 2
    for a in range(size):
        for b in range(a):
            out[last + a if b < fixed else a * (a + 1) // 2 + b] = coupling[a, b]


@inner
def _fill_system(sums, signed, g, coupling, p, fixed, lane, system, solution):
    """A = Σ 2κτ E[z zᵀ] + G and b = κ/2 Σ y E[z] − A_Ff + Gp of one row, in its order [b, L] (or
    L).

    G is diag g plus the coupling, which ``sums`` already includes.
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
        pull = 0.0
        line = coupling[a]
        for b in range(size):
            pull += line[b] * p[b]
        solution[a, lane] += pull


@jit
def update_rows_full(ratings, span, other_lines, rows, prior, numbers):
    """Rows span[0] … span[1] − 1: x ~ N(A⁻¹ b, A⁻¹). It returns ½ Σ_i log det V_i and
    the data term.
    """
    (first, last) = span
    (location, covariance, fixed) = rows
    pointers, codes, weights = ratings
    prior_mean, precision, coupling = prior
    kappa, relaxation, want_data, curvature = numbers
    size = location.shape[1]
    packed = size * (size + 1) // 2
    xi_squared = np.empty(CHUNK, other_lines.dtype)
    u = np.empty(CHUNK, other_lines.dtype)
    mean = np.zeros(size + 1, other_lines.dtype)
    row_moments = np.zeros(other_lines.shape[1], other_lines.dtype)
    blank = np.zeros(other_lines.shape[1])
    sums = np.empty(other_lines.shape[1])
    x = np.empty(size)
    part = np.empty(other_lines.shape[1], other_lines.dtype)
    _place_coupling(coupling, fixed, blank)
    signed = np.empty((LANES, size + 1))
    system, pivots, scratch = sweep_arrays(size)
    solution = system[packed : packed + size]
    members = np.empty(LANES, np.int64)
    log_volume = 0.0
    data = 0.0
    while first < last:
        count, first = next_batch(pointers, first, last, members)
        if count == 0:
            break
        for b in range(count):
            i = members[b]
            for k in range(size):
                x[k] = location[i, k]
            _row_moments(x, covariance[i], fixed, row_moments)
            for k in range(size):  # as E[z] is stored: [1, L, b], or [L, 0]
                mean[k] = x[k]
            if fixed:
                mean[0], mean[size] = 1.0, x[0]
            # A copy by slices would compile words for shapes that differ: three seconds
            for q in range(len(blank)):
                sums[q] = blank[q]
            signed[b] = 0.0
            for lo in range(pointers[i], pointers[i + 1], CHUNK):
                hi = min(lo + CHUNK, pointers[i + 1])
                table_dots(other_lines, codes, lo, hi, 0, row_moments, xi_squared, True)
                if curvature:
                    table_dots(other_lines, codes, lo, hi, packed, mean, u, False)
                    curvature_weights(xi_squared, u, hi - lo, kappa, weights, lo)
                else:
                    tau_weights(xi_squared, hi - lo, 2.0 * kappa, weights, lo)
                add_weighted_rows(other_lines, codes, lo, hi, 0, xi_squared, part, sums, False)
                add_signed_rows(other_lines, codes, weights, lo, hi, signed[b], packed)
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
                    table_dots(other_lines, codes, lo, hi, 0, row_moments, xi_squared, False)
                    data += kappa * softplus_sum(xi_squared, hi - lo, weights, lo)
                if fixed:
                    data -= signed[b, 0] + signed[b, size] * x[0]
                for k in range(fixed, size):
                    data -= signed[b, k] * x[k]
    return log_volume, data


@inner
def _add_squares(others, n, x, v, u, out):
    """out_l += (x·z)² + Σ_k v_k z_k²."""
    scores(others, n, x, u)
    for l in range(n):
        out[l] += u[l] * u[l]
    for k in range(len(x)):
        z = others[k]
        v_k = v[k]
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
def update_rows_diagonal(ratings, span, other_lines, rows, prior, numbers):
    """Rows span[0] … span[1] − 1: means A⁻¹ b, variances 1/A_kk. Returns Σ_i Σ_k log s_ik and the
    data term.
    """
    (first, last) = span
    (location, spread, fixed) = rows
    pointers, codes, weights = ratings
    prior_mean, precision, _ = prior
    kappa, relaxation, want_data, curvature = numbers
    size = other_lines.shape[1] // 2
    free = size - fixed
    others = np.empty((LANES, size, CHUNK_STRIDE))
    xi_squared = np.empty(CHUNK)
    u = np.empty(CHUNK)
    scratch = np.empty(CHUNK)
    gram = np.empty(size * (size + 1) // 2)
    variances = np.empty(size)
    part = np.empty(size, other_lines.dtype)
    x = np.ones(size)
    v = np.zeros(size)
    both = np.empty(size, other_lines.dtype)
    linear = np.empty((LANES, size))
    system, solution = solve_arrays(free)
    members = np.empty(LANES, np.int64)
    log_volume = 0.0
    data = 0.0
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
                gather(other_lines, codes, lo, hi, others[b])
                table_dots(other_lines, codes, lo, hi, size, both, xi_squared, False)
                _add_squares(others[b], hi - lo, x, v, u, xi_squared)
                if curvature:
                    curvature_weights(xi_squared, u, hi - lo, kappa, weights, lo)
                else:
                    tau_weights(xi_squared, hi - lo, 2.0 * kappa, weights, lo)
                add_gram(others[b], hi - lo, xi_squared, scratch, gram)
                add_weighted_rows(
                    other_lines, codes, lo, hi, size, xi_squared, part, variances, False
                )
                add_signed_rows(other_lines, codes, weights, lo, hi, linear[b])
            for k in range(size):
                linear[b, k] *= 0.5 * kappa
            for k in range(free):
                row = k * (k + 1) // 2
                shifted = (k + fixed) * (k + fixed + 1) // 2 + fixed
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
        cholesky_solve(system, solution, free)
        for b in range(count):
            i = members[b]
            for k in range(free):
                location[i, k] += relaxation * (solution[k, b] - location[i, k])
            if want_data:
                _set_row(location, spread, i, fixed, x, v, both)
                for lo in range(pointers[i], pointers[i + 1], CHUNK):
                    hi = min(lo + CHUNK, pointers[i + 1])
                    if pointers[i + 1] - pointers[i] > CHUNK:  # otherwise they are still gathered
                        gather(other_lines, codes, lo, hi, others[b])
                    table_dots(other_lines, codes, lo, hi, size, both, xi_squared, False)
                    _add_squares(others[b], hi - lo, x, v, u, xi_squared)
                    data += kappa * softplus_sum(xi_squared, hi - lo, weights, lo)
                for k in range(size):
                    data -= linear[b, k] * x[k]
    return log_volume, data
