"""Positions of rows, intercepts and slopes of columns, and their standard deviations (docs/MATH.md,
§17).

With L̃ = (b, L) and R̃ = (1, R), or L and R without intercepts, a score is d + L̃·R̃ = c + a·t::

    position t = VᵀΣ^{−½}(L̃ − mean)      slope a = VᵀΣ^{½}R̃      intercept c = d + mean·R̃
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from onebit_spark.core.arrays import DoubleArray, FloatArray
from onebit_spark.core.loss import Side
from onebit_spark.core.posterior import RowPosterior
from onebit_spark.records import Fields, Record

AT_ONCE = 2**22  # numbers that are mapped at a time
NO_SHARE = 1e-9  # a dimension that explains less than this share of the first is not determined
NO_VARIANCE = 1e-12  # nor is one along which the scores differ by less than a millionth
MOST_DIFFICULT = (
    10.0  # the largest difficulty, and the largest standard deviation of one, in a table
)


@dataclass(frozen=True)
class Axes:
    mean: DoubleArray  # of L̃, D
    positions: DoubleArray  # VᵀΣ^{−½}, D × D
    slopes: DoubleArray  # VᵀΣ^{½}, D × D
    shares: DoubleArray  # λ/Σλ, descending
    intercepts: bool

    @classmethod
    def of(cls, row_gram: DoubleArray, col_gram: DoubleArray, intercepts: bool) -> Axes:
        """From Σ [1, x][1, x]ᵀ over the rated rows, and over the rated columns.

        VᵀΣ^{−½} is computed as diag(1/λ) VᵀΣ^{½}B, because Σ is singular where a factor is switched
        off.
        """
        mean = row_gram[0, 1:] / row_gram[0, 0]
        square = row_gram[1:, 1:] / row_gram[0, 0]
        values, vectors = np.linalg.eigh(square - np.outer(mean, mean))
        root = vectors * np.sqrt(np.maximum(values, 0.0)) @ vectors.T
        kept = np.delete(np.arange(len(col_gram)), int(intercepts))  # R̃ of [1, d, R], or of [1, R]
        second = col_gram[np.ix_(kept, kept)] / col_gram[0, 0]
        values, vectors = np.linalg.eigh(root @ second @ root)
        values = np.where(values > NO_VARIANCE, values, 0.0)[::-1]
        slopes = vectors[:, ::-1].T @ root
        used = values > NO_SHARE * max(values[0], 1e-300)
        inverse = np.where(used, 1.0 / np.where(used, values, 1.0), 0.0)
        shares = values / max(values.sum(), 1e-300)
        return cls(mean, inverse[:, None] * (slopes @ second), slopes, shares, intercepts)

    @classmethod
    def of_posteriors(cls, rows: RowPosterior, cols: RowPosterior) -> Axes:
        axes = cls.of(gram(rows.location), gram(cols.location), rows.has_intercept)
        return axes.towards(axes.cubes(rows.location))

    @classmethod
    def from_dict(cls, fields: Record) -> Axes:
        arrays: Fields = {name: np.asarray(value) for name, value in fields.items()}
        return cls(**{**arrays, "intercepts": bool(fields["intercepts"])})

    def as_dict(self) -> Fields:
        return {
            name: value if isinstance(value, bool) else value.tolist()
            for name, value in vars(self).items()
        }

    @property
    def dimensions(self) -> int:
        return int(np.count_nonzero(self.shares > NO_SHARE * self.shares[0]))

    def shown(self, dimensions: int | None) -> int:
        """How many dimensions a table shows: by default two, or as many as there are."""
        return min(2, self.dimensions) if dimensions is None else int(dimensions)

    def towards(self, signs: DoubleArray) -> Axes:
        """The axes, each turned if its sign is negative."""
        turn = np.where(signs < 0, -1.0, 1.0)[:, None]
        return Axes(
            self.mean, turn * self.positions, turn * self.slopes, self.shares, self.intercepts
        )

    def cubes(self, location: FloatArray) -> DoubleArray:
        """Σ t³ of rated rows: the sign of an axis is such that it is not negative."""
        return sum_of_slices(
            location, lambda lines: np.sum(self.values("rows", lines) ** 3, axis=0)
        )

    def affine(self, side: Side) -> tuple[DoubleArray, DoubleArray]:
        """T and s with t = xT + s of a row, or [c, a] = xT + s of a column; x are the free
        coordinates.
        """
        if side == "rows":
            return self.positions.T, -self.positions @ self.mean
        matrix = np.vstack([self.mean, self.slopes]).T  # of R̃
        if not self.intercepts:
            return matrix, np.zeros(matrix.shape[1])
        shift = matrix[0].copy()
        matrix[0] = np.eye(matrix.shape[1])[0]
        return matrix, shift

    def values(self, side: Side, location: FloatArray) -> DoubleArray:
        """The positions of rows, or the intercepts and slopes of columns."""
        matrix, shift = (np.asarray(part, like=location) for part in self.affine(side))
        return location @ matrix + shift

    def spreads(self, side: Side, posterior: RowPosterior) -> NDArray[np.float32]:
        """The standard deviations of ``values``; of columns also, at the end, the covariance of c
        and the first a.
        """
        matrix = np.asarray(self.affine(side)[0], like=posterior.scale)
        n, size = posterior.location.shape
        out = np.empty_like(
            posterior.scale, np.float32, shape=(n, matrix.shape[1] + int(side == "cols"))
        )
        step = max(1, AT_ONCE // size**2)
        for part in (slice(lo, lo + step) for lo in range(0, n, step)):
            half = (posterior.take(part).covariance.reshape(-1, size) @ matrix).reshape(
                -1, *matrix.shape
            )
            out[part, : matrix.shape[1]] = np.sqrt(
                np.maximum(np.einsum("nab,ab->nb", half, matrix), 0.0)
            )
            if side == "cols":
                out[part, -1] = half[:, :, 0] @ matrix[:, 1]
        return out

    def columns(
        self, side: Side, location: FloatArray, measured: FloatArray, dimensions: int, sign: float
    ) -> dict[str, pa.Array]:
        """The columns of a table of positions after the id.

        ``measured``: number of ratings, then ``spreads``.

        ``sign`` turns the first axis.
        """
        values = self.values(side, location)
        std = measured[:, 1:].astype(np.float64)
        n_ratings = measured[:, 0]
        turn = np.where(np.arange(values.shape[1]) == int(side == "cols"), sign, 1.0)
        values = values * turn
        names = [f"dim{d + 1}" for d in range(dimensions)]
        if side == "cols":
            names = ["intercept", *(f"slope{d + 1}" for d in range(dimensions))]
        columns = {"n_ratings": pa.array(n_ratings, pa.int64(), from_pandas=True)}
        for at, name in enumerate(names):
            columns |= {name: pa.array(values[:, at]), f"{name}_std": pa.array(std[:, at])}
        if side == "cols" and dimensions == 1:  # a(t − difficulty)
            difficulty, difficulty_std = difficulties(values, std, sign * std[:, -1])
            unknown = ~((np.abs(difficulty) <= MOST_DIFFICULT) & (difficulty_std <= MOST_DIFFICULT))
            columns |= {
                "difficulty": pa.array(difficulty, mask=unknown),
                "difficulty_std": pa.array(difficulty_std, mask=unknown),
            }
        return columns


def difficulties(
    values: DoubleArray, std: DoubleArray, both: DoubleArray
) -> tuple[DoubleArray, DoubleArray]:
    """−c/a, and its standard deviation, of intercepts c and slopes a with the covariance
    ``both``.
    """
    (c, a) = values[:, :2].T
    (c_std, a_std) = std[:, :2].T
    with np.errstate(all="ignore"):  # a slope may be 0
        ratio = c / a
        variance = c_std**2 - 2 * ratio * both + (ratio * a_std) ** 2
        return -ratio, np.sqrt(np.maximum(variance, 0.0)) / np.abs(a)


def gram(location: FloatArray) -> DoubleArray:
    """Σ [1, x][1, x]ᵀ."""

    def part(lines: FloatArray) -> DoubleArray:
        whole = np.pad(lines.astype(np.float64), ((0, 0), (1, 0)), constant_values=1.0)
        return whole.T @ whole

    return sum_of_slices(location, part)


def sum_of_slices(location: FloatArray, part: Callable[[FloatArray], DoubleArray]) -> DoubleArray:
    step = max(1, AT_ONCE // location.shape[1])
    return reduce(
        np.add, (part(location[lo : lo + step]) for lo in range(0, max(1, len(location)), step))
    )
