"""A half step on the GPU: lines, sums over ratings, a system for every row, and the statistics of the side.

The .cu files that a fit needs are compiled in parallel, before the first of them runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core.features import RIDGE, ImplicitMove
from onebit_spark.core.losses import HalfStep, PriorLines
from onebit_spark.core.posterior import Form, RowMap, RowPosterior
from onebit_spark.core.statistics import SideStatistics
from onebit_spark.engines.cuda.device import NULL, cache_bytes, compile_soon, cupy, kernel, launch, or_null
from onebit_spark.engines.cuda.ratings import DeviceRatings
from onebit_spark.engines.cuda.shapes import BLOCK, MODE_LOGISTIC, MODE_PRODUCT, RATING_MACROS, LineShape, Shape

Vector = NDArray[np.float64]

LINES = 16  # rows whose lines one block of threads writes, as in lines.cu
MAP_BLOCKS = 1056  # eight blocks for each multiprocessor of an H200
TOTAL_BLOCKS = 264  # two blocks for each multiprocessor of an H200; each adds up a share of the rows
THREADS, MOST_THREADS, LEAST_ROWS = 256, 1024, 64  # threads of a block, and rows that make a block worthwhile
SCALES, T_T, W_W, D_D, Q_Q = 0, 5, 6, 11, 16  # numbers of jobs, as in totals.cu


# ---- compiling ahead -------------------------------------------------------------------------------------------------


def sum_macros(line: LineShape, ratings: DeviceRatings, mode: int) -> dict[str, int]:
    """The macros of ``sums.cu`` for these ratings."""
    lines = 4 * line.width * (ratings.n_columns + 1)
    return line.sum_macros(ratings.weights is not None, mode, lines <= cache_bytes())


def prepare_half_step(ratings: DeviceRatings, form: Form) -> None:
    """Start compiling what a half step needs, and what follows a fit."""
    shape = Shape.of(form)
    compile_soon("solve", shape.row_macros)
    compile_soon("sums", sum_macros(shape.line, ratings, MODE_LOGISTIC))
    compile_soon("lines", shape.row_macros)
    compile_soon("maps", shape.map_macros)
    compile_soon("totals", shape.total_macros)
    compile_soon("pairs", shape.pair_macros)


def prepare_ratings() -> None:
    """Start compiling what every fit needs."""
    compile_soon("ratings", RATING_MACROS)
    compile_soon("fold", {})


# ---- the update ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DevicePrior:
    """The prior of the rows: one line for all rows or one line per row, plus what side features add to the means."""

    mean: Any  # (D,) float64
    precision: Any  # (D, D) float64
    lines: RowPosterior | None = None  # means and standard deviations of each row, instead of these two
    explained: Any = None  # (rows, D) float32, added to the means

    @classmethod
    def of(cls, step: HalfStep[Any], size: int, lines: RowPosterior | None, features: Any) -> DevicePrior:
        """The prior of a step. ``lines`` are those of its PriorLines, ``features`` the side features of all rows."""
        shared = np.zeros((1 + size, size))
        if not isinstance(step.prior, PriorLines):
            shared[0], shared[1:] = step.prior.mean[0], np.diag(step.prior.precision[0])
            shared[1:] += 0.0 if step.prior.coupling is None else step.prior.coupling
        shared = cupy().asarray(shared)
        explained = None
        if features is not None:
            coef = cupy().asarray(step.feature_coef)
            explained = (features.astype(np.float64) @ coef).astype(np.float32)
        return cls(shared[0], shared[1:], lines, explained)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The prior as the kernels take it."""
        lines = (NULL, NULL) if self.lines is None else (self.lines.location, self.lines.std)
        return self.mean, self.precision, *lines, or_null(self.explained)

    def means(self, implicit_means: Any, fixed: int) -> Any:
        """The prior means of all rows, with what side features and implicit features add to them."""
        means = self.mean if self.lines is None else self.lines.location.astype(np.float64)
        if implicit_means is None:
            return means if self.explained is None else means + self.explained
        if self.explained is None:
            explained = cupy().zeros((len(implicit_means), len(self.mean)), np.float32)
        else:
            explained = self.explained.copy()
        explained[:, fixed:] += implicit_means
        return means + explained


