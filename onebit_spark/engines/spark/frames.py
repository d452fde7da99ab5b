"""DataFrames: rows between Spark and Python as Arrow batches, lines of binary cells, and plans.
Much is Spark's own.

lines of binary cells     a few long lines with large arrays, which are read without a copy
rows as Arrow batches     batch by batch to the driver, and many short rows to the workers
plans                     short ones, rows that executors keep, known partitions, files of plans
"""

from __future__ import annotations

import atexit
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark import RDD, StorageLevel
from pyspark.errors import PySparkException
from pyspark.errors.exceptions.captured import unwrap_spark_exception
from pyspark.serializers import NoOpSerializer
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, FloatType, StructType
from pyspark.util import inheritable_thread_target, local_connect_and_auth

from onebit_spark.data.locations import Location
from onebit_spark.engines.spark.sessions import JavaObject, is_connect, one_ahead, own_session
from onebit_spark.errors import FitFailed

# ---- lines of binary cells ----------------------------------------------------------------------

NARROW = ("block", "key", "part", "place", "sender", "side")
MOST_BYTES = 2**31 - 1  # of a binary cell: offsets of Arrow and arrays of the JVM have 32 bits
# The other types have the same name in both.
_JSON_NAMES = {
    "tinyint": "byte",
    "smallint": "short",
    "int": "integer",
    "bigint": "long",
}
_PLAIN = {
    "binary",
    "boolean",
    "byte",
    "date",
    "double",
    "float",
    "integer",
    "long",
    "short",
    "string",
    "timestamp",
}


def cell_array(cell: pa.Scalar, dtype: type[Item] | np.dtype[Item]) -> NDArray[Item]:
    return np.frombuffer(cell.as_buffer(), dtype)


def binary_line(**cells: Any) -> pa.RecordBatch:
    """One line.

    Arrays become binary cells, text stays text, integers are int64 (those of NARROW: int32).
    """
    arrays = {}
    for name, value in cells.items():
        if isinstance(value, np.ndarray | pa.Buffer):
            data = (
                pa.py_buffer(np.ascontiguousarray(value))
                if isinstance(value, np.ndarray)
                else value
            )
            if data.size > MOST_BYTES:
                raise FitFailed(
                    f"{name} of a block takes {data.size / 2**30:.1f} GiB, but a cell holds less "
                    "than 2 GiB: set more "
                    "row and column blocks (a single row or column can have 5·10⁸ ratings)"
                )
            offsets = pa.py_buffer(np.array([0, data.size], np.int32))
            arrays[name] = pa.Array.from_buffers(pa.binary(), 1, [None, offsets, data])
        elif isinstance(value, str):
            arrays[name] = pa.array([value])
        else:
            arrays[name] = pa.array([int(value)], pa.int32() if name in NARROW else pa.int64())
    return pa.RecordBatch.from_pydict(arrays)


def ids_cell(ids: pa.Array) -> pa.Buffer:
    """Ids of any type as one binary cell: an Arrow stream with one column."""
    sink = pa.BufferOutputStream()
    batch = pa.RecordBatch.from_arrays([ids], names=["id"])
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return sink.getvalue()


def read_ids(cell: pa.Scalar) -> pa.Array:
    with pa.ipc.open_stream(cell.as_buffer()) as stream:
        return stream.read_next_batch().column(0)


def schema_of(columns: str) -> StructType:
    """The schema of a text such as "block int, rows binary, factors array<float>".

    Spark SQL's own parser takes half a second to load in every application.
    """
    schema = StructType()
    for column in columns.split(", "):
        name, kind = column.split()
        schema = schema.add(name, sql_type(kind))
    return schema


def sql_type(kind: str) -> str | DataType:
    """The type of this name in SQL, as ``StructType.add`` takes it.

    Spark parses those that are not plain.
    """
    name = _JSON_NAMES.get(kind, kind)
    if name in _PLAIN:
        return name
    if kind == "array<float>":
        return ArrayType(FloatType())
    return DataType.fromDDL(kind)


# ---- rows as Arrow batches ---------------------------------------------------------------------

