"""Rows on their way to the driver: Arrow batches one by one, and how many rows Spark's cache holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.errors.exceptions.captured import unwrap_spark_exception
from pyspark.serializers import NoOpSerializer
from pyspark.sql import DataFrame, SparkSession
from pyspark.util import inheritable_thread_target, local_connect_and_auth

from onebit_spark.platform.sessions import is_connect


def arrow_batches(frame: DataFrame) -> Iterator[pa.RecordBatch]:
    """The rows by one job, in batches as its tasks finish. ``toArrow`` would hold all of them before the first."""
    if is_connect(frame.sparkSession):
        yield from frame.toArrow().to_batches()
        return
    plan: Any = frame._jdf
    port, secret, server = plan.collectAsArrowToPython()
    stream, connection = local_connect_and_auth(port, secret)
    connection.settimeout(None)
    try:
        yield from pa.ipc.open_stream(stream)
        stream.read()  # the order of the batches
        with unwrap_spark_exception():
            server.getResult()
    finally:
        stream.close()
        connection.close()


def arrow_batches_by_groups(frame: DataFrame, groups: int) -> Iterator[pa.RecordBatch] | None:
    """The rows by several jobs, each over some of the partitions. None if there are not as many partitions.

    The results of one job must fit ``spark.driver.maxResultSize``; ``too_large`` recognises the error if they do not.
    """
    if is_connect(frame.sparkSession):
        return None
    plan: Any = frame._jdf
    batches = plan.toArrowBatchRdd().toJavaRDD()
    partitions = list(range(batches.getNumPartitions()))
    if len(partitions) < groups:
        return None
    return _collected(frame, batches, [partitions[group::groups] for group in range(groups)])


def _collected(frame: DataFrame, batches: Any, groups: list[list[int]]) -> Iterator[pa.RecordBatch]:
    schema = frame.limit(0).toArrow().schema
    context: Any = frame.sparkSession.sparkContext

    def run(group: list[int]) -> Any:
        with unwrap_spark_exception():
            return context._jvm.PythonRDD.runJob(context._jsc.sc(), batches, group)

    for served in _one_ahead(frame.sparkSession, run, groups):
        stream, connection = local_connect_and_auth(served[0], served[1])
        connection.settimeout(None)
        try:
            for message in NoOpSerializer().load_stream(stream):
                yield pa.ipc.read_record_batch(pa.py_buffer(message), schema)
        finally:
            stream.close()
            connection.close()


def _one_ahead(spark: SparkSession, run: Callable[[list[int]], Any], groups: list[list[int]]) -> Iterator[Any]:
    """``run`` of every group. The next one runs while the caller takes up the last."""
    with ThreadPoolExecutor(1) as pool:
        inherited = inheritable_thread_target(spark)(run)  # the name of the jobs
        ahead = pool.submit(inherited, groups[0])
        for group in [*groups[1:], None]:
            done = ahead.result()
            if group is not None:
                ahead = pool.submit(inherited, group)
            yield done


def too_large(error: PySparkException) -> bool:
    """Whether results were larger than ``spark.driver.maxResultSize``."""
    return "spark.driver.maxResultSize" in str(error)


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
