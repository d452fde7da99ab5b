"""How a model does on ratings, on Spark: figures, diagnostics, calibration and certificates.

The ratings get what the model predicts for them, in this process if they are few, by Spark otherwise. What follows from
that is in ``predictor.scored``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, DoubleType, StructField, StructType

from onebit_spark.certificate.certificates import Certificate, with_freshness
from onebit_spark.certificate.held_out import HeldOutCounts, held_out_certificates
from onebit_spark.core import metrics
from onebit_spark.core.calibration import Calibration
from onebit_spark.core.fitted_features import SIDE_OF
from onebit_spark.core.metrics import RELIABILITY_BINS
from onebit_spark.core.prediction import EVERYTHING
from onebit_spark.errors import RequestError
from onebit_spark.input.columns import column_problem, matching, quoted
from onebit_spark.input.ratings import Columns, RatingCounts, check_ratings, positive, with_weight
from onebit_spark.ml.fitted_model import SparkModel
from onebit_spark.ml.freshness import check_fresh
from onebit_spark.ml.params import plainly_named
from onebit_spark.ml.selection import answers, confidence, group_column, rung
from onebit_spark.predictor import certification
from onebit_spark.predictor.certification import CertificateRequest
from onebit_spark.predictor.predictor import OUTPUTS
from onebit_spark.predictor.scored import (
    CALIBRATING,
    SAMPLE,
    calibrated,
    count_by_rung,
    diagnosed,
    figures_of,
    scored_table,
    with_rates,
)

M = TypeVar("M", bound=SparkModel)


def ratings_that_count(model: SparkModel, ratings: DataFrame, threshold: float | None) -> tuple[DataFrame, Columns]:
    """The ratings that a model is judged by, and their columns: those of weight 0 do not count (docs/MATH.md, §16).

    The weight is looked for in the column of the fit. Ratings without this column all count.
    """
    weight = model.info.columns.get("weight")
    columns = Columns(
        model.getUserCol(),
        model.getItemCol(),
        model.info.columns["label"],
        threshold,
        weight if weight is not None and matching(ratings, weight) else None,
    )
    return with_weight(ratings, columns), columns


def scored_ratings(
    model: SparkModel, ratings: DataFrame, threshold: float | None, n: int, group: Column | None = None
) -> pa.Table:
    """One line for each of n checked ratings, on the driver: see ``predictor.scored``."""
    asked = _asked(model, ratings, threshold, group)
    table = _scored_here(model, asked) if model.fitsHere(n) else _by_spark(model, asked).toArrow()
    lines = table.select([*OUTPUTS, "unknown_user", "unknown_item", "__positive", "__group"])
    return scored_table(model.info, lines.rename_columns({"__positive": "positive", "__group": "group"}))


def predicted_pairs(model: SparkModel, pairs: DataFrame, n: int) -> DataFrame:
    """What ``transform`` appends to n checked pairs of ids, under its usual names."""
    if not model.fitsHere(n):
        return model.transform(pairs)
    table = _scored_here(model, pairs).drop_columns(["unknown_user", "unknown_item"])
    schema = StructType([*pairs.schema, *(StructField(name, DoubleType()) for name in OUTPUTS)])
    frame = pairs.sparkSession.createDataFrame(table, schema)
    if not (model.certifiedErrors and model.getAnsweredCol()):
        return frame
    return frame.withColumn(model.getAnsweredCol(), answers(model, F.col("score"), F.col("std")))


def scored_by_spark(
    model: SparkModel, ratings: DataFrame, threshold: float | None, group: Column | None = None
) -> DataFrame:
    """The same columns but confidence and rung, lazily, for any number of ratings."""
    scored = _by_spark(model, _asked(model, ratings, threshold, group))
    return scored.select(
        F.col("__positive").alias("positive"),
        ((F.col("prediction") > 0) == F.col("__positive")).alias("right"),
        "unknown_user",
        "unknown_item",
        "score",
        "std",
        "probability",
        F.col("__group").alias("group"),
    )


def _asked(model: SparkModel, ratings: DataFrame, threshold: float | None, group: Column | None) -> DataFrame:
    """The two ids, the label as a boolean and the group."""
    labelled = ratings.withColumn("__positive", positive(ratings, model.info.columns["label"], threshold))
    ids = (F.col(quoted(column)) for column in (model.getUserCol(), model.getItemCol()))
    group = F.lit(None).cast("string") if group is None else group
    return labelled.select(*ids, "__positive", group.alias("__group"))


def _scored_here(model: SparkModel, pairs: DataFrame) -> pa.Table:
    """The pairs with ``OUTPUTS``, unknown_user and unknown_item, on the driver. Ids must not be null.

    One job collects the pairs, two more the factors of a model that was loaded, when it is asked for the first time.
    """
    for who in SIDE_OF:
        model.checkIdType(pairs, who)
    served, table = model.served(), pairs.toArrow()
    rows, cols = served.users.positions(table[model.getUserCol()]), served.items.positions(table[model.getItemCol()])
    columns = {**served.predicted(rows, cols), "unknown_user": rows < 0, "unknown_item": cols < 0}
    for name, values in columns.items():
        table = table.append_column(name, pa.array(values))
    return table


def _by_spark(model: SparkModel, asked: DataFrame) -> DataFrame:
    scored = plainly_named(model).transform(asked)
    for who in SIDE_OF:
        ids = model.factorsOf(who).select(F.col("id").alias(f"__known_{who}"))
        scored = scored.join(ids, F.col(quoted(model.idCol(who))) == F.col(f"__known_{who}"), "left")
        scored = scored.withColumn(f"unknown_{who}", F.col(f"__known_{who}").isNull())
    return scored


# ---- figures ---------------------------------------------------------------------------------------------------------

COLLECT_LIMIT = 5_000_000  # up to so many ratings the driver collects the scores: 20 bytes per rating, and its group
SCORE_BINS = 1 << 16
SMALLEST_PROBABILITY = 1e-15  # as metrics.log_loss


def measure(
    model: SparkModel, ratings: DataFrame, threshold: float | None, tally: RatingCounts, by: str | None = None
) -> tuple[dict[str, Any], HeldOutCounts]:
    """All figures of metrics.json, and the counts for selective certificates, in one pass.

    Up to ``COLLECT_LIMIT`` ratings, the driver collects the scores, and the AUC is exact (``auc_error`` is 0). For more
    ratings, Spark computes sums and a histogram of the scores, and the AUC is off by at most ``auc_error``. The error
    is that of ``prediction``: a score of exactly 0 counts as the majority label of the training data.

    Parameters
    ----------
    model : SparkModel
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


