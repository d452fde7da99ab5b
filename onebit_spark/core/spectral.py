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

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from onebit_spark.core.losses.base import Side

Table = NDArray[np.float64]
Integers = NDArray[np.int64]
T = TypeVar("T")

SUBSPACE_ITERATIONS = 2  # with the oversampling below, more change neither the objective nor the error of a fit
OVERSAMPLING = 6
NEGLIGIBLE = 1e-7  # singular values below this share of the largest carry rounding, not structure
FEW_KEYS = 4  # distinct (ratings, positives) a direction, below which the rows' keys help
MARGIN = 0.5  # mean of y·u at the start; a little small is better than a little large
LEAST_SIGNAL = 1e-3  # the least √f: a column of exact zeros could never come to life
NOISE = 1e-2  # size of the columns that the spectrum cannot fill, relative to the typical factor


class Rows(NamedTuple):
    """What the start knows of some rows of a side."""

    numbers: Integers
    counts: Integers  # ratings
    positives: Integers  # positive ratings

    @property
    def scale(self) -> Table:
        """D^{−½} as a column, 0 for empty rows."""
        return np.where(self.counts > 0, 1.0 / np.sqrt(np.maximum(self.counts, 1)), 0.0)[:, None]


class SignMatrix(Protocol[T]):
    """Y through products, never whole. A tall table, a line for every row of a side, is of the engine's own kind T."""

    n_ratings: int

    def count(self, side: Side) -> int:
        """Rows of the side with at least one rating."""

    def distinct_keys(self, side: Side, enough: int) -> int:
        """How many different (ratings, positives) the rows of the side have; any number ≥ ``enough`` will do."""

    def tall(self, side: Side, make: Callable[..., Table], *tables: T) -> T:
        """The table make(rows, *tables), line by line."""

    def product(self, side: Side, table: T, right: Table) -> T:
        """D^{−½} Y D^{−½} (table·right) for a table of the other side; Yᵀ if the side is the columns."""

    def total(self, side: Side, measure: Callable[[Rows, Table], Table], table: T) -> Table:
        """Σ over the lines of the table: measure(rows, lines) is a sum over those lines."""


def spectral_start(matrix: SignMatrix[T], rank: int, seed: int) -> tuple[T, T]:
    """L (m1 × K) and R (m2 × K); rows without ratings get zeros."""
    width = min(rank + OVERSAMPLING, matrix.count("rows"), matrix.count("cols"))
    right = np.eye(width)
    z = matrix.tall("cols", Keyed(width, seed))
    if matrix.distinct_keys("cols", FEW_KEYS * width) < FEW_KEYS * width:
        z = matrix.tall("cols", added, z, matrix.product("cols", matrix.tall("rows", Keyed(width, seed)), right))
    for _ in range(SUBSPACE_ITERATIONS):
        z = matrix.product("cols", matrix.product("rows", z, right), np.eye(right.shape[1]))
        basis = _orthonormal(matrix.total("cols", gram, z))
        if basis is None:
            # The data are so symmetric that the keyed lines cancel exactly: nothing but the position can tell the
            # columns apart. Then, and only then, it does.
            z = matrix.tall("cols", Numbered(width, seed))
            basis = _orthonormal(matrix.total("cols", gram, z))
            assert basis is not None
        right = basis
    w = matrix.product("rows", z, right)
    values, vectors = np.linalg.eigh(matrix.total("rows", gram, w))
    values, vectors = values[::-1], vectors[:, ::-1]
    kept = min(rank, int(np.sum(values > NEGLIGIBLE * values[0])))
    sigma, rotation = np.sqrt(values[:kept]), vectors[:, :kept]
    edge = values[-1] if len(values) > rank else 0.0
    shrinkage = np.maximum(1.0 - edge / values[:kept], LEAST_SIGNAL)
    scale = np.sqrt(MARGIN * matrix.n_ratings / np.sum((shrinkage * sigma) ** 2))
    for_rows = Factors(rotation * (scale * shrinkage / np.sqrt(sigma)), rank - kept, seed)
    for_cols = Factors(right @ rotation * (scale * shrinkage * np.sqrt(sigma)), rank - kept, seed)
    # Σ_j R_jk³ is made positive: a sum over columns, so independent of their numbering.
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
    """Independent normal factors by position, scores of variance 1; the yardstick, not the default."""
    return (
        matrix.tall("rows", Numbered(rank, 2 * seed, rank**-0.25)),
        matrix.tall("cols", Numbered(rank, 2 * seed + 1, rank**-0.25)),
    )


STARTS = {"spectral": spectral_start, "random": random_start}


# ---- what is computed line by line -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Keyed:
    """Standard normals whose line is a hash of (seed, ratings, positives): SplitMix64, then Φ⁻¹. Empty rows have 0."""

    width: int
    seed: int

    def __call__(self, rows: Rows) -> Table:
        return _normals((rows.counts, rows.positives), self.width, self.seed) * (rows.counts > 0)[:, None]


