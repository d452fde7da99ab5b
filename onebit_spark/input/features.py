"""Side features as a DataFrame: one line per id, with any columns that ``core.side_features`` can code."""

from __future__ import annotations

import pyarrow as pa
from pyspark.ml.functions import vector_to_array
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from onebit_spark.errors import RequestError
from onebit_spark.input.columns import matching, quoted, refuse_stream, type_of
from onebit_spark.input.rating_checks import check_id_type, checked_lines


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
    check_id_type(column, kind.simpleString(), id_type, whose)
    (own,) = matching(frame, column)
    plain = [
        vector_to_array(F.col(quoted(field.name))).alias(field.name)
        if isinstance(field.dataType, VectorUDT)
        else F.col(quoted(field.name)).alias(column if field == own else field.name)
        for field in frame.schema
    ]
    table = frame.select(*plain).toArrow()
    return checked_lines(table, column, whose)
