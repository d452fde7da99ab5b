"""Ratings with what a model says about them, as an Arrow table, and the figures that follow from it.

positive, right, unknown_user, unknown_item    boolean
score, std, probability, confidence            double
level                                          of confidence: smallint
group                                          string, or null

The figures: error rates, reliability, scores by class, risk–coverage, calibration.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from onebit_spark.certificate.held_out import MOST_GROUPS, Group, HeldOutCounts
from onebit_spark.core import metrics
from onebit_spark.core.calibration import Calibration
from onebit_spark.core.model_info import ModelInfo
from onebit_spark.core.prediction import EVERYTHING
from onebit_spark.errors import RequestError
from onebit_spark.predictor.predictor import Predictor


def scored_table(info: ModelInfo, lines: pa.Table) -> pa.Table:
    """The table, of lines with the outputs of a predictor, ``positive``, the two unknowns, and ``group``."""
    score, std, prediction, positive = (lines[name].to_numpy() for name in ("score", "std", "prediction", "positive"))
    confidence = Predictor.of(info).confidence(score, std)
    return pa.table(
        {
            "positive": lines["positive"],
            "right": (prediction > 0) == positive,
            **{name: lines[name] for name in ("unknown_user", "unknown_item", "score", "std", "probability")},
            "confidence": confidence,
            "level": (info.confidence_thresholds or EVERYTHING).level(confidence),
            "group": lines["group"],
        }
    )


def figures_of(table: pa.Table) -> tuple[dict[str, Any], pa.Table]:
    """Error, losses, AUC and so on of scored ratings, and what ``count_by_level`` counts."""
    column = {name: table[name].to_numpy() for name in table.column_names if name != "group"}
    labels = np.where(column["positive"], 1.0, -1.0)
    scores, probabilities = column["score"], column["probability"]
    lines = {"n": np.ones(len(scores), np.int64), "n_wrong": ~column["right"], "n_positive": column["positive"]}
    counts = {name: pa.array(each.astype(np.int64)) for name, each in lines.items()}
    auc = metrics.auc(labels, scores)
    return {
        "n_wrong": int(np.count_nonzero(~column["right"])),
        "n_unknown_user": int(np.count_nonzero(column["unknown_user"])),
        "n_unknown_item": int(np.count_nonzero(column["unknown_item"])),
        "hinge_loss": metrics.hinge_loss(labels, scores),
        "log_loss": metrics.log_loss(labels, probabilities),
        "brier": metrics.brier(labels, probabilities),
        "calibration_error": metrics.reliability(labels, probabilities).error,
        "auc": None if np.isnan(auc) else auc,  # JSON has no NaN
        "auc_error": 0.0,
    }, pa.table({"level": table["level"], "group": table["group"], **counts})


def with_rates(
    figures: dict[str, Any], info: ModelInfo, n: int, positives: int, threshold: float | None
) -> dict[str, Any]:
    """All figures of metrics.json: those of n ratings, with their error rate and that of the majority class."""
    wrong = figures["n_wrong"]
    low, high = metrics.error_interval(wrong, n)
    minority = n - positives if info.majority > 0 else positives
    return {
        "n": n,
        "n_positive": positives,
        "error": wrong / n,
        "error_low": low,
        "error_high": high,
        "majority_error": minority / n,
        "threshold": threshold,
        **figures,
    }


def count_by_level(info: ModelInfo, lines: pa.Table, by: str | None) -> HeldOutCounts:
    """Count lines with the columns level, group, n, n_wrong and n_positive; ``by`` is the column of the groups."""
    level, n, wrong, positives = (lines[name].to_numpy() for name in ("level", "n", "n_wrong", "n_positive"))
    off_majority = n - positives if info.majority > 0 else positives
    groups = () if by is None else _groups(lines["group"], by)
    return HeldOutCounts.of(info.confidence_thresholds or EVERYTHING, level, n, wrong, off_majority, groups)


def _groups(values: pa.ChunkedArray, by: str) -> Iterator[tuple[Group, NDArray[np.bool_]]]:
    """Each different value, in order, null last, and which lines have it."""
    encoded = values.combine_chunks().dictionary_encode(null_encoding="encode")
    codes, different = encoded.indices.to_numpy(zero_copy_only=False), encoded.dictionary.to_pylist()
    if len(different) > MOST_GROUPS:
        raise RequestError(
            f"column {by!r} has {len(different):,} different values: use a column with at most {MOST_GROUPS:,}"
        )
    for code in sorted(range(len(different)), key=lambda code: (different[code] is None, different[code])):
        yield Group(by, different[code]), codes == code


# ---- diagnostics -----------------------------------------------------------------------------------------------------

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
