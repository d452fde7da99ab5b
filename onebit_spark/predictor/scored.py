"""Ratings with what a model says about them, as an Arrow table, and the figures that follow from it.

positive, right, unknown_user, unknown_item    boolean
score, std, probability, confidence            double
rung                                           of the model's ladder: smallint
group                                          string, or null
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from onebit_spark.certificate.held_out import MOST_GROUPS, HeldOutCounts
from onebit_spark.certificate.selective import Group
from onebit_spark.core import metrics
from onebit_spark.core.confidence import EVERYTHING
from onebit_spark.core.model_info import ModelInfo
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
            "rung": (info.ladder or EVERYTHING).rung(confidence),
            "group": lines["group"],
        }
    )


def figures_of(table: pa.Table) -> tuple[dict[str, Any], pa.Table]:
    """Error, losses, AUC and so on of scored ratings, and what ``count_by_rung`` counts."""
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
    }, pa.table({"rung": table["rung"], "group": table["group"], **counts})


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


def count_by_rung(info: ModelInfo, lines: pa.Table, by: str | None) -> HeldOutCounts:
    """Count lines with the columns rung, group, n, n_wrong and n_positive; ``by`` is the column of the groups."""
    rung, n, wrong, positives = (lines[name].to_numpy() for name in ("rung", "n", "n_wrong", "n_positive"))
    off_majority = n - positives if info.majority > 0 else positives
    groups = () if by is None else _groups(lines["group"], by)
    return HeldOutCounts.of(info.ladder or EVERYTHING, rung, n, wrong, off_majority, groups)


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
