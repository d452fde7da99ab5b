"""Parquet, CSV and JSON lines, read by Arrow as Spark reads them: the columns of a file, and batches of them.

CSV has a header, and its columns are text, unless options say otherwise. This module imports no Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.json as pajson
import pyarrow.parquet as pq

from onebit_spark.errors import RequestError
from onebit_spark.input.arrow_types import INFERRED, inferred_types
from onebit_spark.input.data_files import DataFile

ROWS_PER_BATCH = 1 << 17
BLOCK = 4 * 2**20  # bytes of text that are parsed at once
LARGE = 64 * 2**20  # bytes of a file of JSON that is read in batches
MOST_FOOTERS = 10_000  # files that are opened to count their rows
SAMPLE = 2**16  # bytes of a text whose lines are counted
COMPRESSED = 4  # about so much shorter is compressed text
CSV_OPTIONS = (
    "sep", "delimiter", "header", "inferschema", "quote", "escape", "nullvalue", "encoding", "charset", "multiline",
)  # fmt: skip


class Reader(Protocol):
    """Reads the files of a table."""

    def schema(self) -> pa.Schema:
        """The columns, as the first file has them."""

    def read(self, file: DataFile, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """These columns of one file, in batches."""

    def rows(self) -> int | None:
        """About how many rows all files have, if that is known before they are read."""


class ParquetReader:
    def __init__(self, files: Sequence[DataFile], options: Mapping[str, str]) -> None:
        self._files = files

    def schema(self) -> pa.Schema:
        return _parquet(self._files[0]).schema_arrow

    def read(self, file: DataFile, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        part = _parquet(file)
        if absent := [name for name in names if name not in part.schema_arrow.names]:
            raise pa.ArrowInvalid(f"it has no column {', '.join(absent)}, and other files have")
        for batch in part.iter_batches(ROWS_PER_BATCH, columns=list(names)):
            yield batch.select(list(names))

    def rows(self) -> int | None:
        few = len(self._files) <= MOST_FOOTERS
        return sum(_parquet(file).metadata.num_rows for file in self._files) if few else None


def _parquet(file: DataFile) -> pq.ParquetFile:
    return pq.ParquetFile(file.open(), pre_buffer=True)


class CsvReader:
    """Spark's options: sep, header, inferSchema, quote, escape, nullValue, encoding, multiLine."""

    def __init__(self, files: Sequence[DataFile], options: Mapping[str, str]) -> None:
        self._files = files
        given = {key.lower(): value for key, value in options.items()}
        self._header = _is_true(given.get("header", "true"))
        self._infer = _is_true(given.get("inferschema", "false"))
        self._parse = pacsv.ParseOptions(
            delimiter=given.get("sep", given.get("delimiter", ",")).replace("\\t", "\t"),
            quote_char=given.get("quote", '"') or False,
            escape_char=given.get("escape", "") or False,
            newlines_in_values=_is_true(given.get("multiline", "false")),
        )
        self._encoding = given.get("encoding", given.get("charset", "utf8"))
        self._nulls = ["", *([given["nullvalue"]] if "nullvalue" in given else [])]

    def schema(self) -> pa.Schema:
        names = self._names()
        kinds = self._inferred(names) if self._infer else {}
        return pa.schema([(name, kinds.get(name, pa.string())) for name in names])

    def _names(self) -> list[str]:
        options = pacsv.ReadOptions(block_size=BLOCK, encoding=self._encoding, autogenerate_column_names=True)
        try:
            with pacsv.open_csv(self._files[0].stream(), options, self._parse, _ALL_TEXT) as lines:
                first = lines.read_next_batch().slice(0, 1)
        except (StopIteration, pa.ArrowInvalid) as error:
            if "Empty CSV" in str(error) or isinstance(error, StopIteration):
                return []
            raise
        if not self._header:
            return [f"_c{place}" for place in range(first.num_columns)]
        return [str(column[0].as_py()) for column in first.columns]

    def _inferred(self, names: Sequence[str]) -> dict[str, pa.DataType]:
        """The types that all lines can be read as: Spark, too, reads them twice."""
        possible, filled = dict.fromkeys(names, INFERRED), set()
        for file in self._files:
            for batch in self.read(file, names):
                for name in names:
                    possible[name] = inferred_types(batch[name], possible[name])
                    if batch[name].null_count < len(batch):
                        filled.add(name)
        return {name: possible[name][0] for name in filled if possible[name]}

    def read(self, file: DataFile, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        columns = None if self._header else self._names()
        options = pacsv.ReadOptions(block_size=BLOCK, encoding=self._encoding, column_names=columns)
        convert = pacsv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()), include_columns=list(names), strings_can_be_null=True,
            quoted_strings_can_be_null=False, null_values=self._nulls,
        )  # fmt: skip
        with pacsv.open_csv(file.stream(), options, self._parse, convert) as lines:
            yield from lines

    def rows(self) -> int | None:
        return _rows_of_text(self._files)


