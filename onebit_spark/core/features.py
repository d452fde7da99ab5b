"""Features of rows: the set of partners that a row has rated, and tables that describe the rows.

**Implicit features** (docs/MATH.md, §13). Every row and every column has vectors of length K, side
by side in ``RowPosterior.implicit`` as [w r z d s q]. Three of them concern the prior means of the
rows that rate it, three its own prior mean p_i:

    w    its coefficient                             r    its residual |Ω_i|^{−½}(E L_i − p_i)
    z    the preconditioned gradient    s    |Ω_i|^{−½} times the change of p_i for a step along z
    d    the last step of w                          q    the same for d

A model keeps [w r], and a rating reads [w r z d] of its partner. A half step sums these over the
partners of each row, so implicit features need no pass of their own. ``CoefStep`` is the best step
in the span of z and d.

**Side features** (§15) are numbers f_i (``data.features``), which add Wᵀf_i to the prior mean of a
row. A half step sums Σ f_i d_iᵀ, where d_i is the distance of E x_i from its prior mean, and
``FeatureRidge`` moves W.
"""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import scipy.linalg

from onebit_spark.core.arrays import DoubleArray, FloatArray, Indices
from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.loss import Side
from onebit_spark.core.posterior import (
    PLACE_D,
    PLACE_Q,
    PLACE_R,
    PLACE_S,
    PLACE_W,
    PLACE_Z,
    SENT_VECTORS,
    RowMap,
    RowPosterior,
)
from onebit_spark.core.row_sums import CHUNK, add_weighted_rows
from onebit_spark.kernels.jit import jit

RIDGE = 5.0  # ρ of implicit features; values from 3 to 10 hardly differ
FEATURE_RIDGE = 5.0  # ρ of side features


def gram_matrix(lines: FloatArray) -> DoubleArray:
    """Σ_i x_i x_iᵀ in double precision, in one thread.

    Ranges of rows are processed in parallel. BLAS would start threads of its own for larger
    products: with two cores an iteration over 2·10⁷ ratings took 1.6 times as long.
    """
    total = _lower_triangle(np.ascontiguousarray(lines))
    return total + np.tril(total, -1).T


@jit
def _lower_triangle(lines):
    """The triangle of XᵀX, four lines at a time: one read and write of a sum for four products."""
    width = lines.shape[1]
    total = np.zeros((width, width))
    fours = len(lines) - len(lines) % 4
    for i in range(0, fours, 4):
        a = lines[i]
        b = lines[i + 1]
        c = lines[i + 2]
        d = lines[i + 3]
        for j in range(width):
            p = np.float64(a[j])
            q = np.float64(b[j])
            r = np.float64(c[j])
            s = np.float64(d[j])
            for k in range(j + 1):
                total[j, k] += p * a[k] + q * b[k] + r * c[k] + s * d[k]
    for i in range(fours, len(lines)):
        for j in range(width):
            p = np.float64(lines[i, j])
            for k in range(j + 1):
                total[j, k] += p * lines[i, k]
    return total


def sent_vectors(partners: RowPosterior) -> FloatArray:
    """[w r z d] of every partner, for ``add_implicit_sums``."""
    assert partners.features is not None
    return np.ascontiguousarray(partners.features.sent)


def add_implicit_sums(
    block: RatingBlock, lo: int, hi: int, partners: FloatArray, own: FloatArray, means: DoubleArray
) -> None:
    """Write z, s and q of the rows lo … hi−1 to ``own``, their ``implicit``, and add their p_i to
    ``means`` (m × K).

    ``partners`` are the [w r z d] of the block's columns.
    """
    _add_implicit_sums(block.row_pointers, block.codes, lo, hi, partners, own, RIDGE, means)


def leave_residuals(
    block: RatingBlock, lo: int, hi: int, rows: RowPosterior, means: DoubleArray
) -> None:
    """Write r_i of the updated rows lo … hi−1, whose prior means are ``means`` (m × D)."""
    assert rows.features is not None
    rank = rows.rank
    counts = np.maximum(block.distinct_counts[lo:hi], 1)
    distance = rows.location[lo:hi, -rank:] - means[lo:hi, -rank:]
    rows.features.r[lo:hi] = distance / np.sqrt(counts)[:, None]


def prior_means(block: RatingBlock, partners: RowPosterior) -> DoubleArray:
    assert partners.features is not None
    means = np.zeros((block.n_rows, partners.rank))
    weights = np.ascontiguousarray(partners.features.w)
    _add_means(block.row_pointers, block.codes, weights, means)
    return means


