"""Tables of a few long lines: their schemas, and large arrays in binary cells, which are read without a copy.

Also ``one_ahead``, by which batches are read while others are used. Only the schemas import Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from onebit_spark.errors import FitFailed

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

NARROW = ("block", "key", "part", "place", "sender", "side")
MOST_BYTES = 2**31 - 1  # of a binary cell: offsets of Arrow and arrays of the JVM have 32 bits
_JSON_NAMES = {"tinyint": "byte", "smallint": "short", "int": "integer", "bigint": "long"}  # others are the same
_PLAIN = {"binary", "boolean", "byte", "date", "double", "float", "integer", "long", "short", "string", "timestamp"}

T = TypeVar("T")


def one_ahead(items: Iterable[T], step: Callable[..., Any] = next) -> Iterator[T]:
    """The items. Another thread makes the next one, by ``step``, while the last is used."""
    source, end = iter(items), object()
    with ThreadPoolExecutor(1) as pool:
        ahead = pool.submit(step, source, end)
        while (item := ahead.result()) is not end:
            ahead = pool.submit(step, source, end)
            yield item


def cell_array(cell: Any, dtype: Any) -> NDArray[Any]:
    """A binary cell as an array, without a copy."""
    return np.frombuffer(cell.as_buffer(), dtype)


def binary_line(**cells: Any) -> pa.RecordBatch:
    """One line. Arrays become binary cells, text stays text, integers are int64 (those of NARROW: int32)."""
    arrays = {}
    for name, value in cells.items():
        if isinstance(value, np.ndarray | pa.Buffer):
            data = pa.py_buffer(np.ascontiguousarray(value)) if isinstance(value, np.ndarray) else value
            if data.size > MOST_BYTES:
                raise FitFailed(
                    f"{name} of a block takes {data.size / 2**30:.1f} GiB, but a cell holds less than 2 GiB: set more "
                    "row and column blocks (a single row or column can have 5·10⁸ ratings)"
                )
            offsets = pa.py_buffer(np.array([0, data.size], np.int32))
            arrays[name] = pa.Array.from_buffers(pa.binary(), 1, [None, offsets, data])
        elif isinstance(value, str):
            arrays[name] = pa.array([value])
        else:
            arrays[name] = pa.array([int(value)], pa.int32() if name in NARROW else pa.int64())
    return pa.RecordBatch.from_pydict(arrays)


def ids_cell(ids: pa.Array) -> pa.Buffer:
    """Ids of any type as one binary cell: an Arrow stream with one column."""
    sink = pa.BufferOutputStream()
    batch = pa.RecordBatch.from_arrays([ids], names=["id"])
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return sink.getvalue()


def read_ids(cell: Any) -> pa.Array:
    """The ids of an ``ids_cell``."""
    with pa.ipc.open_stream(cell.as_buffer()) as stream:
        return stream.read_next_batch().column(0)


def schema_of(columns: str) -> StructType:
    """The schema of a text such as "block int, rows binary, factors array<float>".

    Spark SQL's own parser takes half a second to load in every application.
    """
    from pyspark.sql.types import StructType

    schema = StructType()
    for column in columns.split(", "):
        name, kind = column.split()
        schema = schema.add(name, sql_type(kind))
    return schema


def sql_type(kind: str) -> str | DataType:
    """The type of this name in SQL, as ``StructType.add`` takes it. Spark parses those that are not plain."""
    from pyspark.sql.types import ArrayType, DataType, FloatType

    name = _JSON_NAMES.get(kind, kind)
    if name in _PLAIN:
        return name
    if kind == "array<float>":
        return ArrayType(FloatType())
    return DataType.fromDDL(kind)
