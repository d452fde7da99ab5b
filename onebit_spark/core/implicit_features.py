"""Implicit features: the set of columns that a row has rated informs about the row, whatever its labels.

    L_i ~ N(p_i, diag γ),     p_i = |Ω_i|^{−½} Σ_{j∈Ω_i} w_j,     w_jk ~ N(0, γ_k/ρ)

Ω_i are the *different* columns that row i has rated. The same holds for the columns, with coefficients of the rows. So
every row and every column has vectors of length K, side by side in ``RowPosterior.implicit``. Three of them concern the
prior means of the rows that rate it, three its own prior mean p_i:

    w    its coefficient                             r    its residual |Ω_i|^{−½}(E L_i − p_i)
    z    the preconditioned gradient                 s    |Ω_i|^{−½} times the change of p_i for a step along z
    d    the last step of w                          q    the same for d

They are stored as [w r z d s q]. A model keeps [w r], and a rating reads [w r z d] of its partner. With
F_ij = |Ω_i|^{−½}, a half step sums these over the partners of each row:

    p_i = (Fw)_i,   s_i = |Ω_i|^{−½}(Fz)_i,   q_i = |Ω_i|^{−½}(Fd)_i,   z_i = (Σ_{j∈Ω_i} r_j − ρ w_i) / (|Ω_i| + ρ)

So implicit features need no pass of their own. The coefficients move by the best step in the span of the gradient and
the last step, which the driver computes (``CoefStep``). Given the means M = E[L] of a side, the best coefficients W of
the other side solve a ridge regression in which γ cancels:

    minimise  ‖M − FW‖² + ρ‖W‖²,     R = M − FW

Among all W + ZA + DB with K×K matrices A and B, where Z is the preconditioned gradient and D the last step, the best is

    [A; B] = (YᵀY + ρXᵀX)⁺ (YᵀR − ρXᵀW),     X = [Z D],     Y = FX = [S Q]

For fixed M this is the method of conjugate gradients for K right-hand sides at once (docs/MATH.md, §13). M moves
between two steps, but each step is the best one in its span, so the objective never rises. W, X, R and Y consist of
vectors of the rows and columns, and the half steps give the driver their Gram matrices. Each row is updated by itself:

    w ─► w + [z d][A; B],     d ─► [z d][A; B]          on the rated side
    r ─► r − [s q][A; B]                                on the rating side
"""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.compiled import jit
from onebit_spark.core.losses.row_sums import CHUNK, add_weighted_rows
from onebit_spark.core.posterior import SENT_VECTORS, FloatArray, RowMap, RowPosterior