UNEVEN = 2  # times as many jobs as partitions of average size would need
ROWS_PER_BATCH = 65_536

Batches = Iterator[pa.RecordBatch]
Item = TypeVar("Item", bound=np.generic)  # of an array
T = TypeVar("T")


def collect_in_parts(frame: DataFrame, parts: int, key: Column, read: Callable[[Batches], T]) -> T:
    """Apply ``read`` to all rows, collected in at least ``parts`` parts.

    Several jobs collect some of the partitions each. If there are too few partitions, or a few of
    them hold most of the rows, ``read`` starts again with a cached copy of the rows, divided by the
    integer ``key``.
    """
    if parts == 1:
        return read(arrow_batches(frame))
    batches = arrow_batches_by_groups(frame, UNEVEN * parts)
    if batches is not None:
        try:
            return read(batches)
        except PySparkException as error:
            if "spark.driver.maxResultSize" not in str(error):
                raise
    frame.persist()
    try:
        divided = (frame.where(F.pmod(key, F.lit(parts)) == part) for part in range(parts))
        return read(batch for part in divided for batch in arrow_batches(part))
    finally:
        frame.unpersist()


def arrow_batches(frame: DataFrame) -> Batches:
    """Collect the rows by one job, in batches as its tasks finish.

    ``toArrow`` would hold all rows first.
    """
    if is_connect(frame.sparkSession):
        yield from frame.toArrow().to_batches()
        return
    plan: JavaObject = frame._jdf
    port, secret, server = plan.collectAsArrowToPython()
    with _connected(port, secret) as stream:
        yield from pa.ipc.open_stream(stream)
        stream.read()  # the order of the batches
        with unwrap_spark_exception():
            server.getResult()


def arrow_batches_by_groups(frame: DataFrame, groups: int) -> Batches | None:
    """Collect the rows by several jobs, each over some of the partitions.

    None if there are fewer partitions.

    The results of one job must fit ``spark.driver.maxResultSize``.
    """
    if is_connect(frame.sparkSession):
        return None
    plan: JavaObject = frame._jdf
    batches = plan.toArrowBatchRdd().toJavaRDD()
    n_partitions = batches.getNumPartitions()
    if n_partitions < groups:
        return None
    schema = frame.limit(0).toArrow().schema
    context: JavaObject = frame.sparkSession.sparkContext

    def served() -> Iterator[Any]:
        for group in range(groups):
            with unwrap_spark_exception():
                partitions = list(range(group, n_partitions, groups))
                yield context._jvm.PythonRDD.runJob(context._jsc.sc(), batches, partitions)

    def collected() -> Batches:
        # Its jobs have the name of this thread's
        step = inheritable_thread_target(frame.sparkSession)(next)
        for port, secret, *_ in one_ahead(served(), step):
            with _connected(port, secret) as stream:
                for message in NoOpSerializer().load_stream(stream):
                    yield pa.ipc.read_record_batch(pa.py_buffer(message), schema)

    return collected()


@contextmanager
def _connected(port: Any, secret: str) -> Iterator[Any]:
    stream, connection = local_connect_and_auth(port, secret)
    connection.settimeout(None)
    try:
        yield stream
    finally:
        stream.close()
        connection.close()


def cached_rows(frame: DataFrame) -> int | None:
    """The number of rows of a frame that is wholly in Spark's cache; None if it is not, or on Spark
    Connect.
    """
    if is_connect(frame.sparkSession):
        return None
    jvm_frame: JavaObject = frame._jdf
    plan = jvm_frame.queryExecution().optimizedPlan()
    if (
        plan.nodeName() != "InMemoryRelation"
        or not plan.cacheBuilder().isCachedColumnBuffersLoaded()
    ):
        return None
    rows = plan.stats().rowCount()
    return int(rows.get()) if rows.isDefined() else None


def rows_session(spark: SparkSession) -> SparkSession:
    """A session of our own for plans with many short rows: few large Arrow batches. Not on Spark
    Connect.
    """
    if is_connect(spark):
        return spark
    parts = "spark.sql.shuffle.partitions"
    batch = "spark.sql.execution.arrow.maxRecordsPerBatch"
    return own_session(spark, {parts: str(spark.conf.get(parts)), batch: str(ROWS_PER_BATCH)})


