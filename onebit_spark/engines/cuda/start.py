"""The start of a fit on the GPU, and the start of new factors: products with the sign matrix and with residuals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core.config import FitConfig
from onebit_spark.core.engine import GROWN_MARGIN
from onebit_spark.core.losses import OTHER, SIDES, Loss, Side
from onebit_spark.core.posterior import FIT_VECTORS, RowPosterior, packed_size
from onebit_spark.core.spectral import (
    STARTS,
    CountedRows,
    CubeSums,
    Factors,
    Keyed,
    Numbered,
    SquareSum,
    Table,
    add_tables,
    gram,
    spectral_start,
)
from onebit_spark.engines.cuda.device import cupy
from onebit_spark.engines.cuda.half_step import rating_sums
from onebit_spark.engines.cuda.pairs import residual_weights
from onebit_spark.engines.cuda.ratings import DeviceRatings, Orientations, count_distinct, keyed_normals
from onebit_spark.engines.cuda.shapes import MODE_PRODUCT, LineShape


def device_start(ratings: Orientations, config: FitConfig, loss: Loss) -> dict[Side, RowPosterior]:
    """Both posteriors at the start of a fit."""
    signs: Any = DeviceSigns(ratings)
    tables: tuple[Any, Any] = STARTS[config.start](signs, config.factors, config.seed)
    return {side: _posterior(table, config, loss) for side, table in zip(SIDES, tables, strict=True)}


def device_growth(
    ratings: Orientations, posteriors: dict[Side, RowPosterior], config: FitConfig, loss: Loss
) -> dict[Side, RowPosterior]:
    """Both posteriors with as many factors as ``config`` asks for (``core.engine``)."""
    matrix: Any = DeviceResiduals.of(ratings, posteriors)
    more = config.factors - posteriors["rows"].rank
    tables: tuple[Any, Any] = spectral_start(matrix, more, config.seed, GROWN_MARGIN)
    return {
        side: _with_factors(posteriors[side], table, loss.start_std) for side, table in zip(SIDES, tables, strict=True)
    }


def _with_factors(rows: RowPosterior, factors: Any, deviation: float) -> RowPosterior:
    """``RowPosterior.with_factors`` on the device."""
    cp, old, new = cupy(), rows.dimension, rows.dimension + factors.shape[1]
    width = new if rows.kind == "spread" else packed_size(new)
    scale = cp.zeros((rows.n_rows, width), np.float32)
    scale[:, : rows.scale.shape[1]] = rows.scale  # the packed triangle of the first coordinates comes first
    for k in range(old, new):
        if rows.kind == "spread":
            scale[:, k] = deviation
        else:
            scale[:, packed_size(k + 1) - 1] = deviation**2
    implicit = None
    if rows.implicit is not None:
        rank, wider = rows.rank, rows.rank + factors.shape[1]
        implicit = cp.zeros((rows.n_rows, rows.vectors * wider), np.float32)
        for n in range(rows.vectors):
            implicit[:, n * wider :][:, :rank] = rows.implicit[:, n * rank :][:, :rank]
    location = cp.hstack([rows.location, factors.astype(np.float32)])
    return RowPosterior(location, scale, rows.kind, rows.has_intercept, implicit)


def _posterior(factors: Any, config: FitConfig, loss: Loss) -> RowPosterior:
    """A posterior with intercepts at 0 and the same standard deviation for all coordinates."""
    cp, rows, size, fixed = cupy(), len(factors), config.dimension, int(config.intercepts)
    location = cp.zeros((rows, size), np.float32)
    location[:, fixed:] = factors * loss.start_shrinkage if fixed else factors
    if loss.kind == "spread":
        scale = cp.full((rows, size), loss.start_std, np.float32)
    else:
        scale = cp.zeros((rows, packed_size(size)), np.float32)
        for k in range(size):
            scale[:, packed_size(k + 1) - 1] = np.float32(loss.start_std) ** 2
    implicit = cp.zeros((rows, FIT_VECTORS * config.factors), np.float32) if config.implicit_features else None
    return RowPosterior(location, scale, loss.kind, config.intercepts, implicit)


@dataclass(frozen=True)
class DeviceSigns:
    """A ``SignMatrix`` (``core.spectral``) whose tables are arrays of the device."""

    ratings: Orientations

    @property
    def total_weight(self) -> float:
        return self.ratings["rows"].total_weight

    def count(self, side: Side) -> int:
        return self.ratings[side].n_rated

    def distinct_keys(self, side: Side, enough: int) -> int:
        return count_distinct(self.ratings[side])

    def row_table(self, side: Side, make: Callable[..., Table], *tables: Any) -> Any:
        ratings = self.ratings[side]
        if make is add_tables:
            return tables[0] + tables[1]
        if isinstance(make, Factors):
            factors = _scaled(ratings, tables[0], make.right)
            if not make.fillers:
                return factors
            return cupy().hstack([factors, keyed_normals(ratings, make.fillers, make.seed + 1, make.noise, False)])
        assert isinstance(make, Keyed | Numbered)
        numbered = isinstance(make, Numbered)
        return keyed_normals(ratings, make.width, make.seed, getattr(make, "std", 1.0), numbered)

    def product(self, side: Side, table: Any, right: Table) -> Any:
        line = LineShape.of_columns(right.shape[1])
        sent = cupy().zeros((len(table) + 1, line.width), np.float32)
        sent[:-1, : right.shape[1]] = _scaled(self.ratings[OTHER[side]], table, right)
        sums = rating_sums(self._multiplied(side), line, None, sent, mode=MODE_PRODUCT)
        return sums[:, : right.shape[1]] * self.ratings[side].row_weights.root[:, None]

    def _multiplied(self, side: Side) -> DeviceRatings:
        """The ratings whose signs, times their weights, are the matrix."""
        return self.ratings[side]

    def total(self, side: Side, measure: Callable[[CountedRows, Table], Table], table: Any) -> NDArray[np.float64]:
        if measure is gram:
            return np.asarray((table.T @ table).get())
        assert isinstance(measure, CubeSums | SquareSum)
        factors = _scaled(self.ratings[side], table, measure.factors.right)
        if isinstance(measure, CubeSums):
            return np.asarray((cupy().ones(len(factors)) @ (factors * factors * factors)).get())
        return np.asarray(cupy().vdot(factors, factors).get())


@dataclass(frozen=True)
class DeviceResiduals(DeviceSigns):
    """Residuals y_l σ(−y_l u_l) instead of the signs, where u_l = E[L_i]·E[R_j] plus the intercepts."""

    residuals: Orientations  # the ratings, weighted by w_l σ(−y_l u_l)

    @classmethod
    def of(cls, ratings: Orientations, posteriors: dict[Side, RowPosterior]) -> DeviceResiduals:
        return cls(
            ratings,
            {
                side: replace(some, weights=residual_weights(some, posteriors[side], posteriors[OTHER[side]]))
                for side, some in ratings.items()
            },
        )

    def _multiplied(self, side: Side) -> DeviceRatings:
        return self.residuals[side]


def _scaled(ratings: DeviceRatings, table: Any, right: Table) -> Any:
    """D^{−½} table·right."""
    return ratings.row_weights.root[:, None] * (table @ cupy().asarray(right))
