"""The tables that people have, as Arrow tables; and the types of Spark, in which ids, labels and weights are used.

A table that Arrow reads gets the types that Spark would give it. So ids, hashes and messages agree on both runtimes.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from onebit_spark.errors import RequestError

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


def arrow_table(given: Any, what: str = "the table") -> pa.Table:
    """An Arrow table, or a DataFrame of pandas or polars, as an Arrow table; ``what`` names it in messages."""
    if isinstance(given, pa.Table):
        return given
    if type(given).__name__ == "LazyFrame" and hasattr(given, "collect"):  # of polars
        given = given.collect()
    try:
        if hasattr(given, "__arrow_c_stream__"):
            return pa.table(given)
        return pa.Table.from_pandas(given, preserve_index=False)
    except (pa.ArrowException, AttributeError, TypeError, ValueError, OverflowError) as error:
        reason = " ".join(str(error).split())
        if hasattr(given, "columns"):
            raise RequestError(f"{what} has {_unreadable_column(given)}: {reason}") from error
        raise RequestError(
            f"{what} must be an Arrow table, or a DataFrame of pandas or polars, not a {type(given).__name__}: {reason}"
        ) from error


def _unreadable_column(frame: Any) -> str:
    """The first column of a DataFrame that Arrow cannot read, with the cure."""
    for name in frame.columns:
        try:
            pa.Table.from_pandas(frame[[name]], preserve_index=False)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            kinds = sorted({type(value).__name__ for value in frame[name] if value is not None})
            values = f"values of types {', '.join(kinds)}" if len(kinds) > 1 else f"a value of type {kinds[0]}"
            return f"a column {name!r} with {values} that Arrow cannot hold; convert it, to text for example"
    return "a column that Arrow cannot hold"


def as_spark(kind: pa.DataType) -> pa.DataType:
    """The type that a column has in Spark."""
    if pa.types.is_dictionary(kind):
        return as_spark(kind.value_type)
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if pa.types.is_decimal(kind):
        return pa.decimal128(min(38, kind.precision), kind.scale)
    return AS_SPARK.get(kind, kind)


def in_spark_type(values: pa.Array | pa.ChunkedArray, what: str, kind: pa.DataType | None = None) -> Any:
    """The values in their type of Spark, or in another one, ``kind``; ``what`` names them in messages."""
    wanted = as_spark(values.type) if kind is None else kind
    if values.type == wanted:
        return values
    try:
        if pa.types.is_dictionary(values.type):  # Arrow decodes no dictionary of string views, as polars has them
            if isinstance(values, pa.ChunkedArray):
                parts = [part.dictionary.cast(wanted).take(part.indices) for part in values.chunks]
                return pa.chunked_array(parts, wanted)
            return values.dictionary.cast(wanted).take(values.indices)
        return values.cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        cure = "round it to microseconds" if pa.types.is_timestamp(wanted) else "convert it"
        raise RequestError(f"{what} cannot be of Spark's type {spark_name(wanted)}: {cure} ({error})") from error


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
