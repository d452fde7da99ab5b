"""The ratings of a DataFrame: their columns, defects counted in one pass, and all of them on the driver.

    check_ratings ─► counts, or every defect                        one aggregation
    estimate_size ─► n, bytes per rating                            one aggregation; none if Spark's cache has n
    collect_ratings ─► the ratings, checked and numbered            one collect, or several that are small enough;
                                                                    none if this process can read their files
    split_off, check_split ─► ratings to fit and held-out ones      by a hash of their cell; one pass counts both
    survey_ratings ─► the ratings packed on the executors, and the ids of both sides counted

What was collected is what is checked, fitted and certified. If the caller gives a fingerprint of what it counted
before, the collected ratings must have it.

Python reads ratings that are plain Parquet files by Arrow instead of through the JVM (``RatingFiles``):

    executors     files of the plan ─► footers, by one small job ─► row groups ─► tasks of about as many ratings
                  a task: row groups ─Arrow─► ratings without those held out ─► work ─► a few long lines
    the driver    files of the plan ─► footers ─► row groups ─Arrow─► ratings without those held out

docs/SCALING.md has the time that this saves. Arrow opens the files on the machine's disks, or on an object store with
the machine's credentials. If it cannot, or finds other files or types than Spark, then Spark reads them. Files on
hdfs:// are left to Spark, because Arrow would start a JVM in every Python worker.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyspark import StorageLevel, TaskContext
from pyspark.ml.functions import vector_to_array
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from onebit_spark.core.losses import Side
from onebit_spark.data.files import ROWS_PER_BATCH, DataFile
from onebit_spark.data.hashes import HASH_PARTS, PART_BITS, SALT, CellSketch, limit_for
from onebit_spark.data.id_index import hashes_of, sum_by_id
from onebit_spark.data.limits import LARGEST_WEIGHT
from onebit_spark.data.locations import file_system
from onebit_spark.data.ratings import (
    BIT,
    EXAMPLES,
    HASH,
    INSIDE,
    INTEGRAL,
    ITEM,
    LABEL,
    TABLE_BYTES,
    USER,
    WEIGHT,
    Batches,
    CollectedRatings,
    Columns,
    Holdout,
    RatingCollector,
    RatingCounts,
    SizeEstimate,
    as_examples,
    check_id_type,
    checked_lines,
    column_count_problem,
    counts_if_sound,
    fingerprint_of,
    found_columns,
    is_incomplete,
    joined,
    may_be_refused,
    not_deterministic,
    of_both_classes,
    plain_numbers,
    read_batch,
    type_problems,
    without_zeros,
)
from onebit_spark.data.user_tables import as_spark, in_spark_type, in_utc, one_array, spark_name
from onebit_spark.engines.spark.frames import (
    binary_line,
    cached,
    cached_rows,
    cell_array,
    collect_in_parts,
    expect_long_lines,
    ids_cell,
    in_partitions,
    map_rows,
    parquet_files,
    read_ids,
    rows_session,
    schema_of,
    truncate_plan,
    working_session,
)
from onebit_spark.engines.spark.sessions import described, driver_limits, one_ahead, parallelism
from onebit_spark.errors import RequestError, refuse
from onebit_spark.settings import FitConfig, declared

MARKS = "__onebit_marks"

# ---- columns ---------------------------------------------------------------------------------------------------------


def quoted(name: str) -> str:
    """A column name in backticks, so that dots in it have no meaning."""
    return "`" + name.replace("`", "``") + "`"


def missing(table: DataFrame, name: str) -> Column:
    """Null, or NaN in a floating column."""
    value = F.col(quoted(name))
    floating = isinstance(type_of(table, name), T.FloatType | T.DoubleType)
    return value.isNull() | F.isnan(value) if floating else value.isNull()


def case_folding(table: DataFrame) -> Callable[[str], str]:
    refuse_other_frames(table)
    return str if table.sparkSession.conf.get("spark.sql.caseSensitive") == "true" else str.lower


def matching(table: DataFrame, column: str) -> list[T.StructField]:
    """The fields of this name. Whether case counts is a setting of the session."""
    refuse_other_frames(table)
    fields = [field for field in table.schema if field.name.lower() == column.lower()]
    if [field.name for field in fields] == [column]:
        return fields  # whether or not case counts
    folded = case_folding(table)
    return [field for field in fields if folded(field.name) == folded(column)]


def column_problem(table: DataFrame, column: str, role: str = "") -> str | None:
    """Why the table does not have just one such column, in words; ``role`` names its purpose."""
    return column_count_problem(len(matching(table, column)), column, role, table.columns)


def type_of(table: DataFrame, column: str) -> T.DataType:
    """The type of a column, from the schema. Without a column "user", Spark takes ``col("user")`` for a function."""
    if problem := column_problem(table, column):
        raise RequestError(problem)
    return matching(table, column)[0].dataType


def refuse_other_frames(table: DataFrame) -> None:
    if not hasattr(table, "sparkSession"):
        kind = f"{type(table).__module__.partition('.')[0]} {type(table).__name__}".removeprefix("builtins ")
        raise RequestError(
            f"Spark takes a Spark DataFrame, not a {kind}: use spark.createDataFrame, or fit and predict without "
            "Spark (onebit_spark.fit_table, onebit_spark.load)"
        )


def refuse_stream(table: DataFrame, what: str = "the ratings") -> None:
    refuse_other_frames(table)
    if table.isStreaming:
        raise RequestError(
            f"{what} are a stream, which has no end: give a table, or the batches of the stream one by one, with "
            "foreachBatch (docs/streaming.md)"
        )


def checked_ids(table: DataFrame, columns: Sequence[str]) -> list[Column]:
    """The columns, checked lazily: if an id is null or NaN, the first action fails with the number of such ids.

    The counts are one subquery for all columns. There is none if the schema excludes such ids.
    """
    absent = [missing(table, column) for column in columns]
    counts = None
    if not table.isStreaming:  # a stream has no total
        counts = table.select(F.array(*map(F.count_if, absent))).scalar()
    checked = []
    for place, (column, is_absent) in enumerate(zip(columns, absent, strict=True)):
        number = F.lit("some") if counts is None else F.format_number(counts[place], 0)
        message = F.lit(f"column {column!r} holds "), number, F.lit(" null or NaN ids: drop or fill such rows")
        checked.append(F.when(is_absent, F.raise_error(F.concat(*message))).otherwise(F.col(quoted(column))))
    return checked


# ---- ratings ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DerivedRatings:
    """What ratings were derived from: a table of which some are held out, or have the weight 0, by its columns."""

    table: DataFrame
    columns: Columns | None = None  # None: nothing is missing
    holdout: Holdout | None = None


_DERIVED: WeakKeyDictionary[DataFrame, DerivedRatings] = WeakKeyDictionary()


def mark_as_derived(
    ratings: DataFrame, table: DataFrame, columns: Columns, holdout: Holdout | None = None
) -> DataFrame:
    """Record that ratings are those of a table without the held-out ones and those of weight 0, and return them.

    Their plan only shows a filter.
    """
    before = derivation(table)
    if before.columns in (None, columns) and None in (before.holdout, holdout):
        _DERIVED[ratings] = DerivedRatings(before.table, columns, before.holdout or holdout)
    return ratings


def derivation(ratings: DataFrame) -> DerivedRatings:
    return _DERIVED.get(ratings, DerivedRatings(ratings))


def with_weight(df: DataFrame, columns: Columns) -> DataFrame:
    """The ratings without those of weight 0. Every public function calls it first."""
    refuse_stream(df)
    if columns.weight is None:
        return df
    check_columns(df, columns)
    is_there = F.coalesce(weight_number(columns.weight) != 0, F.lit(True))  # a bad weight is refused later
    return mark_as_derived(df.where(is_there), df, columns)


def positive(df: DataFrame, label_col: str, threshold: float | None) -> Column:
    """The label as a boolean: strictly above the threshold, or above 0 without one."""
    value = label_number(df, label_col)
    return value > F.lit(0.0 if threshold is None else float(threshold))


def check_ratings(df: DataFrame, columns: Columns) -> RatingCounts:
    """Validate and count without the ids: one aggregation to a single line. A single class is allowed."""
    return checked_counts(df, columns, count_ratings(df, columns))


def count_ratings(df: DataFrame, columns: Columns, further: Mapping[str, Column] | None = None) -> dict[str, int]:
    """The totals that ``checked_counts`` takes, and ``further`` aggregates of ``df`` by name, in one pass.

    A flag is 1 if such ratings are there. Only if one must be refused does a second pass count them.
    """
    check_columns(df, columns)
    # A column of its own, so that Spark computes it once per rating though two aggregates use it.
    placed = df.withColumns({MARKS: flag_bits(df, columns)})
    aggregates = {
        "n": F.count(F.lit(1)),
        "above": F.count_if(F.col(MARKS).bitwiseAND(F.lit(BIT["above"])) != 0),
        "marks": F.bit_or(MARKS),
        **{name: F.sum(part) for name, part in zip(HASH_PARTS, fingerprint(df, columns), strict=True)},
        **(further or {}),
    }
    totals = aggregated(placed, aggregates)
    present = {name: int(bool(totals["marks"] & bit)) for name, bit in BIT.items()}
    if may_be_refused(columns, present):
        present = aggregated(df, {name: F.count_if(flag) for name, flag in _flags(df, columns).items()})
    return {**present, **totals}


def aggregated(df: DataFrame, aggregates: Mapping[str, Column]) -> dict[str, int]:
    line = df.agg(*(aggregate.alias(name) for name, aggregate in aggregates.items())).first()
    assert line is not None
    return {name: line[name] or 0 for name in aggregates}


# ---- what is counted -------------------------------------------------------------------------------------------------


def flag_bits(df: DataFrame, columns: Columns) -> Column:
    bits = [F.when(flag, F.lit(BIT[name])).otherwise(0) for name, flag in _flags(df, columns).items()]
    return reduce(lambda a, b: a.bitwiseOR(b), bits)


def _flags(df: DataFrame, columns: Columns) -> dict[str, Column]:
    """One boolean column per name of ``BIT``."""
    value, absent = label_number(df, columns.label), missing(df, columns.label)
    usable = ~absent & value.isNotNull() & ~F.isnan(value)
    flags = {
        "bad_user": missing(df, columns.user),
        "bad_item": missing(df, columns.item),
        "bad_label": absent | (value.isNotNull() & F.isnan(value)),
        "text_label": ~absent & value.isNull(),
        "bad_weight": F.lit(False),
        "plus": usable & (value == 1),
        "minus": usable & (value == -1),
        "zero": usable & (value == 0),
        "other": usable & ~value.isin(1.0, -1.0, 0.0),
        "above": usable & (value > F.lit(float(columns.threshold or 0.0))),
    }
    if columns.weight is not None:
        weight = weight_number(columns.weight)
        largest = F.lit(LARGEST_WEIGHT).cast("float")
        flags["bad_weight"] = weight.isNull() | (weight < 0) | (weight > largest)  # NaN is above all numbers
    return {name: F.coalesce(flags[name], F.lit(False)).alias(name) for name in BIT}


def fingerprint(df: DataFrame, columns: Columns) -> list[Column]:
    """56 bits of a hash of the rating, in two columns named ``HASH_PARTS``. A set's fingerprint is their sums.

    A sum changes if a rating occurs twice. With an exclusive or, the two would cancel.
    """
    cell = cell_hash(df, columns)
    whole = F.when(positive(df, columns.label, columns.threshold), F.bitwise_not(cell)).otherwise(cell)
    if columns.weight is not None:
        whole = whole.bitwiseXOR(F.xxhash64(weight_number(columns.weight)))
    mask = F.lit((1 << PART_BITS) - 1).cast("bigint")
    shifted = (whole, F.shiftrightunsigned(whole, PART_BITS))
    return [part.bitwiseAND(mask).alias(name) for name, part in zip(HASH_PARTS, shifted, strict=True)]


def cell_hash(df: DataFrame, columns: Columns) -> Column:
    """A hash of the cell (user, item), the same for all integral widths, which interchange as ids."""
    ids = []
    for name in (columns.user, columns.item):
        integral = type_of(df, name).simpleString() in INTEGRAL
        ids.append(F.col(quoted(name)).cast("bigint") if integral else F.col(quoted(name)))
    return F.xxhash64(F.lit(SALT), *ids)


def label_number(df: DataFrame, label_col: str) -> Column:
    """The label as a double. Text that is no number becomes null; true and false are 1 and 0."""
    column = F.col(quoted(label_col))
    if isinstance(type_of(df, label_col), T.BooleanType):
        return column.cast("int").cast("double")
    number = column.try_cast("double")
    if not isinstance(type_of(df, label_col), T.StringType):
        return number
    word = F.lower(F.trim(column))
    return F.when(word == "true", F.lit(1.0)).when(word == "false", F.lit(0.0)).otherwise(number)


def weight_number(name: str) -> Column:
    """A weight as a 32-bit float. Text that is no number becomes null, and 1e39 infinite."""
    return F.col(quoted(name)).try_cast("double").cast("float")


# ---- what is refused -------------------------------------------------------------------------------------------------


def check_columns(df: DataFrame, columns: Columns) -> None:
    refuse_stream(df)
    found_columns(columns, lambda name: [field.name for field in matching(df, name)], df.columns)
    types = {role: type_of(df, name).simpleString() for role, name in columns.roles.items()}
    refuse(type_problems(columns, types))


def checked_counts(df: DataFrame, columns: Columns, totals: Mapping[str, int]) -> RatingCounts:
    boolean = isinstance(type_of(df, columns.label), T.BooleanType)

    def examples(flag: str) -> str:
        return as_examples(df.where(_flags(df, columns)[flag]).select(*map(quoted, columns.names)).take(EXAMPLES))

    return counts_if_sound(columns, totals, boolean, examples)


def rating_lines(df: DataFrame, columns: Columns) -> DataFrame:
    """(user, item, positive), and the weights if there are any, of ratings that were checked."""
    ids = (F.col(quoted(name)).alias(alias) for name, alias in ((columns.user, USER), (columns.item, ITEM)))
    label = positive(df, columns.label, columns.threshold).alias(LABEL)
    return df.select(*ids, label, *_weight(columns))


def unchecked_ratings(df: DataFrame, columns: Columns) -> DataFrame:
    """The two ids, the label as a number, the cell's hash and the weight, if there is one: nothing is checked yet.

    Where both ids are integers there is no hash: ``read_batch`` computes it.
    """
    integers = all(type_of(df, name).simpleString() in INTEGRAL for name in (columns.user, columns.item))
    text = isinstance(type_of(df, columns.label), T.StringType | T.DecimalType)
    return df.select(
        *(_id(df, name).alias(alias) for name, alias in ((columns.user, USER), (columns.item, ITEM))),
        (label_number(df, columns.label) if text else F.col(quoted(columns.label))).alias(LABEL),
        *([] if integers else [cell_hash(df, columns).alias(HASH)]),
        *_weight(columns),
    )


def _weight(columns: Columns) -> list[Column]:
    return [] if columns.weight is None else [weight_number(columns.weight).alias(WEIGHT)]


def _id(df: DataFrame, name: str) -> Column:
    """The id; −0.0 is 0.0, as Spark's grouping and joins have it."""
    value = F.col(quoted(name))
    if isinstance(type_of(df, name), T.FloatType | T.DoubleType):
        return F.when(value == 0, F.lit(0.0).cast(type_of(df, name))).otherwise(value)
    return value


