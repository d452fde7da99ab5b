"""Ratings held out by a hash of their cell, and one pass that counts both parts."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from onebit_spark.core.config import FitConfig
from onebit_spark.core.hashes import HASH_PARTS
from onebit_spark.core.settings import declared
from onebit_spark.errors import RequestError
from onebit_spark.input.arrow_ratings import Holdout
from onebit_spark.input.batches import SizeEstimate
from onebit_spark.input.collect import bytes_per_rating, text_bytes
from onebit_spark.input.columns import quoted
from onebit_spark.input.rating_checks import Columns, RatingCounts, fingerprint_of
from onebit_spark.input.rating_files import mark_as_derived
from onebit_spark.input.ratings import check_columns, checked_counts, count_ratings, fingerprint, positive


def split_off(df: DataFrame, columns: Columns, fraction: float, seed: int) -> tuple[DataFrame, DataFrame]:
    """The ratings to fit, and about ``fraction`` of them that are held out.

    By a hash of user and item: no label is looked at, the same ratings are held out however the input is partitioned
    or re-read, and all ratings of one cell go the same way. So the holdout is a sample of what the fit has not seen:
    ratings like these, of cells that were kept out at random.
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
            **text_bytes(df, columns),
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