def gram_matrix(lines: NDArray[np.floating]) -> NDArray[np.float64]:
    """Σ_i x_i x_iᵀ in double precision, in one thread.

    Ranges of rows are processed in parallel. BLAS would start threads of its own for larger products: with two cores an
    iteration over 2·10⁷ ratings took 1.6 times as long.
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
        a, b, c, d = lines[i], lines[i + 1], lines[i + 2], lines[i + 3]
        for j in range(width):
            p, q, r, s = np.float64(a[j]), np.float64(b[j]), np.float64(c[j]), np.float64(d[j])
            for k in range(j + 1):
                total[j, k] += p * a[k] + q * b[k] + r * c[k] + s * d[k]
    for i in range(fours, len(lines)):
        for j in range(width):
            p = np.float64(lines[i, j])
            for k in range(j + 1):
                total[j, k] += p * lines[i, k]
    return total


RIDGE = 5.0  # ρ; values from 3 to 10 hardly differ


def sent_vectors(partners: RowPosterior) -> FloatArray:
    """[w r z d] of every partner, for ``add_implicit_sums``."""
    assert partners.implicit is not None
    return np.ascontiguousarray(partners.implicit[:, : SENT_VECTORS * partners.rank])


def add_implicit_sums(
    block: RatingBlock, lo: int, hi: int, partners: FloatArray, own: FloatArray, means: NDArray[np.float64]
) -> None:
    """Write z, s and q of the rows lo … hi−1 to ``own``, their ``implicit``, and add their p_i to ``means`` (m × K).

    ``partners`` are the [w r z d] of the block's columns.
    """
    _add_implicit_sums(block.row_pointers, block.codes, lo, hi, partners, own, RIDGE, means)


def leave_residuals(block: RatingBlock, lo: int, hi: int, rows: RowPosterior, means: NDArray[np.float64]) -> None:
    """Write r_i of the updated rows lo … hi−1, whose prior means are ``means`` (m × D)."""
    assert rows.implicit is not None
    rank = rows.rank
    counts = np.maximum(block.distinct_counts[lo:hi], 1)
    distance = rows.location[lo:hi, -rank:] - means[lo:hi, -rank:]
    rows.implicit[lo:hi, rank : 2 * rank] = distance / np.sqrt(counts)[:, None]


def prior_means(block: RatingBlock, partners: RowPosterior) -> NDArray[np.float64]:
    """p_i of every row of a block (rows × K)."""
    assert partners.implicit is not None
    rank, means = partners.rank, np.zeros((block.n_rows, partners.rank))
    _add_means(block.row_pointers, block.codes, np.ascontiguousarray(partners.implicit[:, :rank]), means)
    return means


def newcomer_means(
    block: RatingBlock, partners: RowPosterior, centre: NDArray[np.float64], typical: float
) -> NDArray[np.float64]:
    """p_i of new rows, whose ratings are treated as the first of a ``typical`` number n̄.

    The n̄ − |Ω_i| further ratings are expected to be average ones. So p_i = n̄^{−½} Σ w_j + (1 − |Ω_i|/n̄) p̄ if |Ω_i| < n̄,
    where ``centre`` is p̄, the mean of p over all ratings (docs/MATH.md, §13).
    """
    means, counts = prior_means(block, partners), block.distinct_counts[:, None]
    begun = means * np.sqrt(counts / typical) + (1.0 - counts / typical) * centre
    return np.where(counts < typical, begun, means)


def coef_gram(posterior: RowPosterior) -> NDArray[np.float64]:
    """The Gram matrix of [w z d] (3K × 3K); 0 × 0 without implicit features."""
    if posterior.implicit is None:
        return np.zeros((0, 0))
    rank = posterior.rank
    parts = [posterior.implicit[:, :rank], posterior.implicit[:, 2 * rank : 4 * rank]]
    return gram_matrix(np.hstack(parts, dtype=np.float64))


@jit
def _partner_sums(pointers, codes, i, partners, is_first, sums):
    """The sum of the partners' lines over Ω_i. Returns |Ω_i|."""
    sums[:] = 0.0
    count = 0.0
    for lo in range(pointers[i], pointers[i + 1], CHUNK):
        hi = min(lo + CHUNK, pointers[i + 1])
        for l in range(lo, hi):  # a column that is rated twice counts once, and its ratings are neighbours
            is_first[l - lo] = l == pointers[i] or codes[l] >> 1 != codes[l - 1] >> 1
            count += is_first[l - lo]
        add_weighted_rows(partners, codes, lo, hi, 0, is_first, sums, True)
    return count


@jit
def _add_implicit_sums(pointers, codes, first, last, partners, own, ridge, means):
    size = means.shape[1]
    sums, is_first = np.empty(4 * size), np.empty(CHUNK, partners.dtype)
    for i in range(first, last):
        if pointers[i] == pointers[i + 1]:
            continue
        count = _partner_sums(pointers, codes, i, partners, is_first, sums)
        share = 1.0 / np.sqrt(count)
        for k in range(size):
            means[i, k] += share * sums[k]
            own[i, 2 * size + k] = (sums[size + k] - ridge * own[i, k]) / (count + ridge)
            own[i, 4 * size + k] = sums[2 * size + k] / count
            own[i, 5 * size + k] = sums[3 * size + k] / count


@jit
def _add_means(pointers, codes, weights, means):
    sums, is_first = np.empty(means.shape[1]), np.empty(CHUNK, weights.dtype)
    for i in range(len(means)):
        if pointers[i] == pointers[i + 1]:
            continue
        share = 1.0 / np.sqrt(_partner_sums(pointers, codes, i, weights, is_first, sums))
        for k in range(len(sums)):
            means[i, k] += share * sums[k]


Matrix = NDArray[np.float64]

LEAST_PART = 1e-4  # of the largest eigenvalue; directions below it depend on others, up to float32 rounding
LEAST_SIZE = 1e-4  # of the longest column of Z, or of D; shorter columns are rounding errors


