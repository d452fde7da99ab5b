"""Tables of the rows of a side on Spark, held on the driver or stored on the cluster; factor tables of models."""

from __future__ import annotations

import uuid
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark import Broadcast
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from onebit_spark.core.engine import RowLayout, Rows
from onebit_spark.core.model_info import (
    CERTIFIED,
    DIRECTIONS,
    ModelInfo,
    factor_columns,
    factor_table,
    plain_lists,
    read_factors,
)
from onebit_spark.core.posterior import FloatArray, Form, RowPosterior
from onebit_spark.platform.binary_cells import sql_type
from onebit_spark.platform.files import Location
from onebit_spark.platform.plans import TemporaryFolders, forget, on_executors
from onebit_spark.platform.sessions import broadcast

BATCH_BYTES = 16 * 2**20  # of a batch that goes to Spark; it travels in a task, which may have 128 MB


class Broadcasts:
    """All broadcasts of a fit. Each is destroyed with its owner, and at the latest at the end of the fit."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._ends: list[weakref.finalize] = []

    def send(self, value: Any, owner: object = None) -> Broadcast[Any]:
        """Broadcast a value until the owner is garbage-collected; without an owner, until the end of the fit."""
        sent = broadcast(self._spark, value)
        end = weakref.finalize(owner or self, sent.destroy)
        end.atexit = False
        self._ends = [*(earlier for earlier in self._ends if earlier.alive), end]
        return sent

    def close(self) -> None:
        for end in self._ends:
            end()  # once


class Held:
    """Rows on the driver. They are broadcast when a job first needs them."""

    def __init__(self, lines: Rows, broadcasts: Broadcasts) -> None:
        self.lines = lines
        self.broadcasts = broadcasts
        self._sent: Broadcast[Rows] | None = None

    @property
    def sent(self) -> Broadcast[Rows]:
        if self._sent is None:
            self._sent = self.broadcasts.send(self.lines, self)
        return self._sent


class Stored:
    """Rows on the cluster, one binary cell per block. They are deleted when nothing refers to them."""

    def __init__(self, frame: DataFrame, delete: Callable[[], object]) -> None:
        self.frame = frame
        weakref.finalize(self, delete).atexit = False  # the engine has deleted it by then

    def cells(self, place: int = 0) -> DataFrame:
        """The cell of each block; ``place`` is the number of the table among several."""
        return self.frame.select("key", F.lit(place).alias("place"), F.lit(0).alias("sender"), "values")


@dataclass(frozen=True)
class Table:
    """The rows of a side: where they are, and how they are read."""

    at: Held | Stored
    layout: RowLayout

    @property
    def form(self) -> Form:
        """The form of the posterior."""
        assert self.layout.form is not None
        return self.layout.form

    def copy(self) -> Table:
        """The same rows, which never change. A copy does not keep a broadcast alive."""
        return replace(self, at=Held(self.at.lines, self.at.broadcasts)) if isinstance(self.at, Held) else self

    @property
    def lines(self) -> Rows:
        """The rows of a table that the driver holds."""
        assert isinstance(self.at, Held)
        return self.layout.whole(self.at.lines)


@dataclass(frozen=True)
class Storage:
    """Stores DataFrames, so that neither their plan nor their lineage grows.

    They are Parquet files in a folder that all executors can reach; a lost executor loses nothing. Without a folder,
    they are on the disks of the executors; if one of these is lost, the fit ends.
    """

    folder: Location | None = None

    def keep(self, frame: DataFrame, schema: StructType) -> tuple[DataFrame, Callable[[], object]]:
        """The frame, computed now, and a function that deletes it."""
        if self.folder is None:
            kept = on_executors(frame)
            return kept, partial(forget, kept)
        place = self.folder / f"table-{uuid.uuid4().hex}"
        frame.write.parquet(place.uri, compression="uncompressed")  # factors cannot be compressed
        return frame.sparkSession.read.schema(schema).parquet(place.uri), place.delete

    def persist(self, frame: DataFrame, schema: StructType) -> DataFrame:
        """The frame, computed now. It remains as long as a plan reads it: see ``plans.TemporaryFolders``."""
        if self.folder is None:
            return on_executors(frame)
        folder = self.folder.sibling(f"{self.folder.name}-model")
        part = folder / uuid.uuid4().hex
        frame.write.parquet(part.uri)
        stored = frame.sparkSession.read.schema(schema).parquet(part.uri)
        TemporaryFolders.of(folder.spark).delete_after(folder, stored)
        return stored

    def clear(self) -> None:
        """Delete the files that ``keep`` has written. Tables on the executors end with the last reference to them."""
        if self.folder is not None:
            self.folder.delete()


# ---- factor tables ---------------------------------------------------------------------------------------------------

MOST_KEPT = 64 * 2**20  # bytes of a table that is also kept here
PLAIN_IDS = {
    "string": pa.string(),
    "bigint": pa.int64(),
    "int": pa.int32(),
    "smallint": pa.int16(),
    "double": pa.float64(),
}

TABLE = "_onebit_table"  # the attribute of a DataFrame that keeps the table it was made of


def factor_frame(spark: SparkSession, table: pa.Table, schema: StructType) -> DataFrame:
    """A factor table of this process as a DataFrame. Spark sends it to the executors with every job that needs it.

    The batches have a bounded size in bytes: Spark bounds only the number of rows, and rows can be large.
    """
    rows = max(1, BATCH_BYTES * max(1, table.num_rows) // max(1, table.nbytes))
    batches = pa.Table.from_batches(table.to_batches(max_chunksize=rows), table.schema)
    frame = spark.createDataFrame(batches, schema=schema)
    if table.nbytes <= MOST_KEPT and table["id"].type == PLAIN_IDS.get(schema["id"].dataType.simpleString()):
        vars(frame)[TABLE] = plain_lists(table)
    return frame


def collected_factors(frame: DataFrame) -> pa.Table:
    """A factor table in this process: that which the DataFrame was made of, if it is in memory, else by a job."""
    table = vars(frame).get(TABLE)
    return frame.toArrow() if table is None else table


def factor_schema(info: ModelInfo, side: str, directions: bool = False) -> StructType:
    """The schema of ``users`` or ``items``, for side "user" or "item"; with ``directions`` that of a checkpoint."""
    columns = factor_columns(*info.table_form)
    if directions:
        columns[DIRECTIONS] = "array<float>"
    if info.draw_narrowing is not None:
        columns[CERTIFIED] = "array<float>"
    schema = StructType().add("id", sql_type(info.id_types[side]))
    for name, kind in columns.items():
        schema = schema.add(name, sql_type(kind))
    return schema


def factor_lines(numbers: NDArray[np.int64], posteriors: list[RowPosterior]) -> pa.Table:
    """Rows of a factor table by row number, from a posterior and, after a prior split, that of the certified draws."""
    return plain_lists(factor_table(pa.array(numbers), *posteriors).rename_columns({"id": "number"}))


def pack_rows(prior: RowPosterior, precision: str, batch: pa.RecordBatch) -> tuple[NDArray[np.int64], FloatArray]:
    """Row numbers and packed rows from a batch of a factor table."""
    rows = read_factors(batch.drop_columns(["id", "number"]).to_struct_array(), prior)
    return batch.column("number").to_numpy(), rows.packed().astype(precision)
