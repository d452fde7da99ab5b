"""The hinge loss: Definition 1 of the paper and Algorithm 1, with a better solver for the means
(docs/MATH.md, §3).

The objective is F = λ·AVB. Given the other side it separates over rows, and within a row into two
convex problems, for the spreads and for the mean. With weights, κ w_l stands in the place of κ in
every sum over ratings (§16).
"""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from onebit_spark.core.batched_solve import (
    LANES,
    cholesky,
    cholesky_solve,
    fill_up,
    next_batch,
    solve_arrays,
    sum_of_logs,
)
from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.loss import (
    HalfStep,
    Loss,
    Move,
    OtherLines,
    RowSums,
    Symmetry,
    kernel_arguments,
    other_location,
    other_std,
    side_by_side,
)
from onebit_spark.core.posterior import FloatArray, Kind, RowPosterior
from onebit_spark.core.row_sums import (
    CHUNK,
    CHUNK_STRIDE,
    add_gram,
    add_projection_and_absolute,
    chunk_of,
    gather,
    gather_and_add,
    scores,
    signed_weight,
    weight_of,
)
from onebit_spark.kernels.jit import jit

SPREAD_FACTOR = math.sqrt(2 / math.pi)  # c: E|Z| of a standard normal Z
HALVINGS = 3


@dataclass(frozen=True)
class Hinge(Loss):
    """``solver="mm"`` majorises the means' problem (default); ``"gradient"`` is Algorithm 1 as
    printed.
    """

    solver: Literal["mm", "gradient"] = "mm"

    default_kappa: ClassVar[float] = 2.0
    start_std: ClassVar[float] = (
        0.2  # much smaller, and columns of noise survive in a worse optimum
    )
    start_shrinkage: ClassVar[float] = 0.7
    score_noise: ClassVar[float] = 0.0

    @classmethod
    def from_options(cls, solver: str, covariance: str) -> Hinge:
        return cls(solver="gradient" if solver == "gradient" else "mm")

    @staticmethod
    def probability(scores: FloatArray, variances: FloatArray) -> NDArray[np.float64]:
        """Φ(score/std), the posterior probability that the *score* is positive, under a normal
        approximation.

        It is the model's certainty about the sign, not the frequency of positive labels.
        """
        return np.asarray(ndtr(scores / np.sqrt(np.maximum(variances, 1e-300))))

    @staticmethod
    def held_out(
        scores: FloatArray, variances: FloatArray, signs: FloatArray
    ) -> NDArray[np.float64]:
        return np.asarray(np.maximum(1.0 - signs * scores, 0.0))

    @property
    def kind(self) -> Kind:
        return "spread"

    @property
    def symmetry(self) -> Symmetry | None:
        return "scaling" if self.solver == "mm" else None  # Algorithm 1 stays as it is printed

    def plan(self) -> list[Move]:
        if self.solver == "mm":
            return super().plan()
        # Algorithm 1's order: L mean, R mean, v^L, v^R (then γ).
        return [
            Move("rows", means=True, covariances=False),
            Move("cols", means=True, covariances=False),
            Move("rows", means=False, covariances=True),
            Move("cols", means=False, covariances=True),
        ]

    def other_lines(self, posterior: RowPosterior) -> OtherLines:
        return side_by_side(other_location(posterior), other_std(posterior))

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
        t = step.iteration
        kappa = step.kappa
        if self.solver == "mm":
            majoriser = (kappa, step.relaxation, *floors(t), step.want_data)
            return RowSums(*update_rows_mm(ratings, (lo, hi), others, updated, prior, majoriser))
        # The step sizes of Algorithm 1 are 1/√(1+t), in units of λ over the weight of an average
        # row.
        rate = 1.0 / math.sqrt(1.0 + t) / (kappa * step.ratings_per_row)
        gradient = (kappa, rate, step.move_means, step.move_covariances, step.want_data)
        return RowSums(*update_rows_gradient(ratings, (lo, hi), others, updated, prior, gradient))


def floors(t: int) -> tuple[float, float]:
    """The floors ε_t of |1 − yu| and ε'_t of |x_k| after t iterations. They shrink to a limit."""
    return max(1e-2, 0.5 * 0.9**t), max(1e-3, 0.1 * 0.85**t)


# ---- kernels -----------------------------------------------------------------------------------
#
# Both kernels use the same sums over a row's ratings. ``others`` holds the gathered coordinates of
# a row's chunk, so a row with one chunk is gathered once.


