"""The Spark session of the benchmarks."""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession


def local_session(master: str = "local[*]", shuffle_partitions: int = 8) -> SparkSession:
    """A quiet session on this machine; its Python workers run this interpreter."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master(master)
        .config("spark.driver.memory", "4g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", str(shuffle_partitions))
        .config("spark.python.unix.domain.socket.enabled", "true")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark
