"""SideStatistics: the sums that the driver gets from a half step, a few D×D matrices for any number
of rows.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from typing import Annotated, Any, get_type_hints

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from onebit_spark.core.arrays import DoubleArray, FloatArray, IntArray
from onebit_spark.core.features import FEATURE_RIDGE, RIDGE, CoefStep, coef_gram, gram_matrix
from onebit_spark.core.loss import RowPrior, RowSums
from onebit_spark.core.posterior import Form, RowMap, RowPosterior
from onebit_spark.records import Fields

# Smaller scores are 0 for the stopping rule: they move a probability by less than a millionth
ZERO_SCORE = 1e-6


@dataclass(frozen=True)
class SideMoments:
    """The moments of the rows with ratings that determine KL(ρ‖π).

    x̃ is [1, b, L], or L without intercepts.
    """

    count: int  # number of rows
    # Σ_i E[x̃_i] E[x̃_i]ᵀ; with features, of the distances to the explained means, plus the ridge
    # penalty of their coefficients
    means: DoubleArray
    covariance: DoubleArray  # Σ_i V_i, D × D; diagonal if the coordinates are independent
    log_volume: float  # Σ_i Σ_k log s_ik, or ½ Σ_i log det V_i
    locations: DoubleArray  # Σ_i E[x̃_i] E[x̃_i]ᵀ of the whole x̃

    @property
    def fixed(self) -> int:
        """The number of coordinates of x̃ that are fixed at 1: one with intercepts, none
        without.
        """
        return len(self.means) - len(self.covariance)

    @cached_property
    def second(self) -> DoubleArray:
        """Σ_i E[x̃_i x̃_iᵀ]."""
        total = self.means.copy()
        total[self.fixed :, self.fixed :] += self.covariance
        return total

    @property
    def factors(self) -> DoubleArray:
        """Σ_i E[L_i L_iᵀ], K × K."""
        return self.second[2 * self.fixed :, 2 * self.fixed :]

    def mapped(self, by: RowMap) -> SideMoments:
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

    X = [1, b, L] are the augmented means before the half step, Δ their change. A new statistic is a
    field with its shape, and a line in ``of_rows``.
    """

    count: int  # number of rows
    covariance: Annotated[DoubleArray, "dimension", "dimension"]  # Σ_i V_i
    log_volume: float  # Σ_i Σ_k log s_ik, or ½ Σ_i log det V_i
    data: float  # the data term of the objective, if the half step computes it
    # XᵀX, ΔᵀΔ and ΔᵀX (not symmetric), for the stopping rule
    gram: Annotated[DoubleArray, "augmented", "augmented"]
    change_gram: Annotated[DoubleArray, "augmented", "augmented"]
    change_cross: Annotated[DoubleArray, "augmented", "augmented"]
    # X'ᵀX' of the new means minus the explained means; with ``covariance`` it determines the γ and
    # μ updates
    distance_gram: Annotated[DoubleArray, "augmented", "augmented"]
    # Σ_i [w z d]_i [w z d]_iᵀ of the rows' implicit coefficients for the other side (``CoefStep``),
    # or 0 × 0
    coef_gram: Annotated[DoubleArray, "weights", "weights"]
    # YᵀX' and YᵀY; Y = [S Q] is the change of the prior means for a step of the other side's
    # coefficients along Z and D
    direction_gram: Annotated[DoubleArray, "directions", "augmented, directions"]
    # Σ_i |Ω_i| [1, p_i][1, p_i]ᵀ, p_i the part of the prior mean that implicit features explain
    implicit_gram: Annotated[DoubleArray, "rank + 1", "rank + 1"]
    # Σ_i f_i (E x_i − p_i)ᵀ and Σ_i f_i y_iᵀ with the p side features f_i; p = 0 without them
    feature_cross: Annotated[DoubleArray, "features", "dimension, directions"]

    def __add__(self, other: SideStatistics) -> SideStatistics:
        return SideStatistics(
            **{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        )

    @classmethod
    def of_rows(
        cls,
        old_location: FloatArray,
        posterior: RowPosterior,
        prior: RowPrior,
        counts: IntArray,
        sums: RowSums,
        features: FloatArray | None = None,
    ) -> SideStatistics:
        """The statistics of some rows after their update; ``counts`` are their numbers of rated
        partners.
        """
        rated = counts > 0
        pick: slice | NDArray[Any] = slice(None) if np.all(rated) else np.flatnonzero(rated)
        prior = prior.take(pick)
        old, new = (
            location[pick].astype(np.float64) for location in (old_location, posterior.location)
        )
        shift = new - prior.mean
        roots = np.sqrt(counts[pick])[:, None]
        rank = posterior.rank
        fixed = int(posterior.has_intercept)
        size = new.shape[1] + fixed
        ones = np.ones((len(new), fixed))
        # This is the Gram matrix of [X Δ].
        both = gram_matrix(np.concatenate([ones, old, np.zeros_like(ones), new - old], axis=1))
        directions = np.zeros((len(new), 0))
        if posterior.features is not None:  # they have Y = [S Q] times |Ω_i|^{−½}
            directions = np.asarray(posterior.features.directions[pick] * roots, np.float64)
        distance = new if prior.explained is None else new - prior.explained
        moved = gram_matrix(np.concatenate([ones, distance, directions], axis=1))  # of [X' Y]
        means = np.zeros((len(new), rank)) if prior.implicit_mean is None else prior.implicit_mean
        lines = np.hstack([shift, directions])
        return cls(
            count=len(new),
            covariance=posterior.total_covariance(rated),
            log_volume=sums.log_volume,
            data=sums.data,
            gram=both[:size, :size],
            change_gram=both[size:, size:],
            change_cross=both[size:, :size],
            distance_gram=moved[:size, :size],
            coef_gram=coef_gram(posterior),
            direction_gram=moved[size:],
            implicit_gram=gram_matrix(np.insert(means, 0, 1.0, axis=1) * roots),
            feature_cross=np.zeros((0, lines.shape[1]))
            if features is None
            else np.asarray(features[pick].T @ lines),
        )

    def mapped(self, by: RowMap) -> SideStatistics:
        """The statistics of the mapped rows: each axis is multiplied by the matrix of its
        coordinates.

        The implicit coefficients of the rows have the coordinates of the other side.
        """
        rank = len(self.implicit_gram) - 1
        augmented = by.augmented if len(self.gram) > len(by.matrix) else by.matrix
        assert by.other is not None
        directions = by.of_vectors(rank, len(self.direction_gram) // rank)
        through = {
            "dimension": by.matrix,
            "augmented": augmented,
            "weights": RowMap.linear(by.other).of_vectors(rank, len(self.coef_gram) // rank),
            "directions": directions,
            "augmented, directions": scipy.linalg.block_diag(augmented, directions),
            "dimension, directions": scipy.linalg.block_diag(by.matrix, directions),
            "rank + 1": by.of_means(rank),
            "features": np.eye(len(self.feature_cross)),
        }
        shapes = {name: axes for name, axes in _shapes().items() if axes}
        values = {
            name: through[a].T @ getattr(self, name) @ through[b] for name, (a, b) in shapes.items()
        }
        return replace(self, **values, log_volume=self.log_volume + self.count * by.log_determinant)

    def best_step(self, coef_gram: DoubleArray) -> CoefStep:
        """The best step of the other side's implicit coefficients, which have this
        ``coef_gram``.
        """
        crossed, square = np.split(self.direction_gram, [len(self.gram)], axis=1)
        return CoefStep.best(square, crossed[:, -(len(coef_gram) // 3) :], coef_gram)

    def after(self, step: CoefStep) -> SideStatistics:
        """The statistics after a step of the other side's coefficients: X' − [0, YC]
        replaces X'.
        """
        size = len(self.gram)
        (directions, rank) = step.matrix.shape
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

    def with_ridge(
        self, coef_gram: DoubleArray, feature_coef: DoubleArray | None
    ) -> SideStatistics:
        """The same with the ridge penalties of the coefficients that explain the prior means of
        these rows.
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
        return SideMoments(
            self.count, self.distance_gram, self.covariance, self.log_volume, _new_gram(self)
        )

    def to_vector(self) -> DoubleArray:
        return np.concatenate([np.ravel(getattr(self, field.name)) for field in fields(self)])

    @classmethod
    def from_vector(cls, vector: DoubleArray, form: Form) -> SideStatistics:
        """The inverse of ``to_vector`` for a posterior of this form.

        The length gives the number of side features.
        """
        augmented = form.dimension + int(form.has_intercept)
        weights, directions = (n * form.rank if form.vectors else 0 for n in (3, 2))
        sizes = {
            "dimension": form.dimension,
            "augmented": augmented,
            "weights": weights,
            "directions": directions,
            "augmented, directions": augmented + directions,
            "dimension, directions": form.dimension + directions,
            "rank + 1": form.rank + 1,
            "features": -1,
        }
        values: Fields = {}
        for name, names_of_sizes in _shapes().items():
            shape = [sizes[size] for size in names_of_sizes]
            length = len(vector) if -1 in shape else int(np.prod(shape, dtype=int))
            part = vector[:length]
            vector = vector[length:]
            values[name] = part.reshape(shape) if shape else float(part[0])
        return cls(**{**values, "count": int(values["count"])})


@cache
def _shapes() -> dict[str, tuple[str, ...]]:
    hints = get_type_hints(SideStatistics, include_extras=True)
    return {
        entry.name: getattr(hints[entry.name], "__metadata__", ())
        for entry in fields(SideStatistics)
    }


def relative_change(rows: SideStatistics, cols: SideStatistics, has_intercept: bool) -> float:
    """‖M_t − M_{t−1}‖²_F / ‖M_t‖²_F without forming M = L̃ R̃ᵀ (docs/MATH.md, §7.4).

    The denominator is at least what it is if all scores are ``ZERO_SCORE``: below, a change is one
    of rounding errors.
    """
    # A row is laid out as [1, b, L], its partner as [d, 1, R]: exchange the first two coordinates
    # of the columns.
    order = np.arange(len(cols.gram))
    if has_intercept:
        order[:2] = 1, 0
    exchange = np.ix_(order, order)
    col_change = cols.change_gram[exchange]
    col_cross = cols.change_cross[exchange]
    col_new = _new_gram(cols)[exchange]
    col_cross_new = col_cross + col_change
    change = np.sum(rows.change_gram * col_new) + np.sum(rows.gram * col_change)
    change += 2 * np.sum(rows.change_cross * col_cross_new.T)
    size = max(np.sum(_new_gram(rows) * col_new), ZERO_SCORE**2 * rows.count * cols.count)
    return float(max(change, 0.0) / size) if size > 0 else 0.0


def _new_gram(side: SideStatistics) -> DoubleArray:
    """(X+Δ)ᵀ(X+Δ) = XᵀX + ΔᵀX + XᵀΔ + ΔᵀΔ."""
    return side.gram + side.change_cross + side.change_cross.T + side.change_gram
