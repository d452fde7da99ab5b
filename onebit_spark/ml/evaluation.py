"""The figures of a model on ratings that it has not seen, computed on Spark."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from onebit_spark.certificate.held_out import HeldOutCounts
from onebit_spark.core import metrics
from onebit_spark.input.defects import RatingCounts
from onebit_spark.ml.diagnostics import probability_bin
from onebit_spark.ml.fitted_model import FittedModel
from onebit_spark.ml.scored_ratings import scored_by_spark, scored_ratings
from onebit_spark.ml.selection import confidence, group_column, rung
from onebit_spark.predictor.scored import count_by_rung, figures_of, with_rates

COLLECT_LIMIT = 5_000_000  # up to so many ratings the driver collects the scores: 20 bytes per rating, and its group
SCORE_BINS = 1 << 16
SMALLEST_PROBABILITY = 1e-15  # as metrics.log_loss


def measure(
    model: FittedModel, ratings: DataFrame, threshold: float | None, tally: RatingCounts, by: str | None = None
) -> tuple[dict[str, Any], HeldOutCounts]:
    """All figures of metrics.json, and the counts for selective certificates, in one pass.

    Up to ``COLLECT_LIMIT`` ratings, the driver collects the scores, and the AUC is exact (``auc_error`` is 0). For more
    ratings, Spark computes sums and a histogram of the scores, and the AUC is off by at most ``auc_error``. The error
    is that of ``prediction``: a score of exactly 0 counts as the majority label of the training data.

    Parameters
    ----------
    model : FittedModel
        The model.
    ratings : DataFrame
        Ratings with the columns of the fit.
    threshold : float or None
        Labels strictly greater are positive.
    tally : RatingCounts
        The result of ``check_ratings`` on the same ratings.
    by : str, optional
        A column to group the ratings by.
    """
    group = None if by is None else group_column(by)
    if tally.n <= COLLECT_LIMIT:
        figures, lines = figures_of(scored_ratings(model, ratings, threshold, tally.n, group))
    else:
        scored = scored_by_spark(model, ratings, threshold, group)
        placed = rung(model)(confidence(model, F.col("score"), F.col("std")))
        figures, lines = _binned(scored.withColumn("rung", placed))
    figures = with_rates(figures, model.info, tally.n, tally.positives, threshold)
    return figures, count_by_rung(model.info, lines, by)


def _binned(scored: DataFrame) -> tuple[dict[str, Any], pa.Table]:
    """Sums by bin of the score, and by rung and group. The bins are equally wide in tanh(score/2), which is bounded."""
    is_positive = F.col("positive")
    sign = F.when(is_positive, 1.0).otherwise(-1.0)
    chance = F.when(is_positive, F.col("probability")).otherwise(1 - F.col("probability"))
    placed = scored.select(
        "*",
        F.floor((F.tanh(F.col("score") / 2) + 1) / 2 * (SCORE_BINS - 1)).alias("bin"),
        probability_bin(F.col("probability")).alias("probability_bin"),
    )
    by_score, by_rung = ("bin", "probability_bin"), ("rung", "group")
    sets = [[F.col(name) for name in names] for names in (by_score, by_rung)]
    both = (
        placed.groupingSets(sets, *by_score, *by_rung)
        .agg(
            F.grouping("bin").alias("of_rungs"),
            F.count(F.lit(1)).alias("n"),
            F.count_if(is_positive).alias("n_positive"),
            F.count_if(~F.col("right")).alias("n_wrong"),
            F.count_if("unknown_user").alias("n_unknown_user"),
            F.count_if("unknown_item").alias("n_unknown_item"),
            F.sum(F.greatest(1 - sign * F.col("score"), F.lit(0.0))).alias("hinge_loss"),
            F.sum(-F.log(F.greatest(chance, F.lit(SMALLEST_PROBABILITY)))).alias("log_loss"),
            F.sum((1 - chance) ** 2).alias("brier"),
            F.sum("probability").alias("probability"),
        )
        .toArrow()
        .sort_by("bin")
    )
    of_rungs = both["of_rungs"].to_numpy() == 1
    bins, lines = both.filter(pa.array(~of_rungs)).drop_columns(["group"]), both.filter(pa.array(of_rungs))
    column = {name: bins[name].to_numpy() for name in bins.column_names}
    place = np.unique(column["bin"], return_inverse=True)[1]
    positives = np.bincount(place, weights=column["n_positive"])
    area, error = _area(positives, np.bincount(place, weights=column["n"]) - positives)
    reliability = metrics.Reliability.of_bins(
        column["probability_bin"], column["n"], column["probability"], column["n_positive"]
    )
    counts = {name: int(column[name].sum()) for name in ("n_wrong", "n_unknown_user", "n_unknown_item")}
    means = {name: float(column[name].sum() / column["n"].sum()) for name in ("hinge_loss", "log_loss", "brier")}
    return {**counts, **means, "calibration_error": reliability.error, "auc": area, "auc_error": error}, lines


def _area(positives: np.ndarray, negatives: np.ndarray) -> tuple[float | None, float | None]:
    """AUC from counts in ascending bins, and its largest error: within a bin, any order is possible."""
    pairs = float(positives.sum()) * float(negatives.sum())
    if pairs == 0:
        return None, None
    below = np.cumsum(negatives) - negatives
    tied = float(np.dot(positives.astype(float), negatives))
    return (float(np.dot(positives.astype(float), below)) + tied / 2) / pairs, tied / 2 / pairs
