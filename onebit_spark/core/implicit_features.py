"""Implicit features: which columns a row has rated says something about the row before any label is read.

    L_i ~ N(p_i, diag γ),     p_i = |Ω_i|^{−½} Σ_{j∈Ω_i} w_j,     w_jk ~ N(0, γ_k/ρ)

Ω_i are the *different* columns that row i has rated. The same holds for the columns, with weights of the rows. So every
row and every column has vectors of length K, side by side in ``RowPosterior.implicit``. Three are about the prior means
of those who rate it, three about its own prior mean p_i:

    w    its weight                                  r    its residual |Ω_i|^{−½}(E L_i − p_i)
    z    the preconditioned gradient                 s    |Ω_i|^{−½} times what the z of its partners add to p_i
    d    the last step of w                          q    the same of d

They lie as [w r z d s q]: a model keeps [w r], and a rating reads [w r z d] of its partner. With F_ij = |Ω_i|^{−½}, a
half step sums these over the partners of each row and gets

    p_i = (Fw)_i,   s_i = |Ω_i|^{−½}(Fz)_i,   q_i = |Ω_i|^{−½}(Fd)_i,   z_i = (Σ_{j∈Ω_i} r_j − ρ w_i) / (|Ω_i| + ρ)

so implicit features need no pass of their own. The weights themselves move by a step that the driver finds
(``weight_step``).
"""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.compiled import jit
from onebit_spark.core.gram import gram_matrix
from onebit_spark.core.losses.row_sums import CHUNK, add_weighted_rows
from onebit_spark.core.posterior import SENT_VECTORS, FloatArray, RowPosterior

RIDGE = 5.0  # ρ; from 3 to 10 it hardly matters


def sent(partners: RowPosterior) -> FloatArray:
    """[w r z d] of every partner, as ``tell`` reads them."""
    assert partners.implicit is not None
    return np.ascontiguousarray(partners.implicit[:, : SENT_VECTORS * partners.rank])


def tell(
    block: RatingBlock, lo: int, hi: int, partners: FloatArray, own: FloatArray, means: NDArray[np.float64]
) -> None:
    """Write z, s and q of the rows lo … hi−1, and add their prior means p_i to ``means``.

    Parameters
    ----------
    block : RatingBlock
        The ratings.
    lo, hi : int
        First row, and last row + 1.
    partners : array, · × 4K
        [w r z d] of the block's columns.
    own : array, · × 6K
        ``implicit`` of its rows.
    means : array, m × K
        Prior means of the factors, one line per row.
    """
    _tell(block.row_pointers, block.codes, lo, hi, partners, own, RIDGE, means)


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
    """p_i of rows that are new: their ratings are taken for the first of a ``typical`` number n̄.

    The n̄ − |Ω_i| ratings to come are expected to be like others, so p_i = n̄^{−½} Σ w_j + (1 − |Ω_i|/n̄) p̄ if |Ω_i| < n̄,
    where ``centre`` is p̄, the mean of p over all ratings (docs/MATH.md, §13).
    """
    means, counts = prior_means(block, partners), block.distinct_counts[:, None]
    begun = means * np.sqrt(counts / typical) + (1.0 - counts / typical) * centre
    return np.where(counts < typical, begun, means)


def weight_gram(posterior: RowPosterior) -> NDArray[np.float64]:
    """The Gram matrix of [w z d] (3K × 3K); 0 × 0 without implicit features."""
    if posterior.implicit is None:
        return np.zeros((0, 0))
    rank = posterior.rank
    parts = [posterior.implicit[:, :rank], posterior.implicit[:, 2 * rank : 4 * rank]]
    return gram_matrix(np.hstack(parts, dtype=np.float64))


@jit
def _partner_sums(pointers, codes, i, partners, is_first, sums):
    """Σ_{j∈Ω_i} of the partners' lines; returns |Ω_i|."""
    sums[:] = 0.0
    count = 0.0
    for lo in range(pointers[i], pointers[i + 1], CHUNK):
        hi = min(lo + CHUNK, pointers[i + 1])
        for l in range(lo, hi):  # a column that is rated twice counts once; its ratings are neighbours
            is_first[l - lo] = l == pointers[i] or codes[l] >> 1 != codes[l - 1] >> 1
            count += is_first[l - lo]
        add_weighted_rows(partners, codes, lo, hi, 0, is_first, sums, True)
    return count


@jit
def _tell(pointers, codes, first, last, partners, own, ridge, means):
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
