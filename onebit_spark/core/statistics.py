"""SideStatistics: the sums that the driver gets from a half step, a few D×D matrices for any number of rows."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from typing import Annotated, Any, get_type_hints

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from onebit_spark.core.implicit_features import RIDGE, CoefStep, coef_gram, gram_matrix
from onebit_spark.core.losses.base import RowPrior, RowSums
from onebit_spark.core.posterior import FloatArray, Form, RowMap, RowPosterior
from onebit_spark.core.side_features import FEATURE_RIDGE

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class SideMoments:
    """The moments of the rows with ratings that determine KL(ρ‖π). x̃ is [1, b, L], or L without intercepts.

    Parameters
    ----------
    count : int
        Number of rows.
    means : array
        Σ_i E[x̃_i] E[x̃_i]ᵀ. With features, x̃ is the distance to the explained mean, and the ridge penalty of their
        coefficients is added.
    covariance : array of shape (D, D)
        Σ_i V_i over the free coordinates; diagonal if the coordinates are independent.
    log_volume : float
        Σ_i Σ_k log s_ik, or ½ Σ_i log det V_i.
    locations : array
        Σ_i E[x̃_i] E[x̃_i]ᵀ of the whole x̃.
    """

    count: int
    means: Vector
    covariance: Vector
    log_volume: float
    locations: Vector

    @property
    def fixed(self) -> int:
        """The number of coordinates of x̃ that are fixed at 1: one with intercepts, none without."""
        return len(self.means) - len(self.covariance)

    @cached_property
    def second(self) -> Vector:
        """Σ_i E[x̃_i x̃_iᵀ]."""
        total = self.means.copy()
        total[self.fixed :, self.fixed :] += self.covariance
        return total

    @property
    def factors(self) -> Vector:
        """Σ_i E[L_i L_iᵀ], K × K."""
        return self.second[2 * self.fixed :, 2 * self.fixed :]

    def mapped(self, by: RowMap) -> SideMoments:
        """The moments of the mapped rows."""
        whole = by.augmented if self.fixed else by.matrix
        return SideMoments(
            self.count,
            whole.T @ self.means @ whole,
            by.matrix.T @ self.covariance @ by.matrix,
            self.log_volume + self.count * by.log_determinant,
            whole.T @ self.locations @ whole,
        )


@dataclass(frozen=True)
class SideStatistics:
    """Sums over the rows of a side that have ratings. The sums of several sets of rows are added.

    A new statistic is a field with its shape, and a line in ``of_rows``.

    X = [1, b, L] are the augmented means before the half step, Δ their change.

    Parameters
    ----------
    count : int
        Number of rows.
    covariance : array of shape (D, D)
        Σ_i V_i.
    prior_distance : float
        Σ_ik [g_ik((E x_ik − p_ik)² + var x_ik) − 1 − log g_ik], where g is the precision of the prior and p its mean.
        0 if the rows share a prior, where it is not needed.
    log_volume : float
        Σ_i Σ_k log s_ik, or ½ Σ_i log det V_i.
    data : float
        The data term of the objective, if the half step computes it.
    gram, change_gram, change_cross : arrays
        XᵀX, ΔᵀΔ and ΔᵀX, for the stopping rule. The last is not symmetric.
    distance_gram : array
        X'ᵀX' of the new means minus the explained means. With ``covariance`` it determines the γ and μ updates.
    coef_gram : array of shape (3K, 3K)
        Σ_i [w z d]_i [w z d]_iᵀ of the rows' implicit coefficients for the other side (``CoefStep``), or 0 × 0.
    direction_gram : array of shape (2K, · + 2K)
        YᵀX' and YᵀY, where Y = [S Q] is the change of the prior means for a step of the other side's coefficients along
        Z and D.
    implicit_gram : array of shape (K + 1, K + 1)
        Σ_i |Ω_i| [1, p_i][1, p_i]ᵀ, where p_i is the part of the prior mean that implicit features explain.
    feature_cross : array of shape (p, D + 2K)
        Σ_i f_i (E x_i − p_i)ᵀ and Σ_i f_i y_iᵀ with the side features f_i; p = 0 without them.
    """

    count: int
    covariance: Annotated[Vector, "dimension", "dimension"]
    prior_distance: float
    log_volume: float
    data: float
    gram: Annotated[Vector, "augmented", "augmented"]
    change_gram: Annotated[Vector, "augmented", "augmented"]
    change_cross: Annotated[Vector, "augmented", "augmented"]
    distance_gram: Annotated[Vector, "augmented", "augmented"]
    coef_gram: Annotated[Vector, "weights", "weights"]
    direction_gram: Annotated[Vector, "directions", "augmented, directions"]
    implicit_gram: Annotated[Vector, "rank + 1", "rank + 1"]
    feature_cross: Annotated[Vector, "features", "dimension, directions"]

    def __add__(self, other: SideStatistics) -> SideStatistics:
        return SideStatistics(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})

    @classmethod
    def of_rows(
        cls,
        old_location: FloatArray,
        posterior: RowPosterior,
        prior: RowPrior,
        counts: NDArray[np.integer],
        sums: RowSums,
        features: FloatArray | None = None,
    ) -> SideStatistics:
        """The statistics of some rows after their update; ``counts`` are their numbers of rated partners."""
        rated = counts > 0
        pick: slice | NDArray[Any] = slice(None) if np.all(rated) else np.flatnonzero(rated)
        prior = prior.take(pick)
        old, new = (location[pick].astype(np.float64) for location in (old_location, posterior.location))
        shift = new - prior.mean
        gram, cross, change_gram = _grams(old, new - old, posterior.has_intercept)
        directions = _directions(posterior, pick, counts[pick])
        distance = new if prior.explained is None else new - prior.explained
        distance_gram, direction_gram = _distance_grams(distance, directions, posterior.has_intercept)
        return cls(
            count=len(new),
            covariance=posterior.total_covariance(rated),
            prior_distance=_prior_distance(shift, posterior, pick, prior.precision),
            log_volume=sums.log_volume,
            data=sums.data,
            gram=gram,
            change_gram=change_gram,
            change_cross=cross,
            distance_gram=distance_gram,
            coef_gram=coef_gram(posterior),
            direction_gram=direction_gram,
            implicit_gram=_implicit_gram(prior.implicit_mean, counts[pick], posterior.rank),
            feature_cross=_feature_cross(features, pick, np.hstack([shift, directions])),
        )

    def mapped(self, by: RowMap) -> SideStatistics:
        """The statistics of the mapped rows: each axis is multiplied by the matrix of its coordinates.

        The implicit coefficients of the rows have the coordinates of the other side.
        """
        rank, augmented = len(self.implicit_gram) - 1, by.augmented if len(self.gram) > len(by.matrix) else by.matrix
        means = np.eye(rank + 1)
        means[1:, 1:] = by.matrix[-rank:, -rank:]
        assert by.other is not None
        directions = by.of_vectors(rank, len(self.direction_gram) // rank)
        through = {
            "dimension": by.matrix,
            "augmented": augmented,
            "weights": RowMap.linear(by.other).of_vectors(rank, len(self.coef_gram) // rank),
            "directions": directions,
            "augmented, directions": scipy.linalg.block_diag(augmented, directions),
            "dimension, directions": scipy.linalg.block_diag(by.matrix, directions),
            "rank + 1": means,
            "features": np.eye(len(self.feature_cross)),
        }
        values = {
            name: through[axes[0]].T @ getattr(self, name) @ through[axes[1]]
            for name, axes in _shapes().items()
            if axes
        }
        return replace(self, **values, log_volume=self.log_volume + self.count * by.log_determinant)

    def best_step(self, coef_gram: Vector) -> CoefStep:
        """The best step of the other side's implicit coefficients, which have this ``coef_gram``."""
        size, rank = len(self.gram), len(coef_gram) // 3
        return CoefStep.best(
            self.direction_gram[:, size:], self.direction_gram[:, size - rank : size], coef_gram
        )  # fmt: skip

    def after(self, step: CoefStep) -> SideStatistics:
        """The statistics after a step of the other side's coefficients: X' − [0, YC] replaces X'."""
        size, (directions, rank) = len(self.gram), step.matrix.shape
        change = np.zeros((directions, size))
        change[:, -rank:] = step.matrix
        crossed, square = np.split(self.direction_gram, [size], axis=1)
        both = change.T @ crossed
        cross, explained = np.split(self.feature_cross, [len(self.covariance)], axis=1)
        return replace(
            self,
            distance_gram=self.distance_gram - both - both.T + change.T @ square @ change,
            feature_cross=cross - explained @ change[:, size - cross.shape[1] :],
        )

    def with_ridge(self, coef_gram: Vector, feature_coef: Vector | None) -> SideStatistics:
        """The same with the ridge penalties of the coefficients that explain the prior means of these rows.

        They are ρ Σ_j w_j w_jᵀ for implicit features and ρ WᵀW for side features.
        """
        total = self.distance_gram.copy()
        if rank := len(coef_gram) // 3:
            total[-rank:, -rank:] += RIDGE * coef_gram[:rank, :rank]
        if feature_coef is not None:
            dimension = feature_coef.shape[1]
            total[-dimension:, -dimension:] += FEATURE_RIDGE * feature_coef.T @ feature_coef
        return replace(self, distance_gram=total)

    @property
    def moments(self) -> SideMoments:
        """The moments of the rows."""
        return SideMoments(self.count, self.distance_gram, self.covariance, self.log_volume, _new_gram(self))

    def to_vector(self) -> Vector:
        """The numbers as one vector."""
        return np.concatenate([np.ravel(getattr(self, field.name)) for field in fields(self)])

    @classmethod
    def from_vector(cls, vector: Vector, form: Form) -> SideStatistics:
        """The inverse of ``to_vector`` for a posterior of this form. The length gives the number of side features."""
        augmented = form.dimension + int(form.has_intercept)
        weights, directions = (n * form.rank if form.has_implicit else 0 for n in (3, 2))
        sizes = {
            "dimension": form.dimension, "augmented": augmented, "weights": weights, "directions": directions,
            "augmented, directions": augmented + directions, "dimension, directions": form.dimension + directions,
            "rank + 1": form.rank + 1, "features": -1,
        }  # fmt: skip
        values: dict[str, Any] = {}
        for name, names_of_sizes in _shapes().items():
            shape = [sizes[size] for size in names_of_sizes]
            length = len(vector) if -1 in shape else int(np.prod(shape, dtype=int))
            part, vector = vector[:length], vector[length:]
            values[name] = part.reshape(shape) if shape else float(part[0])
        return cls(**{**values, "count": int(values["count"])})


