"""The Parquet files that a DataFrame reads, by its plan. No row is read.

Much of it is private to Spark.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame

from onebit_spark.platform.sessions import is_connect

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
