"""Ratings with their predictions: figures, diagnosis, calibration, and counts for certificates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from onebit_spark.certify.certificates import (
    MOST_GROUPS,
    Group,
    HeldOutCounts,
)
from onebit_spark.core.calibration import Calibration
from onebit_spark.core.confidences import TOWARDS
from onebit_spark.core.posterior import DoubleArray
from onebit_spark.errors import RequestError
from onebit_spark.model_info import (
    ModelInfo,
)
from onebit_spark.predict.metrics import (
    Reliability,
    auc_of_counts,
    brier,
    class_figures,
    error_interval,
    hinge_loss,
    log_loss,
    reliability_sums,
)
from onebit_spark.predict.predictor import Predictor
from onebit_spark.predict.top_n import Numbers
from onebit_spark.records import Fields


def scored_table(info: ModelInfo, lines: pa.Table) -> pa.Table:
    """Ratings with their predictions: the columns of ``lines`` but ``prediction``, and more.

    ``right`` is whether the prediction is the label; ``z``, the signed confidence, has a level for
    each call, the highest that makes it. The lines have OUTPUTS, ``positive``, ``unknown_user``,
    ``unknown_item`` and ``group``, a string or null.
    """
    score, std, label, positive = (
        lines[name].to_numpy() for name in ("score", "std", "prediction", "positive")
    )
    z = Predictor.of(info).confidence(score, std)
    return pa.table(
        {
            "positive": lines["positive"],
            "right": (label > 0) == positive,
            **{
                name: lines[name]
                for name in ("unknown_user", "unknown_item", "score", "std", "probability")
            },
            "z": z,
            **{
                f"level_{call}": known.level(TOWARDS[call](z))
                for call, known in info.thresholds.items()
            },
            "group": lines["group"],
        }
    )


Figures = Fields  # as JSON
Flags = NDArray[np.bool_]

SCORE_BINS = 1 << 16  # of the scores of ratings that come in parts, equally wide in tanh(score/2)
COUNTED = ("n", "n_wrong", "n_positive")  # for every line of ``ScoreSums.levels``


@dataclass(frozen=True)
class ScoreSums:
    """Sums over scored ratings, from which all figures follow.

    The sums of several tables are added.
    """

    n: int
    n_wrong: int
    n_unknown_user: int
    n_unknown_item: int
    n_called: int  # predicted to be positive
    hinge_loss: float
    log_loss: float
    brier: float
    reliability: DoubleArray  # see ``reliability_sums``
    # Positive and negative ratings of every score, or of every bin, ascending
    classes: NDArray[np.int64]
    # Numbers of ratings by their levels, by whether an id is unknown, and by group
    levels: list[pa.Table]
    exact: bool  # whether every score is counted by itself

    @classmethod
    def of(cls, table: pa.Table, exact: bool = True) -> ScoreSums:
        """From the lines of ``scored_table``.

        If they are not ``exact``, they count the scores in bins.
        """
        names = [name for name in table.column_names if name != "group"]
        column = {name: table[name].to_numpy() for name in names}
        positive = column["positive"]
        wrong = ~column["right"]
        score = column["score"]
        labels = np.where(positive, 1.0, -1.0)
        n = len(table)
        if exact:
            different, place = np.unique(score, return_inverse=True)
            n_bins = len(different)
        else:
            n_bins = SCORE_BINS
            place = np.floor((np.tanh(score / 2) + 1) / 2 * (n_bins - 1)).astype(np.int64)
        classes = [np.bincount(place[of], minlength=n_bins) for of in (positive, ~positive)]
        return cls(
            n=n,
            n_wrong=int(np.count_nonzero(wrong)),
            n_unknown_user=int(np.count_nonzero(column["unknown_user"])),
            n_unknown_item=int(np.count_nonzero(column["unknown_item"])),
            n_called=int(np.count_nonzero(positive != wrong)),
            hinge_loss=n * hinge_loss(labels, score),
            log_loss=n * log_loss(labels, column["probability"]),
            brier=n * brier(labels, column["probability"]),
            reliability=reliability_sums(labels, column["probability"]),
            classes=np.stack(classes),
            levels=[_count_levels(table, column)],
            exact=exact,
        )

    def __add__(self, other: ScoreSums) -> ScoreSums:
        sums = {name: value + getattr(other, name) for name, value in vars(self).items()}
        return ScoreSums(**{**sums, "exact": False})

    def figures(self) -> Figures:
        """Error, losses, AUC and so on."""
        positives, negatives = self.classes
        auc, error = auc_of_counts(positives, negatives) or (None, None)
        return {
            "n_wrong": self.n_wrong,
            "n_unknown_user": self.n_unknown_user,
            "n_unknown_item": self.n_unknown_item,
            "hinge_loss": self.hinge_loss / self.n,
            "log_loss": self.log_loss / self.n,
            "brier": self.brier / self.n,
            "calibration_error": Reliability.of_sums(self.reliability).error,
            "auc": auc,
            "auc_error": 0.0 if self.exact else error,
            **class_figures(positives, negatives, self.n_called, self.n_wrong),
        }


def _count_levels(table: pa.Table, column: Mapping[str, Flags]) -> pa.Table:
    levels = [name for name in table.column_names if name.startswith("level_")]
    lines = {name: table[name] for name in (*levels, "group")}
    lines["unknown"] = column["unknown_user"] | column["unknown_item"]
    counts = np.ones(len(table), np.int64), ~column["right"], column["positive"]
    for name, count in zip(COUNTED, counts, strict=True):
        lines[name] = count.astype(np.int64)
    keys = [*levels, "unknown", "group"]
    grouped = pa.table(lines).group_by(keys).aggregate([(name, "sum") for name in COUNTED])
    return grouped.rename_columns([*keys, *COUNTED])


def figures_of(info: ModelInfo, sums: ScoreSums, threshold: float | None) -> Figures:
    """All figures of metrics.json, with the error rate and that of the majority class."""
    n = sums.n
    positives = int(sums.classes[0].sum())
    low, high = error_interval(sums.n_wrong, n)
    minority = n - positives if info.majority > 0 else positives
    return {
        "n": n,
        "n_positive": positives,
        "error": sums.n_wrong / n,
        "error_low": low,
        "error_high": high,
        "majority_error": minority / n,
        "threshold": threshold,
        **sums.figures(),
    }


def count_by_level(
    info: ModelInfo,
    sums: ScoreSums,
    by: str | None,
    predicts_unknown: bool,
) -> HeldOutCounts:
    """The counts of ratings for certificates; ``by`` is the column of their groups."""
    lines = pa.concat_tables(sums.levels)
    columns = {name: lines[name].to_numpy() for name in lines.column_names if name != "group"}
    groups = () if by is None else _groups(lines["group"], by)
    return HeldOutCounts.of(info.thresholds, columns, info.majority, groups, predicts_unknown)


def _groups(values: pa.ChunkedArray, by: str) -> Iterator[tuple[Group, NDArray[np.bool_]]]:
    """Each different value, in order, null last, and which lines have it."""
    encoded = values.combine_chunks().dictionary_encode(null_encoding="encode")
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    different = encoded.dictionary.to_pylist()
    if len(different) > MOST_GROUPS:
        raise RequestError(
            f"column {by!r} has {len(different):,} different values: use a column with at most "
            f"{MOST_GROUPS:,}"
        )
    for code in sorted(
        range(len(different)), key=lambda code: (different[code] is None, different[code])
    ):
        yield Group(by, different[code]), codes == code


# ---- diagnostics -------------------------------------------------------------------------------

SAMPLE = 500_000  # about so many ratings are used: enough for each figure of a report
CALIBRATING = 5_000_000  # and so many for a calibration
SCORE_WIDTH = 0.1  # of a bin of the histogram
CONFIDENCE_BINS = -4.0, 12.0, 6  # range of log₂ of the confidence, and bins per factor of two
# Bins of the score and of log std, within which the calibration does not distinguish ratings
CELL_WIDTHS = (
    0.05,
    0.1,
)


def sampled(n: int, most: int = SAMPLE) -> Numbers:
    """The positions of a random sample of at most ``most`` of n ratings, ascending."""
    return (
        np.arange(n)
        if n <= most
        else np.sort(np.random.default_rng(0).choice(n, most, replace=False))
    )


def diagnose(scored: pa.Table, source: str, fitted: bool) -> Figures:
    """The figures that a report shows, of scored ratings; ``source`` says what they are.

    ``fitted``: the model was fitted to them, so the figures are too good. Of the curve of risk and
    coverage: if only the most confident ``share`` is answered, ``error`` of the answers are wrong.
    ``calls`` counts both classes in bins of the signed confidence, ascending.
    """
    column = {name: scored[name].to_numpy() for name in ("positive", "right", "score", "z")}
    positive = column["positive"]
    wrong = ~column["right"]
    n = len(scored)
    low, high, per_octave = CONFIDENCE_BINS
    octave = np.floor(
        (np.log2(np.clip(np.abs(column["z"]), 2.0**low, 2.0**high)) - low) * per_octave
    )
    bins = np.unique(-octave, return_inverse=True)[1]
    answered = np.cumsum(np.bincount(bins))
    errors = np.cumsum(np.bincount(bins, weights=wrong))
    signed = np.unique(np.copysign(octave + 1, column["z"]), return_inverse=True)[1]
    sums = ScoreSums.of(scored)
    figures = sums.figures()
    reliability = Reliability.of_sums(sums.reliability)
    edges, place = np.unique(
        np.floor(column["score"] / SCORE_WIDTH).astype(np.int64), return_inverse=True
    )
    classes = {"positive": positive, "negative": ~positive}

    def by_class(bins: Numbers) -> dict[str, list[int]]:
        return {
            name: np.bincount(bins[chosen], minlength=bins.max() + 1).tolist()
            for name, chosen in classes.items()
        }

    return {
        "source": source,
        "fitted": fitted,
        "n": n,
        "error": float(np.count_nonzero(wrong) / n),
        "calibration_error": reliability.error,
        "reliability": reliability.as_dict(),
        "scores": {"width": SCORE_WIDTH, "low": (edges * SCORE_WIDTH).tolist(), **by_class(place)},
        "risk_coverage": {"share": (answered / n).tolist(), "error": (errors / answered).tolist()},
        "calls": by_class(signed),
        **{
            name: figure
            for name, figure in figures.items()
            if name.endswith(("precision", "recall"))
        },
    }


def calibrate(scored: pa.Table) -> Calibration:
    score, std, positive = (scored[name].to_numpy() for name in ("score", "std", "positive"))
    if positive.all() or not positive.any():
        raise RequestError("a calibration needs ratings of both classes: hold out more ratings")
    by_score, by_spread = CELL_WIDTHS
    cells = np.stack(
        [np.floor(score / by_score), np.floor(np.log(np.maximum(std, 1e-12)) / by_spread)], axis=1
    )
    place = np.unique(cells, axis=0, return_inverse=True)[1].ravel()
    n, positives, scores, variances = (
        np.bincount(place, weights=each).astype(np.float64)
        for each in (np.ones(len(score)), positive.astype(np.float64), score, std * std)
    )
    return Calibration.fit(scores / n, variances / n, positives, n - positives)
