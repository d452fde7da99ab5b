"""User-defined functions of Arrow arrays for Spark 4.0, which has none: the arrays come and go by way of pandas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import DataType, StructType


def pandas_udf(
    function: Callable[..., pa.Array], takes: Sequence[DataType], returns: DataType
) -> Callable[..., Column]:
    """A function of Arrow arrays of these types as a function of columns."""
    kinds = [to_arrow_type(kind) for kind in takes]

    def called(columns: Sequence[Any]) -> pa.Array:
        return function(*(_from_pandas(column, kind) for column, kind in zip(columns, kinds, strict=True)))

    def one_column(*columns: pd.Series) -> pd.Series:
        return called(columns).to_pandas()

    def struct(*columns: pd.Series) -> pd.DataFrame:
        return pa.Table.from_struct_array(called(columns)).to_pandas()

    chosen: Callable[..., Any] = struct if isinstance(returns, StructType) else one_column
    return F.pandas_udf(chosen, returns)  # type: ignore[call-overload]


def _from_pandas(column: Any, kind: pa.DataType) -> pa.Array:
    """A column as an array of this type. A struct arrives as a DataFrame; where all its fields are null, so is it."""
    if isinstance(column, pd.DataFrame):
        fields = [pa.array(column[field.name], field.type, from_pandas=True) for field in kind]
        absent = column.isna().all(axis=1).to_numpy()
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=pa.array(absent))
    return pa.array(column, kind, from_pandas=True)
