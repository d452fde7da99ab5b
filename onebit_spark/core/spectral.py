"""The spectral start: leading singular vectors of the normalised sign matrix (docs/MATH.md, §7.1).

    D_r^{−½} Y D_c^{−½} ≈ U Σ Vᵀ,   L = t·D_r^{−½} U (FΣ)^{½},   R = t·D_c^{−½} V (FΣ)^{½},   t² = n / (2 Σ_k f_k σ_k²)

Y is the sparse matrix of signs (repeated cells are summed), D the numbers of ratings. With weights, a rating counts as
w_l ratings: in Y, in D, in n and in the keys below (docs/MATH.md, §16). With this t the mean margin y_l·u_l over the n
ratings is ½, because Σ_l y_l u_l = t² tr((FΣ)^{½}Uᵀ D_r^{−½}Y D_c^{−½} V(FΣ)^{½}) = t² Σ_k f_k σ_k². So no pass over
the ratings is needed. f_k = (1 − σ_+²/σ_k²)² shrinks factors that are hardly above σ_+, the smallest singular value
that is computed. It is beyond the K wanted ones and estimates the edge of the noise. A column of noise starts so small
that the prior switches it off at once. At full size it would survive in a worse optimum (hinge, type B with noise 3:
rank 5, and an objective that is 6% higher).

The subspace iteration starts from a random matrix. Its line for column j is a hash of the seed, the number of ratings
of j and the number of positive ratings of j. It does not depend on the position of j. If too few columns differ in
these counts, Yᵀ times such lines for the rows is added. Then columns with equal counts differ too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import numpy as np

from onebit_spark.core.losses.base import SIDES, Side
from onebit_spark.core.spectral_rows import (
    CubeSums,
    Factors,
    Keyed,
    Numbered,
    Rows,
    SquareSum,
    Table,
    added,
    gram,
)

T = TypeVar("T")

SUBSPACE_ITERATIONS = 2  # with this oversampling, more iterations change neither the objective nor the error of a fit
OVERSAMPLING = 6
NEGLIGIBLE = 1e-5  # directions below this share of the largest are rounding errors: products have 24 bits
NO_FACTOR = 3e-4  # singular values of Y below this share of the largest make no factor
FEW_KEYS = 4  # with fewer distinct (ratings, positives) per direction, the keys of the rows are added
MARGIN = 0.5  # mean of y·u at the start; a little small is better than a little large
LEAST_SIGNAL = 1e-3  # the least √f: a column of exact zeros would stay zero in every iteration


class SignMatrix(Protocol[T]):
    """Products with Y, which is never formed. A tall table T has one line per row of a side, in the engine's form."""

    total_weight: float  # n, or the sum of the weights

    def count(self, side: Side) -> int:
        """Rows of the side with at least one rating."""

    def distinct_keys(self, side: Side, enough: int) -> int:
        """Number of different (counts, positives) of the rows of the side. From ``enough`` on it need not be exact."""

    def tall(self, side: Side, make: Callable[..., Table], *tables: T) -> T:
        """The table make(rows, *tables), line by line."""

    def product(self, side: Side, table: T, right: Table) -> T:
        """D^{−½} Y D^{−½} (table·right) for a table of the other side; Yᵀ if the side is the columns."""

    def total(self, side: Side, measure: Callable[[Rows, Table], Table], table: T) -> Table:
        """The sum of measure(rows, lines) over all lines of the table."""


def spectral_start(matrix: SignMatrix[T], rank: int, seed: int, margin: float = MARGIN) -> tuple[T, T]:
    """The spectral start: L (m1 × K) and R (m2 × K) from Y. Rows without ratings get zeros."""
    width = min(rank + OVERSAMPLING, matrix.count("rows"), matrix.count("cols"))
    right = np.eye(width)
    z = matrix.tall("cols", Keyed(width, seed))
    if matrix.distinct_keys("cols", FEW_KEYS * width) < FEW_KEYS * width:
        z = matrix.tall("cols", added, z, matrix.product("cols", matrix.tall("rows", Keyed(width, seed)), right))
    for _ in range(SUBSPACE_ITERATIONS):
        z = matrix.product("cols", matrix.product("rows", z, right), np.eye(right.shape[1]))
        basis = _orthonormal(matrix.total("cols", gram, z))
        if basis is None:
            # The data are so symmetric that the keyed lines cancel exactly. Only in this case the positions of the
            # columns are used.
            z = matrix.tall("cols", Numbered(width, seed))
            basis = _orthonormal(matrix.total("cols", gram, z))
            assert basis is not None
        right = basis
    w = matrix.product("rows", z, right)
    values, vectors = np.linalg.eigh(matrix.total("rows", gram, w))
    values, vectors = values[::-1], vectors[:, ::-1]
    kept = min(rank, int(np.sum(values > NO_FACTOR**2 * values[0])))
    sigma, rotation = np.sqrt(values[:kept]), vectors[:, :kept]
    edge = values[-1] if len(values) > rank else 0.0
    shrinkage = np.maximum(1.0 - edge / values[:kept], LEAST_SIGNAL)
    scale = np.sqrt(margin * matrix.total_weight / np.sum((shrinkage * sigma) ** 2))
    for_rows = Factors(rotation * (scale * shrinkage / np.sqrt(sigma)), rank - kept, seed)
    for_cols = Factors(right @ rotation * (scale * shrinkage * np.sqrt(sigma)), rank - kept, seed)
    # Σ_j R_jk³ is made positive. A sum over columns does not depend on their numbering.
    sign = np.where(matrix.total("cols", CubeSums(for_cols), z) < 0, -1.0, 1.0)
    rows, cols = for_rows.turned(sign), for_cols.turned(sign)
    if kept < rank:
        squares = matrix.total("rows", SquareSum(rows), w), matrix.total("cols", SquareSum(cols), z)
        rows, cols = (
            factors.filled(float(square) / (matrix.count(side) * max(kept, 1)))
            for side, factors, square in zip(SIDES, (rows, cols), squares, strict=True)
        )
    return matrix.tall("rows", rows, w), matrix.tall("cols", cols, z)


def random_start(matrix: SignMatrix[T], rank: int, seed: int) -> tuple[T, T]:
    """Independent normal factors with scores of variance 1, for comparison with ``spectral_start``."""
    return (
        matrix.tall("rows", Numbered(rank, 2 * seed, rank**-0.25)),
        matrix.tall("cols", Numbered(rank, 2 * seed + 1, rank**-0.25)),
    )


STARTS = {"spectral": spectral_start, "random": random_start}


def _orthonormal(gram: Table) -> Table | None:
    """A such that z·A has orthonormal columns and spans z, from the K×K matrix zᵀz. None if z is 0."""
    values, vectors = np.linalg.eigh(gram)
    if not values[-1] > 0:
        return None
    keep = values > NEGLIGIBLE**2 * values[-1]
    return np.asarray(vectors[:, keep] / np.sqrt(values[keep]))
