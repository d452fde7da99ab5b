"""A half step of the hinge loss on the GPU: the minimum of the majoriser and the way to it, or a gradient step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from onebit_spark.core.implicit_features import RIDGE
from onebit_spark.core.losses import HalfStep
from onebit_spark.core.losses.hinge import Hinge, floors, learning_rate
from onebit_spark.core.posterior import RowPosterior
from onebit_spark.engines.cuda.device import NULL, cupy, kernel, or_null
from onebit_spark.engines.cuda.ratings import DeviceRatings
from onebit_spark.engines.cuda.shapes import MODE_HINGE, MODE_SEARCH, Shape
from onebit_spark.engines.cuda.update import (
    DevicePrior,
    empty_implicit_means,
    partner_lines,
    row_sums,
    solve,
)


def updated(
    ratings: DeviceRatings, loss: Hinge, step: HalfStep[None], rows: RowPosterior, partners: RowPosterior,
    prior: DevicePrior,
) -> tuple[RowPosterior, Any, Any, Any]:  # fmt: skip
    """As ``update.updated``, and κ Σ_l w_l (1 − y_l u_l)_+ at the old means, by tasks."""
    shape, cp, majorises = Shape.of(rows.form, hinge=True), cupy(), loss.solver == "mm"
    margin_floor, mean_floor = floors(step.iteration) if majorises else (0.0, 0.0)
    hinge, table = cp.empty(len(ratings.cuts.first_rows)), partner_lines(shape, partners)
    sums = row_sums(
        ratings, shape.line, own_lines(shape, rows.location), table, step.kappa, MODE_HINGE, hinge, margin_floor
    )
    del table
    new, implicit_means = replace(rows, location=cp.empty_like(rows.location)), empty_implicit_means(shape, rows)
    way: Any = NULL
    gains: Any = NULL
    if majorises:
        way = cp.empty_like(rows.location)
        towards = replace(rows, location=way)
        solve(ratings, step, shape, sums, prior, rows.location, towards, implicit_means, floor=mean_floor)
        gains = _searched(ratings, shape, rows.location, way, partners.location, step)
    moves = step.move_means and not majorises
    rate = learning_rate(step.iteration) / (step.kappa * step.ratings_per_row) if moves else 0.0
    scalars = cp.empty((3, *shape.row_blocks(rows.n_rows)[0]))
    kernel("hinge", "move", shape.row_macros)(
        *shape.row_blocks(rows.n_rows),
        (
            sums, gains, ratings.pointers, ratings.distinct if shape.implicit else NULL, *prior.arguments,
            rows.location, way, new.location, new.scale, or_null(new.implicit), or_null(implicit_means), scalars,
            np.int64(rows.n_rows), np.float64(step.relaxation), np.float64(RIDGE), np.float64(rate),
            np.int32(step.move_covariances),
        ),
    )  # fmt: skip
    return new, implicit_means, scalars, hinge


def _searched(ratings: DeviceRatings, shape: Shape, old: Any, way: Any, partners: Any, step: HalfStep[None]) -> Any:
    """What the loss of every row gains by its way to the minimum, by half of it, and so on."""
    line = shape.search_line
    own = cupy().zeros((len(old), 2 * line.width), np.float32)
    put_row(shape, own, old)
    put_row(shape, own[:, line.width :], way, 0.0)
    table = cupy().zeros((len(partners) + 1, line.width), np.float32)
    table[:-1, : shape.size], table[:-1, shape.size] = partners, 1.0
    return row_sums(ratings, line, own, table, step.kappa, MODE_SEARCH, number=step.relaxation)


def own_lines(shape: Shape, location: Any) -> Any:
    """The rows beside the last moments of their partners: [1, L, b] (or [L, 0]) beside [d, R, 1] (or [R, 1])."""
    line = shape.line
    out = cupy().zeros((len(location), line.signed * line.group), np.float32)
    put_row(shape, out[:, shape.packed - (line.moments - line.signed) * line.group :], location)
    return out


def put_row(shape: Shape, out: Any, location: Any, one: float = 1.0) -> None:
    """[1, L, b] (or [L, 0]) into the first columns of ``out``."""
    if not shape.fixed:
        out[:, : shape.size] = location
        return
    out[:, 0], out[:, 1 : shape.size], out[:, shape.size] = one, location[:, 1:], location[:, 0]
