"""The columns of a DataFrame of ratings: their names and types, ids and labels, what is held out of
them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import pyarrow as pa
from pyspark.ml.functions import vector_to_array
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from onebit_spark.data.hashes import SALT
from onebit_spark.data.ratings import (
    INSIDE,
    INTEGRAL,
    ITEM,
    LABEL,
    USER,
    WEIGHT,
    Columns,
    Holdout,
    check_id_type,
    checked_lines,
    column_count_problem,
    found_columns,
    type_problems,
)
from onebit_spark.errors import RequestError, refuse
from onebit_spark.settings import FitConfig, declared


def quoted(name: str) -> str:
    """A column name in backticks, so that dots in it have no meaning."""
    return "`" + name.replace("`", "``") + "`"


def missing(table: DataFrame, name: str) -> Column:
    """Null, or NaN in a floating column."""
    value = F.col(quoted(name))
    floating = isinstance(type_of(table, name), T.FloatType | T.DoubleType)
    return value.isNull() | F.isnan(value) if floating else value.isNull()


def case_folding(table: DataFrame) -> Callable[[str], str]:
    refuse_other_frames(table)
    return str if table.sparkSession.conf.get("spark.sql.caseSensitive") == "true" else str.lower


def matching(table: DataFrame, column: str) -> list[T.StructField]:
    """The fields of this name. Whether case counts is a setting of the session."""
    refuse_other_frames(table)
    fields = [field for field in table.schema if field.name.lower() == column.lower()]
    if [field.name for field in fields] == [column]:
        return fields  # whether or not case counts
    folded = case_folding(table)
    return [field for field in fields if folded(field.name) == folded(column)]


def column_problem(table: DataFrame, column: str, role: str = "") -> str | None:
    """Why the table does not have just one such column, in words; ``role`` names its purpose."""
    return column_count_problem(len(matching(table, column)), column, role, table.columns)


def type_of(table: DataFrame, column: str) -> T.DataType:
    """The type of a column, from the schema.

    Without a column "user", Spark takes ``col("user")`` for a function.
    """
    if problem := column_problem(table, column):
        raise RequestError(problem)
    return matching(table, column)[0].dataType


def refuse_other_frames(table: DataFrame) -> None:
    if not hasattr(table, "sparkSession"):
        kind = f"{type(table).__module__.partition('.')[0]} {type(table).__name__}".removeprefix(
            "builtins "
        )
        raise RequestError(
            f"Spark takes a Spark DataFrame, not a {kind}: use spark.createDataFrame, or fit and "
            "predict without "
            "Spark (onebit_spark.fit_table, onebit_spark.load)"
        )


def refuse_stream(table: DataFrame, what: str = "the ratings") -> None:
    refuse_other_frames(table)
    if table.isStreaming:
        raise RequestError(
            f"{what} are a stream, which has no end: give a table, or the batches of the stream "
            "one by one, with "
            "foreachBatch (docs/streaming.md)"
        )


def checked_ids(table: DataFrame, columns: Sequence[str]) -> list[Column]:
    """The columns, checked lazily: if an id is null or NaN, the first action fails with the number
    of such ids.

    The counts are one subquery for all columns. There is none if the schema excludes such ids.
    """
    absent = [missing(table, column) for column in columns]
    counts = None
    if not table.isStreaming:  # a stream has no total
        counts = table.select(F.array(*map(F.count_if, absent))).scalar()
    checked = []
    for place, (column, is_absent) in enumerate(zip(columns, absent, strict=True)):
        number = F.lit("some") if counts is None else F.format_number(counts[place], 0)
        message = (
            F.lit(f"column {column!r} holds "),
            number,
            F.lit(" null or NaN ids: drop or fill such rows"),
        )
        checked.append(
            F.when(is_absent, F.raise_error(F.concat(*message))).otherwise(F.col(quoted(column)))
        )
    return checked


@dataclass(frozen=True)
class DerivedRatings:
    """What ratings were derived from: a table of which some are held out, or have the weight 0, by
    its columns.
    """

    table: DataFrame
    columns: Columns | None = None  # None: nothing is missing
    holdout: Holdout | None = None


_DERIVED: WeakKeyDictionary[DataFrame, DerivedRatings] = WeakKeyDictionary()


def mark_as_derived(
    ratings: DataFrame, table: DataFrame, columns: Columns, holdout: Holdout | None = None
) -> DataFrame:
    """Record that ratings are those of a table without the held-out ones and those of weight 0, and
    return them.

    Their plan only shows a filter.
    """
    before = derivation(table)
    if before.columns in (None, columns) and None in (before.holdout, holdout):
        _DERIVED[ratings] = DerivedRatings(before.table, columns, before.holdout or holdout)
    return ratings


def derivation(ratings: DataFrame) -> DerivedRatings:
    return _DERIVED.get(ratings, DerivedRatings(ratings))


def with_weight(df: DataFrame, columns: Columns) -> DataFrame:
    """The ratings without those of weight 0. Every public function calls it first."""
    refuse_stream(df)
    if columns.weight is None:
        return df
    check_columns(df, columns)
    # A bad weight is refused later
    is_there = F.coalesce(weight_number(columns.weight) != 0, F.lit(True))
    return mark_as_derived(df.where(is_there), df, columns)


def positive(df: DataFrame, label_col: str, threshold: float | None) -> Column:
    """The label as a boolean: strictly above the threshold, or above 0 without one."""
    value = label_number(df, label_col)
    return value > F.lit(0.0 if threshold is None else float(threshold))


def cell_hash(df: DataFrame, columns: Columns) -> Column:
    """A hash of the cell (user, item), the same for all integral widths, which interchange
    as ids.
    """
    ids = []
    for name in (columns.user, columns.item):
        integral = type_of(df, name).simpleString() in INTEGRAL
        ids.append(F.col(quoted(name)).cast("bigint") if integral else F.col(quoted(name)))
    return F.xxhash64(F.lit(SALT), *ids)


def label_number(df: DataFrame, label_col: str) -> Column:
    """The label as a double. Text that is no number becomes null; true and false are 1 and 0."""
    column = F.col(quoted(label_col))
    if isinstance(type_of(df, label_col), T.BooleanType):
        return column.cast("int").cast("double")
    number = column.try_cast("double")
    if not isinstance(type_of(df, label_col), T.StringType):
        return number
    word = F.lower(F.trim(column))
    return F.when(word == "true", F.lit(1.0)).when(word == "false", F.lit(0.0)).otherwise(number)


def weight_number(name: str) -> Column:
    """A weight as a 32-bit float. Text that is no number becomes null, and 1e39 infinite."""
    return F.col(quoted(name)).try_cast("double").cast("float")


def check_columns(df: DataFrame, columns: Columns) -> None:
    refuse_stream(df)
    found_columns(columns, lambda name: [field.name for field in matching(df, name)], df.columns)
    types = {role: type_of(df, name).simpleString() for role, name in columns.roles.items()}
    refuse(type_problems(columns, types))


def rating_lines(df: DataFrame, columns: Columns) -> DataFrame:
    """(user, item, positive), and the weights if there are any, of ratings that were checked."""
    ids = (
        F.col(quoted(name)).alias(alias)
        for name, alias in ((columns.user, USER), (columns.item, ITEM))
    )
    label = positive(df, columns.label, columns.threshold).alias(LABEL)
    weight = [] if columns.weight is None else [weight_number(columns.weight).alias(WEIGHT)]
    return df.select(*ids, label, *weight)


def given_ratings(df: DataFrame, columns: Columns) -> DataFrame:
    """The columns of ratings under the names of INSIDE, as they are: nothing is checked yet."""
    return df.select(
        *(F.col(quoted(name)).alias(INSIDE[role]) for role, name in columns.roles.items())
    )


def collected_features(frame: DataFrame, column: str, id_type: str, whose: str) -> pa.Table:
    """The table of side features on the driver, by one Spark job; its ids must be of the type of
    the ratings' ids.
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
    return checked_lines(frame.select(*plain).toArrow(), column, whose)


def split_off(
    df: DataFrame, columns: Columns, fraction: float, seed: int
) -> tuple[DataFrame, DataFrame]:
    """The ratings to fit, and about ``fraction`` of them that are held out.

    A hash of user and item decides. So the labels play no part, the same ratings are held out
    however the input is partitioned or read again, and all ratings of one cell go the same way.
    """
    if problem := declared(FitConfig)["seed"].problem(seed):
        raise RequestError(str(problem))
    check_columns(df, columns)
    held_out = coin(columns, fraction, seed)
    return mark_as_derived(df.where(~held_out), df, columns, Holdout(fraction, seed)), df.where(
        held_out
    )


def coin(columns: Columns, fraction: float, seed: int) -> Column:
    ids = (F.col(quoted(name)) for name in (columns.user, columns.item))
    drawn = F.shiftrightunsigned(F.xxhash64(F.lit(seed), *ids), 32)  # 32 bits
    return drawn < F.lit(round(fraction * 2**32))