@dataclass(frozen=True)
class ImplicitMove:
    """x ─► x + yC in every line of ``implicit``, where x and y = [y₁ y₂] are some of its vectors, and y₂ ─► yC.

    y₂ is not used on the rating side.
    """

    matrix: Matrix  # ±C, C = [A; B], 2K × K
    value: int  # the position of x among the vectors
    directions: int  # the position of y₁; y₂ is the next one

    def apply_to(self, posterior: RowPosterior, lo: int, hi: int) -> None:
        """Map rows lo … hi−1 in place. The result of a row depends bit for bit on that row alone."""
        assert posterior.implicit is not None
        _move_implicit(posterior.implicit, self.matrix, self.value, self.directions, lo, hi)


@dataclass(frozen=True)
class CoefStep:
    """W ─► W + ZA + DB."""

    matrix: Matrix  # [A; B], 2K × K

    @classmethod
    def best(cls, directions: Matrix, residuals: Matrix, weights: Matrix) -> CoefStep:
        """From YᵀY (2K × 2K), YᵀR (2K × K) and the Gram matrix of [W Z D] (3K × 3K)."""
        rank = residuals.shape[1]
        system = directions + RIDGE * weights[rank:, rank:]
        right = residuals - RIDGE * weights[rank:, :rank]
        size = np.sqrt(np.maximum(np.diag(system), 0.0))
        longest = np.repeat([part.max() for part in np.split(size, 2)], rank)
        unit = np.divide(1.0, size, out=np.zeros_like(size), where=size > LEAST_SIZE * longest)
        system = unit[:, None] * system * unit
        if not np.isfinite(system).all():  # the solver reports the objective, which is not finite either
            return cls(np.zeros_like(right))
        values, vectors = np.linalg.eigh(system)
        # λ³/(λ⁴ + ε⁴), a smooth version of 1/λ above ε and 0 below it. It is at most 1/λ, so no step rises.
        values = np.maximum(values, 0.0)
        least = LEAST_PART * max(values.max(), np.finfo(np.float64).tiny)
        shares = values / least
        inverse = (vectors * (shares**3 / (shares**4 + 1.0) / least)) @ vectors.T
        return cls(unit[:, None] * (inverse @ (unit[:, None] * right)))

    @property
    def of_coef(self) -> ImplicitMove:
        """The change of a line on the rated side."""
        return ImplicitMove(self.matrix, 0, 2)

    @property
    def of_residuals(self) -> ImplicitMove:
        """The change of a line on the rating side."""
        return ImplicitMove(-self.matrix, 1, 4)

    def before(self, by: RowMap) -> CoefStep:
        """The same step for lines to which the map x ─► xT has not been applied yet: TAT⁻¹ and TBT⁻¹."""
        rank = self.matrix.shape[1]
        turn = by.matrix[-rank:, -rank:]
        mapped = np.concatenate([turn @ part for part in np.split(self.matrix, 2)])
        return CoefStep(np.ascontiguousarray(np.linalg.solve(turn.T, mapped.T).T, np.float64))

    def moved(self, weights: Matrix) -> Matrix:
        """The Gram matrix of [W Z D] after the step."""
        rank = self.matrix.shape[1]
        change = np.zeros((3 * rank, 3 * rank))  # [W Z D] times this is [W + X C, Z, X C]
        change[: 2 * rank, : 2 * rank] = np.eye(2 * rank)
        change[rank:, :rank] = change[rank:, 2 * rank :] = self.matrix
        return np.asarray(change.T @ weights @ change)


@jit
def _move_implicit(implicit, matrix, value, directions, first, last):
    size = matrix.shape[1]
    out = np.empty(size)
    for i in range(first, last):
        x, y, last_step = (
            implicit[i, value * size : (value + 1) * size], implicit[i, directions * size : (directions + 2) * size],
            implicit[i, (directions + 1) * size : (directions + 2) * size],
        )  # fmt: skip
        out[:] = 0.0
        for j in range(2 * size):
            part = np.float64(y[j])
            for k in range(size):
                out[k] += part * matrix[j, k]
        for k in range(size):
            x[k] += out[k]
            last_step[k] = out[k]
