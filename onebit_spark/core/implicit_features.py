"""Implicit features: which columns a row has rated says something about the row before any label is read.

    L_i ~ N(p_i, diag γ),     p_i = |Ω_i|^{−½} Σ_{j∈Ω_i} w_j,     w_jk ~ N(0, γ_k/ρ)

Ω_i are the *different* columns that row i has rated. The same holds for the columns, with weights of the rows. So every
row and every column has two vectors of length K for the other side, side by side in ``RowPosterior.implicit``:

    w_j    its weight: what it adds to the prior mean of those who rate it
    r_j    its residual |Ω_j|^{−½}(E R_j − q_j), where q_j is its own prior mean

Given the means, the best weights are a ridge regression. γ_k cancels in it. With F_ij = |Ω_i|^{−½}, FᵀF ≼ diag |Ω_j|,
because the lines of FᵀF sum to |Ω_j|. This gives a step that never raises the objective and needs no other row's
weight (docs/MATH.md, §13):

    w_j ─► w_j + ω (Σ_{i∈Ω_j} r_i − ρ w_j) / (|Ω_j| + ρ),     0 < ω < 2

A half step already reads the partners of each row. It takes this step with their residuals, and sums their weights to
its prior means. So implicit features need no pass of their own. A new weight takes effect in the next half step of the
other side.
"""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.compiled import jit
from onebit_spark.core.gram import gram_matrix
from onebit_spark.core.losses.row_sums import CHUNK, add_weighted_rows
from onebit_spark.core.posterior import FloatArray, RowPosterior

RIDGE = 5.0  # ρ; from 3 to 10 it hardly matters


def tell(
    block: RatingBlock, lo: int, hi: int, partners: FloatArray, own: FloatArray, relaxation: float,
    means: NDArray[np.float64], share: float = 1.0,
) -> None:  # fmt: skip
    """The step of the weights of the rows lo … hi−1, and their prior means p_i, which are added to ``means``.

    Parameters
    ----------
    block : RatingBlock
        The ratings.
    lo, hi : int
        First row, and last row + 1.
    partners, own : array, · × 2K
        ``implicit`` of the block's columns, and of its rows. The weights of the rows change in place.
    relaxation : float
        ω.
    means : array, m × K
        Prior means of the factors, one line per row.
    share : float
        θ: the step's curvature is |Ω_j|/θ, because the weights of side features move at the same time (§15).
    """
    _tell(block.row_pointers, block.codes, lo, hi, partners, own, RIDGE, relaxation, share, means)


def leave_residuals(block: RatingBlock, lo: int, hi: int, rows: RowPosterior, means: NDArray[np.float64]) -> None:
    """Write r_i of the updated rows lo … hi−1, whose prior means are ``means`` (m × D)."""
    assert rows.implicit is not None
    rank = rows.rank
    counts = np.maximum(block.distinct_counts[lo:hi], 1)
    distance = rows.location[lo:hi, -rank:] - means[lo:hi, -rank:]
    rows.implicit[lo:hi, rank:] = distance / np.sqrt(counts)[:, None]


def prior_means(block: RatingBlock, partners: FloatArray) -> NDArray[np.float64]:
    """p_i of every row of a block (rows × K)."""
    means = np.zeros((block.n_rows, partners.shape[1] // 2))
    tell(block, 0, block.n_rows, partners, np.zeros((block.n_rows, partners.shape[1])), 0.0, means)
    return means


def newcomer_means(
    block: RatingBlock, partners: FloatArray, centre: NDArray[np.float64], typical: float
) -> NDArray[np.float64]:
    """p_i of rows that are new: their ratings are taken for the first of a ``typical`` number n̄.

    The n̄ − |Ω_i| ratings to come are expected to be like others, so p_i = n̄^{−½} Σ w_j + (1 − |Ω_i|/n̄) p̄ if |Ω_i| < n̄,
    where ``centre`` is p̄, the mean of p over all ratings (docs/MATH.md, §13).
    """
    means, counts = prior_means(block, partners), block.distinct_counts[:, None]
    begun = means * np.sqrt(counts / typical) + (1.0 - counts / typical) * centre
    return np.where(counts < typical, begun, means)


def weight_gram(posterior: RowPosterior) -> NDArray[np.float64]:
    """Σ_j w_j w_jᵀ (K × K); zeros without implicit features."""
    if posterior.implicit is None:
        return np.zeros((posterior.rank, posterior.rank))
    return gram_matrix(posterior.implicit[:, : posterior.rank])


@jit
def _tell(pointers, codes, first, last, partners, own, ridge, relaxation, share_of_steps, means):
    size = means.shape[1]
    sums, is_first = np.empty(2 * size), np.empty(CHUNK)
    for i in range(first, last):
        if pointers[i] == pointers[i + 1]:
            continue
        sums[:] = 0.0
        count = 0.0
        for lo in range(pointers[i], pointers[i + 1], CHUNK):
            hi = min(lo + CHUNK, pointers[i + 1])
            for l in range(lo, hi):  # a column that is rated twice counts once; its ratings are neighbours
                is_first[l - lo] = l == pointers[i] or codes[l] >> 1 != codes[l - 1] >> 1
                count += is_first[l - lo]
            add_weighted_rows(partners, codes, lo, hi, 0, is_first, sums, True)
        share = 1.0 / np.sqrt(count)
        for k in range(size):
            means[i, k] += share * sums[k]
            own[i, k] += relaxation * (sums[size + k] - ridge * own[i, k]) / (count / share_of_steps + ridge)
