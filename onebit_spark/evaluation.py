"""The figures of a model on ratings that it has not seen, computed where the ratings are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from onebit_spark import metrics
from onebit_spark.certificate.certified import Certificate, Terms, holdout_certificate
from onebit_spark.columns import quoted
from onebit_spark.defects import Tally, positive
from onebit_spark.model import OneBitCompletionModel
from onebit_spark.params import plainly_named
from onebit_spark.report.diagnostics import probability_bin

COLLECT_LIMIT = 5_000_000  # ratings whose scores fit on the driver, 17 bytes each
BINS = 1 << 16
SMALLEST_PROBABILITY = 1e-15  # as metrics.log_loss


def evaluate(model: OneBitCompletionModel, ratings: DataFrame, threshold: float | None, tally: Tally) -> dict[str, Any]:
    """All figures, as they stand in metrics.json; ``tally`` is that of ``check_ratings`` on the same ratings.

    One pass. Up to ``COLLECT_LIMIT`` ratings the scores are collected and the AUC is exact (``auc_error`` 0); beyond,
    sums and a histogram of the scores are made in Spark, and the AUC is off by at most ``auc_error``. The error is
    that of the predictions as they are handed out, where a score of exactly 0 is the training majority.
    """
    scored = _scored(model, ratings, threshold)
    figures = _collected(scored) if tally.n <= COLLECT_LIMIT else _binned(scored)
    wrong = figures["n_wrong"]
    low, high = metrics.error_interval(wrong, tally.n)
    minority = tally.n - tally.positives if model.info.majority > 0 else tally.positives
    return {
        "n": tally.n,
        "n_positive": tally.positives,
        "error": wrong / tally.n,
        "error_low": low,
        "error_high": high,
        "majority_error": minority / tally.n,
        "threshold": threshold,
        **figures,
    }


def certify(figures: Mapping[str, Any], terms: Terms, freshness: Mapping[str, Any]) -> Certificate:
    """The holdout certificate of a model from its ``evaluate`` figures on ratings that ``check_fresh`` let pass."""
    made = holdout_certificate(figures["n_wrong"], figures["n"], terms, figures["majority_error"])
    return replace(made, inputs={**made.inputs, "freshness": dict(freshness)})


def _scored(model: OneBitCompletionModel, ratings: DataFrame, threshold: float | None) -> DataFrame:
    """One line a rating: positive, right, unknown_user, unknown_item (boolean), score and probability."""
    user, item, label = (model.info.columns[role] for role in ("user", "item", "label"))
    labelled = ratings.withColumn("__positive", positive(ratings, label, threshold))
    asked = labelled.select(F.col(quoted(user)), F.col(quoted(item)), "__positive")
    scored = plainly_named(model).transform(asked)
    for name, column, known in (("user", user, model.users), ("item", item, model.items)):
        ids = known.select(F.col("id").alias(f"__known_{name}"))
        scored = scored.join(ids, F.col(quoted(column)) == F.col(f"__known_{name}"), "left")
    return scored.select(
        F.col("__positive").alias("positive"),
        ((F.col("prediction") > 0) == F.col("__positive")).alias("right"),
        F.col("__known_user").isNull().alias("unknown_user"),
        F.col("__known_item").isNull().alias("unknown_item"),
        "score",
        "probability",
    )


def _collected(scored: DataFrame) -> dict[str, Any]:
    table = scored.toArrow()
    column = {name: table[name].to_numpy() for name in table.column_names}
    labels = np.where(column["positive"], 1.0, -1.0)
    scores, probabilities = column["score"], column["probability"]
    return {
        "n_wrong": int(np.count_nonzero(~column["right"])),
        "n_unknown_user": int(np.count_nonzero(column["unknown_user"])),
        "n_unknown_item": int(np.count_nonzero(column["unknown_item"])),
        "hinge_loss": metrics.hinge_loss(labels, scores),
        "log_loss": metrics.log_loss(labels, probabilities),
        "brier": metrics.brier(labels, probabilities),
        "calibration_error": metrics.reliability(labels, probabilities).error,
        "auc": _or_none(metrics.auc(labels, scores)),
        "auc_error": 0.0,
    }


def _binned(scored: DataFrame) -> dict[str, Any]:
    """Sums by bin of the score; bins are equally wide on tanh(score/2), which no score leaves."""
    is_positive = F.col("positive")
    sign = F.when(is_positive, 1.0).otherwise(-1.0)
    chance = F.when(is_positive, F.col("probability")).otherwise(1 - F.col("probability"))
    bins = (
        scored.groupBy(
            F.floor((F.tanh(F.col("score") / 2) + 1) / 2 * (BINS - 1)).alias("bin"),
            probability_bin(F.col("probability")).alias("probability_bin"),
        )
        .agg(
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
    column = {name: bins[name].to_numpy() for name in bins.column_names}
    place = np.unique(column["bin"], return_inverse=True)[1]
    positives = np.bincount(place, weights=column["n_positive"])
    area, error = _area(positives, np.bincount(place, weights=column["n"]) - positives)
    reliability = metrics.Reliability.of_bins(
        column["probability_bin"], column["n"], column["probability"], column["n_positive"]
    )
    counts = {name: int(column[name].sum()) for name in ("n_wrong", "n_unknown_user", "n_unknown_item")}
    means = {name: float(column[name].sum() / column["n"].sum()) for name in ("hinge_loss", "log_loss", "brier")}
    return {**counts, **means, "calibration_error": reliability.error, "auc": area, "auc_error": error}


def _area(positives: np.ndarray, negatives: np.ndarray) -> tuple[float | None, float | None]:
    """AUC from counts in ascending bins, and how far off it can be: within a bin any order is possible."""
    pairs = float(positives.sum()) * float(negatives.sum())
    if pairs == 0:
        return None, None
    below = np.cumsum(negatives) - negatives
    tied = float(np.dot(positives.astype(float), negatives))
    return (float(np.dot(positives.astype(float), below)) + tied / 2) / pairs, tied / 2 / pairs


def _or_none(value: float) -> float | None:
    """JSON has no NaN."""
    return None if np.isnan(value) else value
