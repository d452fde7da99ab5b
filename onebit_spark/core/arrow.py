"""arrow_table: the tables that people have, as Arrow tables."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from onebit_spark.errors import RequestError


def arrow_table(given: Any, what: str = "the table") -> pa.Table:
    """An Arrow table, or a DataFrame of pandas or polars, as an Arrow table; ``what`` names it in messages."""
    if isinstance(given, pa.Table):
        return given
    try:
        if hasattr(given, "__arrow_c_stream__"):
            return pa.table(given)
        return pa.Table.from_pandas(given, preserve_index=False)
    except (pa.ArrowException, AttributeError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise RequestError(
            f"{what} must be an Arrow table, or a DataFrame of pandas or polars, not a {type(given).__name__}: {reason}"
        ) from error
