"""The Gaussian variational posterior of every row of a side (``RowPosterior``), and affine maps of
it (``RowMap``).
"""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core.arrays import DoubleArray, FloatArray, IntArray, Mask
from onebit_spark.kernels.jit import inner, jit

Kind = Literal["spread", "covariance"]

# Vectors of length K in ``implicit``: in a model, sent to the rows that rate this one, and in a
# fit.
MODEL_VECTORS = 2
SENT_VECTORS = 4
FIT_VECTORS = 6
# The place of each vector there; ``core.features`` says what they are. Kernels of a GPU know them
# too (``rows.cuh``).
PLACE_W, PLACE_R, PLACE_Z, PLACE_D, PLACE_S, PLACE_Q = range(FIT_VECTORS)

RANK_THRESHOLD = 0.01  # share of the strongest factor; a weaker factor is not in use
LEAST_STRENGTH = (
    0.01  # a factor that moves scores by less than this moves no probability by more than .0025
)


def packed_size(dimension: int) -> int:
    return dimension * (dimension + 1) // 2


def _diagonal(dimension: int) -> NDArray[np.int64]:
    return np.cumsum(np.arange(1, dimension + 1)) - 1


@dataclass(frozen=True)
class ImplicitVectors:
    """The vectors of implicit features by name: views of the packed [w r z d s q], m × K each."""

    packed: FloatArray
    rank: int

    def at(self, place: int) -> FloatArray:
        return self.packed[:, place * self.rank : (place + 1) * self.rank]

    @property
    def w(self) -> FloatArray:
        return self.at(PLACE_W)

    @property
    def r(self) -> FloatArray:
        return self.at(PLACE_R)

    @property
    def z(self) -> FloatArray:
        return self.at(PLACE_Z)

    @property
    def d(self) -> FloatArray:
        return self.at(PLACE_D)

    @property
    def s(self) -> FloatArray:
        return self.at(PLACE_S)

    @property
    def q(self) -> FloatArray:
        return self.at(PLACE_Q)

    @property
    def sent(self) -> FloatArray:
        """[w r z d], which a rating reads of its partner."""
        return self.packed[:, : SENT_VECTORS * self.rank]

    @property
    def directions(self) -> FloatArray:
        """Y = [s q]."""
        return self.packed[:, PLACE_S * self.rank :]


