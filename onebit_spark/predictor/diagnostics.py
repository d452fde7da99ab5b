"""How a model does on scored ratings: reliability, scores by class, risk–coverage, calibration."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from onebit_spark.core import metrics
from onebit_spark.core.calibration import Calibration
from onebit_spark.errors import RequestError

SAMPLE = 500_000  # about so many ratings are used: enough for each figure of a report
CALIBRATING = 5_000_000  # and so many for a calibration
SCORE_WIDTH = 0.1  # of a bin of the histogram
CONFIDENCE_BINS = -4.0, 12.0, 6  # range of log₂ of the confidence, and bins per factor of two
CELL_WIDTHS = 0.05, 0.1  # bins of the score and of log std, within which the calibration does not distinguish ratings


def diagnosed(scored: pa.Table, source: str, fitted: bool) -> dict[str, Any]:
    """The figures that a report shows, of scored ratings (``predictor.scored``); ``source`` says what they are.

    ``fitted``: the model was fitted to them, so that the figures flatter it.
    """
    column = {name: scored[name].to_numpy() for name in ("positive", "right", "score", "probability", "confidence")}
    positive, wrong, n = column["positive"], ~column["right"], len(scored)
    reliability = metrics.reliability(np.where(positive, 1.0, -1.0), column["probability"])
    edges, place = np.unique(np.floor(column["score"] / SCORE_WIDTH).astype(np.int64), return_inverse=True)
    counts = {
        name: np.bincount(place[chosen], minlength=len(edges)).tolist()
        for name, chosen in (("positive", positive), ("negative", ~positive))
    }
    return {
        "source": source,
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


def calibrated(scored: pa.Table) -> Calibration:
    """The map from score and spread to probability that is likeliest on scored ratings, which must not be fitted."""
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