def probability_bin(probability: Column) -> Column:
    """The bin of a reliability curve, 0 … RELIABILITY_BINS − 1."""
    return F.least(F.floor(probability * RELIABILITY_BINS), F.lit(RELIABILITY_BINS - 1))


def diagnose(
    model: SparkModel, ratings: DataFrame, source: str, fitted: bool, tally: RatingCounts | None = None
) -> dict[str, Any]:
    """The figures that a report shows, of all ratings or of a sample; ``source`` says in words what they are.

    ``fitted``: the model was fitted to them, so that the figures flatter it. ``tally``: of the ratings, if they were
    checked before.
    """
    scored, sampled = _scored(model, ratings, SAMPLE, tally)
    return diagnosed(scored, f"a sample of {source}" if sampled else source, fitted)


def calibrate(model: SparkModel, ratings: DataFrame) -> Calibration:
    """The map from score and spread to probability that is likeliest on these ratings, which must not be fitted."""
    return calibrated(_scored(model, ratings, CALIBRATING)[0])


def _scored(
    model: SparkModel, ratings: DataFrame, most: int, tally: RatingCounts | None = None
) -> tuple[pa.Table, bool]:
    """The ratings scored, or a sample of about ``most``, and whether it is a sample."""
    threshold = model.info.threshold
    ratings, columns = ratings_that_count(model, ratings, threshold)
    n = (tally or check_ratings(ratings, columns)).n
    sampled = n > most
    if sampled:
        ratings = ratings.sample(fraction=most / n, seed=0)
    return scored_ratings(model, ratings, threshold, min(n, most)), sampled


@dataclass(frozen=True)
class CheckedRatings:
    """Ratings that a model is judged by, without those of weight 0: see ``checked_ratings``."""

    ratings: DataFrame
    columns: Columns
    tally: RatingCounts


def checked_ratings(model: SparkModel, ratings: DataFrame, threshold: float | None = None) -> CheckedRatings:
    """Check and count ratings. The default threshold is that of the fit, unless the labels are booleans."""
    if threshold is None and not any(
        isinstance(field.dataType, BooleanType) for field in matching(ratings, model.info.columns["label"])
    ):
        threshold = model.info.threshold
    ratings, columns = ratings_that_count(model, ratings, threshold)
    return CheckedRatings(ratings, columns, check_ratings(ratings, columns))


def certify(
    model: SparkModel, on: CheckedRatings, request: CertificateRequest, freshness: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], list[Certificate]]:
    """The figures of a model on ratings, and the certificates that they give: ``holdout`` first.

    Ratings that the model was fitted on are refused, unless the caller knows their ``freshness``.
    """
    if freshness is None:
        freshness = check_fresh(model, on.ratings, on.columns, on.tally)
    figures, counts = measure(model, on.ratings, on.columns.threshold, on.tally, request.by)
    ladder = model.info.ladder or EVERYTHING
    certificates = held_out_certificates(ladder, counts, request.terms, request.max_error)
    return figures, [with_freshness(item, freshness) for item in certificates]


def check_request(model: SparkModel, ratings: DataFrame, request: CertificateRequest) -> None:
    """Refuse, before any rating is scored, what cannot be certified."""
    problems = request.problems(model.info)
    if request.by is not None and (problem := column_problem(ratings, request.by, " to group by")):
        problems.append(problem)
    if problems:
        raise RequestError("; ".join(problems))


def certified(model: SparkModel, ratings: DataFrame, request: CertificateRequest) -> list[Certificate]:
    """The certificates that ratings with the columns of the fit give."""
    check_request(model, ratings, request)
    return certify(model, checked_ratings(model, ratings), request)[1]


def with_certificates(model: M, certificates: Sequence[Certificate], instead_of: Collection[str] = ()) -> M:
    """The model with more certificates, without those of some names; and then without those of groups."""
    certified = model.changed()
    certified.certificate = certification.with_certificates(model.certificate, certificates, instead_of)
    return certified
