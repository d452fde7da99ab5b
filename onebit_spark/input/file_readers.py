"""Parquet, CSV and JSON lines, read by Arrow as Spark reads them: the columns of a file, and batches of them.

CSV has a header, and its columns are text, unless options say otherwise. This module imports no Spark.

A table that Arrow reads gets the types that Spark would give it. So ids, hashes and messages are the same with both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.json as pajson
import pyarrow.parquet as pq
from numpy.typing import NDArray

from onebit_spark.errors import RequestError
from onebit_spark.input.data_files import DataFile
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
    match = NUMBER.fullmatch(text.strip())
    return float(match[1] or match[2]) if match else None


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


# ---- readers ---------------------------------------------------------------------------------------------------------

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
        self._contents: dict[str, pa.Schema | pa.Table] = {}

    def schema(self) -> pa.Schema:
        schemas = [each if isinstance(each, pa.Schema) else each.schema for each in map(self._file, self._files)]
        unified = pa.unify_schemas([pa.schema([f]) for schema in schemas for f in schema], promote_options="permissive")
        return pa.schema(sorted(unified, key=lambda field: field.name))

    def read(self, file: DataFile, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        content = self._file(file)
        if isinstance(content, pa.Schema):
            wanted = pa.schema([content.field(name) if name in content.names else (name, pa.null()) for name in names])
            with _json_batches(file, wanted, "ignore") as batches:
                yield from batches
            return
        for name in names:
            if name not in content.schema.names:
                content = content.append_column(name, pa.nulls(len(content)))
        yield from content.select(list(names)).to_batches(ROWS_PER_BATCH)

    def _file(self, file: DataFile) -> pa.Schema | pa.Table:
        """The columns of a file that can be read in batches, or all of it."""
        if file.path not in self._contents:
            self._contents[file.path] = _json_schema(file) or _json(file)
        return self._contents[file.path]

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
    options = pajson.ParseOptions(explicit_schema=schema, unexpected_field_behavior=others)
    return pajson.open_json(file.stream(), pajson.ReadOptions(block_size=BLOCK), options)


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
