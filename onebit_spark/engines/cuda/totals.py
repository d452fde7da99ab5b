"""Sums over the rows of a side on the GPU: the statistics of a half step, in one transfer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core.posterior import RowPosterior
from onebit_spark.core.statistics import SideStatistics
from onebit_spark.engines.cuda.device import NULL, cupy, kernel
from onebit_spark.engines.cuda.priors import DevicePrior
from onebit_spark.engines.cuda.ratings import DeviceRatings
from onebit_spark.engines.cuda.shapes import Shape

Vector = NDArray[np.float64]

BLOCKS = 528  # four for each multiprocessor of an H200; each adds up its share of the rows
THREADS, TILE = 256, 32  # as in totals.cu
NO_LEAD = -1.0


@dataclass(frozen=True)
class Lines:
    """Rows as ``gram`` reads them: [lead, first − second]."""

    first: Any
    second: Any = None
    lead: float = NO_LEAD  # negative: there is none
    columns: slice = field(default_factory=lambda: slice(None))

    @property
    def arguments(self) -> tuple[Any, Any, np.int32, np.float64]:
        first = self.first[:, self.columns]
        second = NULL if self.second is None else self.second
        return first, second, np.int32(self.first.shape[1]), np.float64(self.lead)

    @property
    def width(self) -> int:
        return int(self.first[:, self.columns].shape[1]) + (self.lead >= 0)


class Totals:
    """Sums over the rows of a side. They are collected on the device, and fetched together."""

    def __init__(self, ratings: DeviceRatings, shape: Shape) -> None:
        self._ratings, self._shape = ratings, shape
        self._blocks = min(BLOCKS, -(-ratings.n_rows // TILE))
        self._parts: list[Any] = []

    def gram(self, x: Lines, y: Lines, counts: Any = None, rated: bool = True) -> None:
        """Σ_i c_i x_i y_iᵀ, of the rows with ratings or of all."""
        width = x.width
        out = cupy().empty((self._blocks, width * width))
        shared = 8 * 2 * TILE * width
        kernel("totals", "gram", self._shape.total_macros, shared)(
            (self._blocks,), (THREADS,),
            (
                self._ratings.pointers if rated else NULL, NULL if counts is None else counts, *x.arguments,
                *y.arguments, np.int32(width), out, np.int32(width * width), np.int64(self._ratings.n_rows),
            ),
            shared_mem=shared,
        )  # fmt: skip
        self._parts.append(out)

    def column_sums(self, table: Any, squared: bool = False) -> None:
        """Σ_i of the lines of the rows with ratings, or of their squares."""
        width = table.shape[1]
        out = cupy().empty((self._blocks, width))
        kernel("totals", "column_sums", self._shape.total_macros)(
            (self._blocks,), (THREADS,),
            (
                self._ratings.pointers, table, np.int32(width), np.int32(width), np.int32(squared), out,
                np.int32(width), np.int64(self._ratings.n_rows),
            ),
        )  # fmt: skip
        self._parts.append(out)

    def fetched(self, *more: Any) -> list[Vector]:
        """All sums in the order in which they were asked for, then these arrays."""
        cp, parts = cupy(), self._parts
        self._parts = []
        sums = [cp.concatenate(parts, axis=1).sum(axis=0)] if parts else []
        whole = cp.concatenate([*sums, *(array.ravel() for array in more)]).get()
        sizes = [part.shape[1] for part in parts] + [array.size for array in more]
        return np.split(whole, np.cumsum(sizes)[:-1])

    def of_rows(
        self, old: Any, new: RowPosterior, prior: DevicePrior, told: Any, scalars: Any, data: Any, features: Any
    ) -> SideStatistics:
        """``SideStatistics`` of updated rows.

        ``old`` are their means before, ``told`` what implicit features add, ``scalars`` the sums of ``solve``, and
        ``data`` the first part of the data term at the new state, if it is wanted.
        """
        shape, cp = self._shape, cupy()
        lead, none = (1.0, 0.0) if shape.fixed else (NO_LEAD, NO_LEAD)
        before, change = Lines(old, lead=lead), Lines(new.location, old, none)
        known = prior.known(told, shape.fixed)
        distance = Lines(new.location, known, lead)
        self.gram(before, before)
        self.gram(change, change)
        self.gram(change, before)
        self.gram(distance, distance)
        more = [scalars, cp.zeros(1) if data is None else data]
        if told is not None:
            assert new.implicit is not None
            weights = Lines(new.implicit, columns=slice(0, shape.rank))
            self.gram(weights, weights, rated=False)
            added = Lines(told, lead=1.0)
            self.gram(added, added, counts=self._ratings.distinct)
        self.column_sums(new.scale, squared=shape.spread)
        if features is not None:
            shift = new.location.astype(np.float64) - prior.means(known)
            shift *= (cp.diff(self._ratings.pointers) > 0)[:, None]
            more.append(features.astype(np.float64).T @ shift)
        gram, change_gram, change_cross, distance_gram, *rest = self.fetched(*more)
        augmented, rank = shape.size + shape.fixed, shape.rank
        weight_gram, told_gram = np.zeros((rank, rank)), np.zeros((rank + 1, rank + 1))
        if told is not None:
            weight_gram, told_gram = rest.pop(0).reshape(rank, rank), rest.pop(0).reshape(rank + 1, rank + 1)
        else:
            told_gram[0, 0] = self._ratings.n
        covariance, (log_volume, prior_distance, linear), data_sum, *cross = rest
        square = augmented, augmented
        return SideStatistics(
            count=self._ratings.n_rated,
            covariance=_square_of(covariance, shape),
            prior_distance=float(prior_distance),
            log_volume=float(log_volume),
            data=0.0 if data is None else float(data_sum[0] - linear),
            gram=gram.reshape(square),
            change_gram=change_gram.reshape(square),
            change_cross=change_cross.reshape(square),
            distance_gram=distance_gram.reshape(square),
            weight_gram=weight_gram,
            told_gram=told_gram,
            feature_cross=cross[0].reshape(-1, shape.size) if cross else np.zeros((0, shape.size)),
        )


def _square_of(sums: Vector, shape: Shape) -> Vector:
    """Σ V from the sums of packed covariances, or of squared deviations."""
    if shape.spread:
        return np.diag(sums)
    total = np.zeros((shape.size, shape.size))
    i, j = np.tril_indices(shape.size)
    total[i, j] = total[j, i] = sums
    return total
