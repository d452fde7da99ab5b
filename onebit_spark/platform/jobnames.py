"""Names of our jobs in Spark's UI and event log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark import SparkContext


@contextmanager
def described(context: SparkContext, what: str) -> Iterator[None]:
    """Name the jobs of the body in Spark's UI. Afterwards the description is again that of the user."""
    key = "spark.job.description"
    before = context.getLocalProperty(key)
    context.setLocalProperty(key, f"onebit_spark: {what}")
    try:
        yield
    finally:
        context.setLocalProperty(key, before)  # type: ignore[arg-type]
