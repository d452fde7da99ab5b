"""Arrow's types and Spark's: which type a column has once Spark has read it, and what text looks like.

A table that Arrow reads gets the types that Spark would give it. So ids, hashes and messages are the same with both.
"""

from __future__ import annotations

import re
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from onebit_spark.input.rating_checks import Kind

SIMPLE = {
    pa.int8(): "tinyint", pa.int16(): "smallint", pa.int32(): "int", pa.int64(): "bigint", pa.float32(): "float",
    pa.float64(): "double", pa.string(): "string", pa.bool_(): "boolean", pa.binary(): "binary", pa.date32(): "date",
    pa.null(): "void",
}  # fmt: skip
AS_SPARK = {
    pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(), pa.large_string(): pa.string(), pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(), pa.binary_view(): pa.binary(), pa.date64(): pa.date32(),
}  # fmt: skip
NUMBER = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)[df]?|([+-]?inf(?:inity)?|nan)", re.IGNORECASE)
INFERRED = (pa.int32(), pa.int64(), pa.float64(), pa.date32(), pa.timestamp("us"))  # of text, the first that fits


def as_spark(kind: pa.DataType) -> pa.DataType:
    """The type in which a column is used: that of Spark."""
    if pa.types.is_dictionary(kind):
        return as_spark(kind.value_type)
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    return AS_SPARK.get(kind, kind)


def spark_name(kind: pa.DataType) -> str:
    """Spark's name of a type."""
    if kind in SIMPLE:
        return SIMPLE[kind]
    if pa.types.is_timestamp(kind):
        return "timestamp_ntz" if kind.tz is None else "timestamp"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_map(kind):
        return f"map<{_inner(kind.key_type)},{_inner(kind.item_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{','.join(f'{field.name}:{_inner(field.type)}' for field in kind)}>"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return f"array<{_inner(kind.value_type)}>"
    return str(kind)


def _inner(kind: pa.DataType) -> str:
    return spark_name(as_spark(kind))


def kind_of(kind: pa.DataType) -> Kind:
    """What a column of this type can be used for."""
    name = spark_name(kind)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return Kind(name, "number")
    if pa.types.is_boolean(kind):
        return Kind(name, "boolean")
    if pa.types.is_string(kind):
        return Kind(name, "text")
    is_id = pa.types.is_binary(kind) or pa.types.is_date(kind) or pa.types.is_timestamp(kind)
    return Kind(name, "id" if is_id else "none")


# ---- text ------------------------------------------------------------------------------------------------------------


def numbers_of(text: pa.ChunkedArray) -> pa.ChunkedArray:
    """Text as doubles, as Spark's ``try_cast`` has them: null where it is no number."""
    with suppress(pa.ArrowInvalid):
        return text.cast(pa.float64())
    encoded = text.combine_chunks().dictionary_encode()
    numbers = pa.array([_number(value) for value in encoded.dictionary.to_pylist()], pa.float64())
    return pa.chunked_array([numbers.take(encoded.indices)])


def _number(text: str) -> float | None:
    found = NUMBER.fullmatch(text.strip())
    return float(found[1] or found[2]) if found else None


def inferred_types(text: pa.ChunkedArray, among: tuple[pa.DataType, ...] = INFERRED) -> tuple[pa.DataType, ...]:
    """Of some types, those from the first on that all this text can be read as. None of them if it must stay text."""
    for place, kind in enumerate(among):
        with suppress(pa.ArrowInvalid):
            text.cast(kind)
            return among[place:]
    return ()


def inferred(text: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column of text as numbers, times or booleans, if all of it is such: Spark's ``inferSchema``."""
    if text.null_count == len(text):
        return text
    if kinds := inferred_types(text):
        return text.cast(kinds[0])
    lowered = pc.utf8_lower(text)
    if pc.all(pc.is_in(lowered.drop_null(), pa.array(["true", "false"]))).as_py():
        return pc.equal(lowered, "true")
    return text


def missing(values: pa.ChunkedArray) -> NDArray[np.bool_]:
    """Which values of a column are null, or NaN."""
    return np.asarray(pc.is_null(values, nan_is_null=pa.types.is_floating(values.type)))
