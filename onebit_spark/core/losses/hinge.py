"""The hinge loss: Definition 1 of the paper and Algorithm 1, with a better solver of the means.

The objective is F = λ·AVB. Given the other side it separates over rows, and in a row into two convex problems:

- spread: s_k = 2 / (a_k + √(a_k² + 4 g_k)),  a_k = κ c Σ_l (|R_jk| + c sR_jk),  c = √(2/π);
- mean:   min_x κ Σ_l (1 − y_l x·R_j)_+ + Σ_k w_k |x_k| + ½ Σ_k g_k (x_k − p_k)²,  w_k = κ c Σ_l sR_jk.

With weights, κ w_l stands in the place of κ in every sum over ratings (docs/MATH.md, §16).
"""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.compiled import jit
from onebit_spark.core.losses.base import (
    HalfStep,
    Loss,
    Move,
    Partners,
    RowSums,
    Symmetry,
    partner_deviation,
    partner_location,
    side_by_side,
)
from onebit_spark.core.losses.batches import fill_up, next_batch, room
from onebit_spark.core.losses.lanes import LANES
from onebit_spark.core.losses.rowsums import (
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
from onebit_spark.core.losses.smallsolve import cholesky, solve, sum_of_logs
from onebit_spark.core.posterior import FloatArray, Kind, RowPosterior

SPREAD_FACTOR = math.sqrt(2 / math.pi)  # c: E|Z| of a standard normal Z
HALVINGS = 3

KEEP, MAJORISE, GRADIENT = 0, 1, 2  # what a kernel call does to the means


@dataclass(frozen=True)
class Hinge(Loss):
    """``solver="mm"`` majorises the means' problem (default); ``"gradient"`` is Algorithm 1 as printed."""

    solver: Literal["mm", "gradient"] = "mm"

    name: ClassVar[str] = "hinge"
    default_weight: ClassVar[float] = 2.0
    chooses_weight: ClassVar[bool] = False
    start_deviation: ClassVar[float] = 0.2  # much smaller, and columns of noise survive in a worse optimum
    start_shrinkage: ClassVar[float] = 0.7
    score_noise: ClassVar[float] = 0.0

    @classmethod
    def from_options(cls, solver: str, covariance: str) -> Hinge:
        return cls(solver="gradient" if solver == "gradient" else "mm")

    @staticmethod
    def probability(scores: FloatArray, variances: FloatArray) -> NDArray[np.float64]:
        """Φ(score/std), the posterior probability that the *sign* is positive, under a normal approximation.

        It says how sure the model is of its side, not how often the label is positive.
        """
        return np.asarray(ndtr(scores / np.sqrt(np.maximum(variances, 1e-300))))

    @staticmethod
    def held_out(scores: FloatArray, variances: FloatArray, signs: FloatArray) -> NDArray[np.float64]:
        """(1 − y·score)_+."""
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
            Move("rows", means=True, spreads=False),
            Move("cols", means=True, spreads=False),
            Move("rows", means=False, spreads=True),
            Move("cols", means=False, spreads=True),
        ]

    def partners(self, posterior: RowPosterior) -> Partners:
        return (side_by_side(partner_location(posterior), partner_deviation(posterior)),)

    def update_rows(
        self, block: RatingBlock, lo: int, hi: int, partners: Partners, rows: RowPosterior, step: HalfStep
    ) -> RowSums:
        mode = KEEP if not step.move_means else MAJORISE if self.solver == "mm" else GRADIENT
        t = step.iteration
        return RowSums(
            *_update_rows(
                block.row_pointers,
                block.codes,
                block.weights,
                lo,
                hi,
                *partners,
                rows.location,
                rows.scale,
                step.row_prior.mean,
                step.row_prior.precision,
                int(rows.has_intercept),
                step.weight,
                mode,
                step.move_spreads,
                step.want_data,
                *floors(t),
                learning_rate(t) / (step.weight * step.ratings_per_row),
                step.relaxation,
            )
        )


def floors(t: int) -> tuple[float, float]:
    """ε_t, the floor of |1 − yu|, and ε'_t, that of |x_k|, after t iterations: large at first, then shrinking."""
    return max(1e-2, 0.5 * 0.9**t), max(1e-3, 0.1 * 0.85**t)


def learning_rate(t: int) -> float:
    """Step sizes of Algorithm 1 after t iterations, in units of λ over the weight of an average row: 1/√(1+t)."""
    return 1.0 / math.sqrt(1.0 + t)


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
def _penalty(x, fixed, w, prior_mean, precision):
    """Σ_k w_k|x_k| + ½ Σ_k g_k (x_k − p_k)² over the free coordinates of the augmented x."""
    total = 0.0
    for k in range(len(precision)):
        total += w[fixed + k] * abs(x[fixed + k])
        total += 0.5 * precision[k] * (x[fixed + k] - prior_mean[k]) ** 2
    return total