@dataclass(frozen=True)
class Numbered:
    """Normals whose line is a hash of (seed, row number); empty rows have 0."""

    width: int
    seed: int
    deviation: float = 1.0

    def __call__(self, rows: Rows) -> Table:
        return self.deviation * _normals((rows.numbers,), self.width, self.seed) * (rows.counts > 0)[:, None]


@dataclass(frozen=True)
class Factors:
    """D^{−½} table·right, and ``fillers`` more columns of keyed noise for what the spectrum cannot fill."""

    right: Table
    fillers: int
    seed: int
    noise: float = 0.0

    def __call__(self, rows: Rows, table: Table) -> Table:
        factors = rows.scale * (table @ self.right)
        if not self.fillers:
            return factors
        return np.hstack([factors, self.noise * Keyed(self.fillers, self.seed + 1)(rows)])

    def turned(self, sign: Table) -> Factors:
        return Factors(self.right * sign, self.fillers, self.seed, self.noise)

    def filled(self, mean_square: float) -> Factors:
        """With noise that is small beside factors of this mean square."""
        return Factors(self.right, self.fillers, self.seed, NOISE * np.sqrt(mean_square) or NOISE)


@dataclass(frozen=True)
class CubeSums:
    """Σ_i factors_ik³."""

    factors: Factors

    def __call__(self, rows: Rows, table: Table) -> Table:
        return np.asarray(np.sum((rows.scale * (table @ self.factors.right)) ** 3, axis=0))


@dataclass(frozen=True)
class SquareSum:
    """Σ_ik factors_ik²."""

    factors: Factors

    def __call__(self, rows: Rows, table: Table) -> Table:
        return np.asarray(np.sum((rows.scale * (table @ self.factors.right)) ** 2))


def gram(rows: Rows, table: Table) -> Table:
    """Σ_i z_i z_iᵀ."""
    return np.asarray(table.T @ table)


def added(rows: Rows, table: Table, other: Table) -> Table:
    return table + other


def _normals(keys: tuple[Integers, ...], width: int, seed: int) -> Table:
    with np.errstate(over="ignore"):
        mixed: NDArray[np.uint64] | int = seed % 2**64
        for key in keys:
            mixed = _mix(key.astype(np.uint64), mixed)
        bits = _mix(np.arange(width, dtype=np.uint64), np.asarray(mixed)[:, None])
    return np.asarray(ndtri((bits >> np.uint64(11)).astype(np.float64) * 2.0**-53 + 2.0**-54))


def _mix(value: NDArray[np.uint64], key: NDArray[np.uint64] | int) -> NDArray[np.uint64]:
    """A hash of value and key: the finaliser of SplitMix64 (Steele, Lea and Flood, 2014) on their sum."""
    x: NDArray[np.uint64] = value + np.asarray(key, np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _orthonormal(gram: Table) -> Table | None:
    """A with orthonormal columns z·A that span z, from zᵀz: only K×K numbers leave the blocks. None if z is 0."""
    values, vectors = np.linalg.eigh(gram)
    if not values[-1] > 0:
        return None
    keep = values > NEGLIGIBLE**2 * values[-1]
    return np.asarray(vectors[:, keep] / np.sqrt(values[keep]))


# ---- tables that fit one process -------------------------------------------------------------------------------------


class Products(Protocol):
    """What ``ArrayTables`` asks of an engine."""

    def counts(self, side: Side) -> Integers:
        """Ratings of every row of the side."""

    def positives(self, side: Side) -> Integers:
        """Positive ratings of every row of the side."""

    def signed_sums(self, side: Side, table: Table) -> Table:
        """Σ_{l∈Ω_i} y_l table_j for every row i of the side: Y·table, or Yᵀ·table."""


class ArrayTables:
    """The sign matrix of an engine whose tall tables are arrays in this process."""

    def __init__(self, engine: Products) -> None:
        self._engine = engine
        self.n_ratings = int(engine.counts("rows").sum())

    def count(self, side: Side) -> int:
        return int(np.count_nonzero(self._engine.counts(side)))

    def distinct_keys(self, side: Side, enough: int) -> int:
        return len(distinct_keys(self._rows(side)))

    def tall(self, side: Side, make: Callable[..., Table], *tables: Table) -> Table:
        return make(self._rows(side), *tables)

    def product(self, side: Side, table: Table, right: Table) -> Table:
        other = self._rows("cols" if side == "rows" else "rows")
        return self._rows(side).scale * self._engine.signed_sums(side, other.scale * (table @ right))

    def total(self, side: Side, measure: Callable[[Rows, Table], Table], table: Table) -> Table:
        return measure(self._rows(side), table)

    def _rows(self, side: Side) -> Rows:
        counts = self._engine.counts(side)
        return Rows(np.arange(len(counts)), counts, self._engine.positives(side))


def distinct_keys(rows: Rows) -> Integers:
    """The different (ratings, positives) among some rows, a line each."""
    return np.unique(np.stack([rows.counts, rows.positives], axis=1), axis=0)
