"""The predictions of a model for pairs, for ids and for ratings (docs/MATH.md, §8).

Predictor     from the posteriors of a row and a column to the predictions of their pair; executors use it as well
ModelSide     the ids of one side in this process, with their posterior
scored table  ratings with their predictions: figures, diagnostics, calibration, certificates

Some certificates are about random draws. docs/MATH.md, §9.4, says how ids without ratings are drawn.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from scipy.special import ndtri

from onebit_spark.certify.certificates import (
    MOST_GROUPS,
    OF_PREDICTIONS,
    CallRequest,
    Certificate,
    Group,
    HeldOutCounts,
    certificate_document,
    held_out_certificates,
    kept_by_coin,
    precision_problems,
    precision_requests,
    request_problems,
    with_freshness,
)
from onebit_spark.core import prediction
from onebit_spark.core.hyper_posterior import HyperPosterior, Moments
from onebit_spark.core.losses import SIDES, Side
from onebit_spark.core.posterior import FIT_VECTORS, MODEL_VECTORS, DoubleArray, FloatArray, Kind, RowPosterior
from onebit_spark.core.prediction import TOWARDS, Calibration, Call
from onebit_spark.core.randomness import drawn_scores, pair_streams, uniforms
from onebit_spark.data.hashes import ENOUGH, CellSketch
from onebit_spark.data.id_index import IdIndex
from onebit_spark.data.user_tables import SIMPLE, as_spark, column_of, in_spark_type, one_array
from onebit_spark.errors import RequestError
from onebit_spark.model_info import (
    DIRECTIONS,
    SIDE_OF,
    ModelInfo,
    factor_columns,
    factor_table,
    prior_row,
    read_factors,
    read_measured,
)
from onebit_spark.predict.top_n import Numbers, Ranking
from onebit_spark.settings import Terms, Who, available_cores, param_names

SCALE_STREAM = np.uint64(0x5CA1E)  # keeps the draws of γ and μ apart from those of the factors

Flags = NDArray[np.bool_]
Pairs = tuple[RowPosterior, RowPosterior]  # line l of both is pair l
Lines = tuple[pa.StructArray, pa.StructArray]  # the same as lines of factor tables; a null line is an unknown id

OUTPUTS = ("score", "std", "probability", "prediction")


@dataclass(frozen=True)
class Predictor:
    loss: str  # name of the loss
    kind: Kind  # form of the posterior
    intercepts: bool  # whether it has intercepts
    scales: HyperPosterior  # q(γ) and q(μ): ids without ratings are predicted and drawn from them
    majority: int  # the more frequent label
    negative: float  # the negative label, −1 or 0; the positive one is 1
    calibration: Calibration | None  # of the probability

    @classmethod
    def of(cls, info: ModelInfo) -> Predictor:
        config = info.config
        return cls(
            loss=config.loss,
            kind=info.kind,
            intercepts=config.intercepts,
            scales=info.scales,
            majority=info.majority,
            negative=info.negative_label,
            calibration=info.calibrated,
        )

    # ---- from scores and variances -----------------------------------------------------------------------------------

    def label(self, scores: DoubleArray) -> DoubleArray:
        """The sign of the score as a label. A score of exactly 0 gets the majority label."""
        return np.where(np.where(scores == 0, self.majority, scores) > 0, 1.0, self.negative)

    def confidence(self, scores: DoubleArray, deviations: DoubleArray) -> DoubleArray:
        """z = score/√(c + variance). c is the noise of the loss, also in a calibrated model (§10.1)."""
        return prediction.confidence(scores, deviations, prediction.score_noise(self.loss))

    def calls(self, call: Call, threshold: float, scores: DoubleArray, deviations: DoubleArray) -> Flags:
        """For which pairs the model makes a call: those that reach a threshold, which is ∞ if there are none."""
        return np.asarray(TOWARDS[call](self.confidence(scores, deviations)) >= threshold)

    def outputs(self, scores: DoubleArray, variances: DoubleArray) -> dict[str, DoubleArray]:
        probability = prediction.probability(self.loss, scores, variances, self.calibration)
        return dict(zip(OUTPUTS, (scores, np.sqrt(variances), probability, self.label(scores)), strict=True))

    def sampled_scores(
        self, rows: RowPosterior, cols: RowPosterior, unrated: tuple[Flags, Flags], keys: Numbers, seed: int
    ) -> DoubleArray:
        """One draw of the score per pair; line l of both posteriors is pair l.

        ``keys`` are hashes of the two ids, and determine the draws with the seed. ``unrated`` are the lines whose row,
        and those whose column, has no ratings.
        """
        states = pair_streams(seed, keys, np.zeros_like(keys))
        touched = np.flatnonzero(unrated[0] | unrated[1])
        if len(touched):
            laws = self._laws(states[touched])
            rows = _replaced(rows, touched, unrated[0][touched], *laws["rows"])
            cols = _replaced(cols, touched, unrated[1][touched], *laws["cols"])
        return drawn_scores(rows, cols, states)

    def _laws(self, states: NDArray[np.uint64]) -> dict[Side, tuple[DoubleArray, DoubleArray]]:
        """Means and standard deviations of ids without ratings, one line per pair, after γ and μ are drawn::

        γ ~ q(γ), then x_k ~ N(0, γ_k)
        an intercept: μ ~ q(μ), γ_b ~ q(γ_b), then b ~ N(μ, γ_b); γ_d ~ q(γ_d), then d ~ N(0, γ_d)
        """
        scales, n = self.scales, len(states)
        moments, rank = scales.moments, len(scales.factor)
        assert moments is not None, "q(γ) is known once the first γ step is done"
        u = uniforms(states ^ SCALE_STREAM, rank + 3)
        shared = np.sqrt(scales.prior.posterior(moments.factor, moments.rows + moments.cols).quantile(u[:, :rank]))
        if scales.intercept_prior is None:
            return {side: _with_implicit(moments, side, np.zeros_like(shared), shared) for side in SIDES}
        squares = [moments.row_intercept, moments.col_intercept]
        both = scales.intercept_prior.posterior(squares, [moments.rows, moments.cols])
        own = np.sqrt(both.quantile(u[:, rank : rank + 2]))
        location = np.zeros((n, rank + 1))
        row_location = location.copy()
        row_location[:, 0] = scales.mean + np.sqrt(scales.mean_variance) * ndtri(u[:, rank + 2])
        return {
            "rows": _with_implicit(moments, "rows", row_location, np.hstack([own[:, :1], shared])),
            "cols": _with_implicit(moments, "cols", location, np.hstack([own[:, 1:], shared])),
        }

    def ranking(self, z: float | None, floor: float | None) -> Ranking:
        """The order of pairs: by probability, or by score − z·std. ``floor`` is the least confidence."""
        noise, order = prediction.score_noise(self.loss, self.calibration), math.nan if z is None else float(z)
        return Ranking(noise, order, float(floor or 0.0), prediction.score_noise(self.loss))

    # ---- from lines of factor tables ---------------------------------------------------------------------------------

    def score_lines(self, lines: Lines) -> pa.StructArray:
        priors = [prior_row(self.scales, side, self.kind, self.intercepts) for side in SIDES]

        def pairs(part: slice) -> Pairs:
            users, items = (read_factors(each[part], prior) for each, prior in zip(lines, priors, strict=True))
            return users, items

        outputs = self.outputs(*moments(pairs, len(lines[0]), priors[0].dimension))
        return pa.StructArray.from_arrays([pa.array(column) for column in outputs.values()], list(outputs))

    def sample_lines(self, lines: Lines, keys: pa.Int64Array, seed: int) -> pa.Array:
        """One draw of the score per pair of factor lines. ``keys`` are hashes of the ids: they determine the draws."""
        rows, cols = (
            read_factors(each, prior_row(self.scales, side, self.kind, self.intercepts))
            for side, each in zip(SIDES, lines, strict=True)
        )
        unrated_rows, unrated_cols = (each.is_null().to_numpy(zero_copy_only=False) for each in lines)
        numbers = keys.to_numpy(zero_copy_only=False)
        return pa.array(self.sampled_scores(rows, cols, (unrated_rows, unrated_cols), numbers, seed))


def _with_implicit(
    moments: Moments, side: Side, location: DoubleArray, deviation: DoubleArray
) -> tuple[DoubleArray, DoubleArray]:
    """With the mean and the variance of what implicit features add (``HyperPosterior.unseen``)."""
    implicit = moments.implicit_moments(side)
    if implicit is None:
        return location, deviation
    rank = implicit.shape[1]
    location, variance = location.copy(), deviation**2
    location[:, -rank:] += implicit[0]
    variance[:, -rank:] += implicit[1]
    return location, np.sqrt(variance)


def _replaced(
    side: RowPosterior, lines: NDArray[np.int64], unrated: Flags, location: DoubleArray, deviation: DoubleArray
) -> RowPosterior:
    """The posterior with the given means and deviations in those of ``lines`` that are unrated."""
    law = RowPosterior.isotropic(
        location[unrated].astype(side.location.dtype), deviation[unrated], side.kind, side.has_intercept
    )
    replaced = side.copy()
    replaced.location[lines[unrated]], replaced.scale[lines[unrated]] = law.location, law.scale
    return replaced


def moments(
    pairs: Callable[[slice], Pairs], n: int, dimension: int, threads: int = 1
) -> tuple[DoubleArray, DoubleArray]:
    """Score and variance of n pairs, in slices. ``pairs`` gives the posteriors of a slice."""
    score, variance = np.empty(n), np.empty(n)

    def fill(part: slice) -> None:
        both = pairs(part)
        score[part], variance[part] = prediction.score(*both), prediction.variance(*both)

    in_slices(fill, n, dimension**2, threads)
    return score, variance


def in_slices(fill: Callable[[slice], None], n: int, size: int, threads: int) -> None:
    """Call ``fill`` for slices of n pairs, each of which needs ``size`` numbers at a time."""
    length = max(1, prediction.SLICE // size)
    parts = [slice(lo, lo + length) for lo in range(0, n, length)]
    if threads == 1 or len(parts) <= 1:
        for part in parts:
            fill(part)
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(fill, parts))


# ---- the ids of a side -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ModelSide:
    ids: pa.Array  # different ids
    known: RowPosterior  # one row per id
    prior: RowPosterior  # one row: that of an unknown id, whose position is −1
    # number of ratings, and standard deviations of positions: ``core.work.MeasureSpreads``
    measured: FloatArray | None = None

    @classmethod
    def of(cls, table: pa.Table, info: ModelInfo, who: Who) -> ModelSide:
        prior, columns = prior_row(info.scales, SIDE_OF[who], *info.table_form), list(factor_columns(*info.table_form))
        if DIRECTIONS in table.column_names:  # of a checkpoint
            prior, columns = prior.with_vectors(MODEL_VECTORS, FIT_VECTORS), [*columns, DIRECTIONS]
        known = read_factors(one_array(table.select(columns).to_struct_array()), prior)
        return cls(one_array(table["id"]), known, prior, read_measured(table))

    @property
    def table(self) -> pa.Table:
        return factor_table(self.ids, self.known, self.measured)

    def positions(self, ids: pa.ChunkedArray | pa.Array) -> Numbers:
        """The row of every id, −1 for an unknown one."""
        return self._index.find(ids).astype(np.int64)

    @cached_property
    def _index(self) -> IdIndex:
        return IdIndex(self.ids)

    def at(self, positions: Numbers, implicit: bool = False) -> RowPosterior:
        """The posterior at these positions, the prior at −1; ``implicit``: with the vectors of implicit features."""
        return _at(self.known, self.prior, positions, implicit)

    def with_rows(self, ids: pa.Array, rows: RowPosterior, measured: FloatArray | None = None) -> ModelSide:
        """This side with more rows. An id that is known is replaced. Unless all rows are ``measured``, none is."""
        kept = np.flatnonzero(IdIndex(ids).find(self.ids) < 0)
        all_ids = pa.concat_arrays([self.ids.take(pa.array(kept)), ids])
        old, vectors = self.known.take(kept), min(self.known.vectors, rows.vectors)
        location, scale = np.concatenate([old.location, rows.location]), np.concatenate([old.scale, rows.scale])
        implicit: list[Any] = [part.with_vectors(vectors, vectors).implicit for part in (old, rows)]
        joined = np.concatenate(implicit) if vectors else None
        both = self.measured is not None and measured is not None
        numbers = np.concatenate([self.measured[kept], measured]) if both else None  # type: ignore[index]
        known = RowPosterior(location, scale, old.kind, old.has_intercept, joined)
        return ModelSide(all_ids, known, self.prior, numbers)


def _at(known: RowPosterior, prior: RowPosterior, positions: Numbers, implicit: bool = False) -> RowPosterior:
    location, scale = (_chosen(getattr(known, name), getattr(prior, name), positions) for name in ("location", "scale"))
    vectors = None
    if implicit and known.implicit is not None and prior.implicit is not None:
        vectors = _chosen(known.implicit, prior.implicit, positions)
    return RowPosterior(location, scale, known.kind, known.has_intercept, vectors)


def _chosen(lines: FloatArray, unknown: FloatArray, positions: Numbers) -> FloatArray:
    """The lines at these positions; at −1 the one line of ``unknown``."""
    if not len(lines):
        return np.repeat(unknown, len(positions), axis=0)
    chosen = lines[positions]
    chosen[positions < 0] = unknown
    return chosen


def scores_at(users: ModelSide, items: ModelSide, row: Numbers, col: Numbers) -> DoubleArray:
    scores, intercepts = np.empty(len(row)), users.prior.has_intercept

    def fill(part: slice) -> None:
        left = _chosen(users.known.location, users.prior.location, row[part])
        right = _chosen(items.known.location, items.prior.location, col[part])
        scores[part] = prediction.score_of_means(left, right, intercepts)

    in_slices(fill, len(row), users.prior.dimension, available_cores())
    return scores


def arrow_type(spark_type: str) -> pa.DataType:
    """The Arrow type of ids of a type of Spark. Raises a RequestError if such ids can be read by Spark only."""
    if decimal := re.fullmatch(r"decimal\((\d+),(-?\d+)\)", spark_type):
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    known = {name: kind for kind, name in SIMPLE.items() if kind != pa.null()}
    known |= {"timestamp": pa.timestamp("us", "UTC"), "timestamp_ntz": pa.timestamp("us")}
    if spark_type not in known:
        raise RequestError(f"ids of type {spark_type} can be read with Spark only: use OneBitCompletionModel.load")
    return known[spark_type]


def asked_ids(values: Any, expected: pa.DataType | None, what: str) -> pa.Array:
    """One id, or a sequence of ids, as an Arrow array that can be looked up among ids of type ``expected``.

    Integers of different widths are accepted, text in any of its encodings, and types that Spark has under another
    name. Any other cast could merge or split ids, so the caller must do it. ``what`` names the ids in messages.
    """
    if isinstance(values, np.ndarray):
        values = np.atleast_1d(values)
    elif isinstance(values, str | bytes) or not hasattr(values, "__len__"):
        values = [values]
    try:
        array = one_array(values if isinstance(values, pa.Array | pa.ChunkedArray) else column_of(values))
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise RequestError(f"{what} cannot be read: {str(error).splitlines()[0]}") from None
    if pa.types.is_dictionary(array.type):
        array = in_spark_type(array, what)
    expected = as_spark(array.type) if expected is None else expected
    whole = pa.types.is_integer(array.type) and pa.types.is_decimal(expected) and expected.scale == 0
    if whole or _family(array.type) != _family(expected):
        array = in_spark_type(array, what, expected if whole else None)
    if len(array) == 0 or pa.types.is_null(array.type):
        array = array.cast(expected)
    elif _family(array.type) != _family(expected):
        raise RequestError(f"{what} are of type {array.type}, but the model's are of type {expected}: convert them")
    else:
        try:
            array = array.cast(pa.int64() if pa.types.is_integer(expected) else expected)
        except pa.ArrowInvalid as error:
            raise RequestError(f"{what} cannot be of type {expected}: {error}") from None
    absent = pc.is_null(array, nan_is_null=True) if pa.types.is_floating(array.type) else pc.is_null(array)
    if n := pc.sum(absent).as_py():
        raise RequestError(f"{what} hold {n:,} null or NaN ids: drop or fill them")
    return array


def _family(kind: pa.DataType) -> tuple[Any, ...]:
    """Types whose values are the same ids have the same family."""
    plain = as_spark(kind)
    named = next((test for test in (pa.types.is_integer, pa.types.is_floating) if test(kind)), plain.id)
    return named, pa.types.is_timestamp(plain) and plain.tz is None


# ---- ratings with their predictions ----------------------------------------------------------------------------------


def scored_table(info: ModelInfo, lines: pa.Table) -> pa.Table:
    """Ratings with their predictions: the columns of ``lines`` but ``prediction``, and more.

    ``right`` is whether the prediction is the label; ``z``, the signed confidence, has a level for each call, the
    highest that makes it. The lines have OUTPUTS, ``positive``, ``unknown_user``, ``unknown_item`` and ``group``, a
    string or null.
    """
    score, std, label, positive = (lines[name].to_numpy() for name in ("score", "std", "prediction", "positive"))
    z = Predictor.of(info).confidence(score, std)
    return pa.table(
        {
            "positive": lines["positive"],
            "right": (label > 0) == positive,
            **{name: lines[name] for name in ("unknown_user", "unknown_item", "score", "std", "probability")},
            "z": z,
            **{f"level_{call}": known.level(TOWARDS[call](z)) for call, known in info.thresholds.items()},
            "group": lines["group"],
        }
    )


SCORE_BINS = 1 << 16  # of the scores of ratings that come in parts, equally wide in tanh(score/2)


def sums_of(table: pa.Table, exact: bool = True) -> dict[str, Any]:
    """Sums over scored ratings, from which all figures follow. The sums of several tables are added (``+``).

    If they are not ``exact``, they count the scores in bins. ``lines`` is what ``count_by_level`` counts.
    """
    column = {name: table[name].to_numpy() for name in table.column_names if name != "group"}
    positive, wrong, score, p = column["positive"], ~column["right"], column["score"], column["probability"]
    n, labels, n_bins = len(table), np.where(positive, 1.0, -1.0), SCORE_BINS
    if exact:
        different, place = np.unique(score, return_inverse=True)
        n_bins = len(different)
    else:
        place = np.floor((np.tanh(score / 2) + 1) / 2 * (n_bins - 1)).astype(np.int64)
    counted = {"n": np.ones(n, np.int64), "n_wrong": wrong.astype(np.int64), "n_positive": positive.astype(np.int64)}
    keys = [*(name for name in table.column_names if name.startswith("level_")), "unknown", "group"]
    unknown = column["unknown_user"] | column["unknown_item"]
    lines = pa.table({**{name: table[name] for name in keys if name != "unknown"}, "unknown": unknown, **counted})
    grouped = lines.group_by(keys).aggregate([(name, "sum") for name in counted])
    return {
        "n": n,
        "n_wrong": int(np.count_nonzero(wrong)),
        "n_unknown_user": int(np.count_nonzero(column["unknown_user"])),
        "n_unknown_item": int(np.count_nonzero(column["unknown_item"])),
        "n_called": int(np.count_nonzero(positive != wrong)),  # predicted to be positive
        "hinge_loss": n * prediction.hinge_loss(labels, score),
        "log_loss": n * prediction.log_loss(labels, p),
        "brier": n * prediction.brier(labels, p),
        "reliability": prediction.reliability_sums(labels, p),
        "classes": np.stack([np.bincount(place[of], minlength=n_bins) for of in (positive, ~positive)]),
        "lines": [grouped.rename_columns([*keys, *counted])],
    }


def figures_of(sums: Mapping[str, Any], exact: bool = True) -> dict[str, Any]:
    """Error, losses, AUC and so on from the sums over scored ratings."""
    positives, negatives = sums["classes"]
    auc, error = prediction.auc_of_counts(positives, negatives) or (None, None)
    return {
        **{name: sums[name] for name in ("n_wrong", "n_unknown_user", "n_unknown_item")},
        **{name: sums[name] / sums["n"] for name in ("hinge_loss", "log_loss", "brier")},
        "calibration_error": prediction.Reliability.of_sums(sums["reliability"]).error,
        "auc": auc,
        "auc_error": 0.0 if exact else error,
        **prediction.class_figures(positives, negatives, sums["n_called"], sums["n_wrong"]),
    }


def with_rates(
    figures: dict[str, Any], info: ModelInfo, n: int, positives: int, threshold: float | None
) -> dict[str, Any]:
    """All figures of metrics.json: those of n ratings, with their error rate and that of the majority class."""
    wrong = figures["n_wrong"]
    low, high = prediction.error_interval(wrong, n)
    minority = n - positives if info.majority > 0 else positives
    rates = {"error": wrong / n, "error_low": low, "error_high": high, "majority_error": minority / n}
    return {"n": n, "n_positive": positives, **rates, "threshold": threshold, **figures}


def count_by_level(
    info: ModelInfo, sums: Mapping[str, Any], by: str | None, predicts_unknown: bool
) -> HeldOutCounts:  # fmt: skip
    """The counts of ratings for certificates; ``by`` is the column of their groups."""
    lines = pa.concat_tables(sums["lines"])
    columns = {name: lines[name].to_numpy() for name in lines.column_names if name != "group"}
    groups = () if by is None else _groups(lines["group"], by)
    return HeldOutCounts.of(info.thresholds, columns, info.majority, groups, predicts_unknown)


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


def sampled(n: int, most: int = SAMPLE) -> Numbers:
    """The positions of a random sample of at most ``most`` of n ratings, ascending."""
    return np.arange(n) if n <= most else np.sort(np.random.default_rng(0).choice(n, most, replace=False))


def diagnosed(scored: pa.Table, source: str, fitted: bool) -> dict[str, Any]:
    """The figures that a report shows, of scored ratings; ``source`` says what they are.

    ``fitted``: the model was fitted to them, so the figures are too good. Of the curve of risk and coverage: if only
    the most confident ``share`` is answered, ``error`` of the answers are wrong. ``calls`` counts both classes in bins
    of the signed confidence, ascending.
    """
    column = {name: scored[name].to_numpy() for name in ("positive", "right", "score", "z")}
    positive, wrong, n = column["positive"], ~column["right"], len(scored)
    low, high, per_octave = CONFIDENCE_BINS
    octave = np.floor((np.log2(np.clip(np.abs(column["z"]), 2.0**low, 2.0**high)) - low) * per_octave)
    bins = np.unique(-octave, return_inverse=True)[1]
    answered, errors = np.cumsum(np.bincount(bins)), np.cumsum(np.bincount(bins, weights=wrong))
    signed = np.unique(np.copysign(octave + 1, column["z"]), return_inverse=True)[1]
    sums = sums_of(scored)
    figures, reliability = figures_of(sums), prediction.Reliability.of_sums(sums["reliability"])
    edges, place = np.unique(np.floor(column["score"] / SCORE_WIDTH).astype(np.int64), return_inverse=True)
    classes = {"positive": positive, "negative": ~positive}

    def by_class(bins: Numbers) -> dict[str, list[int]]:
        return {name: np.bincount(bins[chosen], minlength=bins.max() + 1).tolist() for name, chosen in classes.items()}

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
        **{name: figure for name, figure in figures.items() if name.endswith(("precision", "recall"))},
    }


def calibrated(scored: pa.Table) -> Calibration:
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

NOTHING_SEEN = "{} has no rating: leave it out, or give the ratings that were fitted"
KEPT_OUT = {
    "checked": True,
    "by_coin": True,
    "reason": "a coin for every cell kept these ratings out of this very fit",
}
NOT_KNOWN = {"checked": False, "reason": "the model does not record which ratings it was fitted on"}


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
            f"and of fresh ratings about {compared.expected:.1%} would be ({compared.looked_at:,} were compared). "
            "Give ratings that it has not seen, or hold some out of the fit"
        )
    figures: dict[str, Any] = {name: getattr(compared, name) for name in ("share", "expected", "looked_at")}
    if not known.complete:
        reason = "the model records only some of the ratings that it was fitted on"
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
    terms: Terms
    max_error: float | Sequence[float] = ()  # requested error rates among the answered pairs
    by: str | None = None  # a column of the ratings: certify within each of its groups as well
    min_precision: Any = ()  # requested precisions of calls: see ``precision_requests``

    @classmethod
    def of(
        cls, maxError: float | Sequence[float], delta: float, by: str | None, grid: int, minPrecision: Any = ()
    ) -> CertificateRequest:
        return cls(Terms(delta=delta, grid=grid), maxError, by, minPrecision)

    @property
    def rates(self) -> list[Any]:
        given = self.max_error
        return list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]

    @property
    def calls(self) -> list[CallRequest]:
        return [*(CallRequest("answered", float(rate)) for rate in self.rates), *precision_requests(self.min_precision)]

    def problems(self, info: ModelInfo, names: Mapping[str, str] | None = None) -> list[str]:
        """Why a model cannot be certified like this, before any rating is scored.

        ``names`` are those of the arguments in the messages. Default: the names of the Params.
        """
        own = {"max_error": "maxError", "min_precision": "minPrecision"}
        names = {**param_names(Terms), **own} if names is None else names
        if not isinstance(self.terms, Terms):
            return [f"terms must be Terms, such as Terms(delta=0.1), not {self.terms!r}"]
        problems = [problem.in_words(names) for problem in self.terms.problems()]
        asked = {"max_error": request_problems(self.rates), "min_precision": precision_problems(self.min_precision)}
        problems += [f"{names.get(name, name)} {problem}" for name, found in asked.items() for problem in found]
        if not problems and self.calls and info.confidences is None:
            problems.append("a checkpoint has no confidences of its ratings: certify the finished model")
        return problems


def certificates_of(
    info: ModelInfo, counts: HeldOutCounts, request: CertificateRequest, fresh: Mapping[str, Any]
) -> list[Certificate]:
    certificates = held_out_certificates(info.thresholds, counts, request.terms, request.calls)
    certificates = [with_freshness(item, fresh) for item in certificates]
    if not fresh.get("by_coin"):
        return certificates
    repeated, left_out = bool(info.repeats.get("repeated")), fresh.get("left_out", 0)
    return [kept_by_coin(item, repeated, left_out) for item in certificates]


def with_certificates(
    before: Mapping[str, Any], certificates: Sequence[Certificate], instead_of: Collection[str] = OF_PREDICTIONS
) -> dict[str, Any]:
    """The content of ``certificate.json`` with more certificates, ``instead_of`` those of some names and of groups.

    By default these are all about the predictions, so the certificates of a fit remain.
    """
    kept = [item for item in before["certificates"] if item["name"] not in instead_of and not item.get("group")]
    return certificate_document([*kept, *(item.as_dict() for item in certificates)])