@jit
def _majorise(codes, weights, lo, n, u, floor, gram_weights, signed_weights):
    """Weights of (1−yu)_+ ≤ ½(1−yu) + (1−yu)²/(4ω) + ω/4 at ω = max(|1−yu|, floor); returns Σ
    w(1−yu)_+.
    """
    total = 0.0
    codes = chunk_of(codes, lo, n)
    weights = chunk_of(weights, lo, n)
    for l in range(n):
        y = signed_weight(codes, None, l)
        w = weight_of(weights, l)
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
    codes = chunk_of(codes, lo, n)
    weights = chunk_of(weights, lo, n)
    for l in range(n):
        y = signed_weight(codes, None, l)
        w = weight_of(weights, l)
        margin = 1.0 - y * u[l]
        total += w * max(margin, 0.0)
        signed_weights[l] = w * y if margin > 0.0 else 0.0
    return total


@jit
def _hinge_sum(codes, weights, lo, n, u):
    """Σ w(1−yu)_+."""
    total = 0.0
    for l in range(n):
        total += weight_of(weights, lo + l) * max(
            1.0 - signed_weight(codes, None, lo + l) * u[l], 0.0
        )
    return total


@jit
def _penalty(x, fixed, w, prior_mean, precision):
    """Σ_k w_k|x_k| + ½ Σ_k g_k (x_k − p_k)² over the free coordinates of the augmented x."""
    total = 0.0
    for k in range(len(precision)):
        total += w[fixed + k] * abs(x[fixed + k])
        total += 0.5 * precision[k] * (x[fixed + k] - prior_mean[k]) ** 2
    return total


