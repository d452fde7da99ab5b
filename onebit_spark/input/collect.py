"""Ratings of a DataFrame on the driver, and ratings that are held out.

    estimate_size ─► n, bytes per rating                            one aggregation; none if Spark's cache knows n
    collect_ratings ─► the ratings, checked and numbered            one collect, or several that are small enough;
                                                                    none if this process can read their files
    split_off, check_split ─► ratings to fit and held-out ones      by a hash of their cell; one pass counts both

What was collected is what is checked, fitted and certified. If the caller gives a fingerprint of what it counted
before, the collected ratings must have it. No Python object is made per rating.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, DataType, DecimalType, StringType

from onebit_spark.core.config import FitConfig, declared
from onebit_spark.core.hashes import HASH_PARTS, limit_for
from onebit_spark.errors import RequestError
from onebit_spark.input.arrow_ratings import Holdout
from onebit_spark.input.batches import (
    ITEM,
    TABLE_BYTES,
    USER,
    Batches,
    CollectedRatings,
    RatingCollector,
    SizeEstimate,
    joined,
    read_batch,
)
from onebit_spark.input.rating_checks import (
    Columns,
    RatingCounts,
    fingerprint_of,
    may_be_refused,
    not_deterministic,
    of_both_classes,
)
from onebit_spark.input.rating_files import rating_files
from onebit_spark.input.ratings import (
    aggregated,
    check_columns,
    check_ratings,
    checked_counts,
    count_ratings,
    fingerprint,
    mark_as_derived,
    positive,
    quoted,
    type_of,
    unchecked_ratings,
)
from onebit_spark.platform.arrow_stream import cached_rows, collect_in_parts
from onebit_spark.platform.binary_cells import one_ahead

WIDTHS = {"boolean": 1, "tinyint": 1, "smallint": 2, "int": 4, "float": 4, "date": 4}  # bytes of an id; else 8


def estimate_size(df: DataFrame, columns: Columns) -> SizeEstimate:
    """Count the ratings. What is wrong with them is found when they are collected."""
    check_columns(df, columns)
    if not _text_ids(df, columns) and (n := cached_rows(df)) is not None:
        return SizeEstimate(n, bytes_per_rating(df, columns, 0), weighted=columns.weight is not None)
    totals = aggregated(df, {"n": F.count(F.lit(1)), **text_sizes(df, columns)})
    n = totals["n"]
    size = bytes_per_rating(df, columns, totals["text"] / max(1, n))
    return SizeEstimate(n, size, weighted=columns.weight is not None, id_bytes=totals["id_bytes"])


def text_sizes(df: DataFrame, columns: Columns) -> dict[str, Column]:
    """Aggregates of the ids that are text: the bytes of all, and, by an estimate, of the different ones."""
    ids = [F.col(quoted(name)) for name in _text_ids(df, columns)]
    sizes = [F.octet_length(name) + 4 for name in ids]
    different = (F.approx_count_distinct(name) * F.avg(size) for name, size in zip(ids, sizes, strict=True))
    return {"text": F.sum(sum(sizes, F.lit(0))), "id_bytes": sum(different, F.lit(0.0))}


def bytes_per_rating(df: DataFrame, columns: Columns, text: float) -> float:
    """Bytes of a rating on its way; those of the ids that are ``text`` are known."""
    kinds = [field.dataType for field in unchecked_ratings(df, columns).schema]
    widths = (WIDTHS.get(kind.simpleString(), 16 if isinstance(kind, DecimalType) else 8) for kind in kinds)
    return text + sum(1 / 8 + (0 if _is_text(kind) else width) for kind, width in zip(kinds, widths, strict=True))


def _text_ids(df: DataFrame, columns: Columns) -> list[str]:
    return [name for name in (columns.user, columns.item) if _is_text(type_of(df, name))]


def _is_text(kind: DataType) -> bool:
    return isinstance(kind, StringType | BinaryType)


def collect_ratings(df: DataFrame, columns: Columns, size: SizeEstimate, most_bytes: int) -> CollectedRatings:
    """The ratings, checked. ``most_bytes`` bounds one collect."""
    parts = max(1, int(np.ceil(size.n * size.bytes_per_rating / most_bytes)))
    files = rating_files(df, columns)
    batches = None if files is None else files.batches()

    def collector_of(batches: Batches) -> RatingCollector:
        collector = RatingCollector(limit_for(size.n))
        for table in joined(batches, lambda batch: int(batch.nbytes), TABLE_BYTES):  # encoded with one dictionary
            collector.add(table, read_batch(table, columns.threshold))
        return collector

    if batches is None:
        collected = collect_in_parts(unchecked_ratings(df, columns), parts, F.xxhash64(USER, ITEM), collector_of)
    else:
        collected = collector_of(one_ahead(batches))
    totals, changed = collected.facts, None
    if size.fingerprint is not None and (totals["n"], fingerprint_of(totals)) != (size.n, size.fingerprint):
        changed = not_deterministic(f"{size.n:,} ratings were counted, and those that came after are others")
    if totals["absent"] or may_be_refused(columns, totals):
        check_ratings(df, columns)  # counts what is wrong, and refuses it
        raise changed or not_deterministic("ratings came that cannot be fitted, and are no longer there")
    if changed is not None:
        raise changed
    return collected.ratings(of_both_classes(checked_counts(df, columns, totals), columns))


def split_off(df: DataFrame, columns: Columns, fraction: float, seed: int) -> tuple[DataFrame, DataFrame]:
    """The ratings to fit, and about ``fraction`` of them that are held out.

    A hash of user and item decides. So the labels play no part, the same ratings are held out however the input is
    partitioned or read again, and all ratings of one cell go the same way.
    """
    if problem := declared(FitConfig)["seed"].problem(seed):
        raise RequestError(str(problem))
    check_columns(df, columns)
    held_out = coin(columns, fraction, seed)
    return mark_as_derived(df.where(~held_out), df, columns, Holdout(fraction, seed)), df.where(held_out)


def coin(columns: Columns, fraction: float, seed: int) -> Column:
    """Whether a cell is held out."""
    ids = (F.col(quoted(name)) for name in (columns.user, columns.item))
    drawn = F.shiftrightunsigned(F.xxhash64(F.lit(seed), *ids), 32)  # 32 bits
    return drawn < F.lit(round(fraction * 2**32))


@dataclass(frozen=True)
class SplitCounts:
    """Ratings counted before they are divided."""

    whole: RatingCounts
    held_out: RatingCounts
    to_fit: SizeEstimate  # the others, so that they need not be counted again


def check_split(df: DataFrame, columns: Columns, fraction: float, seed: int) -> SplitCounts:
    """Validate and count all ratings, and those that ``split_off`` holds out, in one pass."""
    held_out = coin(columns, fraction, seed)
    parts = zip(HASH_PARTS, fingerprint(df, columns), strict=True)
    totals = count_ratings(
        df,
        columns,
        {
            "held_n": F.count_if(held_out),
            "held_above": F.count_if(held_out & positive(df, columns.label, columns.threshold)),
            **{f"held_{name}": F.sum(F.when(held_out, part)) for name, part in parts},
            **text_sizes(df, columns),
        },
    )
    whole = checked_counts(df, columns, totals)
    held = {name: totals[f"held_{name}"] for name in HASH_PARTS}
    rest = fingerprint_of({name: totals[name] - held[name] for name in HASH_PARTS})
    n, size = totals["held_n"], bytes_per_rating(df, columns, totals["text"] / whole.n)
    return SplitCounts(
        whole,
        RatingCounts(n, totals["held_above"], whole.coding, fingerprint_of(held)),
        SizeEstimate(whole.n - n, size, rest, columns.weight is not None, totals["id_bytes"]),
    )
