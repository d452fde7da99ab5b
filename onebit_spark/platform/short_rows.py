"""Many short rows to Python workers: ``mapInArrow`` with a quarter of its cost for a row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyspark import RDD
from pyspark.serializers import NoOpSerializer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from onebit_spark.platform.sessions import is_connect

ROWS_PER_BATCH = 65_536

Batches = Iterator[pa.RecordBatch]


def rows_session(spark: SparkSession) -> SparkSession:
    """A session of our own for plans with many short rows: few large Arrow batches. Not on Spark Connect."""
    if is_connect(spark):
        return spark
    own = spark.newSession()
    for name in ("spark.sql.session.timeZone", "spark.sql.shuffle.partitions"):
        own.conf.set(name, str(spark.conf.get(name)))
    own.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(ROWS_PER_BATCH))
    return own


def map_rows(frame: DataFrame, work: Callable[[Batches], Batches], schema: StructType) -> DataFrame:
    """``frame.mapInArrow(work, schema)`` for many short rows in, and a few long lines out.

    ``mapInArrow`` wraps every row into a structure and asks for the size of the batch after each. That takes several
    times as long as to read the row. So the rows become Arrow batches as in ``toArrow``, and each travels as bytes.
    Spark Connect has no way to do that.
    """
    if is_connect(frame.sparkSession):
        return frame.mapInArrow(work, schema)
    plan: Any = frame._jdf
    batches: RDD[bytes] = RDD(plan.toArrowBatchRdd().toJavaRDD(), frame.sparkSession.sparkContext, NoOpSerializer())
    arriving = frame.limit(0).toArrow().schema

    def run(messages: Iterable[bytes]) -> Iterator[tuple[Any, ...]]:
        read = (pa.ipc.read_record_batch(pa.py_buffer(message), arriving) for message in messages)
        for lines in work(read):
            yield from zip(*(column.to_pylist() for column in lines.columns), strict=True)

    with _the_workers_of_mapinarrow(frame.sparkSession):
        return frame.sparkSession.createDataFrame(batches.mapPartitions(run), schema, verifySchema=False)


@contextmanager
def _the_workers_of_mapinarrow(spark: SparkSession) -> Iterator[None]:
    """RDDs that are made in this block share their Python workers with ``mapInArrow``.

    Spark keeps workers by their environment. SQL's have one variable more, so an RDD would start workers of its own,
    and each of them would load its packages again.
    """
    asked = spark.conf.get("spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled", "true") == "true"
    environment, name = spark.sparkContext.environment, "SPARK_SIMPLIFIED_TRACEBACK"
    if not asked or name in environment:
        yield
        return
    environment[name] = "1"
    try:
        yield
    finally:
        del environment[name]
