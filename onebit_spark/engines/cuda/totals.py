"""Sums over the rows of a side on the GPU: the statistics of a half step, in one transfer."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core.posterior import RowPosterior
from onebit_spark.core.statistics import SideStatistics
from onebit_spark.engines.cuda.device import NULL, cupy, kernel, or_null
from onebit_spark.engines.cuda.ratings import DeviceRatings
from onebit_spark.engines.cuda.shapes import Shape
from onebit_spark.engines.cuda.update import DevicePrior

Vector = NDArray[np.float64]

BLOCKS = 264  # two for each multiprocessor of an H200; each adds up its share of the rows
THREADS, MOST_THREADS, LEAST_ROWS = 256, 1024, 64  # of a block
SCALES, T_T, W_W, D_D, Q_Q = 0, 5, 6, 11, 16  # numbers of jobs, as in totals.cu


def side_statistics(
    ratings: DeviceRatings, old: Any, new: RowPosterior, prior: DevicePrior, implicit_means: Any, scalars: Any,
    wants_data: bool, features: Any,
) -> SideStatistics:  # fmt: skip
    """``SideStatistics`` of updated rows.

    ``old`` are their means before, ``implicit_means`` what implicit features add to the prior means. ``scalars`` are
    the three sums of ``solve`` by blocks. The first part of the data term comes with the next half step
    (``CudaRunner.data_term``).
    """
    shape, cp = Shape.of(new.form), cupy()
    parts = _parts(ratings, shape, old, new, prior.explained, implicit_means, jobs(shape))
    results = cp.empty(len(parts) + len(scalars))
    fold(parts, results[: len(parts)])
    fold(scalars, results[len(parts) :])
    numbers, cross = results.get(), np.zeros((0, shape.size + 2 * shape.rank * shape.implicit))
    if features is not None:
        shift = new.location.astype(np.float64) - prior.means(prior.all_explained(implicit_means, shape.fixed))
        if shape.implicit:
            assert new.implicit is not None
            directions = new.implicit[:, 4 * shape.rank :] * cp.sqrt(ratings.distinct.astype(np.float64))[:, None]
            shift = cp.hstack([shift, directions])
        shift *= cp.diff(ratings.pointers)[:, None] > 0
        cross = (features.astype(np.float64).T @ shift).get()
    widths = [numbers_of(shape, job) for job in jobs(shape)]
    covariance, gram, change_gram, change_cross, distance_gram, *implicit, three = np.split(numbers, np.cumsum(widths))
    log_volume, prior_distance, linear = three
    rank, square = shape.rank, (shape.size + shape.fixed,) * 2
    coef_gram, direction_gram = np.zeros((0, 0)), np.zeros((0, square[0]))
    implicit_gram = np.zeros((rank + 1, rank + 1))
    implicit_gram[0, 0] = ratings.n
    if shape.implicit:
        implicit_gram, coef_gram = implicit[0].reshape(rank + 1, rank + 1), _coef_gram(implicit[1:7], rank)
        direction_gram = _direction_gram([part.reshape(square)[-rank:] for part in implicit[7:]])
    return SideStatistics(
        count=ratings.n_rated,
        covariance=_square_of(covariance, shape),
        prior_distance=float(prior_distance),
        log_volume=float(log_volume),
        data=float(-linear) if wants_data else 0.0,
        gram=gram.reshape(square),
        change_gram=change_gram.reshape(square),
        change_cross=change_cross.reshape(square),
        distance_gram=distance_gram.reshape(square),
        coef_gram=coef_gram,
        direction_gram=direction_gram,
        implicit_gram=implicit_gram,
        feature_cross=cross,
    )


def coef_gram(ratings: DeviceRatings, rows: RowPosterior) -> Vector:
    """The Gram matrix of [w z d] of all rows."""
    shape = Shape.of(rows.form)
    parts = _parts(ratings, shape, rows.location, rows, None, None, range(W_W, D_D + 1))
    sums = cupy().empty(len(parts))
    fold(parts, sums)
    return _coef_gram(np.split(sums.get(), 6), shape.rank)


def _coef_gram(parts: list[Vector], rank: int) -> Vector:
    """The Gram matrix of [w z d] from its blocks WW, WZ, WD, ZZ, ZD and DD."""
    ww, wz, wd, zz, zd, dd = (part.reshape(rank, rank) for part in parts)
    return np.block([[ww, wz, wd], [wz.T, zz, zd], [wd.T, zd.T, dd]])


def _direction_gram(parts: list[Vector]) -> Vector:
    """[YᵀX' YᵀY] with Y = [S Q], from SX', QX', SS, SQ and QQ; the last three have the columns of X'."""
    (se, qe), (ss, sq, qq) = parts[:2], (part[:, -len(part) :] for part in parts[2:])
    return np.block([[se, ss, sq], [qe, sq.T, qq]])


def jobs(shape: Shape) -> range:
    """The jobs of ``totals.cu``."""
    return range(Q_Q + 1 if shape.implicit else T_T)


def numbers_of(shape: Shape, job: int) -> int:
    """How many numbers a job adds up."""
    if job == SCALES:
        return shape.size if shape.spread else shape.packed
    width = shape.rank if W_W <= job <= D_D else shape.rank + 1 if job == T_T else shape.size + shape.fixed
    return width * width


def fold(table: Any, out: Any) -> None:
    """The sum of every line of a table."""
    lines, count = table.shape
    threads = THREADS if count <= THREADS * 8 else MOST_THREADS
    kernel("fold", "fold", {})((lines,), (threads,), (table, np.int64(count), out))


def _parts(
    ratings: DeviceRatings, shape: Shape, old: Any, rows: RowPosterior, explained: Any, implicit_means: Any,
    chosen: range,
) -> Any:  # fmt: skip
    """The sums of these jobs: a line for each number, a column for each share of the rows."""
    blocks = min(BLOCKS, -(-ratings.n_rows // LEAST_ROWS))
    out = cupy().empty((sum(numbers_of(shape, job) for job in chosen), blocks))
    explained, implicit_means, implicit = (or_null(array) for array in (explained, implicit_means, rows.implicit))
    kernel("totals", "statistics", shape.total_macros)(
        (blocks, len(chosen)), (THREADS,),
        (
            ratings.pointers, ratings.distinct if shape.implicit else NULL, old, rows.location, rows.scale, explained,
            implicit_means, implicit, np.int32(chosen[0]), out, np.int64(ratings.n_rows),
        ),
    )  # fmt: skip
    return out


def _square_of(sums: Vector, shape: Shape) -> Vector:
    """Σ V from the sums of packed covariances, or of squared deviations."""
    if shape.spread:
        return np.diag(sums)
    total = np.zeros((shape.size, shape.size))
    i, j = np.tril_indices(shape.size)
    total[i, j] = total[j, i] = sums
    return total
