"""Whether the user has said how much Spark logs."""

from __future__ import annotations

from typing import Any


def logging_is_configured() -> bool:
    """The JVM of spark-submit was given a level, or a configuration of log4j by a property or in its conf folder."""
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    jvm: Any = SparkContext._jvm
    if SparkConf().contains("spark.log.level"):
        return True
    if any(jvm.System.getProperty(name) for name in ("log4j2.configurationFile", "log4j.configurationFile")):
        return True
    loader = jvm.Thread.currentThread().getContextClassLoader()
    return any(loader.getResource(f"log4j2{suffix}") for suffix in (".properties", ".xml", ".yaml", ".json"))
