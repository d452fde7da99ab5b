"""Rows between Spark and Python as Arrow batches: batch by batch to the driver, and many short rows to the workers.

Also user-defined functions of Arrow arrays, which go through pandas on Spark 4.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import pyarrow as pa
from pyspark import RDD
from pyspark.errors import PySparkException
from pyspark.errors.exceptions.captured import unwrap_spark_exception
from pyspark.serializers import NoOpSerializer
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType
from pyspark.util import inheritable_thread_target, local_connect_and_auth

from onebit_spark.platform.binary_cells import one_ahead
from onebit_spark.platform.sessions import is_connect, own_session

UNEVEN = 2  # times as many jobs as partitions of average size would need
ROWS_PER_BATCH = 65_536

Batches = Iterator[pa.RecordBatch]
T = TypeVar("T")


def collect_in_parts(frame: DataFrame, parts: int, key: Column, read: Callable[[Batches], T]) -> T:
    """Apply ``read`` to all rows, collected in at least ``parts`` parts.

    Several jobs collect some of the partitions each. If there are too few partitions, or a few of them hold most of the
    rows, ``read`` starts again with a cached copy of the rows, divided by the integer ``key``.
    """
    if parts == 1:
        return read(arrow_batches(frame))
    batches = arrow_batches_by_groups(frame, UNEVEN * parts)
    if batches is not None:
        try:
            return read(batches)
        except PySparkException as error:
            if "spark.driver.maxResultSize" not in str(error):
                raise
    frame.persist()
    try:
        divided = (frame.where(F.pmod(key, F.lit(parts)) == part) for part in range(parts))
        return read(batch for part in divided for batch in arrow_batches(part))
    finally:
        frame.unpersist()


def arrow_batches(frame: DataFrame) -> Batches:
    """Collect the rows by one job, in batches as its tasks finish. ``toArrow`` would hold all rows first."""
    if is_connect(frame.sparkSession):
        yield from frame.toArrow().to_batches()
        return
    plan: Any = frame._jdf
    port, secret, server = plan.collectAsArrowToPython()
    with _connected(port, secret) as stream:
        yield from pa.ipc.open_stream(stream)
        stream.read()  # the order of the batches
        with unwrap_spark_exception():
            server.getResult()


def arrow_batches_by_groups(frame: DataFrame, groups: int) -> Batches | None:
    """Collect the rows by several jobs, each over some of the partitions. None if there are fewer partitions.

    The results of one job must fit ``spark.driver.maxResultSize``.
    """
    if is_connect(frame.sparkSession):
        return None
    plan: Any = frame._jdf
    batches = plan.toArrowBatchRdd().toJavaRDD()
    n_partitions = batches.getNumPartitions()
    if n_partitions < groups:
        return None
    schema = frame.limit(0).toArrow().schema
    context: Any = frame.sparkSession.sparkContext

    def served() -> Iterator[Any]:
        for group in range(groups):
            with unwrap_spark_exception():
                partitions = list(range(group, n_partitions, groups))
                yield context._jvm.PythonRDD.runJob(context._jsc.sc(), batches, partitions)

    def collected() -> Batches:
        step = inheritable_thread_target(frame.sparkSession)(next)  # its jobs have the name of this thread's
        for port, secret, *_ in one_ahead(served(), step):
            with _connected(port, secret) as stream:
                for message in NoOpSerializer().load_stream(stream):
                    yield pa.ipc.read_record_batch(pa.py_buffer(message), schema)

    return collected()


@contextmanager
def _connected(port: Any, secret: str) -> Iterator[Any]:
    """A stream of what the JVM sends to this process."""
    stream, connection = local_connect_and_auth(port, secret)
    connection.settimeout(None)
    try:
        yield stream
    finally:
        stream.close()
        connection.close()


def cached_rows(frame: DataFrame) -> int | None:
    """The number of rows of a frame that is wholly in Spark's cache; None if it is not, or on Spark Connect."""
    if is_connect(frame.sparkSession):
        return None
    jvm_frame: Any = frame._jdf
    plan = jvm_frame.queryExecution().optimizedPlan()
    if plan.nodeName() != "InMemoryRelation" or not plan.cacheBuilder().isCachedColumnBuffersLoaded():
        return None
    rows = plan.stats().rowCount()
    return int(rows.get()) if rows.isDefined() else None


