"""ArrowTable: a table that Arrow reads without Spark, in Spark's types, batch by batch, as often as it is asked for."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from onebit_spark.core.arrow import arrow_table
from onebit_spark.errors import RequestError
from onebit_spark.input.data_files import DataFile, Format, data_files, format_of, in_one_line
from onebit_spark.input.file_readers import INFERRED, READERS, ROWS_PER_BATCH, NotJson, as_spark, inferred_types

PARTITION_TYPES = INFERRED[:3]


@dataclass(frozen=True)
class ArrowTable:
    """A table that is read in batches."""

    schema: pa.Schema  # its columns, in the types of Spark
    batches: Callable[[Sequence[str]], Iterator[pa.RecordBatch]]  # of these columns, in these types
    format: str | None = None  # of its files

    @classmethod
    def of(cls, given: Any) -> ArrowTable:
        """An Arrow table, a DataFrame of pandas or polars, or a path."""
        if isinstance(given, str | os.PathLike):
            return open_table(os.fspath(given))
        table = arrow_table(given)
        schema = pa.schema([(field.name, as_spark(field.type)) for field in table.schema])

        def batches(names: Sequence[str]) -> Iterator[pa.RecordBatch]:
            for batch in table.select(list(names)).to_batches(max_chunksize=ROWS_PER_BATCH):
                yield _in_types(batch, names, schema)

        return cls(schema, batches)

    def table(self) -> pa.Table:
        """All of it, in memory."""
        return pa.Table.from_batches(self.batches(self.schema.names), self.schema)

    def matching(self, column: str) -> list[str]:
        """The columns that are meant by a name. As in Spark, upper and lower case do not differ."""
        return [name for name in self.schema.names if name.lower() == column.lower()]

    def named(self, columns: Mapping[str, str]) -> ArrowTable:
        """Only these columns (new name ─► column)."""
        schema = pa.schema([(new, self.schema.field(old).type) for new, old in columns.items()])

        def batches(names: Sequence[str]) -> Iterator[pa.RecordBatch]:
            different = list(dict.fromkeys(columns[name] for name in names))
            for batch in self.batches(different):
                yield pa.RecordBatch.from_arrays([batch[columns[name]] for name in names], list(names))

        return replace(self, schema=schema, batches=batches)


def _in_types(batch: pa.RecordBatch, names: Sequence[str], schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([batch[name].cast(schema.field(name).type) for name in names], list(names))


# ---- files -----------------------------------------------------------------------------------------------------------


class Unreadable(RequestError):
    """Nothing that Arrow can read. The message goes on after the path."""


def open_table(path: str, format: str | None = None, options: Mapping[str, str] | None = None) -> ArrowTable:
    """The table of a file or folder. The format is by the ending, unless it is given.

    Raises
    ------
    FileNotFoundError
        There is nothing at the path.
    Unreadable
        There is no file of this format, or it cannot be read.
    RequestError
        While the batches are read: a file is damaged.
    """
    files, known = _files_of(path, format, options)
    reader = READERS[known.name](files, known.options)
    try:
        fields = reader.schema()
    except NotJson as error:
        raise Unreadable(str(error)) from error
    except (pa.ArrowException, OSError, UnicodeDecodeError, LookupError) as error:
        reason = f"cannot be read as {known.name} (check --format and --option): {in_one_line(error)}"
        raise Unreadable(reason) from error
    partitions = _partitions(files)
    own = pa.schema([(field.name, as_spark(field.type)) for field in fields if field.name not in partitions])
    schema = pa.schema([*own, *(pa.field(name, values.type) for name, values in partitions.items())])

    def batches(names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        in_files = [name for name in names if name not in partitions] or own.names[:1]
        for place, file in enumerate(files):
            with file.explained():
                for batch in reader.read(file, in_files):
                    columns = [
                        pa.repeat(partitions[name][place], len(batch)) if name in partitions else batch[name]
                        for name in names
                    ]
                    yield _in_types(pa.RecordBatch.from_arrays(columns, list(names)), names, schema)

    return ArrowTable(schema, batches, known.name)


def count_rows(path: str, format: str | None, options: Mapping[str, str]) -> int | None:
    """About how many rows a table has, if that is known before it is read. Raises as ``open_table``."""
    files, known = _files_of(path, format, options)
    return READERS[known.name](files, known.options).rows()


def _files_of(path: str, format: str | None, options: Mapping[str, str] | None) -> tuple[list[DataFile], Format]:
    """The files of a table, and their format with all options."""
    try:
        files = data_files(path)
        known = format_of(path, (file.path for file in files)) if format is None else Format(format, {})
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise Unreadable(f"cannot be read: {in_one_line(error)}") from error
    if not files:
        raise Unreadable(f"holds no {known.name} file: check the path and --format")
    return files, Format(known.name, {**known.options, **(options or {})})


def _partitions(files: Sequence[DataFile]) -> dict[str, pa.Array]:
    """Of each column that stands in the names of folders, its value in every file: numbers if all of them are."""
    names = dict.fromkeys(name for file in files for name in file.partition)
    values = {name: pa.array([file.partition.get(name) for file in files], pa.string()) for name in names}
    return {name: text.cast((*inferred_types(text, PARTITION_TYPES), pa.string())[0]) for name, text in values.items()}


def text_bytes(table: ArrowTable, columns: Sequence[str], n: int) -> float:
    """Bytes of the different ids that are text, among n rows of a table. Columns that are not there count nothing."""
    names = [name for column in columns for name in table.matching(column)]
    text = [name for name in dict.fromkeys(names) if _is_text(table.schema.field(name).type)]
    first = next(table.batches(text), None) if text else None
    if first is None or len(first) < 2:
        return 0.0
    return sum(n_different(first[name], n) * first[name].nbytes / len(first) for name in text)


def n_different(first: pa.Array, n: int) -> float:
    """About how many of n values differ, by Heaps' law: k rows have c·k^β different values.

    β is 1 where every row brings a new value, or the rows are sorted, and near 0 where all values have been seen.
    """
    half, whole = (len(part.unique()) for part in (first.slice(0, len(first) // 2), first))
    growth = min(1.0, math.log2(whole / half))
    return min(n, whole * max(1.0, n / len(first)) ** growth)


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind)
