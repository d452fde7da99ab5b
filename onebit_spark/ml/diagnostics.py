"""Diagnostics of a model on ratings: reliability, scores by class, risk–coverage curve. Also the calibration.

Each is one aggregation in Spark. The driver receives one line per bin.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from onebit_spark.core.calibration import Calibration
from onebit_spark.core.metrics import RELIABILITY_BINS, Reliability
from onebit_spark.errors import RequestError
from onebit_spark.input.columns import quoted
from onebit_spark.input.defects import Columns, check_ratings, positive
from onebit_spark.ml.fittedmodel import FittedModel
from onebit_spark.ml.predictionparams import plainly_named
from onebit_spark.ml.selection import confidence

SAMPLE = 500_000  # about so many ratings are used: enough for each figure of a report
SCORE_WIDTH = 0.1  # of a bin of the histogram
CONFIDENCE_BINS = -4.0, 12.0, 6  # range of log₂ of the confidence, and bins per factor of two
CELL_WIDTHS = 0.05, 0.1  # bins of the score and of log std, within which the calibration does not distinguish ratings


def probability_bin(probability: Column) -> Column:
    """The bin of a reliability curve, 0 … RELIABILITY_BINS − 1."""
    return F.least(F.floor(probability * RELIABILITY_BINS), F.lit(RELIABILITY_BINS - 1))


def diagnose(model: FittedModel, ratings: DataFrame, source: str, fitted: bool) -> dict[str, Any]:
    """The figures of a report, from all ratings or from a sample of them.

    Parameters
    ----------
    model : FittedModel
        The model.
    ratings : DataFrame
        Ratings with the columns of the fit.
    source : str
        What these ratings are, in words.
    fitted : bool
        Whether the model was fitted to them.
    """
    scored, n = _scored(model, ratings)
    if n > SAMPLE:
        scored = scored.sample(fraction=SAMPLE / n, seed=0)
        source = f"a sample of {source}"
    bins = (
        scored.groupBy(
            probability_bin(F.col("probability")).alias("bin"),
            F.floor(F.col("score") / SCORE_WIDTH).alias("score_bin"),
            confidence_bin(confidence(model, F.col("score"), F.col("std"))).alias("confidence_bin"),
        )
        .agg(
            F.count(F.lit(1)).alias("n"),
            F.count_if("positive").alias("positives"),
            F.sum("probability").alias("probability"),
            F.count_if((F.col("prediction") > 0) != F.col("positive")).alias("wrong"),
        )
        .toArrow()
    )
    column = {name: bins[name].to_numpy() for name in bins.column_names}
    reliability = Reliability.of_bins(column["bin"], column["n"], column["probability"], column["positives"])
    edges, place = np.unique(column["score_bin"], return_inverse=True)
    counts = {
        name: np.bincount(place, weights=weights).astype(int).tolist()
        for name, weights in (("positive", column["positives"]), ("negative", column["n"] - column["positives"]))
    }
    return {
        "source": source,
        "fitted": fitted,
        "n": int(column["n"].sum()),
        "error": float(column["wrong"].sum() / column["n"].sum()),
        "calibration_error": reliability.error,
        "reliability": reliability.as_dict(),
        "scores": {"width": SCORE_WIDTH, "low": (edges * SCORE_WIDTH).tolist(), **counts},
        "risk_coverage": risk_coverage(column["confidence_bin"], column["n"], column["wrong"]),
    }


def confidence_bin(confidence: Column) -> Column:
    """The bin of a confidence, one of 96 that are equally wide in the logarithm."""
    low, high, per_octave = CONFIDENCE_BINS
    inside = F.least(F.greatest(confidence, F.lit(2.0**low)), F.lit(2.0**high))
    return F.floor((F.log2(inside) - low) * per_octave)


def risk_coverage(bins: Any, n: Any, wrong: Any) -> dict[str, list[float]]:
    """The curve of ``share`` and ``error``: if only the most confident share is answered, so many answers are wrong."""
    place = np.unique(-np.asarray(bins), return_inverse=True)[1]
    answered, errors = (np.cumsum(np.bincount(place, weights=each)) for each in (n, wrong))
    return {"share": (answered / answered[-1]).tolist(), "error": (errors / answered).tolist()}


def calibrate(model: FittedModel, ratings: DataFrame) -> Calibration:
    """The calibration of largest likelihood on these ratings. They must not have been fitted."""
    scored, _ = _scored(model, ratings)
    by_score, by_spread = CELL_WIDTHS
    cells = (
        scored.groupBy(
            F.floor(F.col("score") / by_score).alias("score_cell"),
            F.floor(F.log(F.greatest("std", F.lit(1e-12))) / by_spread).alias("std_cell"),
        )
        .agg(
            F.avg("score").alias("score"),
            F.avg(F.col("std") * F.col("std")).alias("variance"),
            F.count_if("positive").cast("double").alias("positives"),
            F.count_if(~F.col("positive")).cast("double").alias("negatives"),
        )
        .toArrow()
        .sort_by([("score_cell", "ascending"), ("std_cell", "ascending")])
    )
    columns = [cells[name].to_numpy() for name in ("score", "variance", "positives", "negatives")]
    if not (columns[2].sum() and columns[3].sum()):
        raise RequestError("a calibration needs ratings of both classes: hold out more ratings")
    return Calibration.fit(*columns)


def _scored(model: FittedModel, ratings: DataFrame) -> tuple[DataFrame, int]:
    """One line per rating: score, std, probability, prediction, positive; and how many there are."""
    user, item, label = model.getUserCol(), model.getItemCol(), model.info.columns["label"]
    tally = check_ratings(ratings, Columns(user, item, label, model.info.threshold))
    ids = (F.col(quoted(column)) for column in (user, item))
    asked = ratings.select(*ids, positive(ratings, label, model.info.threshold).alias("positive"))
    return plainly_named(model).transform(asked), tally.n
