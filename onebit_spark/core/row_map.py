"""RowMap: one affine map of every row of a side, means and covariances alike."""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core.compiled import inner, jit
from onebit_spark.core.posterior import RowPosterior

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class RowMap:
    """x ─► xT + t for the D free coordinates of every row, so E x ─► E x·T + t and V ─► TᵀVT.

    Rows that keep spreads stay so only under a T with one entry per line and column; then s ─► s·|T|. The implicit
    vectors of a row are mapped with it: w, z and d by the T of the other side, r, s and q by its own T.
    """

    matrix: Matrix  # T, D × D
    shift: Matrix  # t, D
    other: Matrix | None = None  # T of the other side, needed for ``implicit`` only

    @classmethod
    def linear(cls, matrix: Matrix) -> RowMap:
        return cls(matrix, np.zeros(len(matrix)))

    @classmethod
    def shifting(cls, shift: Matrix) -> RowMap:
        return cls(np.eye(len(shift)), shift)

    @classmethod
    def identity(cls, dimension: int) -> RowMap:
        return cls.linear(np.eye(dimension))

    @property
    def is_identity(self) -> bool:
        return not self.shift.any() and bool(np.all(self.matrix == np.eye(len(self.shift))))

    def then(self, after: RowMap) -> RowMap:
        """This map first, the other one after it."""
        other = None if self.other is None or after.other is None else self.other @ after.other
        return RowMap(self.matrix @ after.matrix, self.shift @ after.matrix + after.shift, other)

    def beside(self, other: RowMap) -> RowMap:
        """This map, which knows that of the other side."""
        return replace(self, other=other.matrix)

    @property
    def augmented(self) -> Matrix:
        """T̃ with [1, x] ─► [1, x]T̃ = [1, xT + t]."""
        dimension = len(self.shift)
        whole = np.zeros((dimension + 1, dimension + 1))
        whole[0, 0], whole[0, 1:], whole[1:, 1:] = 1.0, self.shift, self.matrix
        return whole

    @property
    def stretch(self) -> float:
        """The condition of T: how much more it lengthens one direction than another."""
        return float(np.linalg.cond(self.matrix))

    @property
    def log_determinant(self) -> float:
        """log|det T|: what the map adds to the log volume of one row."""
        return float(np.linalg.slogdet(self.matrix)[1])

    def of_vectors(self, rank: int, vectors: int) -> Matrix:
        """The matrix that maps so many vectors side by side, with as many coordinates each as there are factors."""
        return np.asarray(np.kron(np.eye(vectors), self.matrix[-rank:, -rank:]), np.float64)

    def of_implicit_gram(self, gram: Matrix) -> Matrix:
        """Σ_i n_i [1, p_i][1, p_i]ᵀ after the map, of prior means p_i with as many coordinates as there are factors."""
        rank = len(gram) - 1
        whole = np.eye(rank + 1)
        whole[1:, 1:] = self.matrix[-rank:, -rank:]
        return np.asarray(whole.T @ gram @ whole)

    def applied(self, posterior: RowPosterior) -> RowPosterior:
        """The mapped rows; these stay as they are."""
        mapped = posterior.copy()
        self.apply_to(mapped, 0, mapped.n_rows)
        return mapped

    def apply_to(self, posterior: RowPosterior, lo: int, hi: int) -> None:
        """Map rows lo … hi−1 in place. A row's result depends on that row alone, to the bit."""
        kernel = _map_covariances if posterior.kind == "covariance" else _map_spreads
        kernel(posterior.location, posterior.scale, self.matrix, self.shift, lo, hi)
        if posterior.implicit is not None:
            assert self.other is not None
            first = int(posterior.has_intercept)
            own, other = (np.ascontiguousarray(t[first:, first:]) for t in (self.matrix, self.other))
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
def _map_spreads(location, spread, matrix, shift, first, last):
    size = len(shift)
    out = np.empty(size)
    for i in range(first, last):
        _map_locations(location, matrix, shift, i, out)
        out[:] = 0.0
        for j in range(size):
            s = np.float64(spread[i, j])
            for k in range(size):
                out[k] += s * abs(matrix[j, k])
        for k in range(size):
            spread[i, k] = out[k]


@jit
def _map_covariances(location, covariance, matrix, shift, first, last):
    """TᵀVT = Tᵀ(VT), V from its packed lower triangle and back."""
    size = len(shift)
    out, half = np.empty(size), np.empty((size, size))
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
    """[w r z d s q] ─► [wT' rT zT' dT' sT qT], T' that of the other side, for the K factors."""
    size = len(weight_matrix)
    out = np.empty(size)
    for i in range(first, last):
        for vector in range(vectors):
            matrix = weight_matrix if vector in (0, 2, 3) else residual_matrix
            begin = vector * size
            out[:] = 0.0
            for j in range(size):
                x = np.float64(implicit[i, begin + j])
                for k in range(size):
                    out[k] += x * matrix[j, k]
            for k in range(size):
                implicit[i, begin + k] = out[k]
