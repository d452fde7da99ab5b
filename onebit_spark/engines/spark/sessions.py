"""Sessions, classic ones and those of Spark Connect; what their driver can hold; and work in a
second thread.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from onebit_spark.errors import RequestError
from onebit_spark.settings import available_memory

if TYPE_CHECKING:  # `--help` works without pyspark
    from pyspark import Broadcast
    from pyspark.sql import SparkSession

NOT_ON_CONNECT = "needs a classic session (spark-submit, or master=), not Spark Connect"
MANY = 100_000  # numbers, more than there are cores
CONNECT_PORT = 15002
PATIENCE = 10  # seconds
NO_LIMIT = 2**62
TIME_ZONE = "spark.sql.session.timeZone"

JavaObject = Any  # of the JVM, through py4j

V = TypeVar("V")


def one_ahead(items: Iterable[V], step: Callable[..., Any] = next) -> Iterator[V]:
    """The items. Another thread makes the next one, by ``step``, while the last is used."""
    source = iter(items)
    end = object()
    with ThreadPoolExecutor(1) as pool:
        ahead = pool.submit(step, source, end)
        while (item := ahead.result()) is not end:
            ahead = pool.submit(step, source, end)
            yield item


def is_connect(spark: SparkSession) -> bool:
    """Whether the session is one of Spark Connect. It has no SparkContext, no JVM and no RDD."""
    return not hasattr(spark, "_jsparkSession")


def parallelism(spark: SparkSession) -> int:
    """How many tasks run at the same time.

    On Spark Connect, one small job counts the partitions of a range.
    """
    if is_connect(spark):
        from pyspark.sql import functions as F

        last = (
            spark.range(MANY)
            .select(F.spark_partition_id().alias("part"))
            .agg(F.max("part"))
            .first()
        )
        assert last is not None
        return int(last[0]) + 1
    return spark.sparkContext.defaultParallelism


def is_local(spark: SparkSession) -> bool:
    master = spark.conf.get("spark.master", "") if is_connect(spark) else spark.sparkContext.master
    return str(master).startswith("local")


def checkpoint_folder(spark: SparkSession) -> str | None:
    return (
        spark.conf.get("spark.checkpoint.dir", None)
        if is_connect(spark)
        else spark.sparkContext.getCheckpointDir()
    )


@contextmanager
def described(spark: SparkSession | None, what: str) -> Iterator[None]:
    """Name the jobs of the body in Spark's UI and event log; by a tag on Spark Connect.

    Afterwards the user's description is restored. Without a session nothing happens.
    """
    name = f"onebit_spark: {what}"
    key = "spark.job.description"
    with ExitStack() as restore:
        if spark is not None and is_connect(spark):
            tag = name.replace(",", "")
            spark.addTag(tag)
            restore.callback(spark.removeTag, tag)
        elif spark is not None:
            before: Any = spark.sparkContext.getLocalProperty(key)
            restore.callback(spark.sparkContext.setLocalProperty, key, before)
            spark.sparkContext.setLocalProperty(key, name)
        yield


def ship(spark: SparkSession, archive: str) -> None:
    if is_connect(spark):
        spark.addArtifacts(archive, pyfile=True)
    else:
        spark.sparkContext.addPyFile(archive)


@dataclass(frozen=True)
class DriverLimits:
    result: int  # bytes that one job may return: spark.driver.maxResultSize
    heap: int  # bytes of the JVM's heap
    memory: int  # bytes that Python can still take after the JVM has taken its whole heap
    local: bool  # the executors are threads of the driver


def driver_limits(spark: SparkSession) -> DriverLimits:
    """The limits of this session's driver, now.

    On Spark Connect the driver is this process: there is no heap beside it, and the executors are
    elsewhere.
    """
    settings: JavaObject = spark.conf if is_connect(spark) else spark.sparkContext.getConf()
    result = as_bytes(str(settings.get("spark.driver.maxResultSize", "1g"))) or NO_LIMIT
    if is_connect(spark):
        return DriverLimits(result, heap=NO_LIMIT, memory=available_memory(), local=False)
    jvm: JavaObject = spark.sparkContext._jvm
    runtime = jvm.java.lang.Runtime.getRuntime()
    heap = int(runtime.maxMemory())
    taken = int(runtime.totalMemory())
    return DriverLimits(result, heap, max(0, available_memory() - (heap - taken)), is_local(spark))


def as_bytes(setting: str) -> int:
    """A size as Spark writes it: 512m, 1g, 0. Numbers without a unit are bytes."""
    units = {"k": 10, "m": 20, "g": 30, "t": 40}
    text = setting.strip().lower().removesuffix("b")
    return int(text[:-1]) << units[text[-1]] if text[-1] in units else int(text)


def broadcast(spark: SparkSession, value: V) -> Broadcast[V]:
    """The value in every Python worker, sent once. The caller destroys it."""
    return spark.sparkContext.broadcast(value)


def log_nothing(spark: SparkSession) -> None:
    spark.sparkContext.setLogLevel("OFF")


def own_session(spark: SparkSession, settings: Mapping[str, str]) -> SparkSession:
    """Another session of the same application, with the user's time zone and these settings."""
    own = spark.newSession()
    for name, value in {TIME_ZONE: str(spark.conf.get(TIME_ZONE)), **settings}.items():
        own.conf.set(name, value)
    return own


def check_reachable(address: str) -> None:
    """Raise a RequestError if nothing listens at an address such as sc://host:15002/;token=…

    Spark itself would retry for minutes without a message.
    """
    parts = re.match(r"sc://(\[[^]]+\]|[^:/;]+)(?::(\d+))?", address)
    if parts is None:
        return  # local[*] starts a server of its own
    host = parts[1].strip("[]")
    port = int(parts[2] or CONNECT_PORT)
    try:
        socket.create_connection((host, port), PATIENCE).close()
    except OSError as error:
        raise RequestError(f"no Spark Connect server answers at {host}:{port}: {error}") from None


def logging_is_configured() -> bool:
    """Whether the user has configured Spark's logging.

    That is by a level, or by a configuration of log4j in a property or in the conf folder of
    spark-submit.
    """
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    jvm: JavaObject = SparkContext._jvm
    files = ("log4j2.configurationFile", "log4j.configurationFile")
    if SparkConf().contains("spark.log.level") or any(map(jvm.System.getProperty, files)):
        return True
    loader = jvm.Thread.currentThread().getContextClassLoader()
    return any(
        loader.getResource(f"log4j2{suffix}")
        for suffix in (".properties", ".xml", ".yaml", ".json")
    )
