"""Ratings in row groups of Parquet files, read by Arrow inside a task of Spark. This module imports no Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from onebit_spark.input.arrow_ratings import Holdout, is_incomplete, plain_numbers, without_zeros
from onebit_spark.input.arrow_types import as_spark, spark_name
from onebit_spark.input.batches import ITEM, USER, Batches
from onebit_spark.input.data_files import DataFile
from onebit_spark.input.file_readers import ROWS_PER_BATCH
from onebit_spark.platform.file_systems import file_system


class RowGroup(NamedTuple):
    """A row group of a file."""

    path: str
    number: int
    n: int  # its rows


@dataclass(frozen=True)
class RatingReader:
    """Reads ratings under the names of ``batches``, as ``ratings.raw`` has them: nothing is checked yet."""

    columns: Mapping[str, str]  # name inside ─► column of the files
    types: Mapping[str, str]  # column ─► its type as Spark names it
    holdout: Holdout | None = None  # ratings that are left out

    def row_groups(self, path: str, length: int) -> list[RowGroup]:
        """The row groups of a file. Raises whatever stands against reading it here as Spark would."""
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

    def batches(self, groups: Iterable[RowGroup], threads: bool = False) -> Batches:
        """The ratings of some row groups. A task of Spark has no ``threads`` of its own."""
        for path, number, _ in groups:
            file = _opened(path)
            with file.explained():
                part = pq.ParquetFile(file.open(), pre_buffer=True)
                wanted = list(self.types)
                for batch in part.iter_batches(ROWS_PER_BATCH, [number], columns=wanted, use_threads=threads):
                    yield from self._raw(batch).to_batches()

    def _raw(self, batch: pa.RecordBatch) -> pa.Table:
        values = {inside: batch[column] for inside, column in self.columns.items()}
        given = pa.table({inside: column.cast(as_spark(column.type)) for inside, column in values.items()})
        plain = plain_numbers(without_zeros(given))
        if self.holdout is None or any(map(is_incomplete, (plain[USER], plain[ITEM]))):  # the latter are refused
            return plain
        return plain.filter(~self.holdout.drawn(plain))


def _opened(path: str) -> DataFile:
    system, inside = file_system(path)
    return DataFile(system, inside, system.get_file_info(inside).size, None, {})


def even_tasks(groups: Sequence[RowGroup], n_tasks: int) -> list[list[RowGroup]]:
    """Runs of row groups with about as many rows each. No more than there are row groups, and none is empty."""
    rows = np.array([group.n for group in groups], np.int64)
    task = (np.cumsum(rows) - rows) * n_tasks // max(1, rows.sum())
    runs = np.split(np.arange(len(groups)), np.flatnonzero(np.diff(task)) + 1)
    return [[groups[place] for place in run] for run in runs if rows[run].sum()]