def newcomer_means(
    block: RatingBlock, partners: RowPosterior, centre: DoubleArray, typical: float
) -> DoubleArray:
    """p_i of new rows, whose ratings are treated as the first of a ``typical`` number n̄
    (docs/MATH.md, §13).

    ``centre`` is p̄, the mean of p over all ratings, which the n̄ − |Ω_i| further ratings are
    expected to have.
    """
    means = prior_means(block, partners)
    counts = block.distinct_counts[:, None]
    begun = means * np.sqrt(counts / typical) + (1.0 - counts / typical) * centre
    return np.where(counts < typical, begun, means)


def coef_gram(posterior: RowPosterior) -> DoubleArray:
    """The Gram matrix of [w z d] (3K × 3K); 0 × 0 without implicit features."""
    features = posterior.features
    if features is None:
        return np.zeros((0, 0))
    return gram_matrix(np.hstack([features.w, features.z, features.d], dtype=np.float64))


@jit
def _partner_sums(pointers, codes, i, partners, is_first, part, sums):
    """The sum of the partners' lines over Ω_i. Returns |Ω_i|."""
    sums[:] = 0.0
    count = 0.0
    for lo in range(pointers[i], pointers[i + 1], CHUNK):
        hi = min(lo + CHUNK, pointers[i + 1])
        # A column that is rated twice counts once, and its ratings are neighbours
        for l in range(lo, hi):
            is_first[l - lo] = l == pointers[i] or codes[l] >> 1 != codes[l - 1] >> 1
            count += is_first[l - lo]
        add_weighted_rows(partners, codes, lo, hi, 0, is_first, part, sums, True)
    return count


@jit
def _add_implicit_sums(pointers, codes, first, last, partners, own, ridge, means):
    size = means.shape[1]
    w = PLACE_W * size
    r = PLACE_R * size
    z = PLACE_Z * size
    d = PLACE_D * size
    s = PLACE_S * size
    q = PLACE_Q * size
    sums = np.empty(SENT_VECTORS * size)
    part = np.empty(SENT_VECTORS * size, partners.dtype)
    is_first = np.empty(CHUNK, partners.dtype)
    for i in range(first, last):
        if pointers[i] == pointers[i + 1]:
            continue
        count = _partner_sums(pointers, codes, i, partners, is_first, part, sums)
        share = 1.0 / np.sqrt(count)
        for k in range(size):
            means[i, k] += share * sums[w + k]
            own[i, z + k] = (sums[r + k] - ridge * own[i, w + k]) / (count + ridge)
            own[i, s + k] = sums[z + k] / count
            own[i, q + k] = sums[d + k] / count


@jit
def _add_means(pointers, codes, weights, means):
    sums = np.empty(means.shape[1])
    is_first = np.empty(CHUNK, weights.dtype)
    part = np.empty(means.shape[1], weights.dtype)
    for i in range(len(means)):
        if pointers[i] == pointers[i + 1]:
            continue
        share = 1.0 / np.sqrt(_partner_sums(pointers, codes, i, weights, is_first, part, sums))
        for k in range(len(sums)):
            means[i, k] += share * sums[k]


LEAST_PART = (
    1e-4  # of the largest eigenvalue; directions below it depend on others, up to float32 rounding
)
LEAST_SIZE = 1e-4  # of the longest column of Z, or of D; shorter columns are rounding errors


@dataclass(frozen=True)
class ImplicitMove:
    """x ─► x + yC in every line of ``implicit``, and y₂ ─► yC.

    x and y = [y₁ y₂] are some of its vectors.
    y₂ is not used on the rating side.
    """

    matrix: DoubleArray  # ±C, C = [A; B], 2K × K
    value: int  # the position of x among the vectors
    directions: int  # the position of y₁; y₂ is the next one

    def apply_to(self, posterior: RowPosterior, lo: int, hi: int) -> None:
        """Map rows lo … hi−1 in place.

        The result of a row depends bit for bit on that row alone.
        """
        assert posterior.implicit is not None
        _move_implicit(posterior.implicit, self.matrix, self.value, self.directions, lo, hi)