@dataclass(frozen=True)
class RowPosterior:
    """Normal posterior L_i ~ N(location_i, ·) of every row i of one side (docs/MATH.md, §1.4).

    A row has D free coordinates: the K factors and, in a model with intercepts, the intercept
    before them.
    """

    location: FloatArray  # posterior means [b_i, L_i1 … L_iK], m × D
    # "spread": standard deviations s_ik (√v in the paper), m × D; "covariance": the lower triangle
    # of V_i, row after row, m × D(D+1)/2
    scale: FloatArray
    kind: Kind  # what ``scale`` contains
    has_intercept: bool  # whether the first coordinate is an intercept
    # With implicit features: the vectors [w r z d s q] of a row, m × 6K (``core.features``); a
    # model keeps [w r], and [w r z d] are sent to partners
    implicit: FloatArray | None = None

    def __post_init__(self) -> None:
        rows, dimension = self.location.shape
        width = dimension if self.kind == "spread" else packed_size(dimension)
        if self.scale.shape != (rows, width):
            raise ValueError(
                f"a {self.kind} of {rows} rows has shape {(rows, width)}, not {self.scale.shape}"
            )
        if self.scale.dtype != self.location.dtype:
            raise ValueError(f"location is {self.location.dtype} but scale is {self.scale.dtype}")
        if self.implicit is not None and self.implicit.shape not in (
            shapes := [(rows, n * self.rank) for n in (MODEL_VECTORS, SENT_VECTORS, FIT_VECTORS)]
        ):
            raise ValueError(f"implicit has shape {self.implicit.shape}, none of {shapes}")

    @cached_property
    def form(self) -> Form:
        """How a row is laid out when it is stored or sent."""
        return Form(
            self.dimension, self.kind, self.has_intercept, self.location.dtype.name, self.vectors
        )

    @property
    def n_rows(self) -> int:
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
    def features(self) -> ImplicitVectors | None:
        """The vectors in ``implicit`` by name."""
        return None if self.implicit is None else ImplicitVectors(self.implicit, self.rank)

    @property
    def mean(self) -> FloatArray:
        """E[L], the K factor columns (m × K)."""
        return self.location[:, int(self.has_intercept) :]

    @property
    def column_norms(self) -> DoubleArray:
        return np.asarray(np.linalg.norm(self.mean, axis=0), np.float64)

    @property
    def intercept(self) -> FloatArray | None:
        """E[b] of every row, or None in a model without intercepts."""
        return self.location[:, 0] if self.has_intercept else None

    @property
    def std(self) -> FloatArray:
        """Posterior standard deviation of every free coordinate (m × D), with the intercept
        first.
        """
        if self.kind == "spread":
            return self.scale
        return np.sqrt(self.scale[:, _diagonal(self.dimension)])

    @property
    def spread(self) -> FloatArray:
        """Standard deviation of the K factor columns (m × K): the hinge's s, or √diag V."""
        return self.std[:, int(self.has_intercept) :]

    @property
    def covariance(self) -> FloatArray:
        """V_i of every row (m × D × D), with the intercept first."""
        rows, dimension = self.location.shape
        full = np.zeros_like(self.scale, shape=(rows, dimension, dimension))
        if self.kind == "spread":
            full[:, np.arange(dimension), np.arange(dimension)] = self.scale**2
            return full
        i, j = np.tril_indices(dimension)
        full[:, i, j] = self.scale
        full[:, j, i] = self.scale
        return full

    def total_covariance(self, chosen: Mask) -> DoubleArray:
        """Σ_i V_i of the chosen rows (D × D)."""
        if self.kind == "spread":
            std = self.scale[chosen]
            return np.diag(np.einsum("ik,ik->k", std, std, dtype=np.float64))
        total = np.zeros((self.dimension, self.dimension))
        i, j = np.tril_indices(self.dimension)
        total[i, j] = total[j, i] = _total(self.scale, chosen)
        return total

    def take(self, index: IntArray | slice) -> RowPosterior:
        implicit = None if self.implicit is None else self.implicit[index]
        return RowPosterior(
            self.location[index], self.scale[index], self.kind, self.has_intercept, implicit
        )

    def packed(self) -> FloatArray:
        """Location, scale and implicit side by side; ``form.unpacked`` is the inverse."""
        return np.hstack(
            [self.location, self.scale, *([] if self.implicit is None else [self.implicit])]
        )

    def copy(self) -> RowPosterior:
        implicit = None if self.implicit is None else self.implicit.copy()
        return RowPosterior(
            self.location.copy(), self.scale.copy(), self.kind, self.has_intercept, implicit
        )

    def astype(self, precision: str) -> RowPosterior:
        return replace(self.form, precision=precision).unpacked(self.packed().astype(precision))

    def with_implicit(self, vectors: int = MODEL_VECTORS) -> RowPosterior:
        """The same posterior, with implicit vectors of 0."""
        return replace(
            self, implicit=np.zeros((self.n_rows, vectors * self.rank), self.location.dtype)
        )

    def with_vectors(self, kept: int, vectors: int) -> RowPosterior:
        """The same with so many vectors in ``implicit``: the first ``kept`` as they are, the others
        0.
        """
        if self.implicit is None:
            return self
        blank = np.zeros_like(self.implicit, shape=(self.n_rows, (vectors - kept) * self.rank))
        return replace(
            self, implicit=np.concatenate([self.implicit[:, : kept * self.rank], blank], axis=1)
        )

    def with_factors(self, factors: FloatArray, std: float) -> RowPosterior:
        """The same with further factors (m × ΔK means), independent of the others; their implicit
        vectors are 0.
        """
        more = factors.shape[1]
        dimension = self.dimension + factors.shape[1]
        wider = Form(
            dimension, self.kind, self.has_intercept, self.location.dtype.name, self.vectors
        )
        rows = wider.unpacked(np.zeros((self.n_rows, wider.width), wider.precision))
        rows.location[:] = np.hstack([self.location, factors])
        # The triangle of the first coordinates comes first
        rows.scale[:, : self.scale.shape[1]] = self.scale
        new = (
            np.arange(self.dimension, dimension)
            if self.kind == "spread"
            else _diagonal(dimension)[-more:]
        )
        rows.scale[:, new] = std if self.kind == "spread" else std**2
        if rows.features is not None and self.features is not None:
            for place in range(self.vectors):
                rows.features.at(place)[:, : self.rank] = self.features.at(place)
        return rows

    def with_only(self, factors: IntArray) -> RowPosterior:
        """The marginal posterior of these factors and of the intercept."""
        kept = np.concatenate(
            [np.arange(int(self.has_intercept)), factors + int(self.has_intercept)]
        )
        scale = kept
        if self.kind == "covariance":
            a, b = (kept[index] for index in np.tril_indices(len(kept)))
            high = np.maximum(a, b)
            low = np.minimum(a, b)
            scale = high * (high + 1) // 2 + low
        implicit = self.implicit
        if implicit is not None:
            implicit = implicit.take(
                np.concatenate([factors + n * self.rank for n in range(self.vectors)]), axis=1
            )
        # Take, since an index of columns would give arrays in Fortran's order, which kernels read
        # more slowly
        tables = self.location.take(kept, axis=1), self.scale.take(scale, axis=1)
        return RowPosterior(*tables, self.kind, self.has_intercept, implicit)

    def put(self, index: IntArray | Mask, rows: RowPosterior) -> None:
        """Overwrite the rows at ``index``. Implicit vectors that ``rows`` lacks become 0."""
        self.location[index] = rows.location
        self.scale[index] = rows.scale
        if self.implicit is not None:
            self.implicit[index] = 0.0 if rows.implicit is None else rows.implicit

    def among(self, prior: RowPosterior, n_rows: int, index: IntArray) -> RowPosterior:
        """So many rows: these at ``index``, and the one row of ``prior`` elsewhere."""
        rows = prior.take(np.zeros(n_rows, np.int64))
        rows.put(index, self)
        return rows

    @classmethod
    def isotropic(
        cls, location: FloatArray, std: FloatArray | float, kind: Kind, has_intercept: bool
    ) -> RowPosterior:
        """A posterior with independent coordinates.

        ``std`` is broadcast over rows and coordinates.
        """
        rows, dimension = location.shape
        stds = np.broadcast_to(np.asarray(std, location.dtype), (rows, dimension))
        if kind == "spread":
            scale = stds.copy()
        else:
            scale = np.zeros((rows, packed_size(dimension)), location.dtype)
            scale[:, _diagonal(dimension)] = stds**2
        return cls(location, scale, kind, has_intercept)


