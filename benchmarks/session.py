"""The Spark session of the benchmarks."""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession


def local_session(
    master: str = "local[*]",
    shuffle_partitions: int = 8,
    driver_memory: str = "4g",
    **settings: str,
) -> SparkSession:
    """A quiet session on this machine; its Python workers run this interpreter. ``settings`` have _
    for their dots.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = (
        SparkSession.builder.master(master)
        .config("spark.driver.memory", driver_memory)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", str(shuffle_partitions))
        .config("spark.python.unix.domain.socket.enabled", "true")
    )
    for name, value in settings.items():
        builder = builder.config(name.replace("_", "."), value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark
