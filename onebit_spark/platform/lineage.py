"""Where the rows of a DataFrame come from: its files, and the query over them. No row is read.

Much of it is private to Spark.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from onebit_spark.platform.file_systems import statuses
from onebit_spark.platform.files import Origin
from onebit_spark.platform.sessions import is_connect

ALL_FIELDS = 1_000_000  # of a node in the text of a plan, which is shortened by default
OWN_CODE = ")#-1"  # so a function of the user's in Python ends there
CHANGING = re.compile(r"\b(current_\w+|now|localtimestamp)\(")  # functions whose value is that of the day
WITHOUT_FILES = ("Range", "OneRowRelation")  # leaves whose rows are known from the plan
LISTINGS = ("InMemoryFileIndex", "CatalogFileIndex", "MetadataLogFileIndex")  # Spark's own: a file counts as a whole


def origin_of(frame: DataFrame) -> Origin | None:
    """The origin of the rows; None if files and query do not determine them.

    That is so for data from this process, for tables that are more than their files (Delta, Iceberg, JDBC), for
    subqueries in expressions, for functions such as ``rand`` and ``current_date``, and for functions in Python, whose
    code cannot be compared.
    """
    plan: Any = frame._jdf
    plan = plan.queryExecution().analyzed()
    readers: list[str] = []
    names: set[str] = set()
    text = _text(frame.sparkSession, plan)
    if OWN_CODE in text or CHANGING.search(text) or not plan.deterministic() or not plan.subqueriesAll().isEmpty():
        return None
    leaves = plan.collectLeaves()
    for place in range(leaves.size()):
        leaf = leaves.apply(place)
        kind = leaf.getClass().getSimpleName()
        if kind in WITHOUT_FILES:
            continue
        if kind != "LogicalRelation" or leaf.relation().getClass().getSimpleName() != "HadoopFsRelation":
            return None
        relation = leaf.relation()
        if relation.location().getClass().getSimpleName() not in LISTINGS:
            return None
        readers += [relation.fileFormat().getClass().getName(), relation.options().toString(), relation.schema().json()]
        readers += sorted(relation.location().inputFiles())  # so that two sources do not change places
        names.update(relation.location().inputFiles())
    digest = hashlib.sha256("\n".join([text, *readers]).encode()).hexdigest()[:32]
    return Origin(digest, statuses(frame.sparkSession, sorted(names)))


def _text(spark: SparkSession, plan: Any) -> str:
    """The plan in words, without the names and numbers that Spark gives to columns."""
    sessions: Any = spark._jvm.SparkSession  # type: ignore[union-attr]
    whole: Any = spark.newSession()
    whole.conf.set("spark.sql.debug.maxToStringFields", str(ALL_FIELDS))
    before = sessions.getActiveSession()
    sessions.setActiveSession(whole._jsparkSession)
    try:
        return str(plan.canonicalized().toString())
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


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
    own: Any = frame.select("*")  # with a plan of its own: Spark looks into its cache once per plan
    plan = own._jdf.queryExecution().withCachedData()
    while _kind(plan) == "Project" and {_kind(column) for column in _each(plan.projectList())} == {
        "AttributeReference"
    }:
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