@dataclass(frozen=True)
class Form:
    """Layout of one row of a posterior in a table: location, scale and implicit, side by side."""

    dimension: int  # D, the number of free coordinates
    kind: Kind  # what the scale contains: see ``RowPosterior``
    has_intercept: bool  # whether the first coordinate is an intercept
    precision: str  # type of the numbers
    vectors: int = 0  # vectors of length K in ``implicit``; 0 without

    @property
    def width(self) -> int:
        scale = self.dimension if self.kind == "spread" else packed_size(self.dimension)
        return self.dimension + scale + self.vectors * self.rank

    @property
    def rank(self) -> int:
        return self.dimension - int(self.has_intercept)

    @property
    def sent(self) -> Form:
        """The layout of the part of a row that its partners read."""
        return replace(self, vectors=min(self.vectors, SENT_VECTORS))

    @property
    def row_bytes(self) -> int:
        return self.width * np.dtype(self.precision).itemsize

    def empty(self, n_rows: int = 0) -> RowPosterior:
        return self.unpacked(np.empty((n_rows, self.width), self.precision))

    def unpacked(self, table: FloatArray) -> RowPosterior:
        """The inverse of ``RowPosterior.packed``; a table without rows may have any width."""
        table = table.reshape(-1, self.width)
        last = self.width - self.vectors * self.rank
        location = table[:, : self.dimension].copy()
        scale = table[:, self.dimension : last].copy()
        implicit = table[:, last:].copy() if self.vectors else None
        return RowPosterior(location, scale, self.kind, self.has_intercept, implicit)


@jit
def _total(lines, chosen):
    total = np.zeros(lines.shape[1])
    for i in range(len(lines)):
        if chosen[i]:
            line = lines[i]
            for k in range(len(total)):
                total[k] += line[k]
    return total


def factors_in_use(
    row_norms: DoubleArray, col_norms: DoubleArray, n_rows: int, n_cols: int
) -> NDArray[np.int64]:
    """The numbers of the factors in use, from ‖E L_k‖, ‖E R_k‖ and the m1 rows and m2 columns with
    ratings (§8.5).

    ``LEAST_STRENGTH`` matters for random labels: there all factors are switched off, and their
    remainders have similar sizes.
    """
    strength = row_norms * col_norms / np.sqrt(n_rows * n_cols)
    return np.flatnonzero(strength >= max(LEAST_STRENGTH, RANK_THRESHOLD * strength.max()))


# ---- affine maps of all rows -------------------------------------------------------------------


