"""Factor tables between this process and Spark."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession
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
from onebit_spark.core.posterior import FloatArray, RowPosterior
from onebit_spark.engines.routes import BATCH_BYTES
from onebit_spark.platform.binary_cells import type_of

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
    """A factor table in this process: the one that the DataFrame was made of if it is still here, else by a job."""
    table = vars(frame).get(TABLE)
    return frame.toArrow() if table is None else table


def factor_schema(info: ModelInfo, side: str, directions: bool = False) -> StructType:
    """The schema of ``users`` or ``items``, for side "user" or "item"; with ``directions`` that of a checkpoint."""
    columns = factor_columns(*info.table_form)
    if directions:
        columns[DIRECTIONS] = "array<float>"
    if info.draw_narrowing is not None:
        columns[CERTIFIED] = "array<float>"
    schema = StructType().add("id", type_of(info.id_types[side]))
    for name, kind in columns.items():
        schema = schema.add(name, type_of(kind))
    return schema


def factor_lines(numbers: NDArray[np.int64], posteriors: list[RowPosterior]) -> pa.Table:
    """Lines of a factor table by row number, from a posterior and, after a prior split, that of the certified draws."""
    return plain_lists(factor_table(pa.array(numbers), *posteriors).rename_columns({"id": "number"}))


@dataclass(frozen=True)
class PackLines:
    """Turns lines of a factor table into row numbers and packed rows."""

    prior: RowPosterior
    precision: str

    def __call__(self, batch: pa.RecordBatch) -> tuple[NDArray[np.int64], FloatArray]:
        rows = read_factors(batch.drop_columns(["id", "number"]).to_struct_array(), self.prior)
        return batch.column("number").to_numpy(), rows.packed().astype(self.precision)