@jit
def _update_rows(
    pointers, codes, weights, first, last, partner_table, location, spread, prior_mean, precision,
    fixed, kappa, mode, move_spreads, want_data, margin_floor, mean_floor, rate, relaxation,
):  # fmt: skip
    size = partner_table.shape[1] // 2
    free = size - fixed
    partners = np.empty((LANES, size, CHUNK_STRIDE))
    u, gram_weights, signed_weights, scratch = (
        np.empty(CHUNK), np.empty(CHUNK), np.empty(CHUNK), np.empty(CHUNK),
    )  # fmt: skip
    gram = np.empty(size * (size + 1) // 2)
    linear, absolute, deviations = np.empty(size), np.empty(size), np.empty(size)
    hinge, old, candidate = np.empty(LANES), np.ones((LANES, size)), np.ones(size)
    a, w = np.empty((LANES, size)), np.empty((LANES, size))
    system, solution = room(free)
    members = np.empty(LANES, np.int64)
    rounded = np.empty(1, location.dtype)
    c = SPREAD_FACTOR
    log_volume, data = 0.0, 0.0
    while first < last:
        count, first = next_batch(pointers, first, last, members)
        if count == 0:
            break
        for b in range(count):
            i, x = members[b], old[b]
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
                gather_and_add(partner_table, codes, weights, lo, hi, partners[b], deviations)
                scores(partners[b], n, x, u)
                if mode == MAJORISE:
                    hinge[b] += _majorise(codes, weights, lo, n, u, margin_floor, gram_weights, signed_weights)
                    add_gram(partners[b], n, gram_weights, scratch, gram)
                else:
                    hinge[b] += _subgradient(codes, weights, lo, n, u, signed_weights)
                add_projection_and_absolute(partners[b], n, signed_weights, weights, lo, linear, absolute)
            for k in range(size):
                a[b, k] = kappa * c * (absolute[k] + c * deviations[k])
                w[b, k] = kappa * c * deviations[k]
            if mode == MAJORISE:
                # A = κ Σ h R Rᵀ + diag(g + w/ξ),  b = κ Σ y(½+h) R − A_Ff + g∘p
                for k in range(free):
                    row, shifted = k * (k + 1) // 2, (k + fixed) * (k + fixed + 1) // 2 + fixed
                    for m in range(k + 1):
                        system[row + m, b] = kappa * gram[shifted + m]
                    system[row + k, b] += g[k] + w[b, fixed + k] / max(abs(x[fixed + k]), mean_floor)
                    solution[k, b] = kappa * linear[fixed + k] + g[k] * p[k]
                    if fixed == 1:
                        solution[k, b] -= kappa * gram[shifted - 1]
            elif mode == GRADIENT:
                for k in range(fixed, size):
                    slope = -kappa * linear[k] + w[b, k] * np.sign(x[k]) + g[k - fixed] * (x[k] - p[k - fixed])
                    x[k] -= rate * slope
                if want_data:
                    hinge[b] = 0.0
                    for lo in range(pointers[i], pointers[i + 1], CHUNK):
                        hi = min(lo + CHUNK, pointers[i + 1])
                        if pointers[i + 1] - pointers[i] > CHUNK:
                            gather(partner_table, codes, lo, hi, partners[b])
                        scores(partners[b], hi - lo, x, u)
                        hinge[b] += _hinge_sum(codes, weights, lo, hi - lo, u)
        if mode == MAJORISE:
            fill_up(system, solution, free, count)
            cholesky(system, free)
            solve(system, solution, free)
        for b in range(count):
            i, x = members[b], old[b]
            p = prior_mean[i if len(prior_mean) > 1 else 0]
            g = precision[i if len(precision) > 1 else 0]
            if mode == MAJORISE:
                old_value = kappa * hinge[b] + _penalty(x, fixed, w[b], p, g)
                fraction = relaxation
                # The floors make the majoriser loose at the old point: a step that does not descend is halved.
                for _ in range(HALVINGS + 1):
                    for k in range(free):
                        rounded[0] = x[fixed + k] + fraction * (solution[k, b] - x[fixed + k])
                        candidate[fixed + k] = rounded[0]
                    new_hinge = 0.0
                    for lo in range(pointers[i], pointers[i + 1], CHUNK):
                        hi = min(lo + CHUNK, pointers[i + 1])
                        if pointers[i + 1] - pointers[i] > CHUNK:
                            gather(partner_table, codes, lo, hi, partners[b])
                        scores(partners[b], hi - lo, candidate, u)
                        new_hinge += _hinge_sum(codes, weights, lo, hi - lo, u)
                    if kappa * new_hinge + _penalty(candidate, fixed, w[b], p, g) <= old_value:
                        hinge[b] = new_hinge
                        for k in range(fixed, size):
                            x[k] = candidate[k]
                        break
                    fraction *= 0.5
            for k in range(free):
                location[i, k] = x[fixed + k]
                if move_spreads:
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
