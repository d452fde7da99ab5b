"""The ratings of a DataFrame under the names that are used inside (``batches``)."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DecimalType, DoubleType, FloatType, StringType

from onebit_spark.input.batches import HASH, ITEM, LABEL, USER, WEIGHT
from onebit_spark.input.columns import quoted, type_of, weight_number
from onebit_spark.input.defects import cell_hash, label_number, positive
from onebit_spark.input.rating_checks import INTEGRAL, Columns


def prepared(df: DataFrame, columns: Columns, *further: str) -> DataFrame:
    """(user, item, positive), the weights if there are any, and ``further`` columns, of ratings that were checked."""
    return df.select(
        F.col(quoted(columns.user)).alias(USER),
        F.col(quoted(columns.item)).alias(ITEM),
        positive(df, columns.label, columns.threshold).alias(LABEL),
        *_weight(columns),
        *map(quoted, further),
    )


def raw(df: DataFrame, columns: Columns) -> DataFrame:
    """The two ids, the label as a number, the cell's hash and the weight, if there is one: nothing is checked yet.

    Where both ids are integers there is no hash: ``read_batch`` computes it.
    """
    integers = all(type_of(df, name).simpleString() in INTEGRAL for name in (columns.user, columns.item))
    text = isinstance(type_of(df, columns.label), StringType | DecimalType)
    return df.select(
        *(_id(df, name).alias(alias) for name, alias in ((columns.user, USER), (columns.item, ITEM))),
        (label_number(df, columns.label) if text else F.col(quoted(columns.label))).alias(LABEL),
        *([] if integers else [cell_hash(df, columns).alias(HASH)]),
        *_weight(columns),
    )


def _weight(columns: Columns) -> list[Column]:
    return [] if columns.weight is None else [weight_number(columns.weight).alias(WEIGHT)]


def _id(df: DataFrame, name: str) -> Column:
    """The id; −0.0 is 0.0, as Spark's grouping and joins have it."""
    value = F.col(quoted(name))
    if isinstance(type_of(df, name), FloatType | DoubleType):
        return F.when(value == 0, F.lit(0.0).cast(type_of(df, name))).otherwise(value)
    return value
