"""Rows on their way to the driver: Arrow batches one by one, and how many rows Spark's cache holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.errors.exceptions.captured import unwrap_spark_exception
from pyspark.sql import DataFrame
from pyspark.util import local_connect_and_auth

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
