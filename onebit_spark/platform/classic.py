"""What only a SparkContext can do. Spark Connect has none: see ``sessions.require_classic``."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:  # `--help` works without pyspark
    from pyspark import Broadcast
    from pyspark.sql import SparkSession

V = TypeVar("V")


def broadcast(spark: SparkSession, value: V) -> Broadcast[V]:
    """The value in every Python worker, sent once. The caller destroys it."""
    return spark.sparkContext.broadcast(value)


def join_group(spark: SparkSession, name: str) -> None:
    """From now on, the jobs of this thread belong to a group."""
    spark.sparkContext.setJobGroup(name, "tasks", interruptOnCancel=True)


def cancel_group(spark: SparkSession, name: str) -> None:
    """End the jobs of a group."""
    spark.sparkContext.cancelJobGroup(name)


def log_nothing(spark: SparkSession) -> None:
    """From now on, Spark logs nothing."""
    spark.sparkContext.setLogLevel("OFF")
