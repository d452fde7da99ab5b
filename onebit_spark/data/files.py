"""ArrowTable: a table in memory, or of Parquet, CSV or JSON lines files, read by Arrow in batches,
in Spark's types.

The files of a table are one file, a folder, or a pattern, on a local disk or at a URI that Arrow or
fsspec supports. As in Spark, names that begin with a dot or an underscore are skipped, and a folder
such as ``day=3`` is a column.

CSV follows RFC 4180 on both runtimes: fields may be quoted, a quote inside quotes is doubled, and a
backslash is an ordinary character. There is a header line, the same in all files of a folder, and
every line has as many fields as the header. An empty field is null, quoted or not. Columns are text
unless ``inferSchema`` is true. Line breaks inside quotes need ``multiLine``. ``SPARK_CSV`` are the
options that make Spark read it so. This module imports no Spark.
"""

from __future__ import annotations

import csv
import glob
import io
import math
import os
import posixpath
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.json as pajson
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow import fs

from onebit_spark.data.locations import file_system
from onebit_spark.data.user_tables import arrow_table, as_spark, in_spark_type
from onebit_spark.errors import RequestError

ROWS_PER_BATCH = 1 << 17


class Unreadable(RequestError):
    """Arrow cannot read a file or folder.

    The message continues a sentence that begins with the path.
    """


@dataclass(frozen=True)
class ArrowTable:
    schema: pa.Schema  # its columns, in Spark's types
    batches: Callable[[Sequence[str]], Iterator[pa.RecordBatch]]  # of these columns
    format: str | None = None  # of its files

    @classmethod
    def of(cls, given: Any, options: Mapping[str, str] | None = None) -> ArrowTable:
        """From an Arrow table, a DataFrame of pandas or polars, or a path.

        ``options`` are those of ``open_table``, and ``format``.
        """
        if isinstance(given, str | os.PathLike):
            rest = dict(options or {})
            return open_table(os.fspath(given), rest.pop("format", None), rest)
        table = arrow_table(given)
        schema = pa.schema([(column.name, as_spark(column.type)) for column in table.schema])

        def batches(names: Sequence[str]) -> Iterator[pa.RecordBatch]:
            for batch in table.select(list(names)).to_batches(max_chunksize=ROWS_PER_BATCH):
                yield _in_types({name: batch[name] for name in names}, schema)

        return cls(schema, batches)

    def table(self) -> pa.Table:
        return pa.Table.from_batches(self.batches(self.schema.names), self.schema)

    def matching(self, column: str) -> list[str]:
        """The columns of this name. As in Spark, upper and lower case do not differ."""
        return [name for name in self.schema.names if name.lower() == column.lower()]

    def named(self, columns: Mapping[str, str]) -> ArrowTable:
        schema = pa.schema([(new, self.schema.field(old).type) for new, old in columns.items()])

        def batches(names: Sequence[str]) -> Iterator[pa.RecordBatch]:
            different = list(dict.fromkeys(columns[name] for name in names))
            for batch in self.batches(different):
                yield pa.RecordBatch.from_arrays(
                    [batch[columns[name]] for name in names], list(names)
                )

        return replace(self, schema=schema, batches=batches)


