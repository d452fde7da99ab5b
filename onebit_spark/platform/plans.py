"""Plans of Spark: short ones, rows that the executors keep, blocks in known partitions, and files that plans read.

Much of it is private to Spark.
"""

from __future__ import annotations

import atexit
import threading
import uuid
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from onebit_spark.platform.files import Location
from onebit_spark.platform.sessions import is_connect, own_session

BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"  # of Spark 4.1
LONG_LINES_BYTES = 16 * 2**20
JOB_ERRORS = (PySparkException, Py4JJavaError)  # what a failed job raises


def truncate_plan(frame: DataFrame, session: SparkSession | None = None) -> DataFrame:
    """The same rows with a plan of one node, in this session. Cache and lineage stay the same.

    Otherwise every half step would analyse the plan of the user's source again, which takes half the time of a small
    step. A checkpoint of Spark would also cut the lineage, by which lost blocks are computed again. On Spark Connect a
    frame belongs to its session, and ``cached`` keeps plans short.
    """
    session = session or frame.sparkSession
    if is_connect(session):
        return frame
    jvm_session: Any = session._jsparkSession
    plan: Any = frame._jdf
    rows = plan.queryExecution().toRdd()
    return DataFrame(jvm_session.internalCreateDataFrame(rows, plan.schema(), False), session)


def cached(frame: DataFrame, release: ExitStack, level: StorageLevel = StorageLevel.MEMORY_AND_DISK_DESER) -> DataFrame:
    """The frame in Spark's cache until ``release`` is closed. Lost rows are computed again from the frame's source.

    Spark finds a cached frame by its plan. On Spark Connect every query sends its whole plan, with all Python functions
    pickled again. So the frame becomes a temporary view there: a plan of one node that is always the same.
    """
    spark = frame.sparkSession
    if is_connect(spark):
        view = f"onebit_{uuid.uuid4().hex}"
        frame.createTempView(view)
        release.callback(spark.catalog.dropTempView, view)
        frame = spark.table(view)
    frame = frame.persist(level)
    release.callback(frame.unpersist)
    return frame


def on_executors(frame: DataFrame) -> DataFrame:
    """The rows, computed now and kept on the executors' disks, with a plan of one node and without lineage.

    Rows that are lost with an executor end the job that reads them: see ``rows_are_lost``.
    """
    return frame.localCheckpoint(storageLevel=StorageLevel.DISK_ONLY)


def forget(kept: DataFrame) -> None:
    """Delete rows of ``on_executors``. On Spark Connect the server does so when no plan reads them any more."""
    if not is_connect(kept.sparkSession):
        frame: Any = kept._jdf
        frame.queryExecution().analyzed().rdd().unpersist(False)


def rows_are_lost(error: Exception) -> bool:
    """Whether a job has failed because rows of ``on_executors`` are no longer there."""
    return "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND" in str(error)


def computed_once(frame: DataFrame) -> DataFrame:
    """The same rows, computed once. The executors keep them as long as a plan refers to them.

    Lost rows are computed again from the frame's source. External rows are kept, one object for each row. Inside a plan
    Spark uses one object again and again with new content, and a cache of that would repeat rows, even in serialised
    form: Java writes an object that it has seen as a reference to the first.
    """
    session = frame.sparkSession
    if is_connect(session):
        return frame.localCheckpoint(eager=False)  # the server forgets it with the frame; lost rows end the job
    plan: Any = frame._jdf
    jvm_session: Any = session._jsparkSession
    rows = plan.javaRDD().persist(session.sparkContext._getJavaStorageLevel(StorageLevel.MEMORY_AND_DISK))
    return DataFrame(jvm_session.createDataFrame(rows, plan.schema()), session)


def working_session(spark: SparkSession) -> SparkSession:
    """A session of our own in the user's application, so that no setting of the user's session changes.

    Spark shuffles a cached table again unless it has at least ``spark.sql.shuffle.partitions`` partitions, and adaptive
    execution would merge partitions of one block each. On Spark Connect it is the user's session.
    """
    if is_connect(spark):
        return spark
    return own_session(spark, {"spark.sql.shuffle.partitions": "1", "spark.sql.adaptive.enabled": "false"})


def expect_long_lines(session: SparkSession, most: int = 64) -> None:
    """Let Arrow batches have few lines from now on. A line may have megabytes, and a batch must stay below 2 GiB.

    Call it after the ratings are packed: Spark reads this setting when a task runs, not when the plan is made. If lost
    ratings are packed again, short rows travel under it too. So batches are bounded by their bytes where Spark can do
    that, and by ``most`` lines elsewhere. On Spark Connect the session is the user's, and nothing is set.
    """
    if is_connect(session):
        return
    try:
        session.conf.get(BATCH_BYTES)
    except PySparkException:
        session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(most))
    else:
        session.conf.set(BATCH_BYTES, str(LONG_LINES_BYTES))


def in_partitions(frame: DataFrame, n: int, part: Column) -> DataFrame:
    """The rows in n partitions: row r in partition ``part(r)``. Spark 4.1 has this as ``repartitionById``.

    For Spark 4.0, part p becomes an integer that hash partitioning sends to partition p.
    """
    if hasattr(frame, "repartitionById"):
        return frame.repartitionById(n, part)
    return frame.repartition(n, F.element_at(F.lit(partition_keys(n).tolist()), part.cast("int") + 1))


def cogrouped(
    left: DataFrame, right: DataFrame, key: str, work: Callable[[pa.Table, pa.Table], pa.Table], schema: StructType
) -> DataFrame:
    """``work`` on the rows of both frames that have the same key."""

    def call(one: pa.Table, other: pa.Table) -> pa.Table:  # Spark would count ``self`` of a callable as an argument
        return work(one, other)

    return left.groupBy(key).cogroup(right.groupBy(key)).applyInArrow(call, schema)