@jit
def update_rows_mm(ratings, span, other_lines, rows, prior, numbers):
    """Rows span[0] … span[1] − 1: a majorised step of the means (§3.3), and the exact spreads.

    Returns Σ_i Σ_k log s_ik and the data term.
    """
    (first, last) = span
    (location, spread, fixed) = rows
    pointers, codes, weights = ratings
    prior_mean, precision, _ = prior
    kappa, relaxation, margin_floor, mean_floor, want_data = numbers
    size = other_lines.shape[1] // 2
    free = size - fixed
    others = np.empty((LANES, size, CHUNK_STRIDE))
    u = np.empty(CHUNK)
    gram_weights = np.empty(CHUNK)
    signed_weights = np.empty(CHUNK)
    scratch = np.empty(CHUNK)
    gram = np.empty(size * (size + 1) // 2)
    linear = np.empty(size)
    absolute = np.empty(size)
    deviations = np.empty(size)
    hinge = np.empty(LANES)
    old = np.ones((LANES, size))
    candidate = np.ones(size)
    a = np.empty((LANES, size))
    w = np.empty((LANES, size))
    system, solution = solve_arrays(free)
    members = np.empty(LANES, np.int64)
    rounded = np.empty(1, location.dtype)
    c = SPREAD_FACTOR
    log_volume = 0.0
    data = 0.0
    while first < last:
        count, first = next_batch(pointers, first, last, members)
        if count == 0:
            break
        for b in range(count):
            i = members[b]
            x = old[b]
            p = prior_mean[i if len(prior_mean) > 1 else 0]
            g = precision[i if len(precision) > 1 else 0]
            gram[:] = 0.0
            linear[:] = 0.0
            absolute[:] = 0.0
            deviations[:] = 0.0
            for k in range(free):
                x[fixed + k] = location[i, k]
            hinge[b] = 0.0
            for lo in range(pointers[i], pointers[i + 1], CHUNK):
                hi = min(lo + CHUNK, pointers[i + 1])
                n = hi - lo
                gather_and_add(other_lines, codes, weights, lo, hi, others[b], deviations)
                scores(others[b], n, x, u)
                hinge[b] += _majorise(
                    codes, weights, lo, n, u, margin_floor, gram_weights, signed_weights
                )
                add_gram(others[b], n, gram_weights, scratch, gram)
                add_projection_and_absolute(
                    others[b], n, signed_weights, weights, lo, linear, absolute
                )
            for k in range(size):  # the slopes of F in s_k and in |x_k|
                a[b, k] = kappa * c * (absolute[k] + c * deviations[k])
                w[b, k] = kappa * c * deviations[k]
            # A = κ Σ h R Rᵀ + diag(g + w/ξ), at ξ = max(|x|, floor);
            # b = κ Σ y(½+h) R − A_Ff + g∘p
            for k in range(free):
                row = k * (k + 1) // 2
                shifted = (k + fixed) * (k + fixed + 1) // 2 + fixed
                for m in range(k + 1):
                    system[row + m, b] = kappa * gram[shifted + m]
                system[row + k, b] += g[k] + w[b, fixed + k] / max(abs(x[fixed + k]), mean_floor)
                solution[k, b] = kappa * linear[fixed + k] + g[k] * p[k]
                if fixed == 1:
                    solution[k, b] -= kappa * gram[shifted - 1]
        fill_up(system, solution, free, count)
        cholesky(system, free)
        cholesky_solve(system, solution, free)
        for b in range(count):
            i = members[b]
            x = old[b]
            p = prior_mean[i if len(prior_mean) > 1 else 0]
            g = precision[i if len(precision) > 1 else 0]
            old_value = kappa * hinge[b] + _penalty(x, fixed, w[b], p, g)
            fraction = relaxation
            for _ in range(HALVINGS + 1):
                for k in range(free):
                    rounded[0] = x[fixed + k] + fraction * (solution[k, b] - x[fixed + k])
                    candidate[fixed + k] = rounded[0]
                new_hinge = 0.0
                for lo in range(pointers[i], pointers[i + 1], CHUNK):
                    hi = min(lo + CHUNK, pointers[i + 1])
                    if pointers[i + 1] - pointers[i] > CHUNK:  # otherwise they are still gathered
                        gather(other_lines, codes, lo, hi, others[b])
                    scores(others[b], hi - lo, candidate, u)
                    new_hinge += _hinge_sum(codes, weights, lo, hi - lo, u)
                if kappa * new_hinge + _penalty(candidate, fixed, w[b], p, g) <= old_value:
                    hinge[b] = new_hinge
                    for k in range(fixed, size):
                        x[k] = candidate[k]
                    break
                fraction *= 0.5
            for k in range(free):
                location[i, k] = x[fixed + k]
                a_k = a[b, fixed + k]
                spread[i, k] = 2.0 / (a_k + math.sqrt(a_k * a_k + 4.0 * g[k]))
            log_volume += sum_of_logs(spread, i)
            if want_data:
                data += kappa * hinge[b]
                for k in range(size):
                    data += w[b, k] * abs(x[k])
                for k in range(free):
                    data += a[b, fixed + k] * spread[i, k]
    return log_volume, data


@jit
def update_rows_gradient(ratings, span, other_lines, rows, prior, numbers):
    """Rows span[0] … span[1] − 1 by Algorithm 1: a gradient step of the means (§3.4), or the exact
    spreads, or both.
    """
    (first, last) = span
    (location, spread, fixed) = rows
    pointers, codes, weights = ratings
    prior_mean, precision, _ = prior
    kappa, rate, move_means, move_covariances, want_data = numbers
    size = other_lines.shape[1] // 2
    free = size - fixed
    others = np.empty((size, CHUNK_STRIDE))
    u = np.empty(CHUNK)
    signed_weights = np.empty(CHUNK)
    linear = np.empty(size)
    absolute = np.empty(size)
    deviations = np.empty(size)
    x = np.ones(size)
    c = SPREAD_FACTOR
    log_volume = 0.0
    data = 0.0
    for i in range(first, last):
        if pointers[i] == pointers[i + 1]:
            continue
        p = prior_mean[i if len(prior_mean) > 1 else 0]
        g = precision[i if len(precision) > 1 else 0]
        linear[:] = 0.0
        absolute[:] = 0.0
        deviations[:] = 0.0
        for k in range(free):
            x[fixed + k] = location[i, k]
        hinge = 0.0
        for lo in range(pointers[i], pointers[i + 1], CHUNK):
            hi = min(lo + CHUNK, pointers[i + 1])
            gather_and_add(other_lines, codes, weights, lo, hi, others, deviations)
            scores(others, hi - lo, x, u)
            hinge += _subgradient(codes, weights, lo, hi - lo, u, signed_weights)
            add_projection_and_absolute(
                others, hi - lo, signed_weights, weights, lo, linear, absolute
            )
        if move_means:
            for k in range(free):
                w_k = kappa * c * deviations[fixed + k]
                slope = (
                    -kappa * linear[fixed + k]
                    + w_k * np.sign(x[fixed + k])
                    + g[k] * (x[fixed + k] - p[k])
                )
                x[fixed + k] -= rate * slope
                location[i, k] = x[fixed + k]
            if want_data:
                hinge = 0.0
                for lo in range(pointers[i], pointers[i + 1], CHUNK):
                    hi = min(lo + CHUNK, pointers[i + 1])
                    if pointers[i + 1] - pointers[i] > CHUNK:
                        gather(other_lines, codes, lo, hi, others)
                    scores(others, hi - lo, x, u)
                    hinge += _hinge_sum(codes, weights, lo, hi - lo, u)
        if move_covariances:
            for k in range(free):
                a_k = kappa * c * (absolute[fixed + k] + c * deviations[fixed + k])
                spread[i, k] = 2.0 / (a_k + math.sqrt(a_k * a_k + 4.0 * g[k]))
        log_volume += sum_of_logs(spread, i)
        if want_data:
            data += kappa * hinge
            for k in range(size):
                data += kappa * c * deviations[k] * abs(x[k])
            for k in range(free):
                data += kappa * c * (absolute[fixed + k] + c * deviations[fixed + k]) * spread[i, k]
    return log_volume, data
