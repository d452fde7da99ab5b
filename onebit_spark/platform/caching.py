"""Rows that the executors keep, in classic sessions and on Spark Connect."""

from __future__ import annotations

import uuid
from contextlib import ExitStack
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from onebit_spark.platform.sessions import is_connect

JOB_ERRORS = (PySparkException, Py4JJavaError)  # what a failed job raises


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


def on_executors(frame: DataFrame) -> DataFrame:
    """The rows, computed now and kept on the executors' disks, with a plan of one node and without lineage.

    Rows that are lost with an executor end the job that reads them: see ``rows_are_lost``.
    """
    return frame.localCheckpoint(storageLevel=StorageLevel.DISK_ONLY)


def forget(kept: DataFrame) -> None:
    """Delete rows of ``on_executors``. On Spark Connect the server does so when no plan reads them any more."""
    if not is_connect(kept.sparkSession):
        frame: Any = kept._jdf
        frame.queryExecution().analyzed().rdd().unpersist(False)


def rows_are_lost(error: Exception) -> bool:
    """Whether a job has failed because rows of ``on_executors`` are no longer there."""
    return "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND" in str(error)
