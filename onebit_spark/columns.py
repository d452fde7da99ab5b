"""Columns of somebody else's DataFrame, by the name that they have."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, FloatType


def quoted(name: str) -> str:
    """A column name as it stands, dots and all."""
    return "`" + name.replace("`", "``") + "`"


def missing(table: DataFrame, name: str) -> Column:
    """Null, or NaN in a floating column."""
    value = F.col(quoted(name))
    floating = isinstance(table.select(value).schema[0].dataType, FloatType | DoubleType)
    return value.isNull() | F.isnan(value) if floating else value.isNull()