def rows_session(spark: SparkSession) -> SparkSession:
    """A session of our own for plans with many short rows: few large Arrow batches. Not on Spark Connect."""
    if is_connect(spark):
        return spark
    parts, batch = "spark.sql.shuffle.partitions", "spark.sql.execution.arrow.maxRecordsPerBatch"
    return own_session(spark, {parts: str(spark.conf.get(parts)), batch: str(ROWS_PER_BATCH)})


def map_rows(frame: DataFrame, work: Callable[[Batches], Batches], schema: StructType) -> DataFrame:
    """``frame.mapInArrow(work, schema)`` for many short rows in, and a few long lines out.

    ``mapInArrow`` wraps every row into a structure and computes the size of the batch after each row, which takes
    several times as long as reading the row. So the rows become Arrow batches as in ``toArrow``, and each batch travels
    as bytes. This is the one RDD of the package. Spark Connect has no RDDs.
    """
    if is_connect(frame.sparkSession):
        return frame.mapInArrow(work, schema)
    plan: Any = frame._jdf
    batches: RDD[bytes] = RDD(plan.toArrowBatchRdd().toJavaRDD(), frame.sparkSession.sparkContext, NoOpSerializer())
    columns = frame.limit(0).toArrow().schema

    def run(messages: Iterable[bytes]) -> Iterator[tuple[Any, ...]]:
        read = (pa.ipc.read_record_batch(pa.py_buffer(message), columns) for message in messages)
        for lines in work(read):
            yield from zip(*(column.to_pylist() for column in lines.columns), strict=True)

    with _workers_of_map_in_arrow(frame.sparkSession):
        return frame.sparkSession.createDataFrame(batches.mapPartitions(run), schema, verifySchema=False)


@contextmanager
def _workers_of_map_in_arrow(spark: SparkSession) -> Iterator[None]:
    """RDDs that are made in this block share their Python workers with ``mapInArrow``.

    Spark keeps workers by their environment. SQL's have one variable more, so an RDD would start workers of its own,
    and each of them would load its packages again.
    """
    simplified = spark.conf.get("spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled", "true") == "true"
    environment, name = spark.sparkContext.environment, "SPARK_SIMPLIFIED_TRACEBACK"
    with ExitStack() as restore:
        if simplified and name not in environment:
            environment[name] = "1"
            restore.callback(environment.pop, name)
        yield


def arrow_udf(function: Callable[..., pa.Array], takes: Sequence[DataType], returns: DataType) -> Callable[..., Column]:
    """A function of Arrow arrays as one of columns of the types ``takes``; by pandas on Spark 4.0."""
    if hasattr(F, "arrow_udf"):
        return F.arrow_udf(function, returnType=returns)  # type: ignore[call-overload]
    import pandas as pd  # takes time to import
    from pyspark.sql.pandas.types import to_arrow_type

    kinds = [to_arrow_type(kind) for kind in takes]
    is_struct = isinstance(returns, StructType)

    def run(*columns: Any) -> Any:
        result = function(*map(_from_pandas, columns, kinds))
        return (pa.Table.from_struct_array(result) if is_struct else result).to_pandas()

    run.__annotations__ = {"columns": pd.Series, "return": pd.DataFrame if is_struct else pd.Series}  # Spark reads them
    return F.pandas_udf(run, returns)  # type: ignore[call-overload]


def _from_pandas(column: Any, kind: pa.DataType) -> pa.Array:
    """A column as an array of this type. A struct arrives as a DataFrame; where all its fields are null, so is it."""
    if pa.types.is_struct(kind):
        fields = [pa.array(column[field.name], field.type, from_pandas=True) for field in kind]
        absent = column.isna().all(axis=1).to_numpy()
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=pa.array(absent))
    return pa.array(column, kind, from_pandas=True)
