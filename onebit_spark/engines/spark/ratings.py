"""The ratings of a DataFrame: counted and checked in the tasks, or collected and checked on the
driver.

    check_ratings ─► counts, or every defect                        one pass
    check_split   ─► counts of all ratings and of held-out ones     one pass
    estimate_size ─► n, bytes per rating                one pass; none if Spark's cache has n
    collect_ratings ─► the ratings, checked and numbered   one collect, or several small ones;
                                                                    none if this process can read
                                                                    their files

What was collected is what is checked, fitted and certified. If the caller gives a fingerprint of
what it counted before, the collected ratings must have it. A count in SQL takes as long: of 10⁷
cached ratings 1.0 to 1.4 s, in tasks .9 to 1.2 s; of Parquet files 3.1 s and 1.0 s.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from onebit_spark.data.hashes import HASH_PARTS, limit_for
from onebit_spark.data.id_index import TextIds
from onebit_spark.data.ratings import (
    ITEM,
    USER,
    Batches,
    CollectedRatings,
    Columns,
    Holdout,
    RatingCollector,
    RatingCounts,
    RatingTally,
    SizeEstimate,
    fingerprint_of,
    may_be_refused,
    not_deterministic,
    of_both_classes,
    rating_tables,
    read_batch,
)
from onebit_spark.engines.spark.columns import check_columns, given_ratings, type_of
from onebit_spark.engines.spark.frames import cached_rows, collect_in_parts, schema_of
from onebit_spark.engines.spark.rating_files import map_ratings, rating_files

# ---- counted in the tasks -----------------------------------------------------------------------

COUNTED = schema_of("counted string")
TEXT = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
# Bytes of a value; other types take 8.
WIDTHS = {
    "boolean": 1,
    "tinyint": 1,
    "smallint": 2,
    "int": 4,
    "float": 4,
    "date": 4,
}


@dataclass(frozen=True)
class RatingSums:
    """What is counted of some ratings. The sums of the tasks add up."""

    tally: RatingTally
    text: dict[str, TextIds]  # of the columns of ids that are text

    @classmethod
    def empty(cls, columns: Columns, boolean: bool) -> RatingSums:
        return cls(RatingTally(columns, boolean), {USER: TextIds(), ITEM: TextIds()})

    @property
    def text_bytes(self) -> int:
        return sum(ids.bytes for ids in self.text.values())

    @property
    def id_bytes(self) -> float:
        """The bytes of the different ids that are text."""
        n = max(1, self.tally.facts["n"])
        return sum(ids.bytes / n * ids.n_different for ids in self.text.values())

    def line(self) -> str:
        text = {name: (ids.bytes, ids.lowest.tolist()) for name, ids in self.text.items()}
        return json.dumps({"tally": self.tally.state(), "text": text})

    def merge(self, line: str) -> None:
        other = json.loads(line)
        self.tally.merge(other["tally"])
        for name, ids in other["text"].items():
            self.text[name].merge(TextIds(*ids))


@dataclass(frozen=True)
class CountRatings:
    """The sums of the ratings of a task, in one line."""

    columns: Columns
    boolean: bool  # whether the labels are booleans
    holdout: Holdout | None = None

    def __call__(self, batches: Batches) -> Batches:
        sums = RatingSums.empty(self.columns, self.boolean)
        for table in rating_tables(batches):
            parts = table.parts(self.holdout)
            sums.tally.add(
                table, [read_batch(part, self.columns.threshold).facts for part in parts]
            )
            for name, ids in sums.text.items():
                if table.given[name].type in TEXT:
                    ids.add(table.given[name])
        yield pa.RecordBatch.from_pydict({"counted": [sums.line()]})


def count_ratings(df: DataFrame, columns: Columns, holdout: Holdout | None = None) -> RatingSums:
    """Count the ratings and what is wrong with them, in one pass."""
    check_columns(df, columns)
    boolean = isinstance(type_of(df, columns.label), T.BooleanType)
    sums = RatingSums.empty(columns, boolean)
    lines = map_ratings(df, columns, CountRatings(columns, boolean, holdout), COUNTED)
    for line in lines.toArrow()["counted"].to_pylist():
        sums.merge(line)
    return sums


def check_ratings(df: DataFrame, columns: Columns) -> RatingCounts:
    """Validate and count without the ids, in one pass. A single class is allowed."""
    return count_ratings(df, columns).tally.counts()


@dataclass(frozen=True)
class SplitCounts:
    whole: RatingCounts
    held_out: RatingCounts
    to_fit: SizeEstimate  # the others, so that they need not be counted again


def check_split(df: DataFrame, columns: Columns, fraction: float, seed: int) -> SplitCounts:
    """Validate and count all ratings, and those that ``split_off`` holds out, in one pass."""
    sums = count_ratings(df, columns, Holdout(fraction, seed))
    facts = sums.tally.facts
    whole = sums.tally.counts()
    held_out = sums.tally.held_out(whole.coding)
    rest = fingerprint_of({name: facts[name] - sums.tally.held_facts[name] for name in HASH_PARTS})
    size = bytes_per_rating(df, columns, sums.text_bytes / whole.n)
    to_fit = SizeEstimate(
        whole.n - held_out.n, size, rest, columns.weight is not None, sums.id_bytes
    )
    return SplitCounts(whole, held_out, to_fit)


def estimate_size(df: DataFrame, columns: Columns) -> SizeEstimate:
    """Count the ratings. What is wrong with them is found when they are collected."""
    check_columns(df, columns)
    weighted = columns.weight is not None
    if not any(_is_text(type_of(df, name)) for name in (columns.user, columns.item)):
        known = cached_rows(df)
        n = df.count() if known is None else known
        return SizeEstimate(n, bytes_per_rating(df, columns, 0), weighted=weighted)
    sums = count_ratings(df, columns)
    n = sums.tally.facts["n"]
    size = bytes_per_rating(df, columns, sums.text_bytes / max(1, n))
    return SizeEstimate(n, size, weighted=weighted, id_bytes=sums.id_bytes)


def bytes_per_rating(df: DataFrame, columns: Columns, text: float) -> float:
    """Bytes of a rating on its way to the driver, of which its ids take ``text`` if they
    are text.
    """
    total = text
    for field in given_ratings(df, columns).schema:
        kind = field.dataType
        total += 1 / 8
        if isinstance(kind, T.DecimalType):
            total += 16
        elif field.name not in (USER, ITEM) or not _is_text(kind):
            total += WIDTHS.get(kind.simpleString(), 8)
    return total


def _is_text(kind: T.DataType) -> bool:
    return isinstance(kind, T.StringType | T.BinaryType)


# ---- on the driver -----------------------------------------------------------------------------


def collect_ratings(
    df: DataFrame, columns: Columns, size: SizeEstimate, most_bytes: int
) -> CollectedRatings:
    """The ratings, checked. ``most_bytes`` bounds one collect."""
    parts = max(1, int(np.ceil(size.n * size.bytes_per_rating / most_bytes)))
    files = rating_files(df, columns)
    read = None if files is None else files.batches()

    def collector_of(batches: Batches) -> RatingCollector:
        collector = RatingCollector(limit_for(size.n))
        for table in rating_tables(batches, ahead=read is not None):
            collector.add(table.plain, read_batch(table.plain, columns.threshold))
        return collector

    if read is None:
        collected = collect_in_parts(
            given_ratings(df, columns), parts, F.xxhash64(USER, ITEM), collector_of
        )
    else:
        collected = collector_of(read)
    facts = collected.facts
    changed = None
    if size.fingerprint is not None and (facts["n"], fingerprint_of(facts)) != (
        size.n,
        size.fingerprint,
    ):
        changed = not_deterministic(
            f"{size.n:,} ratings were counted, and those that came after are others"
        )
    counts = counts_of_facts(df, columns, facts)
    if changed is not None:
        raise changed
    return collected.ratings(of_both_classes(counts, columns))


def counts_of_facts(df: DataFrame, columns: Columns, facts: Counter[str]) -> RatingCounts:
    """The counts of ratings that were read.

    If they cannot be fitted, a second pass finds examples.
    """
    tally = RatingTally(columns, isinstance(type_of(df, columns.label), T.BooleanType))
    if facts["absent"] or may_be_refused(columns, facts):
        check_ratings(df, columns)
        raise not_deterministic("ratings came that cannot be fitted, and are no longer there")
    return tally.counts_of(facts)
