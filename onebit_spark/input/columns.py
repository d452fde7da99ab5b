"""Columns of the user's DataFrames: names and types, checked ids, weights; and tables of side features."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
from pyspark.ml.functions import vector_to_array
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DoubleType, FloatType, StructField

from onebit_spark.errors import RequestError
from onebit_spark.input import rating_checks
from onebit_spark.input.rating_checks import INTEGRAL as INTEGRAL
from onebit_spark.input.rating_checks import check_id_type, checked_lines


def quoted(name: str) -> str:
    """A column name in backticks, so that dots in it have no meaning."""
    return "`" + name.replace("`", "``") + "`"


def missing(table: DataFrame, name: str) -> Column:
    """Null, or NaN in a floating column."""
    value = F.col(quoted(name))
    floating = isinstance(type_of(table, name), FloatType | DoubleType)
    return value.isNull() | F.isnan(value) if floating else value.isNull()


def case_folding(table: DataFrame) -> Callable[[str], str]:
    """How the session compares column names."""
    return str if table.sparkSession.conf.get("spark.sql.caseSensitive") == "true" else str.lower


def matching(table: DataFrame, column: str) -> list[StructField]:
    """The fields of this name. Whether case counts is a setting of the session."""
    fields = [field for field in table.schema if field.name.lower() == column.lower()]
    if [field.name for field in fields] == [column]:
        return fields  # whether or not case counts
    folded = case_folding(table)
    return [field for field in fields if folded(field.name) == folded(column)]


def column_problem(table: DataFrame, column: str, role: str = "") -> str | None:
    """Why the table does not have just one such column, in words; ``role`` says what it is for."""
    return rating_checks.column_count_problem(len(matching(table, column)), column, role, table.columns)


def type_of(table: DataFrame, column: str) -> DataType:
    """The type of a column, from the schema. Without a column "user", Spark takes ``col("user")`` for a function."""
    if problem := column_problem(table, column):
        raise RequestError(problem)
    return matching(table, column)[0].dataType


def refuse_stream(table: DataFrame, what: str = "the ratings") -> None:
    """Refuse a streaming DataFrame where a whole table is needed."""
    if table.isStreaming:
        raise RequestError(
            f"{what} are a stream, which has no end: give a table, or the batches of the stream one by one, with "
            "foreachBatch (docs/streaming.md)"
        )


def checked_ids(table: DataFrame, columns: Sequence[str]) -> list[Column]:
    """The columns, checked lazily: if an id is null or NaN, the first action fails with the number of such ids.

    The counts are one subquery for all columns. There is none if the schema excludes such ids.
    """
    absent = [missing(table, column) for column in columns]
    counts = None
    if not table.isStreaming:  # a stream has no total
        counts = table.select(F.array(*map(F.count_if, absent))).scalar()
    checked = []
    for place, (column, is_absent) in enumerate(zip(columns, absent, strict=True)):
        number = F.lit("some") if counts is None else F.format_number(counts[place], 0)
        message = F.lit(f"column {column!r} holds "), number, F.lit(" null or NaN ids: drop or fill such rows")
        checked.append(F.when(is_absent, F.raise_error(F.concat(*message))).otherwise(F.col(quoted(column))))
    return checked


def weight_number(name: str) -> Column:
    """A weight as a 32-bit float. Text that is no number becomes null, and 1e39 infinite."""
    return F.col(quoted(name)).try_cast("double").cast("float")


def bad_weight(name: str) -> Column:
    """Whether a weight is refused. NaN is greater than all numbers in Spark."""
    value = weight_number(name)
    return value.isNull() | (value < 0) | (value >= F.lit(float("inf")))


def not_zero(name: str) -> Column:
    """Whether a rating is there: one of weight 0 is as if it were not. A bad weight is there, to be refused."""
    return F.coalesce(weight_number(name) != 0, F.lit(True))


# ---- side features ---------------------------------------------------------------------------------------------------


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