def map_rows(frame: DataFrame, work: Callable[[Batches], Batches], schema: StructType) -> DataFrame:
    """``frame.mapInArrow(work, schema)`` for many short rows in, and a few long lines out.

    ``mapInArrow`` wraps every row into a structure and computes the size of the batch after each
    row, which takes several times as long as reading the row. So the rows become Arrow batches as
    in ``toArrow``, and each batch travels as bytes. This is the one RDD of the package. Spark
    Connect has no RDDs.
    """
    if is_connect(frame.sparkSession):
        return frame.mapInArrow(work, schema)
    plan: JavaObject = frame._jdf
    batches: RDD[bytes] = RDD(
        plan.toArrowBatchRdd().toJavaRDD(), frame.sparkSession.sparkContext, NoOpSerializer()
    )
    columns = frame.limit(0).toArrow().schema

    def run(messages: Iterable[bytes]) -> Iterator[tuple[Any, ...]]:
        read = (pa.ipc.read_record_batch(pa.py_buffer(message), columns) for message in messages)
        for lines in work(read):
            yield from zip(*(column.to_pylist() for column in lines.columns), strict=True)

    with _workers_of_map_in_arrow(frame.sparkSession):
        return frame.sparkSession.createDataFrame(
            batches.mapPartitions(run), schema, verifySchema=False
        )


@contextmanager
def _workers_of_map_in_arrow(spark: SparkSession) -> Iterator[None]:
    """RDDs that are made in this block share their Python workers with ``mapInArrow``.

    Spark keeps workers by their environment. SQL's have one variable more, so an RDD would start
    workers of its own, and each of them would load its packages again.
    """
    simplified = (
        spark.conf.get("spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled", "true")
        == "true"
    )
    environment = spark.sparkContext.environment
    name = "SPARK_SIMPLIFIED_TRACEBACK"
    with ExitStack() as restore:
        if simplified and name not in environment:
            environment[name] = "1"
            restore.callback(environment.pop, name)
        yield


def arrow_udf(
    function: Callable[..., pa.Array], takes: Sequence[DataType], returns: DataType
) -> Callable[..., Column]:
    """A function of Arrow arrays as one of columns of the types ``takes``; by pandas on
    Spark 4.0.
    """
    if hasattr(F, "arrow_udf"):
        return F.arrow_udf(function, returnType=returns)  # type: ignore[call-overload]
    import pandas as pd  # takes time to import
    from pyspark.sql.pandas.types import to_arrow_type

    kinds = [to_arrow_type(kind) for kind in takes]
    is_struct = isinstance(returns, StructType)

    def run(*columns: Any) -> Any:
        result = function(*map(_from_pandas, columns, kinds))
        return (pa.Table.from_struct_array(result) if is_struct else result).to_pandas()

    # Spark reads the annotations.
    run.__annotations__ = {
        "columns": pd.Series,
        "return": pd.DataFrame if is_struct else pd.Series,
    }
    return F.pandas_udf(run, returns)  # type: ignore[call-overload]


def _from_pandas(column: Any, kind: pa.DataType) -> pa.Array:
    """A column as an array of this type.

    A struct arrives as a DataFrame; where all its fields are null, so is it.
    """
    if pa.types.is_struct(kind):
        fields = [pa.array(column[field.name], field.type, from_pandas=True) for field in kind]
        absent = column.isna().all(axis=1).to_numpy()
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=pa.array(absent))
    return pa.array(column, kind, from_pandas=True)


# ---- plans -------------------------------------------------------------------------------------

BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"  # of Spark 4.1
LONG_LINES_BYTES = 16 * 2**20
JOB_ERRORS = (PySparkException, Py4JJavaError)  # what a failed job raises
ROWS_LOST = "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND"


