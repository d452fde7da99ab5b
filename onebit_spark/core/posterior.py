"""RowPosterior: the Gaussian variational posterior of every row of one side."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core.compiled import jit

FloatArray = NDArray[np.floating]  # float32 or float64
DoubleArray = NDArray[np.float64]
Kind = Literal["spread", "covariance"]

# Vectors of length K in ``implicit``: what a model keeps, what a rating reads of its partner, and what a fit keeps.
MODEL_VECTORS, SENT_VECTORS, FIT_VECTORS = 2, 4, 6

RANK_THRESHOLD = 0.01  # share of the strongest factor; a weaker factor is not in use
LEAST_STRENGTH = 0.01  # a factor that moves scores by less than this moves no probability by more than .0025


def packed_size(dimension: int) -> int:
    """Number of entries of a packed lower triangle: D(D+1)/2."""
    return dimension * (dimension + 1) // 2


def _diagonal(dimension: int) -> NDArray[np.int64]:
    """Positions of the diagonal in a packed lower triangle."""
    return np.cumsum(np.arange(1, dimension + 1)) - 1


@dataclass(frozen=True)
class RowPosterior:
    """Normal posterior L_i ~ N(location_i, ·) of every row i of one side (docs/MATH.md, §1.4).

    A row has D free coordinates: the K factors and, in a model with intercepts, the intercept before them.

    Parameters
    ----------
    location : array, m × D
        Posterior means ``[b_i, L_i1 … L_iK]``.
    scale : array
        Kind "spread": m × D standard deviations s_ik (√v in the paper). Kind "covariance": m × D(D+1)/2, the lower
        triangle of V_i, row after row. Of the same type as ``location``.
    kind : {"spread", "covariance"}
        What ``scale`` contains.
    has_intercept : bool
        Whether the first coordinate is an intercept.
    implicit : array, m × 6K, optional
        With implicit features: the vectors [w r z d s q] of a row
        (``core.implicit_features``). A model keeps [w r] of it, and [w r z d] are sent to partners.
    """

    location: FloatArray
    scale: FloatArray
    kind: Kind
    has_intercept: bool
    implicit: FloatArray | None = None

    def __post_init__(self) -> None:
        rows, dimension = self.location.shape
        width = dimension if self.kind == "spread" else packed_size(dimension)
        if self.scale.shape != (rows, width):
            raise ValueError(f"a {self.kind} of {rows} rows has shape {(rows, width)}, not {self.scale.shape}")
        if self.scale.dtype != self.location.dtype:
            raise ValueError(f"location is {self.location.dtype} but scale is {self.scale.dtype}")
        if self.implicit is not None and self.implicit.shape not in (
            shapes := [(rows, n * self.rank) for n in (MODEL_VECTORS, SENT_VECTORS, FIT_VECTORS)]
        ):
            raise ValueError(f"implicit has shape {self.implicit.shape}, none of {shapes}")

    @cached_property
    def form(self) -> Form:
        """How a row is laid out when it is stored or sent."""
        return Form(self.dimension, self.kind, self.has_intercept, self.location.dtype.name, self.vectors)

    @property
    def n_rows(self) -> int:
        """m, the number of rows."""
        return self.location.shape[0]

    @property
    def dimension(self) -> int:
        """D, the number of free coordinates."""
        return self.location.shape[1]

    @property
    def rank(self) -> int:
        """K, the number of factors."""
        return self.location.shape[1] - int(self.has_intercept)

    @property
    def vectors(self) -> int:
        """The number of vectors in ``implicit``; 0 without implicit features."""
        return 0 if self.implicit is None else self.implicit.shape[1] // self.rank

    @property
    def mean(self) -> FloatArray:
        """E[L], the K factor columns (m × K)."""
        return self.location[:, int(self.has_intercept) :]

    @property
    def column_norms(self) -> NDArray[np.float64]:
        """‖E L_k‖ for every factor."""
        return np.asarray(np.linalg.norm(self.mean, axis=0), np.float64)

    @property
    def intercept(self) -> FloatArray | None:
        """E[b] of every row, or None in a model without intercepts."""
        return self.location[:, 0] if self.has_intercept else None

    @property
    def std(self) -> FloatArray:
        """Posterior standard deviation of every free coordinate (m × D), the intercept first."""
        if self.kind == "spread":
            return self.scale
        return np.sqrt(self.scale[:, _diagonal(self.dimension)])

    @property
    def spread(self) -> FloatArray:
        """Posterior standard deviation of the K factor columns (m × K): the hinge's s, or √diag V."""
        return self.std[:, int(self.has_intercept) :]

    @property
    def covariance(self) -> FloatArray:
        """V_i for every row (m × D × D), the intercept first where there is one."""
        rows, dimension = self.location.shape
        full = np.zeros((rows, dimension, dimension), self.scale.dtype)
        if self.kind == "spread":
            full[:, np.arange(dimension), np.arange(dimension)] = self.scale**2
            return full
        i, j = np.tril_indices(dimension)
        full[:, i, j] = self.scale
        full[:, j, i] = self.scale
        return full

    def total_covariance(self, chosen: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Σ_i V_i of the chosen rows (D × D)."""
        if self.kind == "spread":
            spreads = self.scale[chosen]
            return np.diag(np.einsum("ik,ik->k", spreads, spreads, dtype=np.float64))
        total = np.zeros((self.dimension, self.dimension))
        i, j = np.tril_indices(self.dimension)
        total[i, j] = total[j, i] = _total(self.scale, chosen)
        return total

    def take(self, index: NDArray[np.integer] | slice) -> RowPosterior:
        """The posterior of the rows at ``index``, in that order."""
        implicit = None if self.implicit is None else self.implicit[index]
        return RowPosterior(self.location[index], self.scale[index], self.kind, self.has_intercept, implicit)

    def packed(self) -> FloatArray:
        """Location, scale and implicit side by side; ``form.unpacked`` is the inverse."""
        return np.hstack([self.location, self.scale, *([] if self.implicit is None else [self.implicit])])

    def copy(self) -> RowPosterior:
        """The same posterior in new arrays."""
        implicit = None if self.implicit is None else self.implicit.copy()
        return RowPosterior(self.location.copy(), self.scale.copy(), self.kind, self.has_intercept, implicit)

    def astype(self, precision: str) -> RowPosterior:
        """The same posterior in numbers of another type."""
        return replace(self.form, precision=precision).unpacked(self.packed().astype(precision))

    def with_implicit(self, vectors: int = MODEL_VECTORS) -> RowPosterior:
        """The same posterior, with implicit vectors of 0."""
        blank = np.zeros((self.n_rows, vectors * self.rank), self.location.dtype)
        return RowPosterior(self.location, self.scale, self.kind, self.has_intercept, blank)

    def with_vectors(self, kept: int, vectors: int) -> RowPosterior:
        """The same with so many vectors in ``implicit``: the first ``kept`` as they are, the others 0."""
        if self.implicit is None:
            return self
        blank = np.zeros_like(self.implicit, shape=(self.n_rows, (vectors - kept) * self.rank))
        return replace(self, implicit=np.concatenate([self.implicit[:, : kept * self.rank], blank], axis=1))

    def with_factors(self, factors: FloatArray, deviation: float) -> RowPosterior:
        """The same with more factors (m × ΔK means), independent of the others, and implicit vectors of 0."""
        more, dimension = factors.shape[1], self.dimension + factors.shape[1]
        wider = Form(dimension, self.kind, self.has_intercept, self.location.dtype.name, self.vectors)
        rows = wider.unpacked(np.zeros((self.n_rows, wider.width), wider.precision))
        rows.location[:] = np.hstack([self.location, factors])
        rows.scale[:, : self.scale.shape[1]] = self.scale  # the triangle of the first coordinates stands first
        new = np.arange(self.dimension, dimension) if self.kind == "spread" else _diagonal(dimension)[-more:]
        rows.scale[:, new] = deviation if self.kind == "spread" else deviation**2
        if rows.implicit is not None and self.implicit is not None:
            for n in range(self.vectors):
                rows.implicit[:, n * rows.rank :][:, : self.rank] = self.implicit[:, n * self.rank :][:, : self.rank]
        return rows

    def with_only(self, factors: NDArray[np.integer]) -> RowPosterior:
        """The posterior of these factors, and of the intercept: what was said of the others is dropped."""
        kept = np.concatenate([np.arange(int(self.has_intercept)), factors + int(self.has_intercept)])
        scale = self.scale[:, kept]
        if self.kind == "covariance":
            a, b = (kept[index] for index in np.tril_indices(len(kept)))
            high, low = np.maximum(a, b), np.minimum(a, b)
            scale = self.scale[:, high * (high + 1) // 2 + low]
        implicit = self.implicit
        if implicit is not None:
            implicit = implicit[:, np.concatenate([factors + n * self.rank for n in range(self.vectors)])]
        return RowPosterior(self.location[:, kept], scale, self.kind, self.has_intercept, implicit)

    def put(self, index: NDArray[np.integer] | NDArray[np.bool_], rows: RowPosterior) -> None:
        """Write other rows to the places ``index``. Where they have no implicit vectors, zeros are written."""
        self.location[index], self.scale[index] = rows.location, rows.scale
        if self.implicit is not None:
            self.implicit[index] = 0.0 if rows.implicit is None else rows.implicit

    @classmethod
    def isotropic(
        cls, location: FloatArray, standard_deviation: FloatArray | float, kind: Kind, has_intercept: bool
    ) -> RowPosterior:
        """A posterior with independent coordinates. The deviation is broadcast over rows and coordinates."""
        rows, dimension = location.shape
        deviations = np.broadcast_to(np.asarray(standard_deviation, location.dtype), (rows, dimension))
        if kind == "spread":
            scale = deviations.copy()
        else:
            scale = np.zeros((rows, packed_size(dimension)), location.dtype)
            scale[:, _diagonal(dimension)] = deviations**2
        return cls(location, scale, kind, has_intercept)


@dataclass(frozen=True)
class Form:
    """Layout of one row of a posterior in a table: location, scale and implicit side by side."""

    dimension: int  # D, the number of free coordinates
    kind: Kind  # what the scale contains: see ``RowPosterior``
    has_intercept: bool  # whether the first coordinate is an intercept
    precision: str  # type of the numbers
    vectors: int = 0  # vectors of length K in ``implicit``; 0 without

    @property
    def width(self) -> int:
        """Numbers per row."""
        scale = self.dimension if self.kind == "spread" else packed_size(self.dimension)
        return self.dimension + scale + self._implicit_width

    @property
    def rank(self) -> int:
        """K, the number of factors."""
        return self.dimension - int(self.has_intercept)

    @property
    def _implicit_width(self) -> int:
        return self.vectors * self.rank

    @property
    def has_implicit(self) -> bool:
        """Whether the rows have ``implicit``."""
        return self.vectors > 0

    @property
    def sent(self) -> Form:
        """The layout of what the partners of a row read of it."""
        return replace(self, vectors=min(self.vectors, SENT_VECTORS))

    @property
    def row_bytes(self) -> int:
        """Bytes per row."""
        return self.width * np.dtype(self.precision).itemsize

    def empty(self, n_rows: int = 0) -> RowPosterior:
        """Room for so many rows."""
        return self.unpacked(np.empty((n_rows, self.width), self.precision))

    def unpacked(self, table: FloatArray) -> RowPosterior:
        """The inverse of ``RowPosterior.packed``; a table without rows may have any width."""
        table = table.reshape(-1, self.width)
        last = self.width - self._implicit_width
        location, scale = table[:, : self.dimension].copy(), table[:, self.dimension : last].copy()
        implicit = table[:, last:].copy() if self.has_implicit else None
        return RowPosterior(location, scale, self.kind, self.has_intercept, implicit)


@jit
def _total(lines, chosen):  # type: ignore[no-untyped-def]
    """The sum of the chosen lines."""
    total = np.zeros(lines.shape[1])
    for i in range(len(lines)):
        if chosen[i]:
            line = lines[i]
            for k in range(len(total)):
                total[k] += line[k]
    return total


def factors_in_use(row_norms: DoubleArray, col_norms: DoubleArray, n_rows: int, n_cols: int) -> NDArray[np.int64]:
    """The numbers of the factors in use (docs/MATH.md, §8.5).

    The strength of a factor is the root mean square of what it adds to a score, ‖E L_k‖·‖E R_k‖/√(m1·m2). A factor is
    in use if its strength is at least .01 and at least 1% of the largest strength. The first limit matters for labels
    of pure noise: there all factors are switched off, and what remains of them is of similar size.

    Parameters
    ----------
    row_norms, col_norms : arrays of length K
        ‖E L_k‖ and ‖E R_k‖.
    n_rows, n_cols : int
        m1 and m2, the rows and columns that have ratings.
    """
    strength = row_norms * col_norms / np.sqrt(n_rows * n_cols)
    return np.flatnonzero(strength >= max(LEAST_STRENGTH, RANK_THRESHOLD * strength.max()))


def effective_rank(row_norms: DoubleArray, col_norms: DoubleArray, n_rows: int, n_cols: int) -> int:
    """Number of ``factors_in_use``."""
    return len(factors_in_use(row_norms, col_norms, n_rows, n_cols))
