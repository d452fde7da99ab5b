"""Ids in this process: Spark's types of them in Arrow, and what a caller may pass for them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onebit_spark.core.id_index import one_array
from onebit_spark.errors import RequestError

ARROW_TYPES = {
    "tinyint": pa.int8(), "smallint": pa.int16(), "int": pa.int32(), "bigint": pa.int64(), "float": pa.float32(),
    "double": pa.float64(), "string": pa.string(), "boolean": pa.bool_(), "binary": pa.binary(), "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"), "timestamp_ntz": pa.timestamp("us"),
}  # fmt: skip
DECIMAL = re.compile(r"decimal\((\d+),(-?\d+)\)")


def arrow_type(spark_type: str) -> pa.DataType:
    """The Arrow type of ids of a type of Spark. Raises a RequestError if such ids can be read by Spark only."""
    if found := DECIMAL.fullmatch(spark_type):
        return pa.decimal128(int(found[1]), int(found[2]))
    if spark_type not in ARROW_TYPES:
        raise RequestError(f"ids of type {spark_type} can be read with Spark only: use OneBitCompletionModel.load")
    return ARROW_TYPES[spark_type]


def asked_ids(values: Any, expected: pa.DataType, what: str) -> pa.Array:
    """One id, or a sequence of ids, as an Arrow array that ``comparable`` ids of type ``expected`` can be found in.

    Integers of different widths are accepted, and text in any of its encodings. Any other cast could merge or split
    ids, so the caller must do it. ``what`` names the ids in messages.
    """
    array = _array(values, what)
    if len(array) == 0 or pa.types.is_null(array.type):
        array = array.cast(expected)
    elif _family(array.type) != _family(expected):
        raise RequestError(f"{what} are of type {array.type}, but the model's are of type {expected}: convert them")
    else:
        wide = pa.int64() if pa.types.is_integer(expected) else expected
        try:
            array = array.cast(wide)
        except pa.ArrowInvalid as error:
            raise RequestError(f"{what} cannot be of type {expected}: {error}") from None
    absent = pc.is_null(array, nan_is_null=True) if pa.types.is_floating(array.type) else pc.is_null(array)
    if n := pc.sum(absent).as_py():
        raise RequestError(f"{what} hold {n:,} null or NaN ids: drop or fill them")
    return array


def comparable(ids: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    """Integral widths interchange as ids."""
    return ids.cast(pa.int64()) if pa.types.is_integer(ids.type) else ids


def _array(values: Any, what: str) -> pa.Array:
    if isinstance(values, np.ndarray):
        values = np.atleast_1d(values)
    elif isinstance(values, str | bytes) or not hasattr(values, "__len__"):
        values = [values]
    try:
        array = one_array(values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values))
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise RequestError(f"{what} cannot be read: {str(error).splitlines()[0]}") from None
    return array.cast(array.type.value_type) if pa.types.is_dictionary(array.type) else array


def _family(kind: pa.DataType) -> str:
    """Types whose values are the same ids."""
    tests = {
        "integer": pa.types.is_integer,
        "text": lambda t: pa.types.is_string(t) or pa.types.is_large_string(t) or pa.types.is_string_view(t),
        "bytes": lambda t: pa.types.is_binary(t) or pa.types.is_large_binary(t),
        "floating": pa.types.is_floating,
        "decimal": pa.types.is_decimal,
        "instant": lambda t: pa.types.is_timestamp(t) and t.tz is not None,
        "local time": lambda t: pa.types.is_timestamp(t) and t.tz is None,
    }
    return next((name for name, test in tests.items() if test(kind)), str(kind))
