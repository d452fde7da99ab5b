"""The ratings of a DataFrame: counted and checked, and all of them on the driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

import numpy as np
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from onebit_spark.data.hashes import HASH_PARTS, PART_BITS, limit_for
from onebit_spark.data.limits import LARGEST_WEIGHT
from onebit_spark.data.ratings import (
    BIT,
    EXAMPLES,
    ITEM,
    TABLE_BYTES,
    USER,
    Batches,
    CollectedRatings,
    Columns,
    RatingCollector,
    RatingCounts,
    SizeEstimate,
    as_examples,
    counts_if_sound,
    fingerprint_of,
    joined,
    may_be_refused,
    not_deterministic,
    of_both_classes,
    read_batch,
)
from onebit_spark.engines.spark.columns import (
    cell_hash,
    check_columns,
    coin,
    label_number,
    missing,
    positive,
    quoted,
    type_of,
    unchecked_ratings,
    weight_number,
)
from onebit_spark.engines.spark.frames import cached_rows, collect_in_parts
from onebit_spark.engines.spark.rating_files import rating_files
from onebit_spark.engines.spark.sessions import one_ahead

MARKS = "__onebit_marks"


def check_ratings(df: DataFrame, columns: Columns) -> RatingCounts:
    """Validate and count without the ids: one aggregation to a single line. A single class is allowed."""
    return checked_counts(df, columns, count_ratings(df, columns))


def count_ratings(df: DataFrame, columns: Columns, further: Mapping[str, Column] | None = None) -> dict[str, int]:
    """The totals that ``checked_counts`` takes, and ``further`` aggregates of ``df`` by name, in one pass.

    A flag is 1 if such ratings are there. Only if one must be refused does a second pass count them.
    """
    check_columns(df, columns)
    # A column of its own, so that Spark computes it once per rating though two aggregates use it.
    placed = df.withColumns({MARKS: flag_bits(df, columns)})
    aggregates = {
        "n": F.count(F.lit(1)),
        "above": F.count_if(F.col(MARKS).bitwiseAND(F.lit(BIT["above"])) != 0),
        "marks": F.bit_or(MARKS),
        **{name: F.sum(part) for name, part in zip(HASH_PARTS, fingerprint(df, columns), strict=True)},
        **(further or {}),
    }
    totals = aggregated(placed, aggregates)
    present = {name: int(bool(totals["marks"] & bit)) for name, bit in BIT.items()}
    if may_be_refused(columns, present):
        present = aggregated(df, {name: F.count_if(flag) for name, flag in _flags(df, columns).items()})
    return {**present, **totals}


def aggregated(df: DataFrame, aggregates: Mapping[str, Column]) -> dict[str, int]:
    line = df.agg(*(aggregate.alias(name) for name, aggregate in aggregates.items())).first()
    assert line is not None
    return {name: line[name] or 0 for name in aggregates}


# ---- what is counted -------------------------------------------------------------------------------------------------


def flag_bits(df: DataFrame, columns: Columns) -> Column:
    bits = [F.when(flag, F.lit(BIT[name])).otherwise(0) for name, flag in _flags(df, columns).items()]
    return reduce(lambda a, b: a.bitwiseOR(b), bits)


def _flags(df: DataFrame, columns: Columns) -> dict[str, Column]:
    """One boolean column per name of ``BIT``."""
    value, absent = label_number(df, columns.label), missing(df, columns.label)
    usable = ~absent & value.isNotNull() & ~F.isnan(value)
    flags = {
        "bad_user": missing(df, columns.user),
        "bad_item": missing(df, columns.item),
        "bad_label": absent | (value.isNotNull() & F.isnan(value)),
        "text_label": ~absent & value.isNull(),
        "bad_weight": F.lit(False),
        "plus": usable & (value == 1),
        "minus": usable & (value == -1),
        "zero": usable & (value == 0),
        "other": usable & ~value.isin(1.0, -1.0, 0.0),
        "above": usable & (value > F.lit(float(columns.threshold or 0.0))),
    }
    if columns.weight is not None:
        weight = weight_number(columns.weight)
        largest = F.lit(LARGEST_WEIGHT).cast("float")
        flags["bad_weight"] = weight.isNull() | (weight < 0) | (weight > largest)  # NaN is above all numbers
    return {name: F.coalesce(flags[name], F.lit(False)).alias(name) for name in BIT}


def fingerprint(df: DataFrame, columns: Columns) -> list[Column]:
    """56 bits of a hash of the rating, in two columns named ``HASH_PARTS``. A set's fingerprint is their sums.

    A sum changes if a rating occurs twice. With an exclusive or, the two would cancel.
    """
    cell = cell_hash(df, columns)
    whole = F.when(positive(df, columns.label, columns.threshold), F.bitwise_not(cell)).otherwise(cell)
    if columns.weight is not None:
        whole = whole.bitwiseXOR(F.xxhash64(weight_number(columns.weight)))
    mask = F.lit((1 << PART_BITS) - 1).cast("bigint")
    shifted = (whole, F.shiftrightunsigned(whole, PART_BITS))
    return [part.bitwiseAND(mask).alias(name) for name, part in zip(HASH_PARTS, shifted, strict=True)]


def checked_counts(df: DataFrame, columns: Columns, totals: Mapping[str, int]) -> RatingCounts:
    boolean = isinstance(type_of(df, columns.label), T.BooleanType)

    def examples(flag: str) -> str:
        return as_examples(df.where(_flags(df, columns)[flag]).select(*map(quoted, columns.names)).take(EXAMPLES))

    return counts_if_sound(columns, totals, boolean, examples)


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
    """Bytes of a rating on its way to the driver, of which its ids take ``text`` if they are text."""
    kinds = [field.dataType for field in unchecked_ratings(df, columns).schema]
    widths = (WIDTHS.get(kind.simpleString(), 16 if isinstance(kind, T.DecimalType) else 8) for kind in kinds)
    return text + sum(1 / 8 + (0 if _is_text(kind) else width) for kind, width in zip(kinds, widths, strict=True))


def _text_ids(df: DataFrame, columns: Columns) -> list[str]:
    return [name for name in (columns.user, columns.item) if _is_text(type_of(df, name))]


def _is_text(kind: T.DataType) -> bool:
    return isinstance(kind, T.StringType | T.BinaryType)


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


@dataclass(frozen=True)
class SplitCounts:
    whole: RatingCounts
    held_out: RatingCounts
    to_fit: SizeEstimate  # the others, so that they need not be counted again


def check_split(df: DataFrame, columns: Columns, fraction: float, seed: int) -> SplitCounts:
    """Validate and count all ratings, and those that ``split_off`` holds out, in one pass."""
    held_out = coin(columns, fraction, seed)
    parts = zip(HASH_PARTS, fingerprint(df, columns), strict=True)
    further = {
        "held_n": F.count_if(held_out),
        "held_above": F.count_if(held_out & positive(df, columns.label, columns.threshold)),
        **{f"held_{name}": F.sum(F.when(held_out, part)) for name, part in parts},
    }
    totals = count_ratings(df, columns, {**further, **text_sizes(df, columns)})
    whole = checked_counts(df, columns, totals)
    held = {name: totals[f"held_{name}"] for name in HASH_PARTS}
    rest = fingerprint_of({name: totals[name] - held[name] for name in HASH_PARTS})
    n, size = totals["held_n"], bytes_per_rating(df, columns, totals["text"] / whole.n)
    kept = RatingCounts(n, totals["held_above"], whole.coding, fingerprint_of(held))
    return SplitCounts(
        whole, kept, SizeEstimate(whole.n - n, size, rest, columns.weight is not None, totals["id_bytes"])
    )