# ---- side features ---------------------------------------------------------------------------------------------------


def collected_features(frame: DataFrame, column: str, id_type: str, whose: str) -> pa.Table:
    """The table of side features on the driver, by one Spark job; its ids must be of the type of the ratings' ids."""
    try:
        refuse_stream(frame, "they")
        kind, *_ = [type_of(frame, name) for name in (column, *frame.columns)]
    except RequestError as error:
        raise RequestError(f"{whose} features: {error}") from None
    check_id_type(column, kind.simpleString(), id_type, whose)
    (own,) = matching(frame, column)
    plain = [
        vector_to_array(F.col(quoted(field.name))).alias(field.name)
        if isinstance(field.dataType, VectorUDT)
        else F.col(quoted(field.name)).alias(column if field == own else field.name)
        for field in frame.schema
    ]
    return checked_lines(frame.select(*plain).toArrow(), column, whose)


# ---- plain Parquet files, read by Arrow ------------------------------------------------------------------------------

RATINGS_PER_TASK = 8_000_000  # at most about so many, and a task for every core
MOST_HERE = 100  # files that one process reads
SCHEMES = ("file", "s3", "s3a", "gs", "abfs", "abfss")
TYPES = (*INTEGRAL, "float", "double", "boolean", "string")  # and decimals: those that no setting of Spark changes
FOOTER = schema_of("footer string")

