"""How a model does on ratings, on Spark: they are scored, and ``predictor.diagnostics`` does the rest."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from onebit_spark.core.calibration import Calibration
from onebit_spark.core.metrics import RELIABILITY_BINS
from onebit_spark.input.defects import RatingCounts, check_ratings
from onebit_spark.ml.fitted_model import FittedModel
from onebit_spark.ml.scored_ratings import counting, scored_ratings
from onebit_spark.predictor.diagnostics import CALIBRATING, SAMPLE, calibrated, diagnosed


def probability_bin(probability: Column) -> Column:
    """The bin of a reliability curve, 0 … RELIABILITY_BINS − 1."""
    return F.least(F.floor(probability * RELIABILITY_BINS), F.lit(RELIABILITY_BINS - 1))


def diagnose(
    model: FittedModel, ratings: DataFrame, source: str, fitted: bool, tally: RatingCounts | None = None
) -> dict[str, Any]:
    """The figures that a report shows, of all ratings or of a sample; ``source`` says in words what they are.

    ``fitted``: the model was fitted to them, so that the figures flatter it. ``tally``: of the ratings, if they were
    checked before.
    """
    scored, sampled = _scored(model, ratings, SAMPLE, tally)
    return diagnosed(scored, f"a sample of {source}" if sampled else source, fitted)


def calibrate(model: FittedModel, ratings: DataFrame) -> Calibration:
    """The map from score and spread to probability that is likeliest on these ratings, which must not be fitted."""
    return calibrated(_scored(model, ratings, CALIBRATING)[0])


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