def partition_keys(n: int, each: int = 1) -> NDArray[np.int32]:
    """Integers such that Spark's hash partitioning sends the b-th one to partition b mod n. There are n·each."""
    tried = 16 * n * each
    while True:
        parts = spark_hash(np.arange(tried, dtype=np.uint32)).astype(np.int64) % n
        by_part = np.argsort(parts, kind="stable")
        first = np.searchsorted(parts[by_part], np.arange(n))
        if np.bincount(parts, minlength=n).min() >= each:
            return np.concatenate([by_part[first + k] for k in range(each)]).astype(np.int32)
        tried *= 2


def spark_hash(keys: NDArray[np.uint32]) -> NDArray[np.int32]:
    """Murmur3 of an int with seed 42 (Appleby's x86_32 variant), which is ``hash(key)`` of Spark SQL."""

    def rotated(x: NDArray[np.uint32], bits: int) -> NDArray[np.uint32]:
        return (x << np.uint32(bits)) | (x >> np.uint32(32 - bits))

    with np.errstate(over="ignore"):
        k = rotated(keys * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
        h = rotated(np.uint32(42) ^ k, 13) * np.uint32(5) + np.uint32(0xE6546B64)
        h ^= np.uint32(4)
        for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
            h = (h ^ (h >> np.uint32(shift))) * np.uint32(factor)
        h ^= h >> np.uint32(16)
    return h.view(np.int32)


# Settings under which Spark's reader does more than read columns by their names.
LENIENT = (
    "spark.sql.files.ignoreCorruptFiles",
    "spark.sql.files.ignoreMissingFiles",
    "spark.sql.parquet.fieldId.read.enabled",
)


def parquet_files(frame: DataFrame) -> dict[str, int] | None:
    """The path of each file that is not empty, with its length; None if the frame is anything else.

    That is so for frames in Spark's cache, tables of a catalog, readers with options, columns that stand in the names
    of folders, and on Spark Connect, which does not show its plans.
    """
    spark = frame.sparkSession
    if is_connect(spark) or any(spark.conf.get(name, "false") == "true" for name in LENIENT):
        return None
    own: Any = frame.select("*")  # with a plan of its own: Spark consults its cache once per plan
    plan = own._jdf.queryExecution().withCachedData()
    plain = {"AttributeReference"}
    while _kind(plan) == "Project" and {_kind(column) for column in _each(plan.projectList())} == plain:
        plan = plan.child()
    if _kind(plan) != "LogicalRelation" or plan.catalogTable().isDefined() or plan.isStreaming():
        return None
    relation = plan.relation()
    if _kind(relation) != "HadoopFsRelation" or _kind(relation.fileFormat()) != "ParquetFileFormat":
        return None
    options, in_folders = _each(relation.options().keys().toSeq()), relation.partitionSchema().fieldNames()
    if _kind(relation.location()) != "InMemoryFileIndex" or {*options} - {"path"} or {*in_folders} & {*frame.columns}:
        return None
    files = ((str(file.getPath().toString()), int(file.getLen())) for file in _each(relation.location().allFiles()))
    return {path: length for path, length in sorted(files) if length}


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _each(sequence: Any) -> list[Any]:
    """The elements of a sequence of Scala."""
    return [sequence.apply(place) for place in range(sequence.size())]


_MAKING = threading.Lock()


class TemporaryFolders:
    """Folders that models read their factors from. One is deleted when no plan reads it, at the latest at exit.

    A model may be garbage in Python while its predictions are not computed yet. So references to the model do not
    count. All plans over the same files share one index of these files in Spark's driver; a folder is unread once the
    JVM has collected that index as garbage. Spark Connect shows no plans, and there a folder remains until exit. The
    folders of an application are an attribute of it.
    """

    def __init__(self) -> None:
        self._folders: dict[str, Location] = {}  # by URI
        self._readers: dict[str, list[Any]] = {}  # weak references of the JVM to the shared index of the files
        self._jvm: Any = None  # of the readers
        atexit.register(self._delete_all)

    @classmethod
    def of(cls, spark: SparkSession) -> TemporaryFolders:
        application: Any = spark if is_connect(spark) else spark.sparkContext
        with _MAKING:
            if not hasattr(application, "_onebit_folders"):
                application._onebit_folders = cls()
        return application._onebit_folders

    def delete_after(self, folder: Location, frame: DataFrame) -> None:
        """Delete the folder when neither this frame nor any frame made from it exists any more."""
        self._folders[folder.uri] = folder
        if is_connect(frame.sparkSession):
            return
        self._jvm = frame.sparkSession._jvm
        plan: Any = frame._jdf
        plan = plan.queryExecution().analyzed()
        try:
            shared = plan.relation().location()
        except Py4JError:  # the session reads Parquet through the newer interface
            shared = plan.table()
        self._readers.setdefault(folder.uri, []).append(self._jvm.java.lang.ref.WeakReference(shared))

    def delete_unread(self) -> None:
        """Delete the folders that nothing refers to any more."""
        if self._readers:
            self._jvm.System.gc()
        for uri, readers in list(self._readers.items()):
            if all(reader.refersTo(None) for reader in readers):
                self._folders.pop(uri).delete()
                del self._readers[uri]

    def _delete_all(self) -> None:
        for folder in self._folders.values():
            with suppress(Py4JError, OSError):  # Spark's driver may be gone
                folder.delete()
