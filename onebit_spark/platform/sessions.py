"""Which kind of session this is: a classic one, with Spark's driver beside this process, or Spark Connect."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from onebit_spark.errors import RequestError

if TYPE_CHECKING:  # `--help` works without pyspark
    from pyspark.sql import SparkSession

NOT_ON_CONNECT = "needs a classic session (spark-submit, or master=), not Spark Connect"
UNKNOWN_CORES = 8  # of a server that does not tell


def is_connect(spark: SparkSession) -> bool:
    """Whether the session is one of Spark Connect. It has no SparkContext, no JVM and no RDD."""
    return not hasattr(spark, "_jsparkSession")


def parallelism(spark: SparkSession) -> int:
    """How many tasks run side by side."""
    if is_connect(spark):
        return int(spark.conf.get("spark.default.parallelism", str(UNKNOWN_CORES)) or UNKNOWN_CORES)
    return spark.sparkContext.defaultParallelism


@contextmanager
def described(spark: SparkSession, what: str) -> Iterator[None]:
    """Name the jobs of the body in Spark's UI and event log; by a tag on Spark Connect.

    Afterwards the description is again that of the user.
    """
    name = f"onebit_spark: {what}"
    if is_connect(spark):
        tag = name.replace(",", "")
        spark.addTag(tag)
        try:
            yield
        finally:
            spark.removeTag(tag)
        return
    context, key = spark.sparkContext, "spark.job.description"
    before = context.getLocalProperty(key)
    context.setLocalProperty(key, name)
    try:
        yield
    finally:
        context.setLocalProperty(key, before)  # type: ignore[arg-type]


def require_classic(spark: SparkSession, what: str) -> None:
    """Refuse Spark Connect."""
    if is_connect(spark):
        raise RequestError(f"{what} {NOT_ON_CONNECT}")


def ship(spark: SparkSession, archive: str) -> None:
    """Send a zip of Python modules to the workers."""
    if is_connect(spark):
        spark.addArtifacts(archive, pyfile=True)
    else:
        spark.sparkContext.addPyFile(archive)