_ALL_TEXT = pacsv.ConvertOptions(column_types={f"f{place}": pa.string() for place in range(1000)})


class JsonReader:
    """One object per line. The columns are in the order of the alphabet, as Spark has them.

    Only the last line settles the types. So a file is read twice, the second time in batches. One that is small, or
    whose beginning does not tell the types of the rest, is read once and kept.
    """

    def __init__(self, files: Sequence[DataFile], options: Mapping[str, str]) -> None:
        self._files = files
        self._found: dict[str, pa.Schema | pa.Table] = {}

    def schema(self) -> pa.Schema:
        schemas = [found if isinstance(found, pa.Schema) else found.schema for found in map(self._file, self._files)]
        unified = pa.unify_schemas([pa.schema([f]) for schema in schemas for f in schema], promote_options="permissive")
        return pa.schema(sorted(unified, key=lambda field: field.name))

    def read(self, file: DataFile, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        found = self._file(file)
        if isinstance(found, pa.Schema):
            wanted = pa.schema([found.field(name) if name in found.names else (name, pa.null()) for name in names])
            with _json_batches(file, wanted, "ignore") as batches:
                yield from batches
            return
        for name in names:
            if name not in found.schema.names:
                found = found.append_column(name, pa.nulls(len(found)))
        yield from found.select(list(names)).to_batches(ROWS_PER_BATCH)

    def _file(self, file: DataFile) -> pa.Schema | pa.Table:
        """The columns of a file that can be read in batches, or all of it."""
        if file.path not in self._found:
            self._found[file.path] = _json_schema(file) or _json(file)
        return self._found[file.path]

    def rows(self) -> int | None:
        return _rows_of_text(self._files)


def _json_schema(file: DataFile) -> pa.Schema | None:
    """The columns at the beginning of a large file, if all of it has these; times are text, as to Spark."""
    if file.size < LARGE:
        return None
    with suppress(pa.ArrowInvalid, AttributeError):  # an older Arrow has no batches of JSON
        with _json_batches(file) as batches:
            schema = batches.schema
        times = (pa.types.is_timestamp(kind) for kind in schema.types)
        kinds = [pa.string() if is_time else kind for is_time, kind in zip(times, schema.types, strict=True)]
        schema = pa.schema(zip(schema.names, kinds, strict=True))
        with _json_batches(file, schema, "error") as batches:
            for _ in batches:
                pass
        return schema
    return None


def _json_batches(file: DataFile, schema: pa.Schema | None = None, others: str = "infer") -> Any:
    told = pajson.ParseOptions(explicit_schema=schema, unexpected_field_behavior=others)
    return pajson.open_json(file.stream(), pajson.ReadOptions(block_size=BLOCK), told)


def _json(file: DataFile) -> pa.Table:
    options = pajson.ReadOptions(block_size=BLOCK)
    try:
        table = pajson.read_json(file.stream(), options)
        if times := [field.name for field in table.schema if pa.types.is_timestamp(field.type)]:  # text to Spark
            text = pa.schema([(name, pa.string()) for name in times])
            table = pajson.read_json(file.stream(), options, pajson.ParseOptions(explicit_schema=text))
    except pa.ArrowInvalid as error:
        if "JSON parse error" in str(error) and ("changed from" not in str(error) or "Column()" in str(error)):
            raise NotJson(
                "has lines that are no JSON objects: write one object per line; --option multiLine=true reads a file "
                "of one array"
            ) from error
        raise
    return table


class NotJson(RequestError):
    """Lines that are no JSON objects."""


READERS: dict[str, Callable[..., Reader]] = {"parquet": ParquetReader, "csv": CsvReader, "json": JsonReader}


def option_problems(format: str, options: Mapping[str, str]) -> list[str]:
    """Options that only Spark's readers know."""
    if format not in READERS:
        return [f"Arrow does not read the format {format}"]
    known = CSV_OPTIONS if format == "csv" else ()
    problems = [f"Arrow's reader of {format} has no option {key}" for key in options if key.lower() not in known]
    for key in ("sep", "delimiter", "quote", "escape"):
        value = next((text for name, text in options.items() if name.lower() == key), "")
        if format == "csv" and len(value.replace("\\t", "\t")) > 1:
            problems.append(f"Arrow's reader of csv takes one character for {key}")
    return problems


def _is_true(text: str) -> bool:
    return text.strip().lower() == "true"


def _rows_of_text(files: Sequence[DataFile]) -> int | None:
    """By the length of the lines at the beginning."""
    stream: Any = files[0].stream()
    with stream:
        sample = stream.read(SAMPLE)
    lines = sample.count(b"\n")
    if not lines:
        return None
    size = sum(file.size * (COMPRESSED if file.path.endswith((".gz", ".bz2", ".zst")) else 1) for file in files)
    return int(size * lines / len(sample))
