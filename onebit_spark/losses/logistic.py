"""The logistic loss (Section 5 of the paper), by Jaakkola & Jordan's quadratic bound at ξ_l² = E[u_l²].

A row's update is exact, with x its free coordinates, z_j its partners and τ(ξ) = tanh(ξ/2)/(4ξ)::

    A = 2κ Σ_l τ(ξ_l) E[z_j z_jᵀ] + diag g,    x ~ N(A⁻¹ (κ/2 Σ_l y_l E[z_j] + g∘p), A⁻¹)

``covariance="diagonal"`` keeps only variances, V_kk = 1/A_kk, for large K. ξ is never stored: it is computed from both
sides' moments just before the row moves. Data term: κ Σ_l [log(1 + e^{−ξ}) + (ξ − y u)/2].
"""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from onebit_spark.blocks import RatingBlock
from onebit_spark.compiled import jit
from onebit_spark.losses.base import (
    HalfStep,
    Loss,
    Partners,
    RowSums,
    partner_deviation,
    partner_location,
)
from onebit_spark.losses.rowsums import (
    CHUNK,
    LANES,
    add_gram,
    add_projection,
    add_signed_rows,
    add_weighted_rows,
    gather,
    scores,
    table_dots,
)
from onebit_spark.losses.smallsolve import cholesky, inverse, solve
from onebit_spark.posterior import FloatArray, Kind, RowPosterior, packed_size


@dataclass(frozen=True)
class Logistic(Loss):
    """``covariance="full"`` keeps a D×D covariance a row, as the paper does; ``"diagonal"`` D variances."""

    structure: Literal["full", "diagonal"] = "full"

    name: ClassVar[str] = "logistic"
    # 1 is the paper's posterior. Share of correct signs at 1 and 1.2: Senate .9105, .9127; MovieLens-1M .7520, .7516;
    # MovieLens-100K .7354, .7317.
    default_weight: ClassVar[float] = 1.2
    start_deviation: ClassVar[float] = math.sqrt(0.1)
    start_shrinkage: ClassVar[float] = 0.5
    score_noise: ClassVar[float] = 8.0 / math.pi

    @classmethod
    def from_options(cls, solver: str, covariance: str) -> Logistic:
        if solver == "gradient":
            raise ValueError("solver 'gradient' belongs to the hinge loss; the logistic update is exact")
        return cls(structure="diagonal" if covariance == "diagonal" else "full")

    @staticmethod
    def probability(scores: FloatArray, variances: FloatArray) -> NDArray[np.float64]:
        """The moderated sigmoid σ(score / √(1 + π·var/8)) (MacKay, 1992), the probability of a positive label."""
        return np.asarray(expit(scores / np.sqrt(1.0 + np.pi * variances / 8.0)))

    @staticmethod
    def held_out(scores: FloatArray, variances: FloatArray, signs: FloatArray) -> NDArray[np.float64]:
        """−log P(y), P the probability above."""
        return np.asarray(np.logaddexp(0.0, -signs * scores / np.sqrt(1.0 + np.pi * variances / 8.0)))

    @property
    def kind(self) -> Kind:
        return "covariance" if self.structure == "full" else "spread"

    def partners(self, posterior: RowPosterior) -> Partners:
        location = partner_location(posterior)
        if self.structure == "diagonal":
            return location, partner_deviation(posterior) ** 2
        width = -(-packed_size(location.shape[1]) // LANES) * LANES
        moments = np.zeros((len(location), width), location.dtype)
        _partner_moments(posterior.location, posterior.scale, int(posterior.has_intercept), moments)
        return location, moments

    def update_rows(
        self, block: RatingBlock, lo: int, hi: int, partners: Partners, rows: RowPosterior, step: HalfStep
    ) -> RowSums:
        kernel = _update_rows_full if self.structure == "full" else _update_rows_diagonal
        return RowSums(
            *kernel(
                block.row_pointers,
                block.codes,
                lo,
                hi,
                *partners,
                rows.location,
                rows.scale,
                step.row_prior.mean,
                step.row_prior.precision,
                int(rows.has_intercept),
                step.weight,
                step.want_data,
            )
        )


@jit
def _tau(xi_squared):
    """τ(ξ) = tanh(ξ/2)/(4ξ) by one exponential; its series below ξ = 10⁻³."""
    if xi_squared < 1e-6:
        return 0.125 - max(xi_squared, 0.0) / 96.0
    xi = math.sqrt(xi_squared)
    e = math.exp(-xi)
    return (1.0 - e) / ((1.0 + e) * 4.0 * xi)


@jit
def _tau_weights(xi_squared, n, scale):
    """Overwrite ξ² with scale·τ(ξ)."""
    for l in range(n):
        xi_squared[l] = scale * _tau(xi_squared[l])


@jit
def _softplus_sum(xi_squared, n):
    """Σ_l [log(1 + e^{−ξ}) + ξ/2]; the logarithm of a product of at most CHUNK factors ≤ 2 is taken once."""
    total, product = 0.0, 1.0
    for l in range(n):
        xi = math.sqrt(max(xi_squared[l], 0.0))
        product *= 1.0 + math.exp(-xi)
        total += 0.5 * xi
    return total + math.log(product)


@jit
def _partner_moments(location, covariance, has_intercept, out):
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
def _update_rows_full(
    pointers, codes, first, last, partner_mean, partner_moments, location, covariance, prior_mean, precision,
    fixed, kappa, want_data,
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
            _tau_weights(xi_squared, hi - lo, 2.0 * kappa)
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
            location[i, k] = solution[k]
            x[fixed + k] = location[i, k]
        for q in range(len(packed_inverse)):
            covariance[i, q] = packed_inverse[q]

        if want_data:
            _row_moments(x, covariance[i], fixed, row_moments)
            for lo in range(start, stop, CHUNK):
                hi = min(lo + CHUNK, stop)
                table_dots(partner_moments, codes, lo, hi, row_moments, xi_squared)
                data += kappa * _softplus_sum(xi_squared, hi - lo)
            for k in range(size):
                data -= linear[k] * x[k]
    return log_volume, data


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
def _update_rows_diagonal(
    pointers, codes, first, last, partner_mean, partner_variance, location, spread, prior_mean, precision,
    fixed, kappa, want_data,
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
            _tau_weights(xi_squared, n, 2.0 * kappa)
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
            location[i, k] = solution[k]

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
                data += kappa * _softplus_sum(xi_squared, n)
            for k in range(size):
                data -= linear[k] * x[k]
    return log_volume, data
