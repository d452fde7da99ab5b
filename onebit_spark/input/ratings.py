"""The ratings of a DataFrame under the names that are used inside, whatever they are outside."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DecimalType, DoubleType, FloatType, StringType

from onebit_spark.input.cell_hash import integer_cell_hashes
from onebit_spark.input.columns import INTEGRAL, quoted, type_of
from onebit_spark.input.defects import SALT, Columns, cell_hash, label_number, positive
from onebit_spark.input.weights import weight_number

USER, ITEM, LABEL, WEIGHT = "__onebit_user", "__onebit_item", "__onebit_label", "__onebit_weight"
HASH = "__onebit_hash"


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

    Where both ids are integers there is no hash: see ``cell_hashes``.
    """
    kind = type_of(df, columns.label)
    plain = F.col(quoted(columns.label))
    return df.select(
        *(_id(df, name).alias(alias) for name, alias in ((columns.user, USER), (columns.item, ITEM))),
        (label_number(df, columns.label) if isinstance(kind, StringType | DecimalType) else plain).alias(LABEL),
        *([] if _integers(df, columns) else [cell_hash(df, columns).alias(HASH)]),
        *_weight(columns),
    )


def _integers(df: DataFrame, columns: Columns) -> bool:
    return all(type_of(df, name).simpleString() in INTEGRAL for name in (columns.user, columns.item))


def cell_hashes(table: pa.Table) -> NDArray[np.int64]:
    """``defects.cell_hash`` of some raw ratings; 0 for all if an id is null, for such ratings are refused."""
    if HASH in table.schema.names:
        return np.asarray(table[HASH].to_numpy())
    if table[USER].null_count or table[ITEM].null_count:
        return np.zeros(len(table), np.int64)
    return integer_cell_hashes(table[USER].to_numpy(), table[ITEM].to_numpy(), SALT)


def _weight(columns: Columns) -> list[Column]:
    return [] if columns.weight is None else [weight_number(columns.weight).alias(WEIGHT)]


def _id(df: DataFrame, name: str) -> Column:
    """The id; −0.0 is 0.0, as Spark's grouping and joins have it."""
    value = F.col(quoted(name))
    if isinstance(type_of(df, name), FloatType | DoubleType):
        return F.when(value == 0, F.lit(0.0).cast(type_of(df, name))).otherwise(value)
    return value
