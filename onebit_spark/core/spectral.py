"""The spectral start: leading singular vectors of the normalised sign matrix (docs/MATH.md, §7.1).

With weights, a rating counts as w_l ratings in Y, D, n and the keys of the rows (§16). Without the
factors f_k a column of noise would survive in a worse optimum (hinge, type B with noise 3: rank 5,
and an objective that is 6% higher).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from onebit_spark.core.arrays import DoubleArray, FloatArray, Indices
from onebit_spark.core.blocks import Sums
from onebit_spark.core.loss import SIDES, Side
from onebit_spark.core.randomness import STEP, scrambled

T = TypeVar("T")

Table = DoubleArray  # one line per row of a side
# A factor or the result of a product with Y: a start needs no more digits
StartTable = NDArray[np.float32]

NOISE = 1e-2  # size of factors beyond the rank of the spectrum, relative to a typical factor


class CountedRows(NamedTuple):
    numbers: Indices  # positions of the rows in their side
    counts: Sums  # numbers of ratings, or sums of the ratings' weights
    positives: Sums  # the same for positive ratings

    def part(self, which: slice) -> CountedRows:
        return CountedRows(self.numbers[which], self.counts[which], self.positives[which])

    @property
    def scale(self) -> DoubleArray:
        """D^{−½} as a column, 0 for empty rows."""
        rated = self.counts > 0
        return np.where(rated, 1.0 / np.sqrt(np.where(rated, self.counts, 1)), 0.0)[:, None]


def scaled_product(rows: CountedRows, table: FloatArray, right: DoubleArray) -> StartTable:
    """D^{−½} table·right, the right factor of a product with Y."""
    return np.asarray(rows.scale * (table @ right), np.float32)


@dataclass(frozen=True)
class Keyed:
    """Makes ``width`` standard normals per row, from a hash of (seed, counts, positives); 0 for
    empty rows.
    """

    width: int
    seed: int

    def __call__(self, rows: CountedRows) -> DoubleArray:
        return (
            _normals((rows.counts, rows.positives), self.width, self.seed)
            * (rows.counts > 0)[:, None]
        )


@dataclass(frozen=True)
class Numbered:
    """Makes ``width`` normals per row with this standard deviation, from a hash of (seed, row); 0
    for empty rows.
    """

    width: int
    seed: int
    std: float = 1.0

    def __call__(self, rows: CountedRows) -> DoubleArray:
        return (
            self.std * _normals((rows.numbers,), self.width, self.seed) * (rows.counts > 0)[:, None]
        )


@dataclass(frozen=True)
class Factors:
    """Makes the factors of the start, D^{−½} table·right."""

    right: DoubleArray  # the right factor of a row table
    fillers: int  # columns of keyed noise, for factors beyond the rank of the spectrum
    seed: int  # seed of this noise
    noise: float = 0.0  # its size

    def __call__(self, rows: CountedRows, table: DoubleArray) -> DoubleArray:
        factors = rows.scale * (table @ self.right)
        if not self.fillers:
            return factors
        return np.hstack([factors, self.noise * Keyed(self.fillers, self.seed + 1)(rows)])

    def filled(self, mean_square: float) -> Factors:
        """The same with noise that is small compared to factors of this mean square."""
        return replace(self, noise=NOISE * np.sqrt(mean_square) or NOISE)


@dataclass(frozen=True)
class CubeSums:
    factors: Factors

    def __call__(self, rows: CountedRows, table: DoubleArray) -> DoubleArray:
        return np.asarray(np.sum((rows.scale * (table @ self.factors.right)) ** 3, axis=0))


@dataclass(frozen=True)
class SquareSum:
    factors: Factors

    def __call__(self, rows: CountedRows, table: DoubleArray) -> DoubleArray:
        return np.asarray(np.sum((rows.scale * (table @ self.factors.right)) ** 2))


def gram(rows: CountedRows, table: DoubleArray) -> DoubleArray:
    return np.asarray(table.T @ table)


Normals = Keyed | Numbered
TableSum = Callable[[CountedRows, DoubleArray], DoubleArray]  # ``gram``, CubeSums or SquareSum


def _normals(keys: tuple[Sums, ...], width: int, seed: int) -> DoubleArray:
    with np.errstate(over="ignore"):
        mixed: NDArray[np.uint64] | int = seed % 2**64
        for key in keys:
            mixed = _mix(_as_key(key), mixed)
        bits = _mix(np.arange(width, dtype=np.uint64), np.asarray(mixed)[:, None])
    return np.asarray(ndtri((bits >> np.uint64(11)).astype(np.float64) * 2.0**-53 + 2.0**-54))


def _as_key(values: Sums) -> NDArray[np.uint64]:
    """Indices by their value, whatever their type; other sums of weights by their bits."""
    if values.dtype.kind == "i":
        return values.astype(np.uint64)
    whole = (values == np.rint(values)) & (values < 2.0**63)
    return np.where(
        whole,
        np.where(whole, values, 0).astype(np.uint64),
        values.astype(np.float64).view(np.uint64),
    )


def _mix(value: NDArray[np.uint64], key: NDArray[np.uint64] | int) -> NDArray[np.uint64]:
    """A hash of value and key: SplitMix64 of their sum."""
    mixed: NDArray[np.uint64] = scrambled(value + np.asarray(key, np.uint64) + STEP)
    return mixed


def distinct_keys(rows: CountedRows) -> Sums:
    """The different (counts, positives) of some rows, one per line."""
    keys: Any = np.stack([rows.counts, rows.positives], axis=1)
    return np.unique(keys, axis=0)


# ---- the start ---------------------------------------------------------------------------------

SUBSPACE_ITERATIONS = (
    2  # with this oversampling, more iterations change neither the objective nor the error of a fit
)
OVERSAMPLING = 6
NEGLIGIBLE = (
    1e-5  # directions below this share of the largest are rounding errors of float32 products
)
NO_FACTOR = 3e-4  # singular values of Y below this share of the largest are ignored
FEW_KEYS = (
    4  # with fewer distinct (ratings, positives) per direction, the keys of the rows are added
)
MARGIN = 0.5  # mean of y·u at the start; too small is better than too large
LEAST_SIGNAL = 1e-3  # the least √f: a column of exact zeros would stay zero in every iteration


class SignMatrix(Protocol[T]):
    """Products with Y, which is never formed.

    A row table T has one line per row of a side, in the engine's form.
    """

    @property
    def total_weight(self) -> float:
        """n, or the sum of the weights."""

    def count(self, side: Side) -> int:
        """Number of rows of the side with at least one rating."""

    def distinct_keys(self, side: Side, enough: int) -> int:
        """Number of different (counts, positives) of the rows of the side.

        From ``enough`` on it need not be exact.
        """

    def draw(self, side: Side, normals: Normals) -> T:
        """Normals for every row of the side."""

    def add(self, side: Side, table: T, other: T) -> T:
        """The sum of two tables of the side."""

    def factors(self, side: Side, factors: Factors, table: T) -> T:
        """The factors of the start, line by line."""

    def product(self, side: Side, table: T, right: DoubleArray) -> T:
        """D^{−½} Y D^{−½} (table·right) for a table of the other side; Yᵀ if the side is the
        columns.
        """

    def total(self, side: Side, measure: TableSum, table: T) -> DoubleArray:
        """The sum of measure(rows, lines) over all lines of the table."""


def spectral_start(
    matrix: SignMatrix[T], rank: int, seed: int, margin: float = MARGIN
) -> tuple[T, T]:
    """The spectral start: L (m1 × K) and R (m2 × K) from Y. Rows and columns without ratings get
    zeros.
    """
    width = min(rank + OVERSAMPLING, matrix.count("rows"), matrix.count("cols"))
    right = np.eye(width)
    z = matrix.draw("cols", Keyed(width, seed))
    if matrix.distinct_keys("cols", FEW_KEYS * width) < FEW_KEYS * width:
        keys = matrix.draw("rows", Keyed(width, seed))
        z = matrix.add("cols", z, matrix.product("cols", keys, right))
    for _ in range(SUBSPACE_ITERATIONS):
        z = matrix.product("cols", matrix.product("rows", z, right), np.eye(right.shape[1]))
        basis = _orthonormal(matrix.total("cols", gram, z))
        if basis is None:
            # The data are so symmetric that the keyed lines cancel exactly. Only then are the
            # positions of the columns used.
            z = matrix.draw("cols", Numbered(width, seed))
            basis = _orthonormal(matrix.total("cols", gram, z))
            assert basis is not None
        right = basis
    w = matrix.product("rows", z, right)
    values, vectors = np.linalg.eigh(matrix.total("rows", gram, w))
    values = values[::-1]
    vectors = vectors[:, ::-1]
    kept = min(rank, int(np.sum(values > NO_FACTOR**2 * values[0])))
    sigma = np.sqrt(values[:kept])
    rotation = vectors[:, :kept]
    edge = values[-1] if len(values) > rank else 0.0
    shrinkage = np.maximum(1.0 - edge / values[:kept], LEAST_SIGNAL)
    # Without a factor, Y is 0: every cell was rated both ways equally often.
    scale = (
        np.sqrt(margin * matrix.total_weight / np.sum((shrinkage * sigma) ** 2)) if kept else 0.0
    )
    for_rows = Factors(rotation * (scale * shrinkage / np.sqrt(sigma)), rank - kept, seed)
    for_cols = Factors(right @ rotation * (scale * shrinkage * np.sqrt(sigma)), rank - kept, seed)
    # The signs make Σ_j R_jk³ positive. A sum over columns does not depend on their numbering.
    sign = np.where(matrix.total("cols", CubeSums(for_cols), z) < 0, -1.0, 1.0)
    rows, cols = (replace(factors, right=factors.right * sign) for factors in (for_rows, for_cols))
    if kept < rank:
        squares = matrix.total("rows", SquareSum(rows), w), matrix.total("cols", SquareSum(cols), z)
        rows, cols = (
            factors.filled(float(square) / (matrix.count(side) * max(kept, 1)))
            for side, factors, square in zip(SIDES, (rows, cols), squares, strict=True)
        )
    return matrix.factors("rows", rows, w), matrix.factors("cols", cols, z)


def random_start(matrix: SignMatrix[T], rank: int, seed: int) -> tuple[T, T]:
    """Independent normal factors with scores of variance 1, for comparison with
    ``spectral_start``.
    """
    std = rank**-0.25
    rows = matrix.draw("rows", Numbered(rank, 2 * seed, std))
    cols = matrix.draw("cols", Numbered(rank, 2 * seed + 1, std))
    return rows, cols


STARTS = {"spectral": spectral_start, "random": random_start}


def _orthonormal(gram: DoubleArray) -> DoubleArray | None:
    """A such that z·A has orthonormal columns and spans z, from the matrix zᵀz. None if z is 0."""
    values, vectors = np.linalg.eigh(gram)
    if not values[-1] > 0:
        return None
    keep = values > NEGLIGIBLE**2 * values[-1]
    return np.asarray(vectors[:, keep] / np.sqrt(values[keep]))