def truncate_plan(frame: DataFrame, session: SparkSession | None = None) -> DataFrame:
    """The same rows with a plan of one node, in this session. Cache and lineage stay the same.

    Otherwise every half step would analyse the plan of the user's source again, which takes half
    the time of a small step. A checkpoint of Spark would also cut the lineage, by which lost blocks
    are computed again. On Spark Connect a frame belongs to its session, and ``cached`` keeps plans
    short.
    """
    session = session or frame.sparkSession
    if is_connect(session):
        return frame
    jvm_session: JavaObject = session._jsparkSession
    plan: JavaObject = frame._jdf
    rows = plan.queryExecution().toRdd()
    return DataFrame(jvm_session.internalCreateDataFrame(rows, plan.schema(), False), session)


def cached(
    frame: DataFrame, release: ExitStack, level: StorageLevel = StorageLevel.MEMORY_AND_DISK_DESER
) -> DataFrame:
    """The frame in Spark's cache until ``release`` is closed.

    Lost rows are computed again from the frame's source.

    Spark finds a cached frame by its plan. On Spark Connect every query sends its whole plan, with
    all Python functions pickled again. So the frame becomes a temporary view there: a plan of one
    node that is always the same.
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
    """The rows, computed now and kept on the executors' disks, with a plan of one node and without
    lineage.

    Rows that are lost with an executor end the job that reads them, with the condition
    ``ROWS_LOST``.
    """
    return frame.localCheckpoint(storageLevel=StorageLevel.DISK_ONLY)


def forget(kept: DataFrame) -> None:
    """Delete rows of ``on_executors``.

    On Spark Connect the server does so when no plan reads them any more.
    """
    if not is_connect(kept.sparkSession):
        frame: JavaObject = kept._jdf
        frame.queryExecution().analyzed().rdd().unpersist(False)


def computed_once(frame: DataFrame) -> DataFrame:
    """The same rows, computed once. The executors keep them as long as a plan refers to them.

    Lost rows are computed again from the frame's source. External rows are kept, one object for
    each row. Inside a plan Spark uses one object again and again with new content, and a cache of
    that would repeat rows, even in serialised form: Java writes an object that it has seen as a
    reference to the first.
    """
    session = frame.sparkSession
    if is_connect(session):
        # The server forgets it with the frame; lost rows end the job
        return frame.localCheckpoint(eager=False)
    plan: JavaObject = frame._jdf
    jvm_session: JavaObject = session._jsparkSession
    rows = plan.javaRDD().persist(
        session.sparkContext._getJavaStorageLevel(StorageLevel.MEMORY_AND_DISK)
    )
    return DataFrame(jvm_session.createDataFrame(rows, plan.schema()), session)


def working_session(spark: SparkSession) -> SparkSession:
    """A session of our own in the user's application, so that no setting of the user's session
    changes.

    Spark shuffles a cached table again unless it has at least ``spark.sql.shuffle.partitions``
    partitions, and adaptive execution would merge partitions of one block each. On Spark Connect it
    is the user's session.
    """
    if is_connect(spark):
        return spark
    return own_session(
        spark, {"spark.sql.shuffle.partitions": "1", "spark.sql.adaptive.enabled": "false"}
    )


def expect_long_lines(session: SparkSession, most: int = 64) -> None:
    """Let Arrow batches have few lines from now on.

    A line may have megabytes, and a batch must stay below 2 GiB.

    Call it after the ratings are packed: Spark reads this setting when a task runs, not when the
    plan is made. If lost ratings are packed again, short rows travel under it too. So batches are
    bounded by their bytes where Spark can do that, and by ``most`` lines elsewhere. On Spark
    Connect the session is the user's, and nothing is set.
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
    """The rows in n partitions: row r in partition ``part(r)``. Spark 4.1 has this as
    ``repartitionById``.

    For Spark 4.0, part p becomes an integer that hash partitioning sends to partition p.
    """
    if hasattr(frame, "repartitionById"):
        return frame.repartitionById(n, part)
    return frame.repartition(
        n, F.element_at(F.lit(partition_keys(n).tolist()), part.cast("int") + 1)
    )