class RatingSums(NamedTuple):
    """Sums over the ratings of every row of a side, as ``sums.cu`` leaves them, and the posteriors they belong to."""

    rows: RowPosterior
    others: RowPosterior
    kappa: float
    sums: Any
    data: Any  # κ Σ_l w_l [log(1 + e^{−ξ}) + ξ/2] of every task

    @classmethod
    def of(cls, ratings: DeviceRatings, rows: RowPosterior, others: RowPosterior, kappa: float) -> RatingSums:
        shape = Shape.of(rows.form)
        of_rows, of_others = row_lines(shape, rows), other_lines(shape, others)
        data = cupy().empty(len(ratings.cuts.first_rows))
        sums = rating_sums(ratings, shape.line, of_rows, of_others, kappa, data=data)
        return cls(rows, others, kappa, sums, data)

    def are_of(self, rows: RowPosterior, others: RowPosterior, kappa: float) -> bool:
        """Whether these are the sums of these very objects. They must be dropped when rows change in place."""
        return self.rows is rows and self.others is others and self.kappa == kappa


def updated(
    ratings: DeviceRatings, step: HalfStep[None], sums: RatingSums, prior: DevicePrior
) -> tuple[RowPosterior, Any, Any]:
    """The rows after a half step, their prior means by implicit features, and three sums by blocks (``solve.cu``).

    ``scale`` and ``implicit`` of the old rows change in place; their ``location`` does not.
    """
    shape = Shape.of(sums.rows.form)
    new = replace(sums.rows, location=cupy().empty_like(sums.rows.location))
    implicit_means = cupy().empty((new.n_rows, new.rank), np.float32) if shape.implicit else None
    scalars = cupy().empty((3, *shape.row_blocks(new.n_rows)[0]))
    kernel("solve", "solve", shape.row_macros)(
        *shape.row_blocks(new.n_rows),
        (
            sums.sums, ratings.pointers, ratings.distinct if shape.implicit else NULL, *prior.arguments,
            sums.rows.location, new.location, new.scale, or_null(new.implicit), or_null(implicit_means), scalars,
            np.int64(new.n_rows), np.float64(step.relaxation), np.float64(RIDGE),
        ),
    )  # fmt: skip
    return new, implicit_means, scalars


# ---- lines and sums --------------------------------------------------------------------------------------------------


