"""Ratings with the predictions of a model, as an Arrow table, their figures, and whether they can certify the model.

positive, right, unknown_user, unknown_item    boolean
score, std, probability, confidence            double
level                                          of confidence: smallint
group                                          string, or null

The figures: error rates, reliability, scores by class, risk–coverage, calibration. Ratings that certify a model must be
fresh: their sketch is compared with that of the cells that it was fitted on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from onebit_spark.certificate.certificates import (
    MOST_GROUPS,
    Certificate,
    Group,
    HeldOutCounts,
    certificate_document,
    held_out_certificates,
    request_problems,
    with_freshness,
)
from onebit_spark.core import prediction
from onebit_spark.core.config import Terms
from onebit_spark.core.hashes import ENOUGH, CellSketch
from onebit_spark.core.model_info import ModelInfo
from onebit_spark.core.prediction import EVERYTHING, Calibration
from onebit_spark.core.settings import param_names
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
    auc = prediction.auc(labels, scores)
    return {
        "n_wrong": int(np.count_nonzero(~column["right"])),
        "n_unknown_user": int(np.count_nonzero(column["unknown_user"])),
        "n_unknown_item": int(np.count_nonzero(column["unknown_item"])),
        "hinge_loss": prediction.hinge_loss(labels, scores),
        "log_loss": prediction.log_loss(labels, probabilities),
        "brier": prediction.brier(labels, probabilities),
        "calibration_error": prediction.reliability(labels, probabilities).error,
        "auc": None if np.isnan(auc) else auc,  # JSON has no NaN
        "auc_error": 0.0,
    }, pa.table({"level": table["level"], "group": table["group"], **counts})


def with_rates(
    figures: dict[str, Any], info: ModelInfo, n: int, positives: int, threshold: float | None
) -> dict[str, Any]:
    """All figures of metrics.json: those of n ratings, with their error rate and that of the majority class."""
    wrong = figures["n_wrong"]
    low, high = prediction.error_interval(wrong, n)
    minority = n - positives if info.majority > 0 else positives
    rates = {"error": wrong / n, "error_low": low, "error_high": high, "majority_error": minority / n}
    return {"n": n, "n_positive": positives, **rates, "threshold": threshold, **figures}


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
    """The figures that a report shows, of scored ratings; ``source`` says what they are.

    ``fitted``: the model was fitted to them, so the figures are too good. Of the curve of risk and coverage: if only
    the most confident ``share`` is answered, ``error`` of the answers are wrong.
    """
    column = {name: scored[name].to_numpy() for name in ("positive", "right", "score", "probability", "confidence")}
    positive, wrong, n = column["positive"], ~column["right"], len(scored)
    low, high, per_octave = CONFIDENCE_BINS
    confidence = np.clip(column["confidence"], 2.0**low, 2.0**high)
    bins = np.unique(-np.floor((np.log2(confidence) - low) * per_octave), return_inverse=True)[1]
    answered, errors = np.cumsum(np.bincount(bins)), np.cumsum(np.bincount(bins, weights=wrong))
    reliability = prediction.reliability(np.where(positive, 1.0, -1.0), column["probability"])
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
        "risk_coverage": {"share": (answered / n).tolist(), "error": (errors / answered).tolist()},
    }


def calibrated(scored: pa.Table) -> Calibration:
    """The calibration that is likeliest on scored ratings, which must not be fitted."""
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


# ---- certificates ----------------------------------------------------------------------------------------------------

KEPT_OUT = {"checked": True, "reason": "a coin for every cell kept these ratings out of this very fit"}
NOT_KNOWN = {"checked": False, "reason": "the model does not say which ratings it was fitted on"}


def fresh_to(known: CellSketch | None, asked: CellSketch) -> dict[str, Any]:
    """How ratings compare with those of a fit, for a certificate. Refuses those that the model was fitted on.

    ``checked`` is false, with a ``reason``, where it could not be seen.
    """
    if known is None:
        return NOT_KNOWN
    compared = known.compared(asked)
    if compared.stale:
        raise RequestError(
            f"these ratings certify nothing: {compared.share:.1%} of them are of cells that the model was fitted on, "
            f"and of fresh ratings about {compared.expected:.1%} would be ({compared.looked_at:,} were looked at). "
            "Give ratings that it has not seen, or hold some out of the fit"
        )
    figures: dict[str, Any] = {name: getattr(compared, name) for name in ("share", "expected", "looked_at")}
    if not known.complete:
        reason = "the model does not say all that it was fitted on"
    elif compared.looked_at < ENOUGH:
        reason = f"only {compared.looked_at} of the ratings can be compared with those of the fit"
    elif not compared.conclusive:
        reason = f"cells are rated so often that {compared.expected:.1%} of fresh ratings are of cells of the fit"
    else:
        return {"checked": True, **figures}
    return {"checked": False, "reason": reason, **figures}


def seen_in_fit(known: CellSketch | None, asked: CellSketch) -> str | None:
    """A warning if the model was fitted on these ratings, in whole or in part."""
    if known is None or not (compared := known.compared(asked)).stale:
        return None
    return (
        f"the model was fitted on some of these ratings ({compared.share:.1%} of them are of fitted cells; of fresh "
        f"ratings about {compared.expected:.1%} would be), so the figures are too good"
    )


@dataclass(frozen=True)
class CertificateRequest:
    """Which certificates are wanted."""

    terms: Terms
    max_error: Sequence[float] = ()  # requested error rates among the answered pairs
    by: str | None = None  # a column of the ratings: certify within each of its groups as well

    @classmethod
    def of(cls, maxError: float | Sequence[float], delta: float, by: str | None, grid: int) -> CertificateRequest:
        """From the arguments of a model's method."""
        rates = [maxError] if isinstance(maxError, int | float) else list(maxError)
        return cls(Terms(delta=delta, grid=grid), rates, by)

    def problems(self, info: ModelInfo, names: Mapping[str, str] | None = None) -> list[str]:
        """Why a model cannot be certified like this, before any rating is scored.

        ``names`` are those of the arguments in the messages. Default: the names of the Params.
        """
        names = {**param_names(Terms), "max_error": "maxError"} if names is None else names
        problems = [problem.in_words(names) for problem in self.terms.problems()]
        problems += [f"{names.get('max_error', 'max_error')} {problem}" for problem in request_problems(self.max_error)]
        if self.max_error and info.confidence_thresholds is None:
            problems.append("the model was saved by a version that kept no confidences of its ratings: fit it again")
        return problems


def certificates_of(
    info: ModelInfo, counts: HeldOutCounts, request: CertificateRequest, fresh: Mapping[str, Any]
) -> list[Certificate]:
    """The certificates that counts of held-out ratings give: ``holdout`` first."""
    thresholds = info.confidence_thresholds or EVERYTHING
    certificates = held_out_certificates(thresholds, counts, request.terms, request.max_error)
    return [with_freshness(item, fresh) for item in certificates]


def with_certificates(
    before: Mapping[str, Any], certificates: Sequence[Certificate], instead_of: Collection[str] = ()
) -> dict[str, Any]:
    """The content of ``certificate.json`` with more certificates, ``instead_of`` those of some names and of groups."""
    kept = before["certificates"]
    if instead_of:
        kept = [item for item in kept if item["name"] not in instead_of and not item.get("group")]
    return certificate_document([*kept, *(item.as_dict() for item in certificates)])
