"""Tables of the rows of a side on Spark, held on the driver or stored on the cluster; factor tables of models."""

from __future__ import annotations

import uuid
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark import Broadcast
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from onebit_spark.core.factor_tables import (
    CERTIFIED,
    DIRECTIONS,
    factor_columns,
    factor_table,
    plain_lists,
    read_factors,
)
from onebit_spark.core.model_info import ModelInfo
from onebit_spark.core.posterior import FloatArray, Form, RowPosterior
from onebit_spark.core.steps import RowLayout, Rows, RowTransform
from onebit_spark.platform.binary_cells import sql_type
from onebit_spark.platform.files import Location
from onebit_spark.platform.plans import TemporaryFolders, forget, on_executors
from onebit_spark.platform.sessions import broadcast

BATCH_BYTES = 16 * 2**20  # of a batch that goes to Spark; it travels in a task, which may have 128 MB


class Broadcasts:
    """All broadcasts of a fit. Each is destroyed with its owner, and at the latest at the end of the fit."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._numbers = count()
        self._sent: dict[int, Broadcast[Any]] = {}

    def send(self, value: Any, owner: object = None) -> Broadcast[Any]:
        """Broadcast a value until the owner is garbage-collected; without an owner, until the end of the fit."""
        number, sent = next(self._numbers), broadcast(self._spark, value)
        self._sent[number] = sent
        if owner is not None:
            weakref.finalize(owner, self._destroy, number).atexit = False
        return sent

    def _destroy(self, number: int) -> None:
        sent = self._sent.pop(number, None)
        if sent is not None:
            sent.destroy()

    def close(self) -> None:
        for number in list(self._sent):
            self._destroy(number)


class Held:
    """Rows on the driver. They are broadcast when a job first needs them."""

    def __init__(self, lines: Rows, broadcasts: Broadcasts) -> None:
        self.lines = lines
        self._broadcasts = broadcasts
        self._sent: Broadcast[Rows] | None = None

    def unsent(self) -> Held:
        """The same rows, not broadcast yet."""
        return Held(self.lines, self._broadcasts)

    @property
    def sent(self) -> Broadcast[Rows]:
        if self._sent is None:
            self._sent = self._broadcasts.send(self.lines, self)
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
        return replace(self, at=self.at.unsent()) if isinstance(self.at, Held) else self

    def mapped(self, by: RowTransform) -> Table:
        return replace(self, layout=replace(self.layout, maps=(*self.layout.maps, by)))

    @property
    def lines(self) -> Rows:
        """The rows of a table that the driver holds."""
        assert isinstance(self.at, Held)
        return self.layout.whole(self.at.lines)


# ---- where stored tables are kept: in files, or on the executors that made them --------------------------------------


class Storage(Protocol):
    """Stores DataFrames, so that neither their plan nor their lineage grows."""

    def keep(self, frame: DataFrame, schema: StructType) -> tuple[DataFrame, Callable[[], object]]:
        """The frame, computed now, and a function that deletes it."""

    def persist(self, frame: DataFrame, schema: StructType) -> DataFrame:
        """The frame, computed now. It remains as long as a plan reads it."""

    def clear(self) -> None:
        """Delete all that ``keep`` has stored."""


@dataclass(frozen=True)
class InFiles:
    """Stores DataFrames as Parquet, in a folder that all executors can reach. A lost executor loses nothing."""

    folder: Location

    def keep(self, frame: DataFrame, schema: StructType) -> tuple[DataFrame, Callable[[], object]]:
        place = self.folder / f"table-{uuid.uuid4().hex}"
        frame.write.parquet(place.uri, compression="uncompressed")  # factors cannot be compressed
        return frame.sparkSession.read.schema(schema).parquet(place.uri), place.delete

    def persist(self, frame: DataFrame, schema: StructType) -> DataFrame:
        """In a folder beside this one: see ``plans.TemporaryFolders``."""
        folder = self.folder.sibling(f"{self.folder.name}-model")
        part = folder / uuid.uuid4().hex
        frame.write.parquet(part.uri)
        stored = frame.sparkSession.read.schema(schema).parquet(part.uri)
        TemporaryFolders.of(folder.spark).delete_after(folder, stored)
        return stored

    def clear(self) -> None:
        self.folder.delete()


@dataclass(frozen=True)
class OnExecutors:
    """Stores DataFrames on the disks of the executors. If one of these is lost, the fit ends."""

    def keep(self, frame: DataFrame, schema: StructType) -> tuple[DataFrame, Callable[[], object]]:
        kept = on_executors(frame)
        return kept, partial(forget, kept)

    def persist(self, frame: DataFrame, schema: StructType) -> DataFrame:
        return on_executors(frame)

    def clear(self) -> None:
        """Do nothing: a table is deleted when nothing refers to it."""


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


@dataclass(frozen=True)
class PackRows:
    """Turns a batch of a factor table into row numbers and packed rows."""

    prior: RowPosterior
    precision: str

    def __call__(self, batch: pa.RecordBatch) -> tuple[NDArray[np.int64], FloatArray]:
        rows = read_factors(batch.drop_columns(["id", "number"]).to_struct_array(), self.prior)
        return batch.column("number").to_numpy(), rows.packed().astype(self.precision)
