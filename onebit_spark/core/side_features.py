"""Side features: what is known of a row beside its ratings, such as an age, a genre or a skill.

    x_i ~ N(m + Wᵀf_i + p_i, diag γ),     W_·k ~ N(0, (γ_k/ρ) I)

x_i are all D coordinates of row i, the intercept included. f_i are its p side features (``feature_coding``). m is the
mean of the intercepts, p_i what the implicit features add (``implicit_features``). Given the means, W is a ridge
regression. γ_k cancels in it. With G = Σ f_i f_iᵀ over the rows with ratings and d_i = E x_i − (m + Wᵀf_i + p_i),

    W ─► W + ω (G + ρI)⁻¹ (Σ f_i d_iᵀ − ρW),     0 < ω < 2

never raises the objective. ω = 1 is the exact solution. Where implicit features move as well, they go first
(``CoefStep``), and the d_i are the distances after their step (docs/MATH.md, §15).

A half step sums Σ f_i d_iᵀ (p × D numbers) beside its other statistics. The driver moves W. No pass and no Spark job is
added.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import scipy.linalg
from numpy.typing import ArrayLike, NDArray

from onebit_spark.core.feature_coding import FeatureCoding, Table32, learn_coding
from onebit_spark.core.losses.base import Side
from onebit_spark.core.posterior import FloatArray

Vector = NDArray[np.float64]

FEATURE_RIDGE = 5.0  # ρ


@dataclass(frozen=True)
class FeatureRidge:
    """The regression of the means of a side on its side features."""

    factorised: tuple[Vector, bool]  # Cholesky factor of G + ρI, as scipy gives it

    @classmethod
    def of(cls, gram: Vector) -> FeatureRidge:
        """From G (p × p)."""
        return cls(scipy.linalg.cho_factor(gram + FEATURE_RIDGE * np.eye(len(gram))))

    def moved(self, weights: Vector, cross: Vector, relaxation: float) -> Vector:
        """The weights (p × D) after a step; ``cross`` is Σ f_i d_iᵀ."""
        step = scipy.linalg.cho_solve(self.factorised, cross - FEATURE_RIDGE * weights)
        return np.asarray(weights + relaxation * step)


def rated_gram(features: FloatArray, counts: NDArray[np.int64]) -> Vector:
    """G = Σ f_i f_iᵀ over the rows with ratings."""
    rated = features[counts > 0].astype(np.float64)
    return np.asarray(rated.T @ rated)


def of_known_size(weights: Mapping[Side, Vector], grams: Mapping[Side, Vector], dimension: int) -> dict[Side, Vector]:
    """W of every side that has features: as given where it fits them, else 0."""
    sized: dict[Side, Vector] = {}
    for side, gram in grams.items():
        shape = len(gram), dimension
        given = weights.get(side)
        sized[side] = given if given is not None and given.shape == shape else np.zeros(shape)
    return sized


# ---- the features of the rows of an engine ---------------------------------------------------------------------------


@dataclass(frozen=True)
class SideFeatures:
    """The side features of all rows of a side, coded by those of the rows with ratings."""

    table: pa.Table  # one line per row
    coding: FeatureCoding  # how columns become numbers
    coded: Table32  # one line of numbers per row

    @classmethod
    def over(cls, table: pa.Table, rated: NDArray[np.bool_]) -> SideFeatures:
        """The coding is learnt from the rated rows alone."""
        coding, _ = learn_coding(table.filter(pa.array(rated)), "")
        return cls(table, coding, coding.coded(table))

    @classmethod
    def of_rows(cls, given: ArrayLike | pa.Table, rated: NDArray[np.bool_], name: str) -> SideFeatures:
        """Those of an array or a table with one line per row."""
        table = given if isinstance(given, pa.Table) else _as_table(given, name)
        if table.num_rows != len(rated):
            raise ValueError(f"{name} must have {len(rated):,} lines, one per row or column, not {table.num_rows:,}")
        return cls.over(table, rated)


SideTables = dict[Side, SideFeatures]  # of the sides that have any


def codings_of(features: SideTables) -> dict[Side, FeatureCoding]:
    return {side: known.coding for side, known in features.items()}


def coded_by_rated(features: SideTables, counts: Callable[[Side], NDArray[np.int64]]) -> SideTables:
    """The same features, coded by the rows with ratings among these: what is fitted to a part depends on it alone."""
    coded = {side: SideFeatures.over(known.table, counts(side) > 0) for side, known in features.items()}
    return {side: known for side, known in coded.items() if known.coding.features}


def _as_table(given: ArrayLike, name: str) -> pa.Table:
    numbers = np.asarray(given, np.float64)
    if numbers.ndim != 2:
        raise ValueError(f"{name} must have lines and columns, not the shape {numbers.shape}")
    return pa.table({str(place): column for place, column in enumerate(numbers.T)})
