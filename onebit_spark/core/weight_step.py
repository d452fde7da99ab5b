"""The step of the weights of implicit features: the best one in the span of the gradient and the last step.

Given the means M = E[L] of a side, the best weights W of the other side are a ridge regression. γ cancels in it:

    minimise  ‖M − FW‖² + ρ‖W‖²,     R = M − FW

Among all W + ZA + DB with K×K matrices A and B, where Z is the preconditioned gradient and D the last step, the best is

    [A; B] = (YᵀY + ρXᵀX)⁺ (YᵀR − ρXᵀW),     X = [Z D],     Y = FX = [S Q]

For fixed M this is the method of conjugate gradients for K right-hand sides at once (docs/MATH.md, §13). M moves
between two steps. The step is still the best in its span, so the objective never rises. W, X, R and Y are vectors of
the rows and columns (``implicit_features``). The driver gets their Gram matrices from the half steps. Each line moves
by itself:

    w ─► w + [z d][A; B],     d ─► [z d][A; B]          of those who are rated
    r ─► r − [s q][A; B]                                of those who rate
"""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core.compiled import jit
from onebit_spark.core.implicit_features import RIDGE
from onebit_spark.core.posterior import RowPosterior
from onebit_spark.core.row_map import RowMap

Matrix = NDArray[np.float64]

LEAST_PART = 1e-4  # of the largest eigenvalue: directions with less are nearly others, and numbers are float32
LEAST_SIZE = 1e-4  # of the longest column of Z, or of D: what is shorter is rounding of the others


@dataclass(frozen=True)
class ToldMap:
    """x ─► x + yC in every line of ``implicit``, where x and y = [y₁ y₂] are some of its vectors; and y₂ ─► yC.

    (Nobody reads the new y₂ of those who rate.)
    """

    matrix: Matrix  # ±C, C = [A; B], 2K × K
    value: int  # which of the vectors is x
    directions: int  # which is y₁; y₂ is the next one

    def apply_to(self, posterior: RowPosterior, lo: int, hi: int) -> None:
        """Map rows lo … hi−1 in place. A row's result depends on that row alone, to the bit."""
        assert posterior.implicit is not None
        _map_told(posterior.implicit, self.matrix, self.value, self.directions, lo, hi)


@dataclass(frozen=True)
class WeightStep:
    """W ─► W + ZA + DB."""

    matrix: Matrix  # [A; B], 2K × K

    @classmethod
    def best(cls, directions: Matrix, residuals: Matrix, weights: Matrix) -> WeightStep:
        """From YᵀY (2K × 2K), YᵀR (2K × K) and the Gram matrix of [W Z D] (3K × 3K)."""
        rank = residuals.shape[1]
        system = directions + RIDGE * weights[rank:, rank:]
        right = residuals - RIDGE * weights[rank:, :rank]
        size = np.sqrt(np.maximum(np.diag(system), 0.0))
        longest = np.repeat([part.max() for part in np.split(size, 2)], rank)
        unit = np.divide(1.0, size, out=np.zeros_like(size), where=size > LEAST_SIZE * longest)
        system = unit[:, None] * system * unit
        if not np.isfinite(system).all():  # the objective will say so
            return cls(np.zeros_like(right))
        values, vectors = np.linalg.eigh(system)
        inverse = (vectors * _inverses(np.maximum(values, 0.0))) @ vectors.T
        return cls(unit[:, None] * (inverse @ (unit[:, None] * right)))

    @property
    def of_weights(self) -> ToldMap:
        """What happens to a line of those who are rated."""
        return ToldMap(self.matrix, 0, 2)

    @property
    def of_residuals(self) -> ToldMap:
        """What happens to a line of those who rate."""
        return ToldMap(-self.matrix, 1, 4)

    def before(self, by: RowMap) -> WeightStep:
        """The same step of lines that x ─► xT has yet to map: TAT⁻¹ and TBT⁻¹."""
        rank = self.matrix.shape[1]
        turn = by.matrix[-rank:, -rank:]
        mapped = np.concatenate([turn @ part for part in np.split(self.matrix, 2)])
        return WeightStep(np.ascontiguousarray(np.linalg.solve(turn.T, mapped.T).T, np.float64))

    def moved(self, weights: Matrix) -> Matrix:
        """The Gram matrix of [W Z D] after the step."""
        rank = self.matrix.shape[1]
        change = np.zeros((3 * rank, 3 * rank))  # [W Z D] times this is [W + X C, Z, X C]
        change[: 2 * rank, : 2 * rank] = np.eye(2 * rank)
        change[rank:, :rank] = change[rank:, 2 * rank :] = self.matrix
        return np.asarray(change.T @ weights @ change)


def _inverses(values: Matrix) -> Matrix:
    """λ³/(λ⁴ + ε⁴): 1/λ of eigenvalues above ε and 0 of those below, without a leap; never more, so no step rises."""
    least = LEAST_PART * max(values.max(), np.finfo(np.float64).tiny)
    shares = values / least
    return np.asarray(shares**3 / (shares**4 + 1.0) / least)


@jit
def _map_told(implicit, matrix, value, directions, first, last):
    size = matrix.shape[1]
    out = np.empty(size)
    for i in range(first, last):
        x, y, last_step = (
            implicit[i, value * size : (value + 1) * size], implicit[i, directions * size : (directions + 2) * size],
            implicit[i, (directions + 1) * size : (directions + 2) * size],
        )  # fmt: skip
        out[:] = 0.0
        for j in range(2 * size):
            part = np.float64(y[j])
            for k in range(size):
                out[k] += part * matrix[j, k]
        for k in range(size):
            x[k] += out[k]
            last_step[k] = out[k]
