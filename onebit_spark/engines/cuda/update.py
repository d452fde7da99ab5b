"""A half step on the GPU: lines, sums over ratings, a system per row, and the statistics of the side."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from onebit_spark.core.implicit_features import RIDGE
from onebit_spark.core.losses import HalfStep
from onebit_spark.core.posterior import RowPosterior
from onebit_spark.core.row_map import RowMap
from onebit_spark.engines.cuda.device import NULL, cache_bytes, cupy, kernel, launch
from onebit_spark.engines.cuda.priors import DevicePrior
from onebit_spark.engines.cuda.ratings import DeviceRatings
from onebit_spark.engines.cuda.shapes import BLOCK, LineShape, Shape

MODE_UPDATE, MODE_PRODUCT, MODE_GATHER = 0, 1, 2
LINES = 64  # rows whose lines a block makes, as in rows.cu
MAP_BLOCKS = 1056  # eight for each multiprocessor of an H200; more rows than that go one after the other


class RatingSums(NamedTuple):
    """Sums over the ratings of every row of a side, as ``sums.cu`` leaves them; and what they were made of."""

    rows: RowPosterior
    partners: RowPosterior
    weight: float  # κ
    sums: Any
    data: Any  # κ Σ_l w_l [log(1 + e^{−ξ}) + ξ/2] of all ratings

    @classmethod
    def of(cls, ratings: DeviceRatings, rows: RowPosterior, partners: RowPosterior, weight: float) -> RatingSums:
        shape = Shape.of(rows.form)
        own, table = own_lines(shape, rows), partner_lines(shape, partners)
        data = cupy().empty(len(ratings.cuts.first_rows))
        sums = row_sums(ratings, shape.line, own, table, np.float32(weight), data=data)
        return cls(rows, partners, weight, sums, data.sum())

    def are_of(self, rows: RowPosterior, partners: RowPosterior, weight: float) -> bool:
        """Whether they are of these very rows. Rows that are changed in place must not be asked for again."""
        return self.rows is rows and self.partners is partners and self.weight == weight


def updated(
    ratings: DeviceRatings, step: HalfStep[None], found: RatingSums, prior: DevicePrior
) -> tuple[RowPosterior, Any, Any]:
    """The rows after a half step, what implicit features told them, and three sums (``solve`` in ``rows.cu``).

    Of the rows before, ``scale`` and ``implicit`` change in place, and ``location`` stays.
    """
    rows, acc, cp = found.rows, found.sums, cupy()
    shape, n = Shape.of(rows.form), np.int64(rows.n_rows)
    told = cp.empty((rows.n_rows, rows.rank), np.float32) if shape.tells else None
    new = replace(rows, location=cp.empty_like(rows.location))
    name, per_block, threads, shared = shape.solve_launch
    blocks = -(-rows.n_rows // per_block)
    scalars = cp.empty((3, blocks))
    own = (NULL, NULL) if prior.own is None else (prior.own.location, prior.own.deviation)
    kernel("rows", name, shape.row_macros, shared)(
        (blocks,), (threads,),
        (
            acc, ratings.pointers, ratings.distinct if shape.tells else NULL, prior.mean, prior.precision, *own,
            _or_null(prior.explained), rows.location, new.location, new.scale, _or_null(new.implicit), _or_null(told),
            scalars, n, np.float64(step.relaxation), np.float64(RIDGE), np.float64(step.implicit_share),
        ),
        shared_mem=shared,
    )  # fmt: skip
    return new, told, scalars.sum(axis=1)


def _or_null(array: Any) -> Any:
    return NULL if array is None else array


# ---- lines and sums --------------------------------------------------------------------------------------------------


def partner_lines(shape: Shape, partners: RowPosterior) -> Any:
    """What a rating reads of its partner, and one more line of zeros."""
    n, width = partners.n_rows, shape.line.width
    out = cupy().empty((n + 1, width), np.float32)
    fill, implicit = kernel("rows", "fill_partners", shape.row_macros), _or_null(partners.implicit)
    fill((-(-(n + 1) // LINES),), (BLOCK,), (partners.location, partners.scale, implicit, out, np.int64(n)))
    return out


def own_lines(shape: Shape, rows: RowPosterior) -> Any:
    """What the rows multiply their partners' moments with."""
    out = cupy().empty((rows.n_rows, shape.own_width), np.float32)
    fill = kernel("rows", "fill_own", shape.row_macros)
    fill((-(-rows.n_rows // LINES),), (BLOCK,), (rows.location, rows.scale, out, np.int64(rows.n_rows)))
    return out


def row_sums(
    ratings: DeviceRatings, line: LineShape, own: Any, table: Any, kappa: np.float32, mode: int = MODE_UPDATE,
    data: Any = None,
) -> Any:  # fmt: skip
    """Sums over the ratings of every row (``sums.cu``); those of a row without ratings are not written."""
    cp, cuts = cupy(), ratings.cuts
    macros = line.sum_macros(ratings.weights is not None, mode, table.nbytes <= cache_bytes())
    n_tasks = len(cuts.first_rows)
    acc, partial = cp.empty((ratings.n_rows, line.sums), np.float32), cp.empty((2 * n_tasks, line.sums), np.float32)
    kernel("sums", "sum_rows", macros)(
        (-(-n_tasks // line.tasks_per_block),), (line.threads,),
        (
            ratings.codes, _or_null(ratings.weights), ratings.pointers, cuts.first_rows, _or_null(own), table, acc,
            partial, _or_null(data), np.int64(ratings.n), np.int32(n_tasks), np.uint32(ratings.n_columns), kappa,
        ),
    )  # fmt: skip
    if len(cuts.few):
        join = kernel("sums", "join_few", macros)
        launch(join, 32 * len(cuts.few), cuts.few, np.int32(len(cuts.few)), ratings.pointers, partial, acc)
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
    kernel("rows", "map_rows", shape.row_macros, shape.map_bytes)(
        (blocks,), (shape.map_rows * shape.map_lanes,),
        (posterior.location, posterior.scale, _or_null(posterior.implicit), matrix, shift, other, np.int64(n)),
        shared_mem=shape.map_bytes,
    )  # fmt: skip