def cogrouped(
    left: DataFrame,
    right: DataFrame,
    key: str,
    work: Callable[[pa.Table, pa.Table], pa.Table],
    schema: StructType,
) -> DataFrame:
    def call(
        one: pa.Table, other: pa.Table
    ) -> pa.Table:  # Spark would count ``self`` of a callable as an argument
        return work(one, other)

    return left.groupBy(key).cogroup(right.groupBy(key)).applyInArrow(call, schema)


def partition_keys(n: int, each: int = 1) -> NDArray[np.int32]:
    """Integers such that Spark's hash partitioning sends the b-th one to partition b mod n.

    There are n·each.
    """
    tried = 16 * n * each
    while True:
        parts = spark_hash(np.arange(tried, dtype=np.uint32)).astype(np.int64) % n
        by_part = np.argsort(parts, kind="stable")
        first = np.searchsorted(parts[by_part], np.arange(n))
        if np.bincount(parts, minlength=n).min() >= each:
            return np.concatenate([by_part[first + k] for k in range(each)]).astype(np.int32)
        tried *= 2


def spark_hash(keys: NDArray[np.uint32]) -> NDArray[np.int32]:
    """Murmur3 of an int with seed 42 (Appleby's x86_32 variant), which is ``hash(key)`` of Spark
    SQL.
    """

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

    That is so for frames in Spark's cache, tables of a catalog, readers with options, columns that
    stand in the names of folders, and on Spark Connect, which does not show its plans.
    """
    spark = frame.sparkSession
    if is_connect(spark) or any(spark.conf.get(name, "false") == "true" for name in LENIENT):
        return None
    # It has a plan of its own, because Spark consults its cache once per plan.
    # with a plan of its own: Spark consults its cache once per plan
    own: JavaObject = frame.select("*")
    plan = own._jdf.queryExecution().withCachedData()
    plain = {"AttributeReference"}
    while (
        _kind(plan) == "Project"
        and {_kind(column) for column in _each(plan.projectList())} == plain
    ):
        plan = plan.child()
    if _kind(plan) != "LogicalRelation" or plan.catalogTable().isDefined() or plan.isStreaming():
        return None
    relation = plan.relation()
    if _kind(relation) != "HadoopFsRelation" or _kind(relation.fileFormat()) != "ParquetFileFormat":
        return None
    options = _each(relation.options().keys().toSeq())
    in_folders = relation.partitionSchema().fieldNames()
    if (
        _kind(relation.location()) != "InMemoryFileIndex"
        or {*options} - {"path"}
        or {*in_folders} & {*frame.columns}
    ):
        return None
    files = (
        (str(file.getPath().toString()), int(file.getLen()))
        for file in _each(relation.location().allFiles())
    )
    return {path: length for path, length in sorted(files) if length}


def _kind(node: JavaObject) -> str:
    return str(node.getClass().getSimpleName())


def _each(sequence: JavaObject) -> list[JavaObject]:
    return [sequence.apply(place) for place in range(sequence.size())]


_MAKING = threading.Lock()


class TemporaryFolders:
    """Folders that models read their factors from.

    One is deleted when no plan reads it, at the latest at exit.

    A model may be garbage in Python while its predictions are not computed yet. So references to
    the model do not count. All plans over the same files share one index of these files in Spark's
    driver; a folder is unread once the JVM has collected that index as garbage. Spark Connect shows
    no plans, and there a folder remains until exit. The folders of an application are an attribute
    of it.
    """

    def __init__(self) -> None:
        self._folders: dict[str, Location] = {}  # by URI
        self._readers: dict[
            str, list[JavaObject]
        ] = {}  # weak references of the JVM to the shared index of the files
        self._jvm: JavaObject = None  # of the readers
        atexit.register(self._delete_all)

    @classmethod
    def of(cls, spark: SparkSession) -> TemporaryFolders:
        application: JavaObject = spark if is_connect(spark) else spark.sparkContext
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
        plan: JavaObject = frame._jdf
        plan = plan.queryExecution().analyzed()
        try:
            shared = plan.relation().location()
        except Py4JError:  # the session reads Parquet through the newer interface
            shared = plan.table()
        self._readers.setdefault(folder.uri, []).append(
            self._jvm.java.lang.ref.WeakReference(shared)
        )

    def delete_unread(self) -> None:
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
