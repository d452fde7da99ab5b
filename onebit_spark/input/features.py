"""Side features as a DataFrame: one line per id, with any columns that ``core.feature_coding`` can code."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.ml.functions import vector_to_array
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, FloatType

from onebit_spark.core.id_index import one_array, sum_by_id
from onebit_spark.errors import RequestError
from onebit_spark.input.columns import INTEGRAL, matching, quoted, refuse_stream, type_of

EXAMPLES = 3


def collected_features(frame: DataFrame, column: str, id_type: str, whose: str) -> pa.Table:
    """The table of side features on the driver, by one Spark job.

    Parameters
    ----------
    frame : DataFrame
        One line per id.
    column : str
        The column of the ids.
    id_type : str
        Spark's type of the ids in the ratings, such as bigint.
    whose : str
        "user" or "item", for messages.

    Raises
    ------
    RequestError
        If there is no such column, if two columns have one name, if the ids are of another type or missing, or if an
        id has two lines.
    """
    try:
        refuse_stream(frame, "they")
        kind, *_ = [type_of(frame, name) for name in (column, *frame.columns)]
    except RequestError as error:
        raise RequestError(f"{whose} features: {error}") from None
    given = kind.simpleString()
    if given != id_type and not (given in INTEGRAL and id_type in INTEGRAL):
        raise RequestError(
            f"{whose} features: column {column!r} is of type {given}, but {whose} ids are of type {id_type}: cast it"
        )
    (own,) = matching(frame, column)
    plain = [
        vector_to_array(F.col(quoted(field.name))).alias(field.name)
        if isinstance(field.dataType, VectorUDT)
        else F.col(quoted(field.name)).alias(column if field == own else field.name)
        for field in frame.schema
    ]
    table = frame.select(*plain).toArrow()
    ids = one_array(table[column])
    absent = pc.is_null(ids, nan_is_null=isinstance(kind, FloatType | DoubleType))
    if n_absent := pc.sum(absent).as_py():
        raise RequestError(f"{whose} features: {n_absent:,} lines have no {column}: drop them")
    different, (lines,) = sum_by_id(ids, np.ones(len(ids)))
    if len(twice := different.filter(pa.array(lines > 1))):
        examples = ", ".join(str(value) for value in twice.slice(0, EXAMPLES).to_pylist())
        raise RequestError(
            f"{whose} features: {len(twice):,} ids have several lines, such as {examples}: keep one each"
        )
    return table