@dataclass(frozen=True)
class RowMap:
    """x ─► xT + t for the D free coordinates of every row, so E x ─► E x·T + t and V ─► TᵀVT.

    Independent coordinates stay independent only if T has one entry per line and column; then
    s ─► s·|T|. The implicit vectors of a row are mapped with it: w, z and d by the T of the other
    side, r, s and q by its own T.
    """

    matrix: DoubleArray  # T, D × D
    shift: DoubleArray  # t, D
    other: DoubleArray | None = None  # T of the other side, needed for ``implicit`` only

    @classmethod
    def linear(cls, matrix: DoubleArray) -> RowMap:
        return cls(matrix, np.zeros(len(matrix)))

    @classmethod
    def shifting(cls, shift: DoubleArray) -> RowMap:
        return cls(np.eye(len(shift)), shift)

    @property
    def is_identity(self) -> bool:
        return not self.shift.any() and bool(np.all(self.matrix == np.eye(len(self.shift))))

    def then(self, after: RowMap) -> RowMap:
        other = None if self.other is None or after.other is None else self.other @ after.other
        return RowMap(self.matrix @ after.matrix, self.shift @ after.matrix + after.shift, other)

    @property
    def augmented(self) -> DoubleArray:
        """T̃ with [1, x] ─► [1, x]T̃ = [1, xT + t]."""
        dimension = len(self.shift)
        whole = np.zeros((dimension + 1, dimension + 1))
        whole[0, 0] = 1.0
        whole[0, 1:] = self.shift
        whole[1:, 1:] = self.matrix
        return whole

    @property
    def log_determinant(self) -> float:
        """log|det T|, which the map adds to the log volume of one row."""
        return float(np.linalg.slogdet(self.matrix)[1])

    def of_vectors(self, rank: int, vectors: int) -> DoubleArray:
        """The matrix that maps ``vectors`` vectors of K coordinates, side by side."""
        return np.asarray(np.kron(np.eye(vectors), self.matrix[-rank:, -rank:]), np.float64)

    def of_means(self, rank: int) -> DoubleArray:
        """The matrix that maps [1, p], where p is a prior mean of the K factors."""
        whole = np.eye(rank + 1)
        whole[1:, 1:] = self.matrix[-rank:, -rank:]
        return whole

    def apply_to(self, posterior: RowPosterior, lo: int, hi: int) -> None:
        """Map rows lo … hi−1 in place.

        The result of a row depends bit for bit on that row alone.
        """
        kernel = _map_covariances if posterior.kind == "covariance" else _map_stds
        kernel(posterior.location, posterior.scale, self.matrix, self.shift, lo, hi)
        if posterior.implicit is not None:
            assert self.other is not None
            first = int(posterior.has_intercept)
            own, other = (
                np.ascontiguousarray(t[first:, first:]) for t in (self.matrix, self.other)
            )
            _map_implicit(posterior.implicit, other, own, posterior.vectors, lo, hi)


@inner
def _map_locations(location, matrix, shift, i, out):
    for k in range(len(shift)):
        out[k] = shift[k]
    for j in range(len(shift)):
        x = np.float64(location[i, j])
        for k in range(len(shift)):
            out[k] += x * matrix[j, k]
    for k in range(len(shift)):
        location[i, k] = out[k]


@jit
def _map_stds(location, std, matrix, shift, first, last):
    size = len(shift)
    out = np.empty(size)
    for i in range(first, last):
        _map_locations(location, matrix, shift, i, out)
        out[:] = 0.0
        for j in range(size):
            s = np.float64(std[i, j])
            for k in range(size):
                out[k] += s * abs(matrix[j, k])
        for k in range(size):
            std[i, k] = out[k]


@jit
def _map_covariances(location, covariance, matrix, shift, first, last):
    """TᵀVT = Tᵀ(VT), V from its packed lower triangle and back."""
    size = len(shift)
    out = np.empty(size)
    half = np.empty((size, size))
    for i in range(first, last):
        _map_locations(location, matrix, shift, i, out)
        v = covariance[i]
        half[:] = 0.0
        q = 0
        for a in range(size):
            for b in range(a + 1):
                value = np.float64(v[q])
                for k in range(size):
                    half[a, k] += value * matrix[b, k]
                if b < a:
                    for k in range(size):
                        half[b, k] += value * matrix[a, k]
                q += 1
        q = 0
        for a in range(size):
            for b in range(a + 1):
                out[b] = 0.0
            for j in range(size):
                t = matrix[j, a]
                for b in range(a + 1):
                    out[b] += t * half[j, b]
            for b in range(a + 1):
                v[q] = out[b]
                q += 1


@jit
def _map_implicit(implicit, weight_matrix, residual_matrix, vectors, first, last):
    """[w r z d s q] ─► [wT' rT zT' dT' sT qT], where T' is the map of the other side's factors."""
    size = len(weight_matrix)
    out = np.empty(size)
    for i in range(first, last):
        for vector in range(vectors):
            is_weight = vector in (PLACE_W, PLACE_Z, PLACE_D)
            matrix = weight_matrix if is_weight else residual_matrix
            begin = vector * size
            out[:] = 0.0
            for j in range(size):
                x = np.float64(implicit[i, begin + j])
                for k in range(size):
                    out[k] += x * matrix[j, k]
            for k in range(size):
                implicit[i, begin + k] = out[k]
