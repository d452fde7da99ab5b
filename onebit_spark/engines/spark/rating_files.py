"""Ratings that are plain Parquet files, which Python reads by Arrow instead of through the JVM.

    executors     files of the plan ─► footers, by one small job ─► row groups ─► even tasks
                  a task: row groups ─Arrow─► ratings to fit ─► work ─► a few long lines
    the driver    files of the plan ─► footers ─► row groups ─Arrow─► ratings without those held out

docs/SCALING.md has the time that this saves. Arrow opens the files on the machine's disks, or on an
object store with the machine's credentials. If it cannot, or finds other files or types than Spark,
then Spark reads them. Files on hdfs:// are left to Spark, because Arrow would start a JVM in every
Python worker.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from onebit_spark.data.files import ROWS_PER_BATCH, DataFile
from onebit_spark.data.locations import file_system
from onebit_spark.data.ratings import (
    INSIDE,
    INTEGRAL,
    ITEM,
    USER,
    Batches,
    Columns,
    Holdout,
    is_incomplete,
    without_zeros,
)
from onebit_spark.data.user_tables import as_spark, in_spark_type, spark_name
from onebit_spark.engines.spark.columns import derivation, given_ratings, matching, quoted
from onebit_spark.engines.spark.frames import (
    map_rows,
    parquet_files,
    rows_session,
    schema_of,
    truncate_plan,
)
from onebit_spark.engines.spark.sessions import parallelism
from onebit_spark.records import Fields

RATINGS_PER_TASK = 8_000_000  # at most about so many, and a task for every core
MOST_HERE = 100  # files that one process reads
SCHEMES = ("file", "s3", "s3a", "gs", "abfs", "abfss")
# Decimals are read too. No setting of Spark changes how these types are read.
TYPES = (
    *INTEGRAL,
    "float",
    "double",
    "boolean",
    "string",
)
FOOTER = schema_of("footer string")

log = logging.getLogger("onebit_spark")


class RowGroup(NamedTuple):
    path: str
    number: int
    n: int  # its rows


@dataclass(frozen=True)
class RatingFiles:
    """The files of some ratings, read as ``given_ratings`` has them."""

    files: Mapping[str, int]  # path ─► length in bytes
    columns: Mapping[str, str]  # name inside ─► column of the files
    types: Mapping[str, str]  # column ─► its type as Spark names it
    holdout: Holdout | None = None  # ratings that are left out

    def mapped(
        self, spark: SparkSession, work: Callable[[Batches], Batches], schema: T.StructType
    ) -> DataFrame | None:
        """``work`` on the ratings of every task; None if the executors cannot read them.

        One small job opens all files on the executors and reads their footers.
        """
        cores = parallelism(spark)
        n_files = len(self.files)
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
            return work(
                self._ratings(group for number in _numbers(batches) for group in runs[number])
            )

        return spark.range(0, len(runs), 1, len(runs)).mapInArrow(read, schema)

    def batches(self) -> Batches | None:
        """The ratings, read in this process; None if Arrow cannot read them, or if there are too
        many files.
        """
        if len(self.files) > MOST_HERE:
            return None
        groups = _row_groups([self._footer(place) for place in range(len(self.files))])
        if not groups:
            return None
        log.debug("ratings: read by Arrow on the driver")
        return self._ratings(groups, threads=True)

    def _footer(self, place: int) -> Fields:
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
        schema = part.schema_arrow
        footer = part.metadata
        for name, kind in self.types.items():
            if (
                schema.names.count(name) != 1
                or spark_name(as_spark(schema.field(name).type)) != kind
            ):
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
                for batch in part.iter_batches(
                    ROWS_PER_BATCH, [number], columns=wanted, use_threads=threads
                ):
                    values = {
                        inside: in_spark_type(batch[name], inside)
                        for inside, name in self.columns.items()
                    }
                    given = without_zeros(pa.table(values))
                    # Ratings without an id are refused.
                    if self.holdout is not None and not any(
                        map(is_incomplete, (given[USER], given[ITEM]))
                    ):
                        given = given.filter(~self.holdout.drawn(given))
                    yield from given.to_batches()


def map_ratings(
    df: DataFrame, columns: Columns, work: Callable[[Batches], Batches], schema: T.StructType
) -> DataFrame:
    """``work`` on the ratings of every task, read by Arrow if they are plain files, and by Spark
    otherwise.
    """
    own = rows_session(df.sparkSession)
    files = rating_files(df, columns)
    lines = None if files is None else files.mapped(own, work, schema)
    if lines is None:
        lines = map_rows(truncate_plan(given_ratings(df, columns), own), work, schema)
    return lines


def rating_files(ratings: DataFrame, columns: Columns) -> RatingFiles | None:
    """The files of ratings that are columns of Parquet files and nothing else, according to their
    plan.
    """
    source = derivation(ratings)
    if source.columns not in (None, columns):
        return None
    fields = {
        INSIDE[role]: matching(source.table, column)[0] for role, column in columns.roles.items()
    }
    if not all(
        isinstance(f.dataType, T.DecimalType) or f.dataType.simpleString() in TYPES
        for f in fields.values()
    ):
        return None
    files = parquet_files(source.table.select(*(quoted(field.name) for field in fields.values())))
    if not files or any(path.partition(":")[0] not in SCHEMES for path in files):
        return None
    names = {name: field.name for name, field in fields.items()}
    types = {field.name: field.dataType.simpleString() for field in fields.values()}
    return RatingFiles(files, names, types, source.holdout)


def even_tasks(groups: Sequence[RowGroup], n_tasks: int) -> list[list[RowGroup]]:
    """Runs of row groups with about as many rows each.

    No more than there are row groups, and none is empty.
    """
    rows = np.array([group.n for group in groups], np.int64)
    task = (np.cumsum(rows) - rows) * n_tasks // max(1, rows.sum())
    runs = np.split(np.arange(len(groups)), np.flatnonzero(np.diff(task)) + 1)
    return [[groups[place] for place in run] for run in runs if rows[run].sum()]


def _opened(path: str) -> DataFile:
    system, inside = file_system(path)
    return DataFile(system, inside, system.get_file_info(inside).size)


def _row_groups(footers: list[Fields]) -> list[RowGroup]:
    """The row groups of all files, in the order of the files; none if a file cannot be read."""
    if problem := next((each["problem"] for each in footers if "problem" in each), None):
        log.info("ratings: Spark reads the files, because Arrow cannot: %s", problem)
        return []
    return [
        RowGroup(*group)
        for each in sorted(footers, key=lambda each: each["file"])
        for group in each["groups"]
    ]


def _numbers(batches: Batches) -> Iterator[int]:
    for batch in batches:
        yield from batch["id"].to_pylist()
