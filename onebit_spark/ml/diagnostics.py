"""How a model does on ratings, in a few hundred numbers: reliability, scores by class, risk–coverage, calibration."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from onebit_spark.core import metrics
from onebit_spark.core.calibration import Calibration
from onebit_spark.core.metrics import RELIABILITY_BINS
from onebit_spark.errors import RequestError
from onebit_spark.input.defects import RatingCounts, check_ratings
from onebit_spark.ml.fitted_model import FittedModel
from onebit_spark.ml.scored_ratings import counting, scored_ratings

SAMPLE = 500_000  # about so many ratings are used: enough for each figure of a report
CALIBRATING = 5_000_000  # and so many for a calibration
SCORE_WIDTH = 0.1  # of a bin of the histogram
CONFIDENCE_BINS = -4.0, 12.0, 6  # range of log₂ of the confidence, and bins per factor of two
CELL_WIDTHS = 0.05, 0.1  # bins of the score and of log std, within which the calibration does not distinguish ratings


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
