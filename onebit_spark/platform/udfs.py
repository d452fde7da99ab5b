"""User-defined functions of Arrow arrays. Spark 4.0 has none: there the arrays come and go by way of pandas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType


def arrow_udf(function: Callable[..., pa.Array], takes: Sequence[DataType], returns: DataType) -> Callable[..., Column]:
    """A function of Arrow arrays as a function of columns of the types ``takes``."""
    if hasattr(F, "arrow_udf"):
        return F.arrow_udf(function, returnType=returns)  # type: ignore[call-overload]
    return _pandas_udf(function, takes, returns)


def _pandas_udf(
    function: Callable[..., pa.Array], takes: Sequence[DataType], returns: DataType
) -> Callable[..., Column]:
    import pandas as pd  # takes time to import
    from pyspark.sql.pandas.types import to_arrow_type

    kinds = [to_arrow_type(kind) for kind in takes]

    def called(columns: Sequence[Any]) -> pa.Array:
        return function(*(_from_pandas(column, kind) for column, kind in zip(columns, kinds, strict=True)))

    is_struct = isinstance(returns, StructType)

    def run(*columns: Any) -> Any:
        result = called(columns)
        return (pa.Table.from_struct_array(result) if is_struct else result).to_pandas()

    run.__annotations__ = {"columns": pd.Series, "return": pd.DataFrame if is_struct else pd.Series}  # Spark reads them
    return F.pandas_udf(run, returns)  # type: ignore[call-overload]


def _from_pandas(column: Any, kind: pa.DataType) -> pa.Array:
    """A column as an array of this type. A struct arrives as a DataFrame; where all its fields are null, so is it."""
    if pa.types.is_struct(kind):
        fields = [pa.array(column[field.name], field.type, from_pandas=True) for field in kind]
        absent = column.isna().all(axis=1).to_numpy()
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=pa.array(absent))
    return pa.array(column, kind, from_pandas=True)
