"""SideStatistics: all that the driver learns from a half step, a few D×D numbers however many rows."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from typing import Annotated, Any, get_type_hints

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core.gram import gram_matrix
from onebit_spark.core.implicit_features import RIDGE, weight_gram
from onebit_spark.core.losses.base import RowPrior, RowSums
from onebit_spark.core.posterior import FloatArray, Form, RowPosterior
from onebit_spark.core.row_map import RowMap
from onebit_spark.core.side_features import FEATURE_RIDGE

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class SideMoments:
    """All that KL(ρ‖π) depends on, of the rows of a side that have ratings. x̃ is [1, b, L], or L without intercepts.

    Parameters
    ----------
    count : int
        Number of rows.
    means : array
        Σ_i E[x̃_i] E[x̃_i]ᵀ. With features, x̃ is the distance to what they explain, and the ridge of their weights is
        added.
    covariance : array of shape (D, D)
        Σ_i V_i over the free coordinates; 0 off the diagonal where rows keep spreads.
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
        """Coordinates of x̃ that are held at 1: one with intercepts, none without."""
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
        """The same of the mapped rows."""
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
    """Sums over the rows of a side that have ratings; adding two of them joins two sets of rows.

    A new one is a field here, with its shape, and a line in ``of_rows``.

    X = [1, b, L] are the augmented means before the half step, Δ their change.

    Parameters
    ----------
    count : int
        Number of rows.
    covariance : array of shape (D, D)
        Σ_i V_i.
    prior_distance : float
        Σ_ik [g_ik((E x_ik − p_ik)² + var x_ik) − 1 − log g_ik], where g is the precision of the prior and p its mean.
        Of rows that have a prior of their own each; where they share one, nothing asks for it.
    log_volume : float
        Σ_i Σ_k log s_ik, or ½ Σ_i log det V_i.
    data : float
        The data term of the objective, if the half step was asked for it.
    gram, change_gram, change_cross : arrays
        XᵀX, ΔᵀΔ and ΔᵀX, for the stopping rule. The last is not symmetric.
    distance_gram : array
        X'ᵀX' of the new means, less what features explain. With ``covariance`` it gives the γ and μ updates.
    weight_gram : array of shape (K, K)
        Σ_i w_i w_iᵀ of the rows' implicit weights for the other side.
    told_gram : array of shape (K + 1, K + 1)
        Σ_i |Ω_i| [1, p_i][1, p_i]ᵀ, where p_i is what implicit features add to the prior mean.
    feature_cross : array of shape (p, D)
        Σ_i f_i (E x_i − p_i)ᵀ with the side features f_i; 0 × D without them.
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
    weight_gram: Annotated[Vector, "rank", "rank"]
    told_gram: Annotated[Vector, "rank + 1", "rank + 1"]
    feature_cross: Annotated[Vector, "features", "dimension"]

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
        gram, cross, change_gram, distance_gram = _grams(
            old, new - old, new if prior.known is None else new - prior.known, posterior.has_intercept
        )
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
            weight_gram=weight_gram(posterior),
            told_gram=_told_gram(prior.told, counts[pick], posterior.rank),
            feature_cross=np.zeros((0, shift.shape[1])) if features is None else features[pick].T @ shift,
        )

    def mapped(self, by: RowMap) -> SideStatistics:
        """The same of the mapped rows: both axes of a statistic go through the matrices of their coordinates.

        The weights of the rows have the coordinates of the other side.
        """
        rank = len(self.weight_gram)
        told = np.eye(rank + 1)
        told[1:, 1:] = by.matrix[-rank:, -rank:]
        assert by.other is not None
        through = {
            "dimension": by.matrix,
            "augmented": by.augmented if len(self.gram) > len(by.matrix) else by.matrix,
            "rank": by.other[-rank:, -rank:],
            "rank + 1": told,
            "features": np.eye(len(self.feature_cross)),
        }
        values = {
            name: through[axes[0]].T @ getattr(self, name) @ through[axes[1]]
            for name, axes in _shapes().items()
            if axes
        }
        return replace(self, **values, log_volume=self.log_volume + self.count * by.log_determinant)

    def with_ridge(self, weight_gram: Vector, feature_weights: Vector | None) -> SideStatistics:
        """The same with the ridge of the weights that made the prior means of these rows.

        ρ Σ_j w_j w_jᵀ of the implicit features' weights, and ρ WᵀW of the side features'.
        """
        total = self.distance_gram.copy()
        rank = len(weight_gram)
        total[-rank:, -rank:] += RIDGE * weight_gram
        if feature_weights is not None:
            dimension = feature_weights.shape[1]
            total[-dimension:, -dimension:] += FEATURE_RIDGE * feature_weights.T @ feature_weights
        return replace(self, distance_gram=total)

    @property
    def moments(self) -> SideMoments:
        """The moments of the rows as they are now."""
        return SideMoments(self.count, self.distance_gram, self.covariance, self.log_volume, _new_gram(self))

    def to_vector(self) -> Vector:
        """All numbers in a row, as they leave a block."""
        return np.concatenate([np.ravel(getattr(self, field.name)) for field in fields(self)])

    @classmethod
    def from_vector(cls, vector: Vector, form: Form) -> SideStatistics:
        """The inverse of ``to_vector`` for a posterior of this form. The number of side features follows."""
        sizes = {
            "dimension": form.dimension, "augmented": form.dimension + int(form.has_intercept), "rank": form.rank,
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
    """The sizes of every statistic, as they are declared."""
    hints = get_type_hints(SideStatistics, include_extras=True)
    return {entry.name: getattr(hints[entry.name], "__metadata__", ()) for entry in fields(SideStatistics)}


def _grams(old: Vector, change: Vector, distance: Vector, has_intercept: bool) -> tuple[Vector, Vector, Vector, Vector]:
    """XᵀX, ΔᵀX, ΔᵀΔ and X'ᵀX' in one product; with intercepts X and X' begin with a 1, Δ with a 0."""
    parts = [old, change, distance]
    if has_intercept:
        one, zero = np.ones((len(old), 1)), np.zeros((len(old), 1))
        parts = [one, old, zero, change, one, distance]
    lines = np.concatenate(parts, axis=1)
    total = gram_matrix(lines)
    before, moved, after = (slice(k * len(total) // 3, (k + 1) * len(total) // 3) for k in range(3))
    return total[before, before], total[moved, before], total[moved, moved], total[after, after]


def _prior_distance(shift: Vector, posterior: RowPosterior, pick: slice | NDArray[Any], precision: Vector) -> float:
    """``SideStatistics.prior_distance``; 0 of rows that share a prior."""
    if len(precision) < len(shift):
        return 0.0
    variance = posterior.deviation[pick].astype(np.float64) ** 2
    return float(np.sum(precision * (shift**2 + variance) - 1 - np.log(precision)))


def _told_gram(told: Vector | None, counts: NDArray[np.integer], rank: int) -> Vector:
    lines = np.zeros((len(counts), rank)) if told is None else told
    return gram_matrix(np.insert(lines, 0, 1.0, axis=1) * np.sqrt(counts)[:, None])


def relative_change(rows: SideStatistics, cols: SideStatistics, has_intercept: bool) -> float:
    """‖M_t − M_{t−1}‖²_F / ‖M_t‖²_F without forming M = L̃ R̃ᵀ.

    ΔM = ΔL R_tᵀ + L_{t−1} ΔRᵀ, so ‖ΔM‖² = tr(ΔLᵀΔL·R_tᵀR_t) + tr(LᵀL·ΔRᵀΔR) + 2 tr[(ΔLᵀL)(ΔRᵀR_t)], L old.
    """
    # The row's layout is [1, b, L], its partner's [d, 1, R]: exchange the first two of the columns' coordinates.
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
