"""Frames in Spark's cache, in classic sessions and on Spark Connect."""

from __future__ import annotations

import uuid
from contextlib import ExitStack

from pyspark import StorageLevel
from pyspark.sql import DataFrame

from onebit_spark.platform.sessions import is_connect


def cached(frame: DataFrame, release: ExitStack, level: StorageLevel = StorageLevel.MEMORY_AND_DISK_DESER) -> DataFrame:
    """The frame in Spark's cache until ``release`` is closed. Lost rows are computed again from the frame's source.

    Spark finds a cached frame by its plan. On Spark Connect every query sends its whole plan, with all Python functions
    pickled again. So the frame becomes a temporary view there: a plan of one node that is always the same.
    """
    spark = frame.sparkSession
    if is_connect(spark):
        view = f"onebit_{uuid.uuid4().hex}"
        frame.createTempView(view)
        release.callback(spark.catalog.dropTempView, view)
        frame = spark.table(view)
    frame = frame.persist(level)
    release.callback(frame.unpersist)
    return frame
