"""Data that people pass: numpy arrays of ratings, checked; tables as Arrow tables; and Spark's
types of their columns.

A table that Arrow reads gets the types that Spark would give it. So ids, hashes and messages agree
on both runtimes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from onebit_spark.data.limits import LARGEST_WEIGHT, MAX_COLUMNS, ZERO_WEIGHT
from onebit_spark.errors import RequestError

# ---- arrays -------------------------------------------------------------------------------------


class CheckedArrays(NamedTuple):
    rows: NDArray[np.int64]
    cols: NDArray[np.int64]
    positive: NDArray[np.bool_]
    shape: tuple[int, int]
    weights: NDArray[np.float32] | None


def checked_arrays(
    rows: ArrayLike,
    cols: ArrayLike,
    labels: ArrayLike,
    shape: Sequence[int] | None,
    settings: Sequence[object],
    weights: ArrayLike | None = None,
) -> CheckedArrays:
    """The input of ``fit_arrays`` as index arrays and label bits, or one RequestError with all
    problems.

    Ratings of weight 0 are dropped before anything else is checked. ``settings`` are problems with
    the settings. They come first in the message.
    """
    problems = [str(problem) for problem in settings]
    arrays = {"rows": np.asarray(rows), "cols": np.asarray(cols), "labels": np.asarray(labels)}
    if weights is not None:
        arrays["weights"] = np.asarray(weights)
        problems += weight_problems(arrays["weights"])
    lengths = {name: array.size for name, array in arrays.items()}
    for name, array in arrays.items():
        if array.ndim != 1:
            problems.append(f"{name} must be one-dimensional, not of shape {array.shape}")
    if len(set(lengths.values())) > 1:
        sizes = ", ".join(f"{name} {length}" for name, length in lengths.items())
        problems.append(
            f"{' and '.join([', '.join(list(arrays)[:-1]), list(arrays)[-1]])} differ in length: "
            f"{sizes}"
        )
    if weights is not None and not problems:
        kept = arrays["weights"].astype(np.float32) != 0
        arrays = {name: array[kept] for name, array in arrays.items()}
        lengths = {name: array.size for name, array in arrays.items()}
    if min(lengths.values()) == 0:
        lacking = (
            ""
            if weights is None
            else f" of positive weight; weights below {ZERO_WEIGHT:.0e} count as 0"
        )
        problems.append(f"there is no rating{lacking}")
    declared: tuple[int | None, int | None] = None, None
    if shape is not None:
        pair = np.asarray(shape)
        if (
            pair.shape != (2,)
            or pair.dtype.kind not in "iu"
            or pair.min() < 0
            or pair.max() > MAX_COLUMNS
        ):
            problems.append(f"shape must be two integers from 0 to 2^30, not {shape!r}")
        else:
            declared = int(pair[0]), int(pair[1])
    size = []
    for name, limit in zip(("rows", "cols"), declared, strict=True):
        wrong, largest = _index_problems(name, arrays[name], limit)
        problems += wrong
        size.append(largest + 1 if limit is None else limit)
    wrong = label_problems(arrays["labels"])
    n = arrays["labels"].size
    if not wrong and n and (positives := np.count_nonzero(arrays["labels"] > 0)) in (0, n):
        wrong = [
            f"labels are all {'positive' if positives else 'negative'}: both classes are needed"
        ]
    problems += wrong
    if problems:
        raise RequestError("cannot fit:\n" + "\n".join(f"- {problem}" for problem in problems))
    row_index, col_index = (arrays[name].astype(np.int64, copy=False) for name in ("rows", "cols"))
    carried = arrays["weights"].astype(np.float32) if weights is not None else None
    return CheckedArrays(row_index, col_index, arrays["labels"] > 0, (size[0], size[1]), carried)


def _index_problems(name: str, index: NDArray[Any], declared: int | None) -> tuple[list[str], int]:
    """The problems of an index array, and the largest index."""
    if index.size == 0:
        return [], -1
    if index.dtype.kind not in "iuf":
        return [f"{name} must hold integers, not {index.dtype}"], -1
    values = index.ravel()
    broken = (
        ~np.isfinite(values) | (values != np.floor(values))
        if values.dtype.kind not in "iu"
        else np.zeros(0)
    )
    if np.any(broken):
        return [f"{name} must hold integers: {_examples(values[broken])}"], -1
    problems = []
    if values.min() < 0:
        problems.append(f"{name} holds negative indices: {_examples(values[values < 0])}")
    if declared is not None and values.max() >= declared:
        problems.append(
            f"{name} reaches index {values.max()}, beyond the declared shape {declared}"
        )
    elif values.max() >= MAX_COLUMNS:
        problems.append(
            f"{name} reaches index {values.max()}, beyond the limit of 2^30: number them from 0 on"
        )
    return problems, int(values.max())


def label_problems(labels: NDArray[Any]) -> list[str]:
    if labels.size == 0:
        return []
    if labels.dtype.kind not in "biuf":
        return [
            f"labels must be numbers or booleans, not {labels.dtype}: convert them to ±1, 0/1 or "
            "booleans first"
        ]
    values = labels.ravel()
    if values.dtype != bool:
        if np.any(np.isnan(values)):
            return [f"labels hold {int(np.isnan(values).sum())} NaN"]
        wrong = values[(values != 1) & (values != -1) & (values != 0)]
        if wrong.size:
            return [f"labels must be ±1 or 0/1: {_examples(wrong)}"]
        if np.any(values == 0) and np.any(values == -1):
            return ["labels mix 0 and −1: use either ±1 or 0/1"]
    return []


def weight_problems(weights: NDArray[Any]) -> list[str]:
    """The problems of an array of weights, which are held as float32."""
    if weights.dtype.kind not in "biuf":
        return [f"weights must be numbers, not {weights.dtype}"]
    with np.errstate(over="ignore"):
        held = weights.ravel().astype(np.float32)
    wrong = weights.ravel()[~((held >= 0) & (held <= LARGEST_WEIGHT))]
    return (
        [f"weights must be numbers from 0 to {LARGEST_WEIGHT:g}: {_examples(wrong)}"]
        if wrong.size
        else []
    )


def _examples(values: NDArray[Any]) -> str:
    shown = ", ".join(str(value) for value in np.unique(values)[:3])
    return f"{values.size} found, such as {shown}"


# ---- tables ------------------------------------------------------------------------------------

SIMPLE = {
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.bool_(): "boolean",
    pa.binary(): "binary",
    pa.date32(): "date",
    pa.null(): "void",
}
AS_SPARK = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.date64(): pa.date32(),
}
MOST_TEXT = 2**31 - 1  # bytes of one array of text, whose offsets have 32 bits


def column_of(values: Any) -> pa.Array:
    """The values as an Arrow array. Python integers from 2⁶³ on become uint64, as in numpy."""
    try:
        return pa.array(values)
    except OverflowError:
        pass
    try:
        return pa.array(values, pa.uint64())
    except OverflowError:
        raise pa.ArrowInvalid("the integers have no common type of 64 bits") from None


def arrow_table(given: Any, what: str = "the table") -> pa.Table:
    """An Arrow table, a DataFrame of pandas or polars, or a dict, as an Arrow table; ``what`` names
    it in messages.
    """
    if isinstance(given, pa.Table):
        return given
    if type(given).__name__ == "LazyFrame" and hasattr(given, "collect"):  # of polars
        given = given.collect()
    try:
        if isinstance(given, Mapping):
            return pa.table({name: column_of(values) for name, values in given.items()})
        # Pandas would add its index
        if hasattr(given, "__arrow_c_stream__") and not hasattr(given, "iloc"):
            return pa.table(given)
        return pa.Table.from_pandas(given, preserve_index=False)
    except (pa.ArrowException, AttributeError, TypeError, ValueError, OverflowError) as error:
        reason = " ".join(str(error).split())
        if isinstance(given, Mapping):
            raise RequestError(f"{what} cannot be read: {reason}") from error
        if hasattr(given, "columns"):
            refuse_repeated_columns(list(given.columns), what)
            raise RequestError(f"{what} has {_unreadable_column(given)}: {reason}") from error
        raise RequestError(
            f"{what} must be an Arrow table, or a DataFrame of pandas or polars, not a "
            f"{type(given).__name__}: {reason}"
        ) from error


def refuse_repeated_columns(names: Sequence[Any], what: str) -> None:
    if repeated := [name for name, n in Counter(names).items() if n > 1]:
        raise RequestError(
            f"{what} has several columns named {repeated[0]!r}: rename or drop all but one"
        )


def _unreadable_column(frame: Any) -> str:
    """The first column of a DataFrame that Arrow cannot read, with the cure."""
    for name in frame.columns:
        try:
            pa.Table.from_pandas(frame[[name]], preserve_index=False)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            kinds = sorted({type(value).__name__ for value in frame[name] if value is not None})
            values = (
                f"values of types {', '.join(kinds)}"
                if len(kinds) > 1
                else f"a value of type {kinds[0]}"
            )
            return (
                f"a column {name!r} with {values} that Arrow cannot hold; convert it, to "
                "text for example"
            )
    return "a column that Arrow cannot hold"


def as_spark(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return as_spark(kind.value_type)
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if pa.types.is_decimal(kind):
        return pa.decimal128(min(38, kind.precision), kind.scale)
    return AS_SPARK.get(kind, kind)


def in_spark_type(
    values: pa.Array | pa.ChunkedArray, what: str, kind: pa.DataType | None = None
) -> Any:
    """The values in their type of Spark, or in another one, ``kind``; ``what`` names them in
    messages.
    """
    wanted = as_spark(values.type) if kind is None else kind
    if values.type == wanted:
        return values
    try:
        # Arrow decodes no dictionary of string views, as polars has them
        if pa.types.is_dictionary(values.type):
            if isinstance(values, pa.ChunkedArray):
                parts = [part.dictionary.cast(wanted).take(part.indices) for part in values.chunks]
                return pa.chunked_array(parts, wanted)
            return values.dictionary.cast(wanted).take(values.indices)
        return values.cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        cure = "round it to microseconds" if pa.types.is_timestamp(wanted) else "convert it"
        raise RequestError(
            f"{what} cannot be of Spark's type {spark_name(wanted)}: {cure} ({error})"
        ) from error


def one_array(parts: pa.ChunkedArray | pa.Array | Iterable[pa.Array]) -> pa.Array:
    """A column, or several arrays, as one array; with 64-bit offsets where the text is too long for
    32 bits.
    """
    if isinstance(parts, pa.Array):
        return parts
    arrays = list(
        parts.chunks or [pa.array([], parts.type)] if isinstance(parts, pa.ChunkedArray) else parts
    )
    if len(arrays) == 1:
        return arrays[0]
    if (
        len({array.type for array in arrays}) > 1
        or sum(array.nbytes for array in arrays) > MOST_TEXT
    ):
        arrays = [array.cast(wide(array.type)) for array in arrays]
    return pa.concat_arrays(arrays)


def narrow(ids: pa.Array, kind: pa.DataType) -> pa.Array:
    """The ids in the type that they arrived in, unless their text is too long for it."""
    return ids if ids.nbytes > MOST_TEXT else ids.cast(kind)


def wide(kind: pa.DataType) -> pa.DataType:
    """The type of ids, with 64-bit offsets if they are text."""
    return {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}.get(kind, kind)


def in_utc(ids: pa.Array) -> pa.Array:
    """The ids; times of the session's time zone as ``toArrow`` has them."""
    if pa.types.is_timestamp(ids.type) and ids.type.tz is not None:
        return ids.cast(pa.timestamp(ids.type.unit, "UTC"))
    return ids


def spark_name(kind: pa.DataType) -> str:
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