@cache
def _shapes() -> dict[str, tuple[str, ...]]:
    """The declared shape of every statistic."""
    hints = get_type_hints(SideStatistics, include_extras=True)
    return {entry.name: getattr(hints[entry.name], "__metadata__", ()) for entry in fields(SideStatistics)}


def _grams(old: Vector, change: Vector, has_intercept: bool) -> tuple[Vector, Vector, Vector]:
    """XᵀX, ΔᵀX and ΔᵀΔ in one product. With intercepts X begins with a 1 and Δ with a 0."""
    parts = [old, change]
    if has_intercept:
        parts = [np.ones((len(old), 1)), old, np.zeros((len(old), 1)), change]
    lines = np.concatenate(parts, axis=1)
    total = gram_matrix(lines)
    size = len(total) // 2
    return total[:size, :size], total[size:, :size], total[size:, size:]


def _directions(posterior: RowPosterior, pick: slice | NDArray[Any], counts: NDArray[np.integer]) -> Vector:
    """Y = [S Q] of the picked rows. ``implicit`` holds it times |Ω_i|^{−½}."""
    if posterior.implicit is None:
        return np.zeros((len(counts), 0))
    return np.asarray(posterior.implicit[pick, 4 * posterior.rank :] * np.sqrt(counts)[:, None], np.float64)


