"""Factor tables as Arrow tables, for executors and files. This module imports no Spark.

One line of a factor table is one id with the posterior of its row, here with K = 2 factors and an intercept::

    "spread"        id | mean [x1, x2] | spread [s1, s2]                           | intercept b | intercept_spread s0
    "covariance"    id | mean [x1, x2] | covariance [v00, v10, v11, v20, v21, v22] | intercept b

The covariance is the lower triangle of V, row after row, over [b, x1, x2]: the intercept is first. Without intercepts
these columns are absent, and V is over the factors only. After a prior split there is one more column,
``certified_spread`` [s0, s1, s2]: the standard deviations of the certified draws. Their means are those of the model.
With implicit features there is also ``implicit`` [w1, w2, r1, r2]: the weight and the residual
(``core.implicit_features``). A checkpoint has ``directions`` besides, the other vectors [z, d, s, q].
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from onebit_spark.core.hyper_posterior import HyperPosterior
from onebit_spark.core.id_index import IdIndex, one_array, wide
from onebit_spark.core.losses import Side
from onebit_spark.core.posterior import MODEL_VECTORS, DoubleArray, FloatArray, Kind, RowPosterior
from onebit_spark.errors import RequestError

CERTIFIED = "certified_spread"
IMPLICIT, DIRECTIONS = "implicit", "directions"


def factor_columns(kind: Kind, intercepts: bool, vectors: int = 0) -> dict[str, str]:
    """The columns of a factor table after ``id``, with their Spark types. Scores do not need ``implicit``."""
    columns = {"mean": "array<float>", kind: "array<float>"}
    if intercepts:
        columns["intercept"] = "float"
        if kind == "spread":
            columns["intercept_spread"] = "float"
    if vectors:
        columns[IMPLICIT] = "array<float>"
    return columns


def factor_table(ids: pa.Array, posterior: RowPosterior, drawn: RowPosterior | None = None) -> pa.Table:
    """The factor table of one side: ``ids[i]`` belongs to row i. ``drawn`` is the posterior of the certified draws."""
    first = int(posterior.has_intercept)
    spread = posterior.kind == "spread"
    columns = {
        "id": ids,
        "mean": _lists(posterior.mean),
        posterior.kind: _lists(posterior.scale[:, first:] if spread else posterior.scale),
    }
    if first:
        columns["intercept"] = pa.array(posterior.location[:, 0].astype(np.float32))
        if spread:
            columns["intercept_spread"] = pa.array(posterior.scale[:, 0].astype(np.float32))
    if posterior.implicit is not None:
        kept = MODEL_VECTORS * posterior.rank
        columns[IMPLICIT] = _lists(posterior.implicit[:, :kept])
        if posterior.vectors > MODEL_VECTORS:
            columns[DIRECTIONS] = _lists(posterior.implicit[:, kept:])
    if drawn is not None:
        columns[CERTIFIED] = _lists(drawn.std)
    return pa.table(columns)


def plain_lists(table: pa.Table) -> pa.Table:
    """The table with lists of variable size: Spark accepts no others from a worker."""
    lists = pa.list_(pa.float32())
    return table.cast(
        pa.schema(
            [field.with_type(lists) if pa.types.is_fixed_size_list(field.type) else field for field in table.schema]
        )
    )


def read_factors(lines: pa.StructArray, prior: RowPosterior) -> RowPosterior:
    """The posterior of every line of a factor table (without ``id``). A null line gets the one row of ``prior``.

    It has as many vectors in ``implicit`` as ``prior``; those that the table lacks are 0.
    """
    known, present, location, scale = _read_locations(lines, prior)
    first = int(prior.has_intercept and prior.kind == "spread")
    scale[known, first:] = _rectangle(present.field(prior.kind), scale.shape[1] - first)
    if first:
        scale[known, 0] = present.field("intercept_spread").to_numpy(zero_copy_only=False)
    implicit = None
    if prior.implicit is not None:
        kept = MODEL_VECTORS * prior.rank
        implicit = np.zeros((len(lines), prior.implicit.shape[1]), prior.implicit.dtype)
        implicit[known, :kept] = _rectangle(present.field(IMPLICIT), kept)
        if prior.vectors > MODEL_VECTORS and DIRECTIONS in [field.name for field in lines.type]:
            implicit[known, kept:] = _rectangle(present.field(DIRECTIONS), implicit.shape[1] - kept)
    return RowPosterior(location, scale, prior.kind, prior.has_intercept, implicit)


def align_factors(factors: pa.Table, ids: pa.Array, prior: RowPosterior, precision: str) -> RowPosterior:
    """The posterior of ``ids`` from a factor table in any order. Ids that it lacks get the one row of ``prior``."""
    known = factors["id"].type
    if wide(known) != wide(ids.type) and not (pa.types.is_integer(known) and pa.types.is_integer(ids.type)):
        raise RequestError(f"the initial model's ids are of type {known}, those of the ratings {ids.type}")
    places = IdIndex(factors["id"]).find(ids)
    lines = one_array(factors.drop_columns("id").to_struct_array())
    return read_factors(lines.take(pa.array(places, mask=places < 0)), prior).astype(precision)


def read_certified(lines: pa.StructArray, prior: RowPosterior) -> RowPosterior:
    """The posterior of the certified draws after a prior split. ``prior`` has independent coordinates."""
    known, present, location, scale = _read_locations(lines, prior)
    scale[known] = _rectangle(present.field(CERTIFIED), prior.dimension)
    return RowPosterior(location, scale, "spread", prior.has_intercept)


def _read_locations(
    lines: pa.StructArray, prior: RowPosterior
) -> tuple[NDArray[np.bool_], pa.StructArray, FloatArray, FloatArray]:
    """Which lines are not null, these lines, the means of all, and scales that are still those of ``prior``."""
    known, present = lines.is_valid().to_numpy(zero_copy_only=False), lines.drop_null()
    first = int(prior.has_intercept)
    location, scale = np.repeat(prior.location, len(lines), axis=0), np.repeat(prior.scale, len(lines), axis=0)
    location[known, first:] = _rectangle(present.field("mean"), prior.dimension - first)
    if first:
        location[known, 0] = present.field("intercept").to_numpy(zero_copy_only=False)
    return known, present, location, scale


def prior_row(
    scales: HyperPosterior, side: Side, kind: Kind, intercepts: bool, vectors: int = 0, precision: str = "float32"
) -> RowPosterior:
    """The prior of an id that was never rated, as a posterior of one row (docs/MATH.md, §8.2).

    ``vectors`` is their number in ``implicit``.
    """
    prior = scales.unseen(side)
    mean = prior.mean.astype(precision)
    row = RowPosterior.isotropic(mean, 1.0 / np.sqrt(prior.precision[0]), kind, intercepts)
    return row.with_implicit(vectors) if vectors else row


def newcomer_rows(row: RowPosterior, known: DoubleArray) -> RowPosterior:
    """Ids without ratings whose features explain the means ``known`` (rows × D), beside those of ``row``."""
    rows = row.take(np.zeros(len(known), np.int64))
    rows.location[:] += known
    return rows


def _lists(table: FloatArray) -> pa.FixedSizeListArray:
    values = np.ascontiguousarray(table, np.float32)
    return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])


def _rectangle(lists: pa.ListArray, width: int) -> FloatArray:
    return lists.flatten().to_numpy(zero_copy_only=False).reshape(len(lists), width)
