"""What the driver can hold: results that Spark lets it collect, the JVM's heap, and the memory of its Python."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from onebit_spark.core.machine import available_memory

NO_LIMIT = 2**62


@dataclass(frozen=True)
class DriverLimits:
    """In bytes."""

    result: int  # of one job: spark.driver.maxResultSize
    heap: int  # of the JVM
    memory: int  # that Python can take, once the JVM has all of its heap
    local: bool  # the executors are threads of the driver


def driver_limits(spark: SparkSession) -> DriverLimits:
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