log = logging.getLogger("onebit_spark")


class RowGroup(NamedTuple):
    path: str
    number: int
    n: int  # its rows


@dataclass(frozen=True)
class RatingFiles:
    """The files of some ratings, read as ``unchecked_ratings`` has them."""

    files: Mapping[str, int]  # path ─► length in bytes
    columns: Mapping[str, str]  # name inside ─► column of the files
    types: Mapping[str, str]  # column ─► its type as Spark names it
    holdout: Holdout | None = None  # ratings that are left out

    def mapped(self, spark: SparkSession, work: Callable[[Batches], Batches], schema: T.StructType) -> DataFrame | None:
        """``work`` on the ratings of every task; None if the executors cannot read them.

        One small job opens all files on the executors and reads their footers.
        """
        cores, n_files = parallelism(spark), len(self.files)
        tasks = min(n_files, cores)

        def read_footers(batches: Batches) -> Batches:
            for first in _numbers(batches):
                for place in range(first, n_files, tasks):
                    yield pa.RecordBatch.from_pydict({"footer": [json.dumps(self._footer(place))]})

        lines = spark.range(0, tasks, 1, tasks).mapInArrow(read_footers, FOOTER).toArrow()
        groups = _row_groups([json.loads(line) for line in lines["footer"].to_pylist()])
        if not groups:
            return None
        runs = even_tasks(groups, max(cores, sum(group.n for group in groups) // RATINGS_PER_TASK))
        log.debug("ratings: read by Arrow in %s tasks", f"{len(runs):,}")

        def read(batches: Batches) -> Batches:
            return work(self._ratings(group for number in _numbers(batches) for group in runs[number]))

        return spark.range(0, len(runs), 1, len(runs)).mapInArrow(read, schema)

    def batches(self) -> Batches | None:
        """The ratings, read in this process; None if Arrow cannot read them, or if there are too many files."""
        if len(self.files) > MOST_HERE:
            return None
        groups = _row_groups([self._footer(place) for place in range(len(self.files))])
        if not groups:
            return None
        log.debug("ratings: read by Arrow on the driver")
        return self._ratings(groups, threads=True)

    def _footer(self, place: int) -> dict[str, Any]:
        """The row groups of a file, or why Arrow cannot read it."""
        path, length = list(self.files.items())[place]
        try:
            return {"file": place, "groups": self._groups_of(path, length)}
        except Exception as error:  # whatever it is, Spark may still be able to read the file
            return {"problem": f"{path}: {' '.join(str(error).split())}"}

    def _groups_of(self, path: str, length: int) -> list[RowGroup]:
        """The row groups of a file. Raises an exception if Arrow cannot read it as Spark would."""
        file = _opened(path)
        if file.size != length:
            raise ValueError(f"it has {file.size or 0:,} bytes here, and {length:,} for Spark")
        part = pq.ParquetFile(file.open())
        schema, footer = part.schema_arrow, part.metadata
        for name, kind in self.types.items():
            if schema.names.count(name) != 1 or spark_name(as_spark(schema.field(name).type)) != kind:
                raise ValueError(f"it has no column {name} of type {kind}")
        groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
        chunks = (group.column(place) for group in groups for place in range(group.num_columns))
        for codec in {chunk.compression.lower() for chunk in chunks} - {"uncompressed"}:
            pa.Codec(codec)  # raises if Arrow was built without it
        return [RowGroup(path, number, group.num_rows) for number, group in enumerate(groups)]

    def _ratings(self, groups: Iterable[RowGroup], threads: bool = False) -> Batches:
        """The ratings of some row groups. A task of Spark has no ``threads`` of its own."""
        for path, number, _ in groups:
            file = _opened(path)
            with file.explained():
                part = pq.ParquetFile(file.open(), pre_buffer=True)
                wanted = list(self.types)
                for batch in part.iter_batches(ROWS_PER_BATCH, [number], columns=wanted, use_threads=threads):
                    values = {inside: in_spark_type(batch[name], inside) for inside, name in self.columns.items()}
                    plain = plain_numbers(without_zeros(pa.table(values)))
                    # Ratings without an id are refused.
                    if self.holdout is not None and not any(map(is_incomplete, (plain[USER], plain[ITEM]))):
                        plain = plain.filter(~self.holdout.drawn(plain))
                    yield from plain.to_batches()


def rating_files(ratings: DataFrame, columns: Columns) -> RatingFiles | None:
    """The files of ratings that are columns of Parquet files and nothing else, according to their plan."""
    source = derivation(ratings)
    if source.columns not in (None, columns):
        return None
    fields = {INSIDE[role]: matching(source.table, column)[0] for role, column in columns.roles.items()}
    if not all(isinstance(f.dataType, T.DecimalType) or f.dataType.simpleString() in TYPES for f in fields.values()):
        return None
    files = parquet_files(source.table.select(*(quoted(field.name) for field in fields.values())))
    if not files or any(path.partition(":")[0] not in SCHEMES for path in files):
        return None
    names = {name: field.name for name, field in fields.items()}
    types = {field.name: field.dataType.simpleString() for field in fields.values()}
    return RatingFiles(files, names, types, source.holdout)


def even_tasks(groups: Sequence[RowGroup], n_tasks: int) -> list[list[RowGroup]]:
    """Runs of row groups with about as many rows each. No more than there are row groups, and none is empty."""
    rows = np.array([group.n for group in groups], np.int64)
    task = (np.cumsum(rows) - rows) * n_tasks // max(1, rows.sum())
    runs = np.split(np.arange(len(groups)), np.flatnonzero(np.diff(task)) + 1)
    return [[groups[place] for place in run] for run in runs if rows[run].sum()]


def _opened(path: str) -> DataFile:
    system, inside = file_system(path)
    return DataFile(system, inside, system.get_file_info(inside).size)


def _row_groups(footers: list[dict[str, Any]]) -> list[RowGroup]:
    """The row groups of all files, in the order of the files; none if a file cannot be read."""
    if problem := next((each["problem"] for each in footers if "problem" in each), None):
        log.info("ratings: Spark reads the files, because Arrow cannot: %s", problem)
        return []
    return [RowGroup(*group) for each in sorted(footers, key=lambda each: each["file"]) for group in each["groups"]]


def _numbers(batches: Batches) -> Iterator[int]:
    for batch in batches:
        yield from batch["id"].to_pylist()


# ---- on the driver ---------------------------------------------------------------------------------------------------

WIDTHS = {"boolean": 1, "tinyint": 1, "smallint": 2, "int": 4, "float": 4, "date": 4}  # bytes of an id; else 8


def estimate_size(df: DataFrame, columns: Columns) -> SizeEstimate:
    """Count the ratings. What is wrong with them is found when they are collected."""
    check_columns(df, columns)
    if not _text_ids(df, columns) and (n := cached_rows(df)) is not None:
        return SizeEstimate(n, bytes_per_rating(df, columns, 0), weighted=columns.weight is not None)
    totals = aggregated(df, {"n": F.count(F.lit(1)), **text_sizes(df, columns)})
    n = totals["n"]
    size = bytes_per_rating(df, columns, totals["text"] / max(1, n))
    return SizeEstimate(n, size, weighted=columns.weight is not None, id_bytes=totals["id_bytes"])


def text_sizes(df: DataFrame, columns: Columns) -> dict[str, Column]:
    """Aggregates of the ids that are text: the bytes of all, and, by an estimate, of the different ones."""
    ids = [F.col(quoted(name)) for name in _text_ids(df, columns)]
    sizes = [F.octet_length(name) + 4 for name in ids]
    different = (F.approx_count_distinct(name) * F.avg(size) for name, size in zip(ids, sizes, strict=True))
    return {"text": F.sum(sum(sizes, F.lit(0))), "id_bytes": sum(different, F.lit(0.0))}


def bytes_per_rating(df: DataFrame, columns: Columns, text: float) -> float:
    """Bytes of a rating on its way to the driver, of which its ids take ``text`` if they are text."""
    kinds = [field.dataType for field in unchecked_ratings(df, columns).schema]
    widths = (WIDTHS.get(kind.simpleString(), 16 if isinstance(kind, T.DecimalType) else 8) for kind in kinds)
    return text + sum(1 / 8 + (0 if _is_text(kind) else width) for kind, width in zip(kinds, widths, strict=True))


def _text_ids(df: DataFrame, columns: Columns) -> list[str]:
    return [name for name in (columns.user, columns.item) if _is_text(type_of(df, name))]


def _is_text(kind: T.DataType) -> bool:
    return isinstance(kind, T.StringType | T.BinaryType)


def collect_ratings(df: DataFrame, columns: Columns, size: SizeEstimate, most_bytes: int) -> CollectedRatings:
    """The ratings, checked. ``most_bytes`` bounds one collect."""
    parts = max(1, int(np.ceil(size.n * size.bytes_per_rating / most_bytes)))
    files = rating_files(df, columns)
    batches = None if files is None else files.batches()

    def collector_of(batches: Batches) -> RatingCollector:
        collector = RatingCollector(limit_for(size.n))
        for table in joined(batches, lambda batch: int(batch.nbytes), TABLE_BYTES):  # encoded with one dictionary
            collector.add(table, read_batch(table, columns.threshold))
        return collector

    if batches is None:
        collected = collect_in_parts(unchecked_ratings(df, columns), parts, F.xxhash64(USER, ITEM), collector_of)
    else:
        collected = collector_of(one_ahead(batches))
    totals, changed = collected.facts, None
    if size.fingerprint is not None and (totals["n"], fingerprint_of(totals)) != (size.n, size.fingerprint):
        changed = not_deterministic(f"{size.n:,} ratings were counted, and those that came after are others")
    if totals["absent"] or may_be_refused(columns, totals):
        check_ratings(df, columns)  # counts what is wrong, and refuses it
        raise changed or not_deterministic("ratings came that cannot be fitted, and are no longer there")
    if changed is not None:
        raise changed
    return collected.ratings(of_both_classes(checked_counts(df, columns, totals), columns))


def split_off(df: DataFrame, columns: Columns, fraction: float, seed: int) -> tuple[DataFrame, DataFrame]:
    """The ratings to fit, and about ``fraction`` of them that are held out.

    A hash of user and item decides. So the labels play no part, the same ratings are held out however the input is
    partitioned or read again, and all ratings of one cell go the same way.
    """
    if problem := declared(FitConfig)["seed"].problem(seed):
        raise RequestError(str(problem))
    check_columns(df, columns)
    held_out = coin(columns, fraction, seed)
    return mark_as_derived(df.where(~held_out), df, columns, Holdout(fraction, seed)), df.where(held_out)


def coin(columns: Columns, fraction: float, seed: int) -> Column:
    ids = (F.col(quoted(name)) for name in (columns.user, columns.item))
    drawn = F.shiftrightunsigned(F.xxhash64(F.lit(seed), *ids), 32)  # 32 bits
    return drawn < F.lit(round(fraction * 2**32))


@dataclass(frozen=True)
class SplitCounts:
    whole: RatingCounts
    held_out: RatingCounts
    to_fit: SizeEstimate  # the others, so that they need not be counted again


def check_split(df: DataFrame, columns: Columns, fraction: float, seed: int) -> SplitCounts:
    """Validate and count all ratings, and those that ``split_off`` holds out, in one pass."""
    held_out = coin(columns, fraction, seed)
    parts = zip(HASH_PARTS, fingerprint(df, columns), strict=True)
    further = {
        "held_n": F.count_if(held_out),
        "held_above": F.count_if(held_out & positive(df, columns.label, columns.threshold)),
        **{f"held_{name}": F.sum(F.when(held_out, part)) for name, part in parts},
    }
    totals = count_ratings(df, columns, {**further, **text_sizes(df, columns)})
    whole = checked_counts(df, columns, totals)
    held = {name: totals[f"held_{name}"] for name in HASH_PARTS}
    rest = fingerprint_of({name: totals[name] - held[name] for name in HASH_PARTS})
    n, size = totals["held_n"], bytes_per_rating(df, columns, totals["text"] / whole.n)
    kept = RatingCounts(n, totals["held_above"], whole.coding, fingerprint_of(held))
    return SplitCounts(
        whole, kept, SizeEstimate(whole.n - n, size, rest, columns.weight is not None, totals["id_bytes"])
    )


# ---- packed on the executors -----------------------------------------------------------------------------------------
#
#     raw ratings ─Pack─► bundles of 8 bytes per rating, under the positions of their own ids, on the executors' disks
#                           ─► facts (counts, defects, fingerprint) of every bundle
#                           ─► ids with their counts
#                           ─► hashes of cells, for the sketch
#                           ─► blocks (``engines.spark.blocking``)
#
# A task cuts its ratings into bundles, one line each. A bundle has its own different ids, with the number of ratings
# and of positive ratings of each. So no rating is read again to count the ids:
#
#     few ids      SUMMARY of all bundles ─► the driver counts them                    one job that runs no Python
#     many ids     bundles ─CountIds─► ids of every bundle, in parts by a hash of the id ─shuffle─► sum_counts
#                  ─► one line per id, cached ─► how many there are
#
# An exchange that shuffles needs one line per id. If the driver has counted few ids, these lines are made when they are
# first used.

BUNDLE = 4_000_000  # ratings, about
SUMMARY = ("user_ids", "item_ids", "user_counts", "item_counts", "cells")  # the columns that are not per rating
NOTHING = np.empty(0, np.int32)
NO_WEIGHTS = np.empty(0, np.float32)


@dataclass(frozen=True)
class Pack:
    threshold: float | None
    first_bundle: Callable[[], int] = int  # its number, which no other task has

    def __call__(self, batches: Batches) -> Batches:
        n, number, bundle = 0, self.first_bundle(), RatingCollector(limit_for(0))
        for table in joined(batches, lambda batch: int(batch.nbytes), TABLE_BYTES):
            n += len(table)
            bundle.limit = limit_for(n)
            bundle.add(table, read_batch(table, self.threshold))
            if bundle.facts["n"] >= BUNDLE:
                yield _packed(number, bundle)
                number, bundle = number + 1, RatingCollector(limit_for(n))
        if bundle.facts["n"]:
            yield _packed(number, bundle)


def _packed(number: int, bundle: RatingCollector) -> pa.RecordBatch:
    """One bundle. If an id or a label is null, it has facts alone: such ratings are refused."""
    facts: dict[str, Any] = dict(bundle.facts)
    if facts["absent"]:
        return binary_line(bundle=number, facts=json.dumps(facts), **dict.fromkeys(BINARY_CELLS, NOTHING))
    users, items, rows, codes, weights, cells = bundle.columns(ascending=False)
    user_ids, item_ids = ids_cell(users), ids_cell(items)
    counts = _counts(rows << 1 | codes & 1, len(users)), _counts(codes, len(items))
    facts["summary_bytes"] = user_ids.size + item_ids.size + sum(each.nbytes for each in (*counts, cells))
    return binary_line(
        bundle=number, facts=json.dumps(facts), user_ids=user_ids, item_ids=item_ids, users=rows, codes=codes,
        weights=NO_WEIGHTS if weights is None else weights, cells=cells, user_counts=counts[0], item_counts=counts[1],
    )  # fmt: skip


def _counts(codes: NDArray[np.int32], n: int) -> NDArray[np.int32]:
    """The ratings of n ids, all and the positive ones (n × 2), from the codes id << 1 | positive."""
    counts = np.bincount(codes, minlength=2 * n).reshape(n, 2).astype(np.int32)
    counts[:, 0] += counts[:, 1]
    return counts


@dataclass(frozen=True)
class Bundle:
    number: int
    user_ids: pa.Array  # the different ids
    item_ids: pa.Array
    users: NDArray[np.int32]  # each rating's user, as a position among the ids
    codes: NDArray[np.int32]  # each rating's item, in the same way, and label: item << 1 | positive
    weights: NDArray[np.float32]  # empty if there are none


BUNDLES = ("bundle", "user_ids", "item_ids", "users", "codes", "weights")  # the columns that ``read_bundles`` takes


def read_bundles(batches: Batches) -> Iterator[Bundle]:
    """The bundles of some lines, without copying their ratings."""
    for batch in batches:
        for number, user_ids, item_ids, users, codes, weights in zip(*map(batch.column, BUNDLES), strict=True):
            yield Bundle(
                number.as_py(), read_ids(user_ids), read_ids(item_ids),
                cell_array(users, np.int32), cell_array(codes, np.int32), cell_array(weights, np.float32),
            )  # fmt: skip


# ---- ids and their counts --------------------------------------------------------------------------------------------

SIDE_NUMBERS = {USER: 1, ITEM: 2}  # in the lines of ``sum_counts``
COUNTED = ("user_ids", "item_ids", "user_counts", "item_counts")  # the columns that ``CountIds`` takes


@dataclass(frozen=True)
class CountIds:
    """The ids of every bundle with their ratings and positive ratings, in ``n_parts`` parts by a hash of the id.

    ``side`` is a number of SIDE_NUMBERS.
    """

    n_parts: int

    def __call__(self, batches: Batches) -> Batches:
        for batch in batches:
            for user_ids, item_ids, *cells in zip(*map(batch.column, COUNTED), strict=True):
                users, items = read_ids(user_ids), read_ids(item_ids)
                counts = [cell_array(cell, np.int32).reshape(-1, 2) for cell in cells]
                yield from self._lines(1, users, ids_cell(items[:0]), counts[0])
                yield from self._lines(2, items, ids_cell(users[:0]), counts[1])

    def _lines(self, side: int, ids: pa.Array, none: pa.Buffer, counts: NDArray[np.int32]) -> Batches:
        if self.n_parts == 1:
            n, above = counts.T
            yield binary_line(part=0, side=side, ids=ids_cell(ids), none=none, n=n, above=above)
            return
        parts = (hashes_of(ids) >> np.uint64(20)) % np.uint64(self.n_parts)
        order = np.argsort(parts.astype(np.uint16) if self.n_parts <= 2**16 else parts, kind="stable")
        edges = np.searchsorted(parts[order], np.arange(self.n_parts + 1, dtype=np.uint64))
        for part in np.flatnonzero(np.diff(edges)):
            here = order[edges[part] : edges[part + 1]]
            n, above = counts[here].T
            yield binary_line(part=part, side=side, ids=ids_cell(ids.take(pa.array(here))), none=none, n=n, above=above)


def sum_counts(batches: Batches) -> Batches:
    """(user, item, side, n, above): the different ids of a part, each once; of the other side's id there is none."""
    ids: dict[int, list[pa.Array]] = {1: [], 2: []}
    counts: dict[int, list[NDArray[np.int32]]] = {1: [], 2: []}
    kinds: dict[int, pa.DataType] = {}
    for batch in batches:
        for i, side in enumerate(batch.column("side").to_pylist()):
            ids[side].append(read_ids(batch.column("ids")[i]))
            kinds = {side: ids[side][0].type, 3 - side: read_ids(batch.column("none")[i]).type}
            counts[side].append(np.stack([cell_array(batch.column(name)[i], np.int32) for name in ("n", "above")]))
    for side in (side for side, arrays in ids.items() if arrays):
        different, totals = sum_by_id(pa.concat_arrays(ids[side]), *np.hstack(counts[side]))
        n = len(different)
        both = [different if side == which else pa.nulls(n, kinds[which]) for which in (1, 2)]
        rest = pa.array(np.full(n, side, np.int32)), *map(pa.array, totals)
        yield pa.RecordBatch.from_arrays([*both, *rest], names=[USER, ITEM, "side", "n", "above"])


# ---- the job that packs ----------------------------------------------------------------------------------------------

BINARY_CELLS = ("user_ids", "item_ids", "users", "codes", "weights", "cells", "user_counts", "item_counts")
PACKED = schema_of(", ".join(["bundle long", "facts string", *(f"{name} binary" for name in BINARY_CELLS)]))


@dataclass(frozen=True)
class PackedRatings:
    bundles: DataFrame  # the lines of PACKED, in a session that reads one line at a time
    # Sums over all bundles: ``n``, the flags of ``ratings.BIT``, HASH_PARTS, ``absent``, ``weight`` and
    # ``summary_bytes``, the size of SUMMARY.
    facts: Counter[str]
    cached: DataFrame  # the same lines, where they are kept, in a session that sends many short rows to Python

    @classmethod
    def of(cls, df: DataFrame, columns: Columns, release: ExitStack) -> PackedRatings:
        """Read the ratings once, by one job. The bundles remain on the executors' disks until ``release`` is closed."""
        own, pack = rows_session(df.sparkSession), Pack(columns.threshold, first_bundle)
        files = rating_files(df, columns)
        lines = None if files is None else files.mapped(own, pack, PACKED)
        if lines is None:
            lines = map_rows(truncate_plan(unchecked_ratings(df, columns), own), pack, PACKED)
        kept, facts = cached(lines, release, StorageLevel.DISK_ONLY), Counter[str]()
        for text in kept.select("facts").toArrow()["facts"].to_pylist():
            facts.update(json.loads(text))
        working = working_session(df.sparkSession)
        expect_long_lines(working, 1)
        return cls(truncate_plan(kept, working), facts, kept)


def first_bundle() -> int:
    context = TaskContext.get()
    return (0 if context is None else context.partitionId()) << 32


# ---- ids -------------------------------------------------------------------------------------------------------------

# ``none`` holds no id: it carries the type of the other side's ids.
PARTIAL = schema_of("part int, side int, ids binary, none binary, n binary, above binary")
HASHES = schema_of("cells binary")
SUMMARY_BYTES = 128 * 2**20  # that the driver takes
RATINGS_PER_PART = 10**7  # whose ids one task sums up; at least a part for every core
PARTS_PER_CORE = 4  # at most


@dataclass(frozen=True)
class Ids:
    """The ids of one side in ascending order, with the number of ratings and of positive ratings of each."""

    values: pa.Array
    counts: NDArray[np.int64]
    positives: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.counts)


@dataclass(frozen=True)
class RatingSurvey:
    counts: RatingCounts
    n_users: int
    n_items: int
    packed: PackedRatings
    group: Callable[[], DataFrame]  # makes ``grouped``
    weight: float | None = None  # the sum of the weights
    # If they are few enough for the driver: the ids of users and of items, and the hashes of cells.
    summary: tuple[tuple[Ids, Ids], NDArray[np.int64]] | None = None

    @cached_property
    def grouped(self) -> DataFrame:
        return self.group()

    def ids(self) -> dict[Side, Ids]:
        users, items = _sides(self.grouped.toArrow()) if self.summary is None else self.summary[0]
        return {"rows": users, "cols": items}

    def sketch(self) -> CellSketch:
        limit = limit_for(self.counts.n)
        if self.summary is not None:
            hashes = self.summary[1]
        else:

            def up_to_limit(batches: Batches) -> Batches:
                for batch in batches:
                    for cell in batch.column("cells"):
                        part = cell_array(cell, np.int64)
                        yield binary_line(cells=part[part <= limit])

            bundles = self.packed.bundles
            with described(bundles.sparkSession, "sketch"):
                hashes = _all_hashes(bundles.select("cells").mapInArrow(up_to_limit, HASHES).toArrow())
        return CellSketch(limit, *np.unique(hashes[hashes <= limit], return_counts=True))


@contextmanager
def survey_ratings(df: DataFrame, columns: Columns, collect_ids: bool = True) -> Iterator[RatingSurvey]:
    """Pack the ratings, validate them, and count those of every id.

    If ``collect_ids`` is true and the ids are few, the driver counts them.
    The facts of a bundle count its defects. A second pass fetches examples only if there are any.
    """
    check_columns(df, columns)
    with ExitStack() as release:
        with described(df.sparkSession, "survey"):
            survey = _surveyed(df, columns, collect_ids, release)
        yield survey


def _surveyed(df: DataFrame, columns: Columns, collect_ids: bool, release: ExitStack) -> RatingSurvey:
    packed = PackedRatings.of(df, columns, release)
    facts = packed.facts
    if facts["absent"] or may_be_refused(columns, facts):
        check_ratings(df, columns)
        raise not_deterministic("ratings came that cannot be fitted, and are no longer there")
    counts = of_both_classes(checked_counts(df, columns, facts), columns)
    weight = None if columns.weight is None else float(facts["weight"])

    def group() -> DataFrame:
        ids = id_counts(packed.bundles, counts.n, df, columns)
        return cached(truncate_plan(ids, packed.cached.sparkSession), release)

    most_bytes = min(SUMMARY_BYTES, driver_limits(df.sparkSession).result // 2) if collect_ids else 0
    if facts["summary_bytes"] <= most_bytes:  # what ``id_counts`` and ``sketch`` would find by further jobs
        lines = packed.bundles.select(*SUMMARY).toArrow()
        ids = _sides(pa.Table.from_batches(sum_counts(CountIds(1)(lines.to_batches()))))
        summary = ids, _all_hashes(lines)
        return RatingSurvey(counts, len(ids[0]), len(ids[1]), packed, group, weight, summary)
    grouped = group()
    n = {line["side"]: line["count"] for line in grouped.groupBy("side").count().collect()}
    return RatingSurvey(counts, n[SIDE_NUMBERS[USER]], n[SIDE_NUMBERS[ITEM]], packed, lambda: grouped, weight)


def id_counts(bundles: DataFrame, n: int, df: DataFrame, columns: Columns) -> DataFrame:
    """One line per id of n ratings: the user or the item, its side, its ratings and its positive ratings."""
    ids = [T.StructField(name, type_of(df, of)) for name, of in ((USER, columns.user), (ITEM, columns.item))]
    numbers = schema_of("side int, n long, above long")
    cores = parallelism(df.sparkSession)
    n_parts = min(PARTS_PER_CORE * cores, max(cores, n // RATINGS_PER_PART))
    partial = bundles.select(*COUNTED).mapInArrow(CountIds(n_parts), PARTIAL)
    return in_partitions(partial, n_parts, F.col("part")).mapInArrow(sum_counts, T.StructType([*ids, *numbers]))


def _sides(groups: pa.Table) -> tuple[Ids, Ids]:
    """The users and the items from the lines of ``id_counts``."""

    def side(column: str) -> Ids:
        lines = groups.filter(pc.equal(groups["side"], SIDE_NUMBERS[column]))
        lines = lines.take(pc.sort_indices(lines[column]))
        counts = (lines[name].to_numpy().astype(np.int64) for name in ("n", "above"))
        return Ids(in_utc(one_array(lines[column])), *counts)

    return side(USER), side(ITEM)


def _all_hashes(lines: pa.Table) -> NDArray[np.int64]:
    return np.concatenate([cell_array(cell, np.int64) for cell in lines["cells"]])
