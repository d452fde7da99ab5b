"""A half step on the GPU: lines, sums over ratings, a system per row, and the statistics of the side.

The .cu files that a fit needs are compiled side by side, before the first of them runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from onebit_spark.core.implicit_features import RIDGE, ImplicitMove
from onebit_spark.core.losses import HalfStep, PriorLines
from onebit_spark.core.posterior import Form, RowPosterior
from onebit_spark.core.row_map import RowMap
from onebit_spark.engines.cuda.device import NULL, cache_bytes, compile_soon, cupy, kernel, launch, or_null
from onebit_spark.engines.cuda.ratings import DeviceRatings
from onebit_spark.engines.cuda.shapes import (
    BLOCK,
    MODE_LOGISTIC,
    MODE_PRODUCT,
    RATING_MACROS,
    LineShape,
    Shape,
)


def sum_macros(line: LineShape, ratings: DeviceRatings, mode: int) -> dict[str, int]:
    """Of ``sums.cu`` for these ratings."""
    lines = 4 * line.width * (ratings.n_columns + 1)
    return line.sum_macros(ratings.weights is not None, mode, lines <= cache_bytes())


def prepare_half_step(ratings: DeviceRatings, form: Form) -> None:
    """Begin to compile what a half step needs, and what follows a fit."""
    shape = Shape.of(form)
    compile_soon("solve", shape.row_macros)
    compile_soon("sums", sum_macros(shape.line, ratings, MODE_LOGISTIC))
    compile_soon("lines", shape.row_macros)
    compile_soon("maps", shape.map_macros)
    compile_soon("totals", shape.total_macros)
    compile_soon("pairs", shape.pair_macros)


def prepare_ratings() -> None:
    """Begin to compile what every fit needs."""
    compile_soon("ratings", RATING_MACROS)
    compile_soon("fold", {})


@dataclass(frozen=True)
class DevicePrior:
    """One line for all rows, or a line per row; and what side features add to the means."""

    mean: Any  # (D,) float64
    precision: Any  # (D, D) float64
    own: RowPosterior | None = None  # means and standard deviations, one line per row, in the place of these
    explained: Any = None  # (rows, D) float32, added to the means

    @classmethod
    def of(cls, step: HalfStep[Any], size: int, own: RowPosterior | None, features: Any) -> DevicePrior:
        """The prior of a step. ``own`` are the lines of its PriorLines, ``features`` the side features of all rows."""
        lines = np.zeros((1 + size, size))
        if not isinstance(step.prior, PriorLines):
            lines[0], lines[1:] = step.prior.mean[0], np.diag(step.prior.precision[0])
            lines[1:] += 0.0 if step.prior.coupling is None else step.prior.coupling
        lines = cupy().asarray(lines)
        mean, precision = lines[0], lines[1:]
        explained = None
        if features is not None:
            weights = cupy().asarray(step.feature_coef)
            explained = (features.astype(np.float64) @ weights).astype(np.float32)
        return cls(mean, precision, own, explained)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """As the kernels read it."""
        own = (NULL, NULL) if self.own is None else (self.own.location, self.own.std)
        return self.mean, self.precision, *own, or_null(self.explained)

    def all_explained(self, implicit_means: Any, fixed: int) -> Any:
        """What features explain of the means, (rows, D), of it ``implicit_means`` (rows, K); None without any."""
        if implicit_means is None:
            return self.explained
        if self.explained is None:
            explained = cupy().zeros((len(implicit_means), len(self.mean)), np.float32)
        else:
            explained = self.explained.copy()
        explained[:, fixed:] += implicit_means
        return explained

    def means(self, explained: Any) -> Any:
        """The prior means of all rows."""
        means = self.mean if self.own is None else self.own.location.astype(np.float64)
        return means if explained is None else means + explained


LINES = 16  # rows whose lines a block makes, as in lines.cu
MAP_BLOCKS = 1056  # eight for each multiprocessor of an H200; more rows than that go one after the other


class RatingSums(NamedTuple):
    """Sums over the ratings of every row of a side, as ``sums.cu`` leaves them; and what they were made of."""

    rows: RowPosterior
    partners: RowPosterior
    kappa: float  # κ
    sums: Any
    data: Any  # κ Σ_l w_l [log(1 + e^{−ξ}) + ξ/2] of every task

    @classmethod
    def of(cls, ratings: DeviceRatings, rows: RowPosterior, partners: RowPosterior, kappa: float) -> RatingSums:
        shape = Shape.of(rows.form)
        own, table = own_lines(shape, rows), partner_lines(shape, partners)
        data = cupy().empty(len(ratings.cuts.first_rows))
        sums = row_sums(ratings, shape.line, own, table, kappa, data=data)
        return cls(rows, partners, kappa, sums, data)

    def are_of(self, rows: RowPosterior, partners: RowPosterior, kappa: float) -> bool:
        """Whether they are of these very rows. Rows that are changed in place must not be asked for again."""
        return self.rows is rows and self.partners is partners and self.kappa == kappa


def updated(
    ratings: DeviceRatings, step: HalfStep[None], sums: RatingSums, prior: DevicePrior
) -> tuple[RowPosterior, Any, Any]:
    """The rows after a half step, their means by implicit features, and three sums by blocks (``solve.cu``).

    Of the rows before, ``scale`` and ``implicit`` change in place, and ``location`` stays.
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


def partner_lines(shape: Shape, partners: RowPosterior) -> Any:
    """What a rating reads of its partner, and one more line of zeros."""
    n, width = partners.n_rows, shape.line.width
    out = cupy().empty((n + 1, width), np.float32)
    fill, implicit = kernel("lines", "fill_partners", shape.row_macros), or_null(partners.implicit)
    fill((-(-(n + 1) // LINES),), (BLOCK,), (partners.location, partners.scale, implicit, out, np.int64(n)))
    return out


def own_lines(shape: Shape, rows: RowPosterior) -> Any:
    """What the rows multiply their partners' moments with."""
    out = cupy().empty((rows.n_rows, shape.own_width), np.float32)
    fill = kernel("lines", "fill_own", shape.row_macros)
    fill((-(-rows.n_rows // LINES),), (BLOCK,), (rows.location, rows.scale, out, np.int64(rows.n_rows)))
    return out


def row_sums(
    ratings: DeviceRatings, line: LineShape, own: Any, table: Any, kappa: float = 1.0, mode: int = MODE_LOGISTIC,
    data: Any = None,
) -> Any:  # fmt: skip
    """Sums over the ratings of every row (``sums.cu``). Only products set those of rows without ratings, to 0."""
    cp, cuts = cupy(), ratings.cuts
    macros = sum_macros(line, ratings, mode)
    n_tasks = len(cuts.first_rows)
    acc = (cp.zeros if mode == MODE_PRODUCT else cp.empty)((ratings.n_rows, line.sums), np.float32)
    partial = cp.empty((2 * n_tasks, line.sums), np.float32)
    kernel("sums", "sum_rows", macros)(
        (-(-n_tasks // line.tasks_per_block),), (line.threads,),
        (
            ratings.codes, or_null(ratings.weights), ratings.pointers, cuts.first_rows, or_null(own), table, acc,
            partial, or_null(data), np.int64(ratings.n), np.int32(n_tasks), np.uint32(ratings.n_columns),
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


def map_rows(posterior: RowPosterior, by: RowMap) -> None:
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