def _in_types(columns: Mapping[str, pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    named = ((name, own, schema.field(name).type) for name, own in columns.items())
    return pa.RecordBatch.from_pydict(
        {name: in_spark_type(own, f"column {name!r}", kind) for name, own, kind in named}
    )


def open_table(
    path: str, format: str | None = None, options: Mapping[str, str] | None = None
) -> ArrowTable:
    """The table of a file or folder. The format is that of the file extension, unless it is given.

    Raises FileNotFoundError if there is nothing at the path, and Unreadable if there is no file of
    this format, or it cannot be read. A damaged file raises a RequestError while the batches are
    read.
    """
    reader, format = _reader_of(path, format, options or {})
    try:
        fields = reader.schema()
    except (pa.ArrowException, OSError, UnicodeDecodeError, LookupError) as error:
        reason = (
            f"cannot be read as {format} (check the format and its options): {in_one_line(error)}"
        )
        raise Unreadable(reason) from error
    files = reader.files
    # The columns in the names of folders, with their values in every file: numbers if all of them
    # are.
    names = dict.fromkeys(name for file in files for name in file.partition)
    texts = {
        name: pa.array([file.partition.get(name) for file in files], pa.string()) for name in names
    }
    partitions = {name: inferred(text, PARTITION_TYPES) for name, text in texts.items()}
    own = pa.schema(
        [(column.name, as_spark(column.type)) for column in fields if column.name not in partitions]
    )
    schema = pa.schema(
        [*own, *(pa.field(name, values.type) for name, values in partitions.items())]
    )

    def batches(names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        in_files = [name for name in names if name not in partitions] or own.names[:1]
        for place, file in enumerate(files):
            with file.explained():
                for batch in reader.read(file, in_files):
                    folders = {
                        name: pa.repeat(values[place], len(batch))
                        for name, values in partitions.items()
                    }
                    yield _in_types(
                        {name: folders[name] if name in folders else batch[name] for name in names},
                        schema,
                    )

    return ArrowTable(schema, batches, format)


def count_rows(path: str, format: str | None, options: Mapping[str, str]) -> int | None:
    """About how many rows a table has, if that is known before it is read.

    Raises as ``open_table``.
    """
    return _reader_of(path, format, options)[0].rows()


def _reader_of(path: str, format: str | None, options: Mapping[str, str]) -> tuple[_Reader, str]:
    try:
        files = list(data_files(path))
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise Unreadable(f"cannot be read: {in_one_line(error)}") from error
    format, implied = (
        (format, {}) if format is not None else format_of(path, [file.path for file in files])
    )
    if not files:
        raise Unreadable(f"holds no {format} file: check the path and the format")
    given = {**implied, **options}
    if format == "csv":
        check_switches(given)
    return READERS[format](files, given), format


# ---- files -------------------------------------------------------------------------------------

ENDINGS = {
    "parquet": "parquet",
    "csv": "csv",
    "tsv": "csv",
    "json": "json",
    "jsonl": "json",
    "ndjson": "json",
}
COMPRESSIONS = ("gz", "bz2", "zst", "lz4")
OPTIONS_OF = {"tsv": {"sep": "\t"}}  # options that a file extension implies
DEFAULT = "parquet"
PATTERN = re.compile(r"[*?\[]")
NO_PARTITION = "__HIVE_DEFAULT_PARTITION__"  # the folder that stands for null


class Format(NamedTuple):
    name: str
    options: Mapping[str, str]


def is_data(name: str) -> bool:
    """Whether a name in a folder is one of data: Spark skips those that begin with a dot or an
    underscore.
    """
    return not name.startswith((".", "_")) or ("=" in name and not name.startswith("."))


def ending(name: str) -> str | None:
    """The file extension that names the format, such as csv of ratings.csv.gz; None if there is
    none.
    """
    parts = name.lower().rstrip("/").split(".")[1:]
    if parts and parts[-1] in COMPRESSIONS:
        parts.pop()
    return parts[-1] if parts and parts[-1] in ENDINGS else None


def format_of(path: str, within: Iterable[str] = ()) -> Format:
    """The format by the name of a file, or of the files ``within`` a folder; Parquet if they have
    no extension.

    Raises an Unreadable if the files within a folder have different extensions.
    """
    kind = ending(path.rpartition("/")[2])
    if kind is None:
        names = [name.rpartition("/")[2] for name in within]
        kinds = [each for each in map(ending, names) if each is not None]
        kind = kinds[0] if kinds else DEFAULT
        odd = [
            name
            for name in names
            if "." in name and ENDINGS.get(ending(name) or "") != ENDINGS[kind]
        ]
        if kinds and odd:
            raise Unreadable(
                f"also holds {odd[0]}, which is no {ENDINGS[kind]} file: move it elsewhere, or "
                "name the files by a "
                f"pattern such as *.{kind}"
            )
    return Format(ENDINGS[kind], OPTIONS_OF.get(kind, {}))


@dataclass(frozen=True)
class DataFile:
    system: fs.FileSystem
    path: str
    size: int
    # Column ─► its value, from folders as day=3
    partition: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def uri(self) -> str:
        return f"file:{self.path}" if isinstance(self.system, fs.LocalFileSystem) else self.path

    def open(self) -> Any:
        return self.system.open_input_file(self.path)

    def stream(self) -> Any:
        """The content from beginning to end, decompressed if the file extension is that of a
        compression.
        """
        return self.system.open_input_stream(self.path)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Raise errors of the body as a RequestError that names the file."""
        try:
            yield
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            if line := re.search(r"Expected \d+ columns, got \d+: (.*)", str(error)):
                raise RequestError(wrong_line(self.uri, line[1])) from error
            raise RequestError(
                f"the file {self.uri} cannot be read, is it damaged? {in_one_line(error)}"
            ) from error


def in_one_line(error: Exception) -> str:
    words = " ".join(str(error).split())
    no_utf8 = isinstance(error, UnicodeDecodeError) or "invalid UTF8" in words
    return f"{words}: name its encoding by an option, such as encoding=latin1" if no_utf8 else words


def data_files(path: str) -> Iterator[DataFile]:
    """The files of a table, in the order of their names; none if the path is an empty folder.

    Raises FileNotFoundError if nothing is there.
    """
    system, inside = file_system(path)
    places = [inside]
    if (
        isinstance(system, fs.LocalFileSystem)
        and PATTERN.search(inside)
        and not os.path.exists(inside)
    ):
        places = sorted(glob.glob(inside))
    infos = system.get_file_info(places)
    if not infos or any(info.type == fs.FileType.NotFound for info in infos):
        raise FileNotFoundError(path)
    for info in infos:
        if info.type == fs.FileType.File:
            yield DataFile(system, info.path, info.size)
            continue
        entries = system.get_file_info(fs.FileSelector(info.path, recursive=True))
        for each in sorted(entries, key=lambda entry: entry.path):
            *folders, name = posixpath.relpath(each.path, info.path).split("/")
            # Spark reads no other folders
            inside_partitions = all("=" in folder for folder in folders)
            if (
                each.type == fs.FileType.File
                and inside_partitions
                and all(map(is_data, (*folders, name)))
            ):
                values = (unquote(folder).partition("=") for folder in folders)
                partition = {
                    column: None if value == NO_PARTITION else value for column, _, value in values
                }
                yield DataFile(system, each.path, each.size, partition)


# ---- text --------------------------------------------------------------------------------------

NUMBER = re.compile(
    r"([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)[df]?|([+-]?inf(?:inity)?|nan)", re.IGNORECASE
)
WHOLE = pa.decimal128(38, 0)  # stands for whole numbers that are too large for 64 bits
# Of text: the first type that fits, and a wider one of the same family if later text needs it
INFERRED = (
    (pa.int32(), pa.int64(), WHOLE, pa.float64()),
    (pa.date32(), pa.timestamp("us")),
    (pa.bool_(),),
)
PARTITION_TYPES = ((pa.int32(), pa.int64(), pa.float64()),)

Families = tuple[tuple[pa.DataType, ...], ...]


def text_to_numbers(text: pa.ChunkedArray, booleans: bool = False) -> pa.ChunkedArray:
    """Text as doubles, as Spark's ``try_cast`` has them: null where it is no number. True and false
    may be 1 and 0.
    """
    with suppress(pa.ArrowInvalid):
        return text.cast(pa.float64())
    words = {"true": 1.0, "false": 0.0} if booleans else {}
    encoded = text.combine_chunks().dictionary_encode()
    numbers = []
    for value in map(str.strip, encoded.dictionary.to_pylist()):
        match = NUMBER.fullmatch(value)
        numbers.append(float(match[1] or match[2]) if match else words.get(value.lower()))
    return pa.chunked_array([pa.array(numbers, pa.float64()).take(encoded.indices)])


def inferred_types(text: pa.Array | pa.ChunkedArray, among: Families = INFERRED) -> Families:
    """The types, from the first one on, that all this text can be read as; none if it must stay
    text.
    """
    present = text.drop_null()
    if not len(present):
        return among
    for family in among:
        for place, kind in enumerate(family):
            if _is_readable(present, kind):
                return (family[place:],)
    return ()


def _is_readable(text: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> bool:
    if kind == WHOLE:
        return bool(pc.all(pc.match_substring_regex(text, r"^[+-]?\d{1,38}$")).as_py())
    if kind == pa.bool_():
        return bool(pc.all(pc.is_in(pc.utf8_lower(text), pa.array(["true", "false"]))).as_py())
    with suppress(pa.ArrowInvalid):
        text.cast(kind)
        return True
    return False


def _digits(text: pa.Array | pa.ChunkedArray) -> int:
    return pc.max(pc.utf8_length(pc.utf8_ltrim(text, "+-0"))).as_py() or 1


def inferred(
    text: pa.Array | pa.ChunkedArray, among: Families = INFERRED
) -> pa.Array | pa.ChunkedArray:
    """A column of text as numbers, times or booleans, if all of it is such: Spark's
    ``inferSchema``.
    """
    types = inferred_types(text, among)
    if text.null_count == len(text) or not types:
        return text
    kind = types[0][0]
    return text.cast(pa.decimal128(_digits(text), 0) if kind == WHOLE else kind)


def null_or_nan(values: pa.ChunkedArray | pa.Array) -> NDArray[np.bool_]:
    return np.asarray(pc.is_null(values, nan_is_null=pa.types.is_floating(values.type)))


def id_text_bytes(table: ArrowTable, columns: Sequence[str], n: int) -> float:
    """Bytes of the different ids that are text, among n rows of a table.

    Columns that are not there count nothing.
    """
    names = dict.fromkeys(name for column in columns for name in table.matching(column))
    text = [
        name
        for name in names
        if table.schema.field(name).type in (pa.string(), pa.large_string(), pa.binary())
    ]
    first = next(table.batches(text), None) if text else None
    if first is None or len(first) < 2:
        return 0.0
    return sum(n_different(first[name], n) * first[name].nbytes / len(first) for name in text)


def n_different(first: pa.Array, n: int) -> float:
    """About how many of n values differ, by Heaps' law: k rows have c·k^β different values.

    β is 1 where every row brings a new value, or the rows are sorted, and near 0 where all values
    have been seen.
    """
    half, whole = (len(part.unique()) for part in (first.slice(0, len(first) // 2), first))
    growth = min(1.0, math.log2(whole / half))
    return min(n, whole * max(1.0, n / len(first)) ** growth)


# ---- CSV ---------------------------------------------------------------------------------------

BLOCK = 4 * 2**20  # bytes of text that are parsed at once
CSV_OPTIONS = (
    "sep",
    "delimiter",
    "header",
    "inferschema",
    "quote",
    "escape",
    "nullvalue",
    "encoding",
    "charset",
    "multiline",
)
CSV_SWITCHES = ("header", "inferschema", "multiline")
CSV_CHARACTERS = ("sep", "delimiter", "quote", "escape")
OTHER_SEPARATORS = (";", "\t", "|")
SPARK_CSV = {  # of Spark's reader: the dialect above
    "header": "true",
    "escape": '"',
    "mode": "FAILFAST",  # a line with too many or too few fields
    # Otherwise Spark would not count the fields of columns that are not read
    "columnPruning": "false",
    "unescapedQuoteHandling": "RAISE_ERROR",
}


def spark_csv(options: Mapping[str, str]) -> dict[str, str]:
    """Options of Spark's reader of CSV: the given ones, and for the rest those of the dialect
    above.
    """
    given = {key.lower(): value for key, value in options.items()}
    own = {key: value for key, value in SPARK_CSV.items() if key.lower() not in given}
    if "nullvalue" in given and "emptyvalue" not in given:
        own["emptyValue"] = given["nullvalue"]
    return {**own, **options}


def check_switches(options: Mapping[str, str]) -> None:
    for key, value in options.items():
        if key.lower() in CSV_SWITCHES and value.strip().lower() not in ("true", "false"):
            raise Unreadable(
                f"cannot be read: the option {key} must be true or false, not {value!r}"
            )


def option_problems(format: str, options: Mapping[str, str]) -> list[str]:
    """Problems with options that only Spark's readers have."""
    if format not in READERS:
        return [f"Arrow does not read the format {format}"]
    known = CSV_OPTIONS if format == "csv" else ()
    problems = [
        f"Arrow's reader of {format} has no option {key}"
        for key in options
        if key.lower() not in known
    ]
    for key in CSV_CHARACTERS:
        value = next((text for name, text in options.items() if name.lower() == key), "")
        if format == "csv" and len(value.replace("\\t", "\t")) > 1:
            problems.append(f"Arrow's reader of csv takes one character for {key}")
    return problems


def separator_in(names: Sequence[str]) -> str | None:
    return next((sign for sign in OTHER_SEPARATORS if len(names) == 1 and sign in names[0]), None)


def wrong_line(file: str, line: str) -> str:
    return (
        f"the file {file} has a line with more or fewer fields than its header: {line[:200]!r}. "
        "Quote fields that "
        "contain the separator; line breaks inside quotes need the option multiLine=true"
    )


WRONG_QUOTES = 'the file {} has text after a closing quote: a quote inside quotes is written as ""'
WRONG_HEADER = (
    "the file {} has another header line than other files: give all files the same columns in order"
)
EMPTY_CSV = "is empty: a CSV file has a header line"


def shared_name(names: Sequence[str]) -> str | None:
    """Why a header line with these names cannot be that of several files; Spark could not compare
    these lines.
    """
    times = Counter(map(str.lower, names))
    twice = next((name for name in names if name and times[name.lower()] > 1), None)
    return (
        twice and f"has several columns named {twice!r}: give each column of a folder its own name"
    )


class _Files:
    def __init__(self, files: Sequence[DataFile], options: Mapping[str, str]) -> None:
        self.files = files

    def rows(self) -> int | None:
        """The number of rows, here by the length of the lines at the beginning; None if it is not
        known.
        """
        file = self.files[0]
        with file.stream() as stream:
            sample: bytes = stream.read(SAMPLE)
        size = sum(
            each.size * (COMPRESSED if each.path.endswith(PACKED_ENDINGS) else 1)
            for each in self.files
        )
        return int(size * sample.count(b"\n") / len(sample)) if b"\n" in sample else None


class CsvReader(_Files):
    """Reads CSV by Spark's options: sep, header, inferSchema, quote, escape, nullValue, encoding,
    multiLine.
    """

    def __init__(self, files: Sequence[DataFile], options: Mapping[str, str]) -> None:
        given = {key.lower(): value for key, value in options.items()}
        switches = {key: given.get(key, "false").strip().lower() == "true" for key in CSV_SWITCHES}
        self._header = switches["header"] or "header" not in given
        self._infer = switches["inferschema"]
        self._line_breaks = switches["multiline"]
        self._parse = pacsv.ParseOptions(
            delimiter=given.get("sep", given.get("delimiter", ",")).replace("\\t", "\t"),
            quote_char=given.get("quote", '"') or False,
            escape_char=given["escape"] if given.get("escape", '"') not in ('"', "") else False,
            newlines_in_values=self._line_breaks,
            invalid_row_handler=lambda row: (
                "error" if row.text.strip() else "skip"
            ),  # Spark skips blank lines
        )
        self._encoding = given.get("encoding", given.get("charset", "utf8"))
        self._nulls = ["", *([given["nullvalue"]] if "nullvalue" in given else [])]
        self._well_quoted: set[str] = set()  # files whose quotes were checked
        self.files = [file for file in files if self._first_line(file)]
        if not self.files:
            raise Unreadable(EMPTY_CSV)
        first = self._first_line(self.files[0])
        self._names = first if self._header else [""] * len(first)
        if len(self.files) > 1 and (problem := shared_name(self._names)):
            raise Unreadable(problem)
        # As Spark, number the columns that have no name of their own
        times = Counter(map(str.lower, self._names))
        self._columns = [
            name if name and times[name.lower()] == 1 else f"{name or '_c'}{n}"
            for n, name in enumerate(self._names)
        ]

    def _first_line(self, file: DataFile) -> list[str]:
        """The fields of the first line; an empty list if there is none."""
        if not file.size:
            return []
        with file.explained(), self._lines(file) as lines:
            return next((line for line in lines if any(map(str.strip, line))), [])

    @contextmanager
    def _lines(self, file: DataFile, strict: bool = False) -> Iterator[Iterator[list[str]]]:
        """The fields of the lines, read by Python.

        A strict reader refuses text after a closing quote.
        """
        encoding = (
            "utf-8-sig" if self._encoding.lower().replace("-", "") == "utf8" else self._encoding
        )
        with io.TextIOWrapper(file.stream(), encoding, errors="replace", newline="") as text:
            quote: Any = self._parse.quote_char or None
            style: Any = csv.QUOTE_MINIMAL if quote else csv.QUOTE_NONE
            yield csv.reader(
                text, delimiter=self._parse.delimiter, quotechar=quote, quoting=style, strict=strict
            )

    def _check_quotes(self, file: DataFile) -> None:
        """Refuse text after a closing quote, as Spark does. Arrow would append it to the field."""
        quote: Any = self._parse.quote_char
        if not quote or self._parse.escape_char or file.uri in self._well_quoted:
            return
        with file.stream() as stream:
            quoted = any(quote.encode() in block for block in iter(lambda: stream.read(BLOCK), b""))
        if quoted:
            try:
                with self._lines(file, strict=True) as lines:
                    deque(lines, maxlen=0)
            except csv.Error as problem:
                if "expected after" in str(problem):
                    raise RequestError(WRONG_QUOTES.format(file.uri)) from None
        self._well_quoted.add(file.uri)

    def schema(self) -> pa.Schema:
        kinds = self._inferred() if self._infer else {}
        return pa.schema([(name, kinds.get(name, pa.string())) for name in self._columns])

    def _inferred(self) -> dict[str, pa.DataType]:
        """The types that all lines can be read as. As Spark, this reads the files once more."""
        possible: dict[str, Families] = dict.fromkeys(self._columns, INFERRED)
        digits = dict.fromkeys(self._columns, 1)
        for file in self.files:
            with file.explained():
                for batch in self.read(file, self._columns):
                    for name in self._columns:
                        possible[name] = inferred_types(batch[name], possible[name])
                        if possible[name] and possible[name][0][0] == WHOLE:
                            digits[name] = max(digits[name], _digits(batch[name]))
        kinds = {name: families[0][0] for name, families in possible.items() if len(families) == 1}
        return {
            name: pa.decimal128(digits[name], 0) if kind == WHOLE else kind
            for name, kind in kinds.items()
        }

    def read(self, file: DataFile, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        own = self._first_line(file)
        if self._header and [name.lower() for name in own] != [
            name.lower() for name in self._names
        ]:
            raise RequestError(WRONG_HEADER.format(file.uri))
        if len(own) != len(self._names):
            raise RequestError(wrong_line(file.uri, self._parse.delimiter.join(own)))
        self._check_quotes(file)
        options = pacsv.ReadOptions(
            block_size=BLOCK,
            encoding=self._encoding,
            column_names=self._columns,
            skip_rows_after_names=int(self._header),
        )
        convert = pacsv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            include_columns=list(names),
            strings_can_be_null=True,
            quoted_strings_can_be_null=True,
            null_values=self._nulls,
        )
        with pacsv.open_csv(file.stream(), options, self._parse, convert) as batches:
            for batch in batches:
                for column in () if self._line_breaks else batch.columns:
                    broken = pc.match_substring(column, "\n")
                    if pc.any(broken).as_py():
                        raise RequestError(wrong_line(file.uri, column.filter(broken)[0].as_py()))
                yield batch


# ---- Parquet and JSON lines --------------------------------------------------------------------

MOST_FOOTERS = 10_000  # files that are opened to count their rows
SAMPLE = 2**16  # bytes of a text whose lines are counted
PACKED_ENDINGS = tuple(f".{kind}" for kind in COMPRESSIONS)
COMPRESSED = 4  # how much shorter compressed text is, about


class ParquetReader(_Files):
    def schema(self) -> pa.Schema:
        return _parquet(self.files[0]).schema_arrow

    def read(self, file: DataFile, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        part = _parquet(file)
        if absent := [name for name in names if name not in part.schema_arrow.names]:
            raise pa.ArrowInvalid(f"it has no column {', '.join(absent)}, and other files have")
        for batch in part.iter_batches(ROWS_PER_BATCH, columns=list(names)):
            yield batch.select(list(names))

    def rows(self) -> int | None:
        few = len(self.files) <= MOST_FOOTERS
        return sum(_parquet(file).metadata.num_rows for file in self.files) if few else None


def _parquet(file: DataFile) -> pq.ParquetFile:
    return pq.ParquetFile(file.open(), pre_buffer=True)


class JsonReader(_Files):
    """Reads one object per line. The columns are in alphabetical order, as Spark has them.

    Only the last line settles the types. So every file is read twice, as a whole.
    """

    def schema(self) -> pa.Schema:
        schemas = [pa.schema([column]) for file in self.files for column in _json(file).schema]
        unified = pa.unify_schemas(schemas, promote_options="permissive")
        return pa.schema(sorted(unified, key=lambda column: column.name))

    def read(self, file: DataFile, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        content = _json(file)
        for name in names:
            if name not in content.schema.names:
                content = content.append_column(name, pa.nulls(len(content)))
        yield from content.select(list(names)).to_batches(ROWS_PER_BATCH)


def _json(file: DataFile) -> pa.Table:
    options = pajson.ReadOptions(block_size=BLOCK)
    try:
        table = pajson.read_json(file.stream(), options)
        # They are text in Spark.
        if times := [column.name for column in table.schema if pa.types.is_timestamp(column.type)]:
            text = pa.schema([(name, pa.string()) for name in times])
            table = pajson.read_json(
                file.stream(), options, pajson.ParseOptions(explicit_schema=text)
            )
    except pa.ArrowInvalid as error:
        if "JSON parse error" in str(error) and (
            "changed from" not in str(error) or "Column()" in str(error)
        ):
            raise Unreadable(NOT_JSON) from error
        raise
    return table


NOT_JSON = (
    "has lines that are no JSON objects: write one object per line; on Spark, the option "
    "multiLine=true reads a file "
    "of one array"
)

_Reader = ParquetReader | CsvReader | JsonReader
READERS: dict[str, type[_Reader]] = {"parquet": ParquetReader, "csv": CsvReader, "json": JsonReader}
