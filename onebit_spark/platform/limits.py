"""What the driver can hold: results that Spark lets it collect, the JVM's heap, and the memory of its Python."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from onebit_spark.core.machine import available_memory
from onebit_spark.platform.sessions import is_connect

NO_LIMIT = 2**62


@dataclass(frozen=True)
class DriverLimits:
    """What the driver can hold.

    Parameters
    ----------
    result : int
        Bytes that one job may return: spark.driver.maxResultSize.
    heap : int
        Bytes of the JVM's heap.
    memory : int
        Bytes that Python can still take after the JVM has taken its whole heap.
    local : bool
        Whether the executors are threads of the driver.
    """

    result: int
    heap: int
    memory: int
    local: bool


def driver_limits(spark: SparkSession) -> DriverLimits:
    """The limits of this session's driver, now.

    On Spark Connect the driver is this process: there is no heap beside it, and the executors are elsewhere.
    """
    if is_connect(spark):
        result = as_bytes(str(spark.conf.get("spark.driver.maxResultSize", "1g"))) or NO_LIMIT
        return DriverLimits(result, heap=NO_LIMIT, memory=available_memory(), local=False)
    context = spark.sparkContext
    jvm: Any = context._jvm
    runtime = jvm.java.lang.Runtime.getRuntime()
    heap = int(runtime.maxMemory())
    return DriverLimits(
        result=as_bytes(context.getConf().get("spark.driver.maxResultSize", "1g")) or NO_LIMIT,
        heap=heap,
        memory=max(0, available_memory() - (heap - int(runtime.totalMemory()))),
        local=str(context.master).startswith("local"),
    )


def as_bytes(setting: str) -> int:
    """Spark's way to write a size: 512m, 1g, 0; bare numbers are bytes."""
    units = {"k": 10, "m": 20, "g": 30, "t": 40}
    text = setting.strip().lower().removesuffix("b")
    return int(text[:-1]) << units[text[-1]] if text[-1] in units else int(text)
