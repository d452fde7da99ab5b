"""The start: the leading singular vectors of the normalised sign matrix, the same however rows are numbered.

    D_r^{−½} Y D_c^{−½} ≈ U Σ Vᵀ,   L = t·D_r^{−½} U (FΣ)^{½},   R = t·D_c^{−½} V (FΣ)^{½},   t² = n / (2 Σ_k f_k σ_k²)

Y is the signed sparse matrix (repeated cells summed), D the observation counts. With this t the mean margin y_l·u_l
over the n ratings is ½, for Σ_l y_l u_l = t² tr((FΣ)^{½}Uᵀ D_r^{−½}Y D_c^{−½} V(FΣ)^{½}) = t² Σ_k f_k σ_k²: no pass is
needed. f_k = (1 − σ_+²/σ_k²)² shrinks what is hardly above σ_+, the last singular value computed beyond the K wanted
ones: the edge of the noise. Columns of noise start so small that the prior switches them off at once; started at full
size they survive in a worse optimum (the hinge on type B, noise 3: rank 5 and an objective 6% higher).

Subspace iteration from a random matrix whose line for column j is drawn from (seed, ratings of j, positive ratings of
j), never from the position of j. Where too few columns differ in these counts, Yᵀ times lines drawn the same way for
the rows is added, so that columns with equal counts differ too.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from onebit_spark.losses.base import Side

Table = NDArray[np.float64]

SUBSPACE_ITERATIONS = 2  # with the oversampling below, more change neither the objective nor the error of a fit
OVERSAMPLING = 6
NEGLIGIBLE = 1e-7  # singular values below this share of the largest carry rounding, not structure
FEW_KEYS = 4  # distinct (ratings, positives) a direction, below which the rows' keys help
MARGIN = 0.5  # mean of y·u at the start; a little small is better than a little large
LEAST_SIGNAL = 1e-3  # the least √f: a column of exact zeros could never come to life
NOISE = 1e-2  # size of the columns that the spectrum cannot fill, relative to the typical factor


class SignMatrix(Protocol):
    """Y as an engine offers it: through products, never whole."""

    def counts(self, side: Side) -> NDArray[np.int64]:
        """Ratings of every row of the side."""

    def positives(self, side: Side) -> NDArray[np.int64]:
        """Positive ratings of every row of the side."""

    def signed_sums(self, side: Side, table: Table) -> Table:
        """Σ_{l∈Ω_i} y_l table_j for every row i of the side: Y·table, or Yᵀ·table."""


def spectral_start(matrix: SignMatrix, rank: int, seed: int) -> tuple[Table, Table]:
    """L (m1 × K) and R (m2 × K); rows without ratings get zeros."""
    row_scale, col_scale = (_inverse_root(matrix.counts(side)) for side in ("rows", "cols"))
    smallest = int(min(np.count_nonzero(row_scale), np.count_nonzero(col_scale)))
    width = min(rank + OVERSAMPLING, smallest)

    def to_rows(z: Table) -> Table:
        return row_scale * matrix.signed_sums("rows", col_scale * z)

    def to_cols(w: Table) -> Table:
        return col_scale * matrix.signed_sums("cols", row_scale * w)

    z = keyed_normals(matrix, "cols", width, seed) * (col_scale > 0)
    if _distinct_keys(matrix, "cols") < FEW_KEYS * width:
        z += to_cols(keyed_normals(matrix, "rows", width, seed) * (row_scale > 0))
    for _ in range(SUBSPACE_ITERATIONS):
        z = _orthonormal(to_cols(to_rows(z)), seed)
    w = to_rows(z)
    values, vectors = np.linalg.eigh(w.T @ w)
    values, vectors = values[::-1], vectors[:, ::-1]
    kept = min(rank, int(np.sum(values > NEGLIGIBLE * values[0])))
    sigma, rotation = np.sqrt(values[:kept]), vectors[:, :kept]
    edge = values[-1] if len(values) > rank else 0.0
    shrinkage = np.maximum(1.0 - edge / values[:kept], LEAST_SIGNAL)
    scale = np.sqrt(MARGIN * matrix.counts("rows").sum() / np.sum((shrinkage * sigma) ** 2))
    rows = scale * row_scale * (w @ rotation) * shrinkage / np.sqrt(sigma)
    cols = scale * col_scale * (z @ rotation) * shrinkage * np.sqrt(sigma)
    rows, cols = _fix_signs(rows, cols)
    if kept < rank:
        rows, cols = (
            np.hstack([rows, _filler(matrix, "rows", rows, rank - kept, seed)]),
            np.hstack([cols, _filler(matrix, "cols", cols, rank - kept, seed)]),
        )
    return rows, cols


def random_start(matrix: SignMatrix, rank: int, seed: int) -> tuple[Table, Table]:
    """Independent normal factors by position, scores of variance 1; the yardstick, not the default."""
    rng = np.random.default_rng(seed)
    rows, cols = (
        rng.normal(scale=rank**-0.25, size=(len(matrix.counts(side)), rank)) * (matrix.counts(side) > 0)[:, None]
        for side in ("rows", "cols")
    )
    return rows, cols


STARTS = {"spectral": spectral_start, "random": random_start}


def keyed_normals(matrix: SignMatrix, side: Side, width: int, seed: int) -> Table:
    """Standard normals (m × width) whose line is a hash of (seed, ratings, positives): SplitMix64, then Φ⁻¹."""
    with np.errstate(over="ignore"):
        key = _mix(matrix.counts(side).astype(np.uint64), seed % 2**64)
        key = _mix(matrix.positives(side).astype(np.uint64), key)
        bits = _mix(np.arange(width, dtype=np.uint64), key[:, None])
    return np.asarray(ndtri((bits >> np.uint64(11)).astype(np.float64) * 2.0**-53 + 2.0**-54))


def _distinct_keys(matrix: SignMatrix, side: Side) -> int:
    """How many different (ratings, positives) there are among the rows of the side."""
    return len(np.unique(np.stack([matrix.counts(side), matrix.positives(side)]), axis=1).T)


def _mix(value: NDArray[np.uint64], key: NDArray[np.uint64] | int) -> NDArray[np.uint64]:
    """A hash of value and key: the finaliser of SplitMix64 (Steele, Lea and Flood, 2014) on their sum."""
    x: NDArray[np.uint64] = value + np.asarray(key, np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _inverse_root(counts: NDArray[np.int64]) -> Table:
    """D^{−½} as a column, 0 for empty rows."""
    return np.where(counts > 0, 1.0 / np.sqrt(np.maximum(counts, 1)), 0.0)[:, None]


def _orthonormal(z: Table, seed: int) -> Table:
    """Columns that span z, orthonormal, by its Gram matrix: only K×K numbers leave the blocks.

    Where the data are so symmetric that the keyed lines cancel exactly, nothing but the position can tell the columns
    apart: then, and only then, it does.
    """
    values, vectors = np.linalg.eigh(z.T @ z)
    if not values[-1] > 0:
        z = np.random.default_rng(seed).normal(size=z.shape)
        values, vectors = np.linalg.eigh(z.T @ z)
    keep = values > NEGLIGIBLE**2 * values[-1]
    return np.asarray(z @ (vectors[:, keep] / np.sqrt(values[keep])))


def _fix_signs(rows: Table, cols: Table) -> tuple[Table, Table]:
    """Make Σ_j R_jk³ positive: a sum over columns, so independent of their numbering."""
    sign = np.where(np.sum(cols**3, axis=0) < 0, -1.0, 1.0)
    return rows * sign, cols * sign


def _filler(matrix: SignMatrix, side: Side, known: Table, width: int, seed: int) -> Table:
    """Small noise for the columns beyond the matrix's rank, keyed like the start."""
    size = NOISE * (np.sqrt(np.mean(known**2)) if known.size else 1.0)
    noise = size * keyed_normals(matrix, side, width, seed + 1)
    return np.asarray(noise * (matrix.counts(side) > 0)[:, None])
