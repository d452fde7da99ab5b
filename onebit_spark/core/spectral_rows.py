"""What the start of a fit computes line by line: normals from a hash, factors, and sums over rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from onebit_spark.core.blocks import Sums

Table = NDArray[np.float64]  # one line per row of a side
StartTable = NDArray[np.float32]  # a table that Y is multiplied with, and the product: a start needs no more digits
Integers = NDArray[np.int64]

NOISE = 1e-2  # size of the columns that the spectrum cannot fill, relative to the typical factor


class Rows(NamedTuple):
    """Some rows of a side."""

    numbers: Integers  # their numbers
    counts: Sums  # their numbers of ratings, or the sums of their ratings' weights
    positives: Sums  # the same of their positive ratings

    def part(self, which: slice) -> Rows:
        return Rows(self.numbers[which], self.counts[which], self.positives[which])

    @property
    def scale(self) -> Table:
        """D^{−½} as a column, 0 for empty rows."""
        rated = self.counts > 0
        return np.where(rated, 1.0 / np.sqrt(np.where(rated, self.counts, 1)), 0.0)[:, None]


def scaled_product(rows: Rows, table: NDArray[np.floating], right: Table) -> StartTable:
    """D^{−½} table·right, as it is multiplied by Y."""
    return np.asarray(rows.scale * (table @ right), np.float32)


@dataclass(frozen=True)
class Keyed:
    """Makes ``width`` standard normals per row, from a hash of (seed, counts, positives); 0 for empty rows."""

    width: int
    seed: int

    def __call__(self, rows: Rows) -> Table:
        return _normals((rows.counts, rows.positives), self.width, self.seed) * (rows.counts > 0)[:, None]


@dataclass(frozen=True)
class Numbered:
    """Makes ``width`` normals per row of this ``deviation``, from a hash of (``seed``, row); 0 for empty rows."""

    width: int
    seed: int
    deviation: float = 1.0

    def __call__(self, rows: Rows) -> Table:
        return self.deviation * _normals((rows.numbers,), self.width, self.seed) * (rows.counts > 0)[:, None]


@dataclass(frozen=True)
class Factors:
    """Makes the factors of the start, D^{−½} table·right."""

    right: Table  # what the lines of a tall table are multiplied with
    fillers: int  # further columns of keyed noise, for factors beyond the rank of the spectrum
    seed: int  # seed of this noise
    noise: float = 0.0  # its size

    def __call__(self, rows: Rows, table: Table) -> Table:
        factors = rows.scale * (table @ self.right)
        if not self.fillers:
            return factors
        return np.hstack([factors, self.noise * Keyed(self.fillers, self.seed + 1)(rows)])

    def turned(self, sign: Table) -> Factors:
        """With other signs of the columns."""
        return Factors(self.right * sign, self.fillers, self.seed, self.noise)

    def filled(self, mean_square: float) -> Factors:
        """With noise that is small compared with factors of this mean square."""
        return Factors(self.right, self.fillers, self.seed, NOISE * np.sqrt(mean_square) or NOISE)


@dataclass(frozen=True)
class CubeSums:
    """Sums Σ_i factors_ik³ over rows."""

    factors: Factors

    def __call__(self, rows: Rows, table: Table) -> Table:
        return np.asarray(np.sum((rows.scale * (table @ self.factors.right)) ** 3, axis=0))


@dataclass(frozen=True)
class SquareSum:
    """Sums Σ_ik factors_ik² over rows."""

    factors: Factors

    def __call__(self, rows: Rows, table: Table) -> Table:
        return np.asarray(np.sum((rows.scale * (table @ self.factors.right)) ** 2))


def gram(rows: Rows, table: Table) -> Table:
    """Σ_i z_i z_iᵀ."""
    return np.asarray(table.T @ table)


def added(rows: Rows, table: Table, other: Table) -> Table:
    return table + other


def _normals(keys: tuple[Sums, ...], width: int, seed: int) -> Table:
    with np.errstate(over="ignore"):
        mixed: NDArray[np.uint64] | int = seed % 2**64
        for key in keys:
            mixed = _mix(_as_key(key), mixed)
        bits = _mix(np.arange(width, dtype=np.uint64), np.asarray(mixed)[:, None])
    return np.asarray(ndtri((bits >> np.uint64(11)).astype(np.float64) * 2.0**-53 + 2.0**-54))


def _as_key(values: Sums) -> NDArray[np.uint64]:
    """Whole numbers as such, of whatever type; other sums of weights by their bits."""
    if values.dtype.kind == "i":
        return values.astype(np.uint64)
    whole = (values == np.rint(values)) & (values < 2.0**63)
    return np.where(whole, np.where(whole, values, 0).astype(np.uint64), values.astype(np.float64).view(np.uint64))


def _mix(value: NDArray[np.uint64], key: NDArray[np.uint64] | int) -> NDArray[np.uint64]:
    """A hash of value and key: the finaliser of SplitMix64 (Steele, Lea and Flood, 2014) on their sum."""
    x: NDArray[np.uint64] = value + np.asarray(key, np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def distinct_keys(rows: Rows) -> Sums:
    """The different (counts, positives) of some rows, one per line."""
    keys: Any = np.stack([rows.counts, rows.positives], axis=1)
    return np.unique(keys, axis=0)
