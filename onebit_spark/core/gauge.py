"""The gauge: maps of both sides that change no score and bring the posterior nearer to its prior
(docs/MATH.md, §7.2).

The best maps follow from D×D sums on the driver, so no rating is read. The rows are mapped later
(``FitState.apply``). Rows with independent coordinates admit only a diagonal A and no centring,
which would correlate d_j with R_j. With implicit features there is no centring either, because the
residuals of the columns, from which the next directions follow, would not be centred with them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from onebit_spark.core.arrays import DoubleArray
from onebit_spark.core.hyper_posterior import INTERCEPT_MEAN_VARIANCE, HyperPosterior
from onebit_spark.core.losses import Side, Symmetry
from onebit_spark.core.posterior import RowMap
from onebit_spark.core.prior import ScalePrior
from onebit_spark.core.statistics import SideMoments, SideStatistics

LEAST_DECREASE = 1e-9  # of KL(ρ‖π), relative; smaller ones are not worth a pass over the rows
NEWTON_STEPS = 60


@dataclass(frozen=True)
class Gauge:
    rows: SideMoments
    cols: SideMoments
    row_map: RowMap
    col_map: RowMap

    @classmethod
    def of(cls, rows: SideMoments, cols: SideMoments) -> Gauge:
        identity = RowMap.linear(np.eye(len(rows.covariance)))
        return cls(rows, cols, identity, identity)

    @property
    def is_identity(self) -> bool:
        return self.row_map.is_identity and self.col_map.is_identity

    def then(self, rows: RowMap, cols: RowMap) -> Gauge:
        return Gauge(
            self.rows.mapped(rows),
            self.cols.mapped(cols),
            self.row_map.then(rows),
            self.col_map.then(cols),
        )

    def turned(self, a: DoubleArray, inverse_transpose: DoubleArray) -> Gauge:
        """L ─► LA and R ─► RA⁻ᵀ. The intercepts do not change."""
        fixed = self.rows.fixed

        def beside_intercept(matrix: DoubleArray) -> RowMap:
            whole = np.eye(fixed + len(matrix))
            whole[fixed:, fixed:] = matrix
            return RowMap.linear(whole)

        return self.then(beside_intercept(a), beside_intercept(inverse_transpose))


@dataclass(frozen=True)
class GaugeStep:
    """The last step of an iteration: every move that lowers KL(ρ‖π) at the optimal μ and γ after
    it.
    """

    symmetry: Symmetry
    may_centre: bool = True

    def __call__(
        self, hierarchy: HyperPosterior, rows: SideStatistics, cols: SideStatistics
    ) -> tuple[HyperPosterior, float, dict[Side, RowMap]]:
        gauge = Gauge.of(rows.moments, cols.moments)
        updated, divergence = hierarchy.at(gauge.rows, gauge.cols)
        moves = [levelled] if hierarchy.intercepts else []
        if hierarchy.intercepts and self.may_centre and self.symmetry == "linear":
            moves.append(centred)
        for move in (*moves, rotated if self.symmetry == "linear" else rescaled):
            candidate = move(gauge, updated)
            reached, lower = hierarchy.at(candidate.rows, candidate.cols)
            if lower < divergence - LEAST_DECREASE * abs(divergence):
                gauge = candidate
                updated = reached
                divergence = lower
        gauge = by_strength(gauge)
        if gauge.is_identity:
            return updated, divergence, {}
        rows_map = replace(gauge.row_map, other=gauge.col_map.matrix)
        cols_map = replace(gauge.col_map, other=gauge.row_map.matrix)
        return *hierarchy.at(gauge.rows, gauge.cols), {"rows": rows_map, "cols": cols_map}


def levelled(gauge: Gauge, scales: HyperPosterior) -> Gauge:
    """b ─► b + s and d ─► d − s, with the s that is best together with m_μ, which is updated right
    after.
    """
    rows = gauge.rows
    cols = gauge.cols
    h = 1.0 / (INTERCEPT_MEAN_VARIANCE + 1.0 / (rows.count * scales.row_intercept))
    pull = scales.col_intercept * cols.second[0, 1] - h * rows.second[0, 1] / rows.count
    s = np.zeros(len(rows.covariance))
    s[0] = pull / (cols.count * scales.col_intercept + h)
    return gauge.then(RowMap.shifting(s), RowMap.shifting(-s))


def centred(gauge: Gauge, scales: HyperPosterior) -> Gauge:
    """L ─► L − c and d_j ─► d_j + c·R_j; then, with the moved L, R ─► R − e and b_i ─► b_i
    + e·L_i.
    """
    g = scales.factor
    moved = gauge
    for own, other, precision, centre in (
        ("rows", "cols", scales.col_intercept, 0.0),
        ("cols", "rows", scales.row_intercept, scales.mean),
    ):
        here = getattr(moved, own)
        there = getattr(moved, other)
        totals = here.second[0, 2:]
        crossed = there.second[1, 2:] - centre * there.second[0, 2:]
        system = here.count * np.diag(g) + precision * there.factors
        shift = np.linalg.solve(system, g * totals - precision * crossed)
        shear = np.eye(len(shift) + 1)  # [b, L] ─► [b + shift·L, L]
        shear[1:, 0] = shift
        maps = {own: RowMap.shifting(np.insert(-shift, 0, 0.0)), other: RowMap.linear(shear)}
        moved = moved.then(maps["rows"], maps["cols"])
    return moved


def rotated(gauge: Gauge, scales: HyperPosterior) -> Gauge:
    """A = C⁻ᵀU diag t with S_L = CCᵀ and CᵀS_R C = U diag(Λ) Uᵀ: then AᵀS_L A = diag t², A⁻¹S_R A⁻ᵀ
    = diag(Λ/t²).

    The old factor with the largest part in a new one has a positive part in it, so that signs stay
    as at the start.
    """
    root = np.linalg.cholesky(gauge.rows.factors)
    values, vectors = np.linalg.eigh(root.T @ gauge.cols.factors @ root)
    back = np.linalg.inv(root).T @ vectors
    parts = back * np.sqrt(_squares(gauge.rows))[:, None]
    largest = parts[np.argmax(np.abs(parts), axis=0), np.arange(len(values))]
    t = best_stretch(values, gauge.rows.count, gauge.cols.count, scales.prior) * np.where(
        largest < 0, -1.0, 1.0
    )
    return gauge.turned(back * t, root @ vectors / t)


def rescaled(gauge: Gauge, scales: HyperPosterior) -> Gauge:
    """A = diag(t/√S_L): ``rotated`` for rows with independent coordinates."""
    size = np.diag(gauge.rows.factors)
    t = best_stretch(
        size * np.diag(gauge.cols.factors), gauge.rows.count, gauge.cols.count, scales.prior
    )
    t /= np.sqrt(size)
    return gauge.turned(np.diag(t), np.diag(1.0 / t))


def by_strength(gauge: Gauge) -> Gauge:
    """The factors in descending order of ‖E L_k‖·‖E R_k‖."""
    order = np.argsort(-_squares(gauge.rows) * _squares(gauge.cols), kind="stable")
    permutation = np.eye(len(order))[:, order]
    return gauge.turned(permutation, permutation)


def best_stretch(product: DoubleArray, m1: int, m2: int, prior: ScalePrior) -> DoubleArray:
    """t_k = argmin −log Z(t² + Λ_k/t²) − (m1 − m2) log t, where Λ = ``product`` and Z is that of m1
    + m2 rows.

    With t² = √Λ·eˣ, S = 2√Λ cosh x and D = 2√Λ sinh x, the slope in x is half of g(S)·D − (m1 −
    m2). It increases in x, because S·g(S) increases in S. The root is found by Newton's method
    within a bracket.
    """
    root = np.sqrt(product)
    m = np.full(len(product), float(m1 + m2))

    def slope(x: DoubleArray) -> DoubleArray:
        return prior.inverse_mean(2 * root * np.cosh(x), m) * 2 * root * np.sinh(x) - (m1 - m2)

    lo = np.full(len(product), -1.0)
    hi = np.full(len(product), 1.0)
    x = np.zeros(len(product))
    while np.any(slope(lo) > 0) or np.any(slope(hi) < 0):
        lo = 2 * lo
        hi = 2 * hi
    for _ in range(NEWTON_STEPS):
        height = slope(x)
        lo = np.where(height <= 0, x, lo)
        hi = np.where(height >= 0, x, hi)
        step = 1e-6
        newton = x - height * step / (slope(x + step) - height)
        last = x
        x = np.where((newton > lo) & (newton < hi), newton, 0.5 * (lo + hi))
        if np.all(np.abs(x - last) <= 1e-12):
            break
    return np.sqrt(root * np.exp(x))


def _squares(side: SideMoments) -> DoubleArray:
    """‖E L_k‖² of every factor.

    For a factor that is switched off, rounding may give a negative number.
    """
    return np.maximum(np.diag(side.locations)[2 * side.fixed :], 0.0)
