"""RowPosterior: the Gaussian variational posterior of every row of one side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.floating]  # float32 or float64
DoubleArray = NDArray[np.float64]
Kind = Literal["spread", "covariance"]

RANK_THRESHOLD = 0.01  # of the strongest factor: a weaker one is not in use
LEAST_STRENGTH = 0.01  # of a score: a factor that moves scores by less moves no probability by more than .0025


def packed_size(dimension: int) -> int:
    """Number of entries of a packed lower triangle: D(D+1)/2."""
    return dimension * (dimension + 1) // 2


def _diagonal(dimension: int) -> NDArray[np.int64]:
    """Where the diagonal stands in a packed lower triangle."""
    return np.cumsum(np.arange(1, dimension + 1)) - 1


@dataclass(frozen=True)
class RowPosterior:
    """L_i ~ N(location_i, ·) for every row i of a side, over its free coordinates.

    The D free coordinates are the K factors, with the row's intercept before them where the model has one::

        location (m × D)   [ b_i | L_i1 … L_iK ]
        scale              kind "spread":      m × D,        the standard deviations s_ik  (√v in the paper)
                           kind "covariance":  m × D(D+1)/2, the lower triangle of V_i, row after row
    """

    location: FloatArray
    scale: FloatArray
    kind: Kind
    has_intercept: bool

    def __post_init__(self) -> None:
        rows, dimension = self.location.shape
        width = dimension if self.kind == "spread" else packed_size(dimension)
        if self.scale.shape != (rows, width):
            raise ValueError(f"a {self.kind} of {rows} rows has shape {(rows, width)}, not {self.scale.shape}")
        if self.scale.dtype != self.location.dtype:
            raise ValueError(f"location is {self.location.dtype} but scale is {self.scale.dtype}")

    @property
    def form(self) -> Form:
        return Form(self.dimension, self.kind, self.has_intercept, self.location.dtype.name)

    @property
    def n_rows(self) -> int:
        return self.location.shape[0]

    @property
    def dimension(self) -> int:
        return self.location.shape[1]

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
        """E[b] (m), or None in a model without intercepts."""
        return self.location[:, 0] if self.has_intercept else None

    @property
    def deviation(self) -> FloatArray:
        """Posterior standard deviation of every free coordinate (m × D), the intercept first."""
        if self.kind == "spread":
            return self.scale
        return np.sqrt(self.scale[:, _diagonal(self.dimension)])

    @property
    def spread(self) -> FloatArray:
        """Posterior standard deviation of the K factor columns (m × K): the hinge's s, or √diag V."""
        return self.deviation[:, int(self.has_intercept) :]

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

    def take(self, index: NDArray[np.integer] | slice) -> RowPosterior:
        """The posterior of the rows at ``index``, in that order."""
        return RowPosterior(self.location[index], self.scale[index], self.kind, self.has_intercept)

    def packed(self) -> FloatArray:
        """Location and scale side by side; ``form.unpacked`` is the inverse."""
        return np.hstack([self.location, self.scale])

    def copy(self) -> RowPosterior:
        return RowPosterior(self.location.copy(), self.scale.copy(), self.kind, self.has_intercept)

    @classmethod
    def isotropic(
        cls, location: FloatArray, standard_deviation: FloatArray | float, kind: Kind, has_intercept: bool
    ) -> RowPosterior:
        """Independent coordinates; ``standard_deviation`` is broadcast over rows and coordinates."""
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
    """How the row of a posterior is laid out when location and scale are stored and sent side by side."""

    dimension: int
    kind: Kind
    has_intercept: bool
    precision: str

    @property
    def width(self) -> int:
        return self.dimension + (self.dimension if self.kind == "spread" else packed_size(self.dimension))

    @property
    def row_bytes(self) -> int:
        return self.width * np.dtype(self.precision).itemsize

    def unpacked(self, table: FloatArray) -> RowPosterior:
        """The inverse of ``RowPosterior.packed``."""
        location, scale = table[:, : self.dimension].copy(), table[:, self.dimension :].copy()
        return RowPosterior(location, scale, self.kind, self.has_intercept)


class HasColumnNorms(Protocol):
    @property
    def column_norms(self) -> NDArray[np.float64]:
        """‖E L_k‖ for every factor."""


def effective_rank(rows: HasColumnNorms, cols: HasColumnNorms, n_rows: int, n_cols: int) -> int:
    """The factors in use: those whose strength is at least .01, and more than 1% of the strongest one's.

    A factor's strength is the root mean square of what it adds to a score, ‖E L_k‖·‖E R_k‖/√(m1·m2), over the m1 rows
    and m2 columns that have ratings. Compared with the strongest alone, the remains of factors that have all been
    switched off, as on labels of pure noise, would count.
    """
    strength = rows.column_norms * cols.column_norms / np.sqrt(n_rows * n_cols)
    return int(np.sum(strength >= max(LEAST_STRENGTH, RANK_THRESHOLD * strength.max())))
