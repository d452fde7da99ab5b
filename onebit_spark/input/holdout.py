"""One pass over ratings that are to be divided: the counts of both parts."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from onebit_spark.input.collect import Weighed, bytes_per_rating, text_bytes
from onebit_spark.input.columns import HASH_PARTS
from onebit_spark.input.defects import Columns, Tally, count_ratings, fingerprint, fingerprint_of, positive, verdict
from onebit_spark.input.survey import coin


@dataclass(frozen=True)
class Division:
    """Ratings counted before they are divided.

    Parameters
    ----------
    whole : Tally
        All ratings.
    held_out : Tally
        Those that are held out.
    to_fit : Weighed
        The others, so that they need not be counted again.
    """

    whole: Tally
    held_out: Tally
    to_fit: Weighed


def check_split(df: DataFrame, columns: Columns, fraction: float, seed: int) -> Division:
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
    whole = verdict(df, columns, totals, both_classes=False)
    held, n = [totals[f"held_{name}"] for name in HASH_PARTS], totals["held_n"]
    rest = [totals[name] - part for name, part in zip(HASH_PARTS, held, strict=True)]
    weight = bytes_per_rating(df, columns, totals["text"] / whole.n)
    return Division(
        whole,
        Tally(n, totals["held_above"], whole.coding, fingerprint_of(held)),
        Weighed(whole.n - n, weight, fingerprint_of(rest), columns.weight is not None, totals["id_bytes"]),
    )