@dataclass(frozen=True)
class CoefStep:
    matrix: DoubleArray  # [A; B], 2K × K

    @classmethod
    def best(
        cls, directions: DoubleArray, residuals: DoubleArray, weights: DoubleArray
    ) -> CoefStep:
        """From YᵀY (2K × 2K), YᵀR (2K × K) and the Gram matrix of [W Z D] (3K × 3K)."""
        rank = residuals.shape[1]
        system = directions + RIDGE * weights[rank:, rank:]
        right = residuals - RIDGE * weights[rank:, :rank]
        size = np.sqrt(np.maximum(np.diag(system), 0.0))
        longest = np.repeat([part.max() for part in np.split(size, 2)], rank)
        unit = np.divide(1.0, size, out=np.zeros_like(size), where=size > LEAST_SIZE * longest)
        system = unit[:, None] * system * unit
        if not np.isfinite(
            system
        ).all():  # the solver reports the objective, which is not finite either
            return cls(np.zeros_like(right))
        values, vectors = np.linalg.eigh(system)
        # λ³/(λ⁴ + ε⁴), a smooth version of 1/λ above ε and 0 below it. It is at most 1/λ, so no
        # step rises.
        values = np.maximum(values, 0.0)
        least = LEAST_PART * max(values.max(), np.finfo(np.float64).tiny)
        shares = values / least
        inverse = (vectors * (shares**3 / (shares**4 + 1.0) / least)) @ vectors.T
        return cls(unit[:, None] * (inverse @ (unit[:, None] * right)))

    @property
    def of_coef(self) -> ImplicitMove:
        """The change of a line on the rated side."""
        return ImplicitMove(self.matrix, PLACE_W, PLACE_Z)

    @property
    def of_residuals(self) -> ImplicitMove:
        """The change of a line on the rating side."""
        return ImplicitMove(-self.matrix, PLACE_R, PLACE_S)

    def before(self, by: RowMap) -> CoefStep:
        """The same step for lines to which the map x ─► xT has not been applied yet: TAT⁻¹ and
        TBT⁻¹.
        """
        rank = self.matrix.shape[1]
        turn = by.matrix[-rank:, -rank:]
        mapped = np.concatenate([turn @ part for part in np.split(self.matrix, 2)])
        return CoefStep(np.ascontiguousarray(np.linalg.solve(turn.T, mapped.T).T, np.float64))

    def moved(self, weights: DoubleArray) -> DoubleArray:
        """The Gram matrix of [W Z D] after the step."""
        rank = self.matrix.shape[1]
        w = slice(0, rank)
        d = slice(2 * rank, 3 * rank)
        from_directions = slice(rank, 3 * rank)  # X = [Z D]
        change = np.zeros((3 * rank, 3 * rank))  # [W Z D] times this is [W + X C, Z, X C]
        change[: 2 * rank, : 2 * rank] = np.eye(2 * rank)
        change[from_directions, w] = self.matrix
        change[from_directions, d] = self.matrix
        return np.asarray(change.T @ weights @ change)


@jit
def _move_implicit(implicit, matrix, value, directions, first, last):
    size = matrix.shape[1]
    out = np.empty(size)
    for i in range(first, last):
        line = implicit[i]
        x = line[value * size : (value + 1) * size]
        y = line[directions * size : (directions + 2) * size]
        last_step = y[size:]
        out[:] = 0.0
        for j in range(2 * size):
            part = np.float64(y[j])
            for k in range(size):
                out[k] += part * matrix[j, k]
        for k in range(size):
            x[k] += out[k]
            last_step[k] = out[k]


@dataclass(frozen=True)
class FeatureRidge:
    # Cholesky factor of G + ρI, in the form of ``scipy.linalg.cho_factor``
    factorised: tuple[DoubleArray, bool]

    @classmethod
    def of(cls, gram: DoubleArray) -> FeatureRidge:
        return cls(scipy.linalg.cho_factor(gram + FEATURE_RIDGE * np.eye(len(gram))))

    def moved(self, weights: DoubleArray, cross: DoubleArray, relaxation: float) -> DoubleArray:
        """The weights (p × D) after a step; ``cross`` is Σ f_i d_iᵀ."""
        step = scipy.linalg.cho_solve(self.factorised, cross - FEATURE_RIDGE * weights)
        return np.asarray(weights + relaxation * step)


def rated_gram(features: FloatArray, counts: Indices) -> DoubleArray:
    rated = features[counts > 0].astype(np.float64)
    return np.asarray(rated.T @ rated)


def of_known_size(
    weights: Mapping[Side, DoubleArray], grams: Mapping[Side, DoubleArray], dimension: int
) -> dict[Side, DoubleArray]:
    """W of every side with features: the given one if its shape is right, else 0."""
    sized: dict[Side, DoubleArray] = {}
    for side, gram in grams.items():
        shape = len(gram), dimension
        given = weights.get(side)
        sized[side] = given if given is not None and given.shape == shape else np.zeros(shape)
    return sized
