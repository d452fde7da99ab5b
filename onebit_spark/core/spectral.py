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
from numpy.typing import NDArray

from onebit_spark.core.blocks import Sums
from onebit_spark.core.losses.base import Side
from onebit_spark.core.spectral_rows import (
    CubeSums,
    Factors,
    Keyed,
    Numbered,
    Rows,
    SquareSum,
    StartTable,
    Table,
    added,
    distinct_keys,
    gram,
    scaled_product,
)

T = TypeVar("T")
AnyTable = NDArray[np.floating]  # as it was made, or a product

SUBSPACE_ITERATIONS = 2  # with this oversampling, more iterations change neither the objective nor the error of a fit
OVERSAMPLING = 6
NEGLIGIBLE = 1e-5  # directions below this share of the largest are rounding errors: products have 24 bits
NO_FACTOR = 3e-4  # singular values of Y below this share of the largest make no factor
FEW_KEYS = 4  # with fewer distinct (ratings, positives) per direction, the keys of the rows are added
MARGIN = 0.5  # mean of y·u at the start; a little small is better than a little large
LINES = 2**18  # of a table that are computed at a time
LEAST_SIGNAL = 1e-3  # the least √f: a column of exact zeros would stay zero in every iteration


class SignMatrix(Protocol[T]):
    """Products with Y, which is never formed. A tall table has one line per row of a side, in the engine's own type T.

    Attributes
    ----------
    total_weight : float
        n, or the sum of the weights.
    """

    total_weight: float

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


def spectral_start(matrix: SignMatrix[T], rank: int, seed: int) -> tuple[T, T]:
    """The spectral start. Rows without ratings get zeros.

    Parameters
    ----------
    matrix : SignMatrix
        Y.
    rank : int
        K.
    seed : int
        Seed of the random matrix.

    Returns
    -------
    L, R : tall tables, m1 × K and m2 × K
    """
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
    scale = np.sqrt(MARGIN * matrix.total_weight / np.sum((shrinkage * sigma) ** 2))
    for_rows = Factors(rotation * (scale * shrinkage / np.sqrt(sigma)), rank - kept, seed)
    for_cols = Factors(right @ rotation * (scale * shrinkage * np.sqrt(sigma)), rank - kept, seed)
    # Σ_j R_jk³ is made positive. A sum over columns does not depend on their numbering.
    sign = np.where(matrix.total("cols", CubeSums(for_cols), z) < 0, -1.0, 1.0)
    rows, cols = for_rows.turned(sign), for_cols.turned(sign)
    if kept < rank:
        squares = matrix.total("rows", SquareSum(rows), w), matrix.total("cols", SquareSum(cols), z)
        rows, cols = (
            factors.filled(float(square) / (n * max(kept, 1)))
            for factors, square, n in zip(
                (rows, cols), squares, (matrix.count("rows"), matrix.count("cols")), strict=True
            )
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


# ---- tables that fit one process -------------------------------------------------------------------------------------


class Products(Protocol):
    """What ``ArrayTables`` needs from an engine."""

    total_weight: float

    def row_weights(self, side: Side) -> tuple[Sums, Sums]:
        """Sums of the weights of every row of the side: of all its ratings, and of the positive ones."""

    def signed_sums(self, side: Side, table: StartTable) -> StartTable:
        """Σ_{l∈Ω_i} w_l y_l table_j for every row i of the side: Y·table, or Yᵀ·table."""


class ArrayTables:
    """A ``SignMatrix`` for an engine whose tall tables are arrays in this process."""

    def __init__(self, engine: Products) -> None:
        self._engine = engine
        self.total_weight = engine.total_weight

    def count(self, side: Side) -> int:
        return int(np.count_nonzero(self._rows(side).counts))

    def distinct_keys(self, side: Side, enough: int) -> int:
        return len(distinct_keys(self._rows(side)))

    def tall(self, side: Side, make: Callable[..., Table], *tables: AnyTable) -> AnyTable:
        return self._by_parts(side, lambda rows, part: make(rows, *(table[part] for table in tables)))

    def product(self, side: Side, table: AnyTable, right: Table) -> AnyTable:
        other: Side = "cols" if side == "rows" else "rows"
        sent = self._by_parts(other, lambda rows, part: scaled_product(rows, table[part], right))
        sums = self._engine.signed_sums(side, np.asarray(sent, np.float32))
        return self._by_parts(side, lambda rows, part: np.asarray(rows.scale * sums[part], np.float32))

    def total(self, side: Side, measure: Callable[[Rows, Table], Table], table: AnyTable) -> Table:
        rows = self._rows(side)
        parts = [measure(rows.part(part), table[part].astype(np.float64, copy=False)) for part in _parts(len(table))]
        return np.asarray(sum(parts[1:], parts[0]))

    def _by_parts(self, side: Side, make: Callable[[Rows, slice], AnyTable]) -> AnyTable:
        """A table made from some lines at a time: no wide intermediate result has all of them."""
        rows = self._rows(side)
        n, (first, *others) = len(rows.numbers), _parts(len(rows.numbers))
        lines = make(rows.part(first), first)
        if not others:
            return lines
        table = np.empty((n, lines.shape[1]), lines.dtype)
        table[first] = lines
        for part in others:
            table[part] = make(rows.part(part), part)
        return table

    def _rows(self, side: Side) -> Rows:
        counts, positives = self._engine.row_weights(side)
        return Rows(np.arange(len(counts)), counts, positives)


def _parts(n: int) -> list[slice]:
    return [slice(start, start + LINES) for start in range(0, max(1, n), LINES)]
