"""The ratings of a DataFrame, packed in the executors (``packing``) and kept on their disks."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass

from pyspark import StorageLevel, TaskContext
from pyspark.sql import DataFrame

from onebit_spark.input.packing import Pack
from onebit_spark.input.rating_checks import Columns
from onebit_spark.input.rating_files import rating_files
from onebit_spark.input.ratings import raw
from onebit_spark.platform.arrow_stream import map_rows, rows_session
from onebit_spark.platform.binary_cells import schema_of
from onebit_spark.platform.plans import cached, cut_from_plan, expect_long_lines, working_session

PACKED = schema_of(
    "segment long, place int, facts string, user_ids binary, item_ids binary, users binary, codes binary, "
    "weights binary, cells binary, user_counts binary, item_counts binary"
)


@dataclass(frozen=True)
class PackedRatings:
    """The packed ratings, and what was counted of them."""

    bundles: DataFrame  # the lines of PACKED, in a session that reads one line at a time
    # Sums over all bundles: ``n``, the flags of ``defects``, HASH_PARTS, ``absent``, ``weight`` and
    # ``summary_bytes``, the size of SUMMARY.
    facts: Counter[str]
    cached: DataFrame  # the same lines, where they are kept, in a session that sends many short rows to Python

    @classmethod
    def of(cls, df: DataFrame, columns: Columns, release: ExitStack) -> PackedRatings:
        """Read the ratings once, by one job. The bundles remain on the executors' disks until ``release`` is closed."""
        kept = cached(packed_lines(df, columns), release, StorageLevel.DISK_ONLY)
        facts = sum_facts(kept)
        own = working_session(df.sparkSession)
        expect_long_lines(own, 1)
        return cls(cut_from_plan(kept, own), facts, kept)


def packed_lines(df: DataFrame, columns: Columns) -> DataFrame:
    """The lines of PACKED, made by one pass over the ratings whenever they are asked for."""
    own, pack = rows_session(df.sparkSession), Pack(columns.threshold, first_segment)
    files = rating_files(df, columns)
    lines = None if files is None else files.mapped(own, pack, PACKED)
    return map_rows(cut_from_plan(raw(df, columns), own), pack, PACKED) if lines is None else lines


def sum_facts(lines: DataFrame) -> Counter[str]:
    """The facts of all bundles, summed."""
    facts: Counter[str] = Counter()
    for text in lines.select("facts").toArrow()["facts"].to_pylist():
        facts.update(json.loads(text))
    return facts


def first_segment() -> int:
    """The number of a task's first segment."""
    context = TaskContext.get()
    return (0 if context is None else context.partitionId()) << 32
