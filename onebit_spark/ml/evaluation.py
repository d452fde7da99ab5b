"""How a model does on ratings: the figures of metrics.json, the plots of a report, a calibration. On Spark."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from onebit_spark.certificate.held_out import HeldOutCounts
from onebit_spark.core import metrics
from onebit_spark.core.calibration import Calibration
from onebit_spark.core.metrics import RELIABILITY_BINS
from onebit_spark.errors import RequestError
from onebit_spark.input.defects import RatingCounts, check_ratings
from onebit_spark.ml.fitted_model import FittedModel
from onebit_spark.ml.scored_ratings import counting, scored_by_spark, scored_ratings
from onebit_spark.ml.selection import confidence, count_by_rung, group_column, rung

COLLECT_LIMIT = 5_000_000  # up to so many ratings the driver collects the scores: 20 bytes per rating, and its group
SCORE_BINS = 1 << 16
SMALLEST_PROBABILITY = 1e-15  # as metrics.log_loss
SAMPLE = 500_000  # about so many ratings are used: enough for each figure of a report
CALIBRATING = 5_000_000  # and so many for a calibration
SCORE_WIDTH = 0.1  # of a bin of the histogram
CONFIDENCE_BINS = -4.0, 12.0, 6  # range of log₂ of the confidence, and bins per factor of two
CELL_WIDTHS = 0.05, 0.1  # bins of the score and of log std, within which the calibration does not distinguish ratings


def measure(
    model: FittedModel, ratings: DataFrame, threshold: float | None, tally: RatingCounts, by: str | None = None
) -> tuple[dict[str, Any], HeldOutCounts]:
    """All figures of metrics.json, and the counts for selective certificates, in one pass.

    Up to ``COLLECT_LIMIT`` ratings, the driver collects the scores, and the AUC is exact (``auc_error`` is 0). For more
    ratings, Spark computes sums and a histogram of the scores, and the AUC is off by at most ``auc_error``. The error
    is that of ``prediction``: a score of exactly 0 counts as the majority label of the training data. ``tally`` is the
    result of ``check_ratings`` on the same ratings; ``by`` is a column to group them by.
    """
    group = None if by is None else group_column(by)
    if tally.n <= COLLECT_LIMIT:
        figures, lines = _collected(scored_ratings(model, ratings, threshold, tally.n, group))
    else:
        scored = scored_by_spark(model, ratings, threshold, group)
        placed = rung(model)(confidence(model, F.col("score"), F.col("std")))
        figures, lines = _binned(scored.withColumn("rung", placed))
    counted = count_by_rung(model, lines, by)
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
    }, counted


def _collected(table: pa.Table) -> tuple[dict[str, Any], pa.Table]:
    column = {name: table[name].to_numpy() for name in table.column_names if name != "group"}
    labels = np.where(column["positive"], 1.0, -1.0)
    scores, probabilities = column["score"], column["probability"]
    lines = {"n": np.ones(len(scores), np.int64), "n_wrong": ~column["right"], "n_positive": column["positive"]}
    counts = {name: pa.array(each.astype(np.int64)) for name, each in lines.items()}
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
    }, pa.table({"rung": table["rung"], "group": table["group"], **counts})


def _binned(scored: DataFrame) -> tuple[dict[str, Any], pa.Table]:
    """Sums by bin of the score, and by rung and group. The bins are equally wide in tanh(score/2), which is bounded."""
    is_positive = F.col("positive")
    sign = F.when(is_positive, 1.0).otherwise(-1.0)
    chance = F.when(is_positive, F.col("probability")).otherwise(1 - F.col("probability"))
    placed = scored.select(
        "*",
        F.floor((F.tanh(F.col("score") / 2) + 1) / 2 * (SCORE_BINS - 1)).alias("bin"),
        F.least(F.floor(F.col("probability") * RELIABILITY_BINS), F.lit(RELIABILITY_BINS - 1)).alias("probability_bin"),
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


def _or_none(value: float) -> float | None:
    """JSON has no NaN."""
    return None if np.isnan(value) else value


# ---- in a few hundred numbers: reliability, scores by class, risk and coverage, calibration --------------------------


def diagnose(
    model: FittedModel, ratings: DataFrame, source: str, fitted: bool, tally: RatingCounts | None = None
) -> dict[str, Any]:
    """The figures that a report shows, of all ratings or of a sample; ``source`` says in words what they are.

    ``fitted``: the model was fitted to them, so that the figures flatter it. ``tally``: of the ratings, if they were
    checked before.
    """
    scored, sampled = _scored(model, ratings, SAMPLE, tally)
    column = {name: scored[name].to_numpy() for name in ("positive", "right", "score", "probability", "confidence")}
    positive, wrong, n = column["positive"], ~column["right"], len(scored)
    reliability = metrics.reliability(np.where(positive, 1.0, -1.0), column["probability"])
    edges, place = np.unique(np.floor(column["score"] / SCORE_WIDTH).astype(np.int64), return_inverse=True)
    counts = {
        name: np.bincount(place[chosen], minlength=len(edges)).tolist()
        for name, chosen in (("positive", positive), ("negative", ~positive))
    }
    return {
        "source": f"a sample of {source}" if sampled else source,
        "fitted": fitted,
        "n": n,
        "error": float(np.count_nonzero(wrong) / n),
        "calibration_error": reliability.error,
        "reliability": reliability.as_dict(),
        "scores": {"width": SCORE_WIDTH, "low": (edges * SCORE_WIDTH).tolist(), **counts},
        "risk_coverage": risk_coverage(confidence_bin(column["confidence"]), np.ones(n), wrong),
    }


def confidence_bin(confidence: NDArray[np.float64]) -> NDArray[np.int64]:
    """Up to 96 bins that are equally wide on the logarithm."""
    low, high, per_octave = CONFIDENCE_BINS
    inside = np.clip(confidence, 2.0**low, 2.0**high)
    return np.floor((np.log2(inside) - low) * per_octave).astype(np.int64)


def risk_coverage(bins: Any, n: Any, wrong: Any) -> dict[str, list[float]]:
    """The curve of ``share`` and ``error``: if only the most confident share is answered, so many answers are wrong."""
    place = np.unique(-np.asarray(bins), return_inverse=True)[1]
    answered, errors = (np.cumsum(np.bincount(place, weights=each)) for each in (n, wrong))
    return {"share": (answered / answered[-1]).tolist(), "error": (errors / answered).tolist()}


def calibrate(model: FittedModel, ratings: DataFrame) -> Calibration:
    """The map from score and spread to probability that is likeliest on these ratings, which must not be fitted."""
    scored, _ = _scored(model, ratings, CALIBRATING)
    score, std, positive = (scored[name].to_numpy() for name in ("score", "std", "positive"))
    if positive.all() or not positive.any():
        raise RequestError("a calibration needs ratings of both classes: hold out more ratings")
    by_score, by_spread = CELL_WIDTHS
    cells = np.stack([np.floor(score / by_score), np.floor(np.log(np.maximum(std, 1e-12)) / by_spread)], axis=1)
    place = np.unique(cells, axis=0, return_inverse=True)[1].ravel()
    n, positives, scores, variances = (
        np.bincount(place, weights=each).astype(np.float64)
        for each in (np.ones(len(score)), positive.astype(np.float64), score, std * std)
    )
    return Calibration.fit(scores / n, variances / n, positives, n - positives)


def _scored(
    model: FittedModel, ratings: DataFrame, most: int, tally: RatingCounts | None = None
) -> tuple[pa.Table, bool]:
    """The ratings scored, or a sample of about ``most``, and whether it is a sample."""
    threshold = model.info.threshold
    ratings, columns = counting(model, ratings, threshold)
    n = (tally or check_ratings(ratings, columns)).n
    sampled = n > most
    if sampled:
        ratings = ratings.sample(fraction=most / n, seed=0)
    return scored_ratings(model, ratings, threshold, min(n, most)), sampled