def _distance_grams(distance: Vector, directions: Vector, has_intercept: bool) -> tuple[Vector, Vector]:
    """X'ᵀX' and [YᵀX' YᵀY] in one product. With intercepts X' begins with a 1."""
    size = distance.shape[1] + int(has_intercept)
    parts = [distance, directions]
    lines = np.concatenate([np.ones((len(distance), 1)), *parts] if has_intercept else parts, axis=1)
    total = gram_matrix(lines)
    return total[:size, :size], total[size:]


def _feature_cross(features: FloatArray | None, pick: slice | NDArray[Any], lines: Vector) -> Vector:
    """``SideStatistics.feature_cross``."""
    return np.zeros((0, lines.shape[1])) if features is None else np.asarray(features[pick].T @ lines)


def _prior_distance(shift: Vector, posterior: RowPosterior, pick: slice | NDArray[Any], precision: Vector) -> float:
    """``SideStatistics.prior_distance``; 0 if the rows share a prior."""
    if len(precision) < len(shift):
        return 0.0
    variance = posterior.std[pick].astype(np.float64) ** 2
    return float(np.sum(precision * (shift**2 + variance) - 1 - np.log(precision)))


def _implicit_gram(implicit_mean: Vector | None, counts: NDArray[np.integer], rank: int) -> Vector:
    lines = np.zeros((len(counts), rank)) if implicit_mean is None else implicit_mean
    return gram_matrix(np.insert(lines, 0, 1.0, axis=1) * np.sqrt(counts)[:, None])


def relative_change(rows: SideStatistics, cols: SideStatistics, has_intercept: bool) -> float:
    """‖M_t − M_{t−1}‖²_F / ‖M_t‖²_F without forming M = L̃ R̃ᵀ.

    ΔM = ΔL R_tᵀ + L_{t−1} ΔRᵀ, so ‖ΔM‖² = tr(ΔLᵀΔL·R_tᵀR_t) + tr(LᵀL·ΔRᵀΔR) + 2 tr[(ΔLᵀL)(ΔRᵀR_t)], L old.
    """
    # A row is laid out as [1, b, L], its partner as [d, 1, R]: exchange the first two coordinates of the columns.
    order = np.arange(len(cols.gram))
    if has_intercept:
        order[:2] = 1, 0
    exchange = np.ix_(order, order)
    col_change, col_cross = cols.change_gram[exchange], cols.change_cross[exchange]
    col_new = _new_gram(cols)[exchange]
    col_cross_new = col_cross + col_change
    change = (
        np.sum(rows.change_gram * col_new)
        + np.sum(rows.gram * col_change)
        + 2 * np.sum(rows.change_cross * col_cross_new.T)
    )
    size = np.sum(_new_gram(rows) * col_new)
    return float(max(change, 0.0) / size) if size > 0 else 0.0


def _new_gram(side: SideStatistics) -> Vector:
    """(X+Δ)ᵀ(X+Δ) = XᵀX + ΔᵀX + XᵀΔ + ΔᵀΔ."""
    return side.gram + side.change_cross + side.change_cross.T + side.change_gram
