"""Which kind of session this is: a classic one, with Spark's driver beside this process, or Spark Connect."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from onebit_spark.errors import RequestError

if TYPE_CHECKING:  # `--help` works without pyspark
    from pyspark.sql import SparkSession

NOT_ON_CONNECT = "needs a classic session (spark-submit, or master=), not Spark Connect"
MANY = 100_000  # numbers, more than there are cores


def is_connect(spark: SparkSession) -> bool:
    """Whether the session is one of Spark Connect. It has no SparkContext, no JVM and no RDD."""
    return not hasattr(spark, "_jsparkSession")


def parallelism(spark: SparkSession) -> int:
    """How many tasks run side by side. Spark Connect does not tell, but divides a range by that: one small job."""
    if is_connect(spark):
        from pyspark.sql import functions as F

        last = spark.range(MANY).select(F.spark_partition_id().alias("part")).agg(F.max("part")).first()
        assert last is not None
        return int(last[0]) + 1
    return spark.sparkContext.defaultParallelism


def is_local(spark: SparkSession) -> bool:
    """Whether the executors are threads of Spark's driver."""
    master = spark.conf.get("spark.master", "") if is_connect(spark) else spark.sparkContext.master
    return str(master).startswith("local")


def checkpoint_folder(spark: SparkSession) -> str | None:
    """The folder that the user has chosen for Spark's checkpoints."""
    return spark.conf.get("spark.checkpoint.dir", None) if is_connect(spark) else spark.sparkContext.getCheckpointDir()


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