def other_lines(shape: Shape, others: RowPosterior) -> Any:
    """What a rating reads of the other side's row, and one more line of zeros."""
    n, width = others.n_rows, shape.line.width
    out = cupy().empty((n + 1, width), np.float32)
    fill, implicit = kernel("lines", "fill_others", shape.row_macros), or_null(others.implicit)
    fill((-(-(n + 1) // LINES),), (BLOCK,), (others.location, others.scale, implicit, out, np.int64(n)))
    return out


def row_lines(shape: Shape, rows: RowPosterior) -> Any:
    """The factors of the other side's moments in E[u²]."""
    out = cupy().empty((rows.n_rows, shape.row_width), np.float32)
    fill = kernel("lines", "fill_rows", shape.row_macros)
    fill((-(-rows.n_rows // LINES),), (BLOCK,), (rows.location, rows.scale, out, np.int64(rows.n_rows)))
    return out


def rating_sums(
    ratings: DeviceRatings, line: LineShape, of_rows: Any, of_others: Any, kappa: float = 1.0,
    mode: int = MODE_LOGISTIC, data: Any = None,
) -> Any:  # fmt: skip
    """Sums over the ratings of every row (``sums.cu``). In rows without ratings only products are set, to 0."""
    cp, cuts = cupy(), ratings.cuts
    macros = sum_macros(line, ratings, mode)
    n_tasks = len(cuts.first_rows)
    acc = (cp.zeros if mode == MODE_PRODUCT else cp.empty)((ratings.n_rows, line.sums), np.float32)
    partial = cp.empty((2 * n_tasks, line.sums), np.float32)
    kernel("sums", "sum_rows", macros)(
        (-(-n_tasks // line.tasks_per_block),), (line.threads,),
        (
            ratings.codes, or_null(ratings.weights), ratings.pointers, cuts.first_rows, or_null(of_rows), of_others,
            acc, partial, or_null(data), np.int64(ratings.n), np.int32(n_tasks), np.uint32(ratings.n_columns),
            np.float32(kappa),
        ),
    )  # fmt: skip
    if n_tasks > 1:
        join = kernel("sums", "join_few", macros)
        launch(join, 32 * (n_tasks - 1), cuts.first_rows, np.int32(n_tasks), ratings.pointers, partial, acc)
    if len(cuts.many):
        join = kernel("sums", "join_many", macros)
        join((len(cuts.many),), (256,), (cuts.many, ratings.pointers, partial, acc))
    return acc


# ---- maps ------------------------------------------------------------------------------------------------------------


def apply_map(posterior: RowPosterior, by: RowMap) -> None:
    """Map all rows in place."""
    shape, n = Shape.of(posterior.form), posterior.n_rows
    matrices = np.zeros((3, shape.size, shape.size))
    matrices[0], matrices[1, 0] = by.matrix, by.shift
    if posterior.implicit is not None:
        assert by.other is not None
        matrices[2] = by.other
    matrix, shift, other = cupy().asarray(matrices)
    blocks = min(MAP_BLOCKS, -(-n // shape.map_rows))
    kernel("maps", "map_rows", shape.map_macros, shape.map_bytes)(
        (blocks,), (shape.map_rows * shape.map_lanes,),
        (posterior.location, posterior.scale, or_null(posterior.implicit), matrix, shift, other, np.int64(n)),
        shared_mem=shape.map_bytes,
    )  # fmt: skip


def move_implicit(posterior: RowPosterior, by: ImplicitMove) -> None:
    """Move the weights or the residuals of implicit features, in place."""
    shape, n = Shape.of(posterior.form), posterior.n_rows
    blocks = min(MAP_BLOCKS, -(-n // shape.map_rows))
    matrix = cupy().asarray(np.ascontiguousarray(by.matrix))
    kernel("maps", "move_implicit", shape.map_macros)(
        (blocks,), (shape.map_rows * shape.map_lanes,),
        (posterior.implicit, matrix, np.int32(by.value), np.int32(by.directions), np.int64(n)),
    )  # fmt: skip


# ---- statistics ------------------------------------------------------------------------------------------------------


def side_statistics(
    ratings: DeviceRatings, old: Any, new: RowPosterior, prior: DevicePrior, implicit_means: Any, scalars: Any,
    want_data: bool, features: Any,
) -> SideStatistics:  # fmt: skip
    """``SideStatistics`` of updated rows, in one transfer.

    ``old`` are the means before the update, ``implicit_means`` and ``scalars`` what ``updated`` returns beside the
    rows. The first part of the data term comes with the sums of the next half step (``CudaRunner.data_term``).
    """
    shape, cp = Shape.of(new.form), cupy()
    parts = _parts(ratings, shape, old, new, prior.explained, implicit_means, jobs(shape))
    results = cp.empty(len(parts) + len(scalars))
    fold(parts, results[: len(parts)])
    fold(scalars, results[len(parts) :])
    numbers, cross = results.get(), np.zeros((0, shape.size + 2 * shape.rank * shape.implicit))
    if features is not None:
        shift = new.location.astype(np.float64) - prior.means(implicit_means, shape.fixed)
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
        data=float(-linear) if want_data else 0.0,
        gram=gram.reshape(square),
        change_gram=change_gram.reshape(square),
        change_cross=change_cross.reshape(square),
        distance_gram=distance_gram.reshape(square),
        coef_gram=coef_gram,
        direction_gram=direction_gram,
        implicit_gram=implicit_gram,
        feature_cross=cross,
    )


def gram_of_coef(ratings: DeviceRatings, rows: RowPosterior) -> Vector:
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
    """The number of sums of a job."""
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
    """The sums of these jobs: a line for each sum, a column for each share of the rows."""
    blocks = min(TOTAL_BLOCKS, -(-ratings.n_rows // LEAST_ROWS))
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
