"""What can be wrong with a table of side features, in words. This module imports no Spark."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onebit_spark.core.id_index import one_array, sum_by_id
from onebit_spark.errors import RequestError
from onebit_spark.input.rating_checks import INTEGRAL

EXAMPLES = 3


def check_id_type(column: str, given: str, id_type: str, whose: str) -> None:
    """Refuse ids of another type than in the ratings; both are named as Spark names them."""
    if given != id_type and not (given in INTEGRAL and id_type in INTEGRAL):
        raise RequestError(
            f"{whose} features: column {column!r} is of type {given}, but {whose} ids are of type {id_type}: cast it"
        )


def checked_lines(table: pa.Table, column: str, whose: str) -> pa.Table:
    """The table. Refuses lines without an id, and ids with several lines."""
    ids = one_array(table[column])
    absent = pc.is_null(ids, nan_is_null=pa.types.is_floating(ids.type))
    if n_absent := pc.sum(absent).as_py():
        raise RequestError(f"{whose} features: {n_absent:,} lines have no {column}: drop them")
    different, (lines,) = sum_by_id(ids, np.ones(len(ids)))
    if len(twice := different.filter(pa.array(lines > 1))):
        examples = ", ".join(str(value) for value in twice.slice(0, EXAMPLES).to_pylist())
        raise RequestError(
            f"{whose} features: {len(twice):,} ids have several lines, such as {examples}: keep one each"
        )
    return table
