"""User-defined functions of Arrow arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import DataType


def arrow_udf(function: Callable[..., pa.Array], takes: Sequence[DataType], returns: DataType) -> Callable[..., Column]:
    """A function of Arrow arrays as a function of columns of the types ``takes``."""
    if hasattr(F, "arrow_udf"):
        return F.arrow_udf(function, returnType=returns)  # type: ignore[call-overload]
    from onebit_spark.platform.pandas_udfs import pandas_udf  # pandas takes time to import

    return pandas_udf(function, takes, returns)
