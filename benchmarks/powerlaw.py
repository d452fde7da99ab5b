"""Ratings of a large sparse matrix with popular and rare columns, for benchmarks and tests."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

_CHUNK = 1 << 18  # ratings that power_law_chunks draws at a time, in some megabytes of memory

Floats = NDArray[np.float32]
Ratings = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int8]]  # rows, cols, labels


def power_law_ratings(
    n_rows: int,
    n_cols: int,
    n_ratings: int,
    rank: int = 3,
    exponent: float = 0.8,
    seed: int = 0,
    decay: float = 0.0,
) -> Ratings:
    """(rows, cols, labels) of a large sparse matrix with popular and rare columns.

    Rows are uniform. The column of popularity rank q has a probability ∝ q^{−exponent}; columns are
    numbered in random order. Cells are drawn independently, so a cell may occur more than once.
    Labels are logistic::

        P(y = 1) = σ(b_i + d_j + L_i·R_j),  b, d ~ N(0, ½²),  L_i·R_j of variance 2, L_ik R_jk of one ∝ k^{−decay}

    They are about as noisy as film ratings: at rank 3 even the true probabilities are wrong on
    about 27% of the labels.
    """
    size = max(0, n_ratings)  # a negative number is refused below
    rows = np.empty(size, np.int64)
    cols = np.empty(size, np.int64)
    labels = np.empty(size, np.int8)
    begin = 0
    for i, j, y in power_law_chunks(n_rows, n_cols, n_ratings, rank, exponent, seed, decay):
        chunk = slice(begin, begin := begin + len(y))
        rows[chunk] = i
        cols[chunk] = j
        labels[chunk] = y
    return rows, cols, labels


def power_law_chunks(
    n_rows: int,
    n_cols: int,
    n_ratings: int,
    rank: int = 3,
    exponent: float = 0.8,
    seed: int = 0,
    decay: float = 0.0,
) -> Iterator[Ratings]:
    """The same ratings, some hundred thousand at a time, with O(rank (n_rows + n_cols)) memory."""
    if min(n_rows, n_cols, rank) < 1 or n_ratings < 0:
        raise ValueError("n_rows, n_cols and rank must be at least 1 and n_ratings at least 0")
    rng = np.random.default_rng(seed)
    popularity = rng.permutation(np.arange(1.0, n_cols + 1) ** -exponent)
    cumulative = np.cumsum(popularity)
    cumulative /= cumulative[-1]
    row_factors, row_intercepts = _logistic_side(rng, n_rows, rank, decay)
    col_factors, col_intercepts = _logistic_side(rng, n_cols, rank, decay)
    for start in range(0, n_ratings, _CHUNK):
        size = min(_CHUNK, n_ratings - start)
        i = rng.integers(n_rows, size=size)
        j = np.searchsorted(cumulative, rng.random(size), side="right")
        # np.take gathers narrow rows several times faster than indexing
        logit = np.einsum(
            "lk,lk->l", np.take(row_factors, i, axis=0), np.take(col_factors, j, axis=0)
        )
        logit += row_intercepts[i] + col_intercepts[j]
        yield (
            i,
            j,
            np.where(rng.random(size, dtype=np.float32) < expit(logit), 1, -1).astype(np.int8),
        )


def _logistic_side(
    rng: np.random.Generator, size: int, rank: int, decay: float
) -> tuple[Floats, Floats]:
    """Factors and intercepts of one side: entries of variance √(2/r) give L_i·R_j the variance 2."""
    shares = np.arange(1.0, rank + 1) ** -decay
    scales = ((2 * shares / shares.sum()) ** 0.25).astype(np.float32)
    factors = scales * rng.standard_normal((size, rank), dtype=np.float32)
    return factors, np.float32(0.5) * rng.standard_normal(size, dtype=np.float32)
