"""FittedModel: a fitted model in this process. ``fit_arrays``, ``fit_table`` and ``load`` return it."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from onebit_spark import model_info
from onebit_spark.certify.certificates import (
    IN_ARGUMENTS,
    OF_PREDICTIONS,
    UNKNOWN,
    Certificate,
    calling_threshold,
    calls_unknown,
    certificate_document,
    headline_of,
    ungrouped_certificates,
)
from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.features import warn_of_unknown_values
from onebit_spark.core.hyper_posterior import HyperPosterior
from onebit_spark.core.positions import Axes
from onebit_spark.core.posterior import DoubleArray, FloatArray, RowPosterior
from onebit_spark.core.prediction import TOWARDS, Call, ranking_figures
from onebit_spark.core.solver import Iteration
from onebit_spark.data.hashes import HIGHEST, CellSketch, cell_hashes, merged_sketch, pair_hashes
from onebit_spark.data.id_index import one_array
from onebit_spark.data.locations import MAP, MODEL, PAGE
from onebit_spark.data.ratings import checked_lines
from onebit_spark.data.user_tables import arrow_table, label_problems, weight_problems
from onebit_spark.errors import RequestError, refuse
from onebit_spark.model_folder import read_model, replaced_folder, write_into, write_page, write_vectors
from onebit_spark.model_info import PARTNER, SIDE_OF, ModelInfo
from onebit_spark.predict.new_ratings import FoldIn, updated_rows, warn_dropped, warn_left_out
from onebit_spark.predict.predictor import (
    NOTHING_SEEN,
    SAMPLE,
    CertificateRequest,
    ModelSide,
    Predictor,
    asked_ids,
    calibrated,
    certificates_of,
    count_by_level,
    diagnosed,
    figures_of,
    fresh_to,
    moments,
    sampled,
    scored_table,
    scores_at,
    sums_of,
    with_certificates,
)
from onebit_spark.predict.questions import best_questions
from onebit_spark.predict.top_n import Numbers, Ranking, best_of, ranking_problems
from onebit_spark.report.map import MOST_POINTS, REPORTED, coloured, drawing
from onebit_spark.report.map import page as map_page
from onebit_spark.report.page import REPORT, page_of
from onebit_spark.report.page import report as report_page
from onebit_spark.settings import FitConfig, Terms, Who, available_cores, is_integer

log = logging.getLogger("onebit_spark")

COLD_START = ("prior", "drop", "nan")


IdLabels = tuple[Any, Any, NDArray[np.bool_] | None]  # of ratings: ids of users and items, whether they are positive


class _Ratings(NamedTuple):
    ids: list[pa.Array]  # of the users and of the items
    rows: Numbers  # their positions
    cols: Numbers
    positive: NDArray[np.bool_]
    weights: NDArray[np.floating] | None
    kept: NDArray[np.bool_]  # which of the given ratings they are


def load(path: str | os.PathLike[str]) -> FittedModel:
    """The model of a folder on this machine, without Spark. It is read once, into memory.

    ``jobs/fit.py``, ``OneBitCompletionModel.save`` or ``FittedModel.save`` wrote the folder. A RequestError says if
    there is no model, or if it is damaged, of another format, or on another machine (hdfs://, s3://).
    """
    info, users, items, certificate, params, fitted = read_model(path)
    cold_start, max_error = params.get("coldStartStrategy", "prior"), params.get("maxError")
    content = info, users, items, certificate, cold_start, max_error, params, fitted
    return FittedModel(*content, min_precision=params.get("minPrecision"))


@dataclass(frozen=True, eq=False, repr=False)
class FittedModel:
    """A fitted model in this process: the result of ``fit_arrays``, ``fit_table`` and ``load``.

    It predicts what ``OneBitCompletionModel.transform`` predicts. The methods change nothing, so threads may share it.

    Attributes
    ----------
    info : ModelInfo
        Settings, counts and history of the fit: the content of ``metadata.json``.
    users, items : ModelSide
        Ids and posterior of each side.
    certificate : dict
        Upper limits on the error rate: the content of ``certificate.json``.
    cold_start : {"prior", "drop", "nan"}
        Pairs with an unknown id: predicted from the prior, left out, or NaN. The Param ``coldStartStrategy``.
    max_error, min_precision
        Which certified error rate ``answered`` has, and which precisions ``positive`` and ``negative``, such as
        "0.8,negative:0.99". Default: the first that were requested. The Params ``maxError`` and ``minPrecision``.

    Notes
    -----
    The methods take the ids of the ratings: one id, or a sequence, a numpy or an Arrow array, a pandas Series. A single
    id is repeated for all partners. After ``fit_arrays`` the ids are the numbers of the rows and columns; one without
    ratings, or outside the shape, is an unknown id.
    """

    info: ModelInfo
    users: ModelSide
    items: ModelSide
    certificate: dict[str, Any]
    cold_start: str = "prior"
    max_error: float | None = None
    params: dict[str, Any] = field(default_factory=dict)  # all Params of the folder, which ``save`` writes again
    fitted: CellSketch | None = None  # which cells were fitted, so that ``certify`` can refuse their ratings
    history: Sequence[Iteration] = ()  # of a fit in this process; a folder keeps ``objective_history`` of it
    shape: tuple[int, int] | None = None  # of the matrix, after ``fit_arrays``
    min_precision: str | None = None

    def __post_init__(self) -> None:
        if self.cold_start not in COLD_START:
            raise RequestError(f"cold_start must be one of {', '.join(COLD_START)}, not {self.cold_start!r}")

    def __repr__(self) -> str:
        info = self.info
        return f"{type(self).__name__}({info.n_users:,} users, {info.n_items:,} items, rank {info.config.rank})"

    # ---- the fit -----------------------------------------------------------------------------------------------------

    @cached_property
    def rows(self) -> RowPosterior:
        """Posterior of the users, in the order of ``users.ids``; after ``fit_arrays``, of every row of the shape."""
        return _posterior(self.users, None if self.shape is None else self.shape[0])

    @cached_property
    def cols(self) -> RowPosterior:
        """Posterior of the items: see ``rows``."""
        return _posterior(self.items, None if self.shape is None else self.shape[1])

    @cached_property
    def config(self) -> FitConfig:
        """The settings, with the rank, κ, α and β that were used."""
        return self.info.config

    @cached_property
    def scales(self) -> HyperPosterior:
        """q(γ) and q(μ), and the weights of side features."""
        return self.info.scales

    @property
    def objective_history(self) -> list[float]:
        """λ·AVB (hinge) or −ELBO (logistic) after each iteration. It is minimised."""
        return self.info.objective_history

    @property
    def converged(self) -> bool:
        """Whether the stopping rule held (docs/MATH.md, §7.4)."""
        return self.info.converged

    @property
    def reason(self) -> str:
        """Why the fit stopped."""
        return self.info.reason

    @property
    def inverse_gamma(self) -> NDArray[np.float64]:
        """g_k = E[1/γ_k] of the K factors. It is large where a factor was switched off."""
        return self.scales.factor

    @property
    def effective_rank(self) -> int:
        """Number of factors in use (§8.5)."""
        return self.info.effective_rank

    @property
    def certificates(self) -> list[Certificate]:
        """The certificates of the model: see ``certificate``."""
        return [Certificate.from_dict(item) for item in self.certificate["certificates"]]

    @property
    def headline(self) -> str | None:
        """The sentence of the first certificate. None if nothing was certified."""
        return headline_of(self.certificate)

    def feature_weights(self, who: Who = "user") -> pa.Table:
        """What was learnt from side features: see ``OneBitCompletionModel.userFeatureWeights``."""
        columns = zip(*model_info.feature_effects(self.info, who), strict=True)
        return pa.table(dict(zip(("feature", "effect", "intercept", "factors"), map(list, columns), strict=True)))

    def side(self, who: Who) -> ModelSide:
        return self.users if who == "user" else self.items

    # ---- predictions -------------------------------------------------------------------------------------------------

    @cached_property
    def predictor(self) -> Predictor:
        return Predictor.of(self.info)

    def predictions(self, users: Any, items: Any) -> pa.Table:
        """What ``transform`` appends, for pairs of ids (docs/predictions.md).

        The columns are user, item, score, std, probability and prediction; ``answered`` after a selective certificate,
        ``positive`` and ``negative`` after a certified precision.
        """
        ids, rows, cols = self.pairs(users, items)
        table = pa.table({"user": ids[0], "item": ids[1], **self._outputs(rows, cols)})
        return table.filter(pa.array((rows >= 0) & (cols >= 0))) if self.cold_start == "drop" else table

    def transform(self, pairs: Any) -> Any:
        """A table with the predictions appended: score, std, probability, prediction, and the calls as above.

        ``pairs`` is a pyarrow.Table or a DataFrame of pandas or polars, with the columns of users and items of the fit,
        and any others. The result is of the same kind.
        """
        table = arrow_table(pairs, "the pairs")
        _, rows, cols = self.pairs(*self._columns_of(table, "the pairs", ("user", "item")))
        outputs = self._outputs(rows, cols)
        if taken := [name for name in table.column_names if name.lower() in outputs]:
            raise RequestError(f"output column {taken[0]!r} is already there: drop or rename it")
        kept = (rows >= 0) & (cols >= 0) if self.cold_start == "drop" else np.full(len(rows), True)
        if hasattr(pairs, "assign") and hasattr(pairs, "loc"):  # of pandas
            return pairs.assign(**outputs)[kept]
        if hasattr(pairs, "hstack"):  # of polars
            return pairs.hstack(type(pairs)(outputs)).filter(kept)
        for name, values in outputs.items():
            table = table.append_column(name, pa.array(values))
        return table if kept.all() else table.filter(pa.array(kept))

    def _columns_of(self, given: Any, what: str, roles: Sequence[str]) -> list[pa.ChunkedArray]:
        """The columns of users, items or labels in a table. Upper and lower case do not differ, as in Spark."""
        table = arrow_table(given, what)
        found = []
        for name in (self.info.columns[role] for role in roles):
            matching = [each for each in table.column_names if each.lower() == name.lower()]
            if len(matching) != 1:
                few = "no column" if not matching else f"{len(matching)} columns"
                raise RequestError(f"{what} have {few} {name!r}")
            found.append(table[matching[0]])
        return found

    def _ratings(
        self, users: Any, items: Any, labels: Any, to: str, who: str = "user", threshold: float | None = None
    ) -> _Ratings:
        """Ratings that were checked: users, items and labels, or the columns of the fit in one table, ``users``.

        A table may have the column of the weights. Ratings of weight 0 are left out. ``to`` is the purpose, in
        messages; ``threshold`` replaces that of the fit.
        """
        weights, weight = None, self.info.columns.get("weight")
        if items is None and labels is None:
            table = arrow_table(users, "the ratings")
            if weight is not None and weight.lower() in map(str.lower, table.column_names):
                weights = self._columns_of(table, "the ratings", ("weight",))[0].to_numpy()
            users, items, given = self._columns_of(table, "the ratings", ("user", "item", "label"))
            labels = given.to_numpy()
        elif items is None or labels is None:
            raise RequestError("the ratings must be users, items and labels, or one table; other arguments go by name")
        ids, rows, cols = self.pairs(users, items)
        positive = positive_labels(labels, self.info.threshold if threshold is None else threshold, len(rows), who, to)
        kept = np.full(len(rows), True)
        if weights is not None:
            refuse(weight_problems(weights))
            kept = weights.astype(np.float32) != 0
            weights = weights[kept].astype(np.float32)
        chosen = [array.filter(pa.array(kept)) for array in ids]
        return _Ratings(chosen, rows[kept], cols[kept], positive[kept], weights, kept)

    def score(self, users: Any, items: Any) -> DoubleArray:
        """Posterior mean of the score, E[b_i] + E[d_j] + E[L_i]·E[R_j] (docs/MATH.md, §8.1).

        One number per pair, also in ``std``, ``probability`` and ``predict``: with ``cold_start`` "nan" or "drop", a
        pair with an unknown id is NaN.
        """
        _, rows, cols = self.pairs(users, items)
        return self._without_unknown(scores_at(self.users, self.items, rows, cols), rows, cols)

    def std(self, users: Any, items: Any) -> DoubleArray:
        """Standard deviation of the score in an approximate posterior, which depends on the rank and on κ.

        It compares pairs of one model. It is no error bar (docs/predictions.md, Std).
        """
        return self._output("std", users, items)

    def probability(self, users: Any, items: Any) -> DoubleArray:
        """P(+), calibrated if the model is. Its meaning depends on the loss (§8.1)."""
        return self._output("probability", users, items)

    def predict(self, users: Any, items: Any) -> DoubleArray:
        """The label in the coding of the ratings, by the sign of the score; the majority label for a score of 0.

        The labels are −1 and 1 after a fit of such labels, else 0 and 1.
        """
        _, rows, cols = self.pairs(users, items)
        labels = self.predictor.label(scores_at(self.users, self.items, rows, cols))
        return self._without_unknown(labels, rows, cols)

    def confidence(self, users: Any, items: Any) -> DoubleArray:
        """|score|/√(c + variance): how sure the model is of the sign (§10.1)."""
        _, rows, cols = self.pairs(users, items)
        outputs = self.predicted(rows, cols)
        return self._without_unknown(np.abs(self.predictor.confidence(outputs["score"], outputs["std"])), rows, cols)

    def answered(self, users: Any, items: Any, certificate: Certificate | None = None) -> NDArray[np.bool_]:
        """Which pairs the model answers under a selective certificate; none if its request could not be met.

        The default is the model's own certificate, for ``max_error``.
        """
        return self.called("answered", users, items, certificate)

    def called(self, call: Call, users: Any, items: Any, certificate: Certificate | None = None) -> NDArray[np.bool_]:
        """Which pairs the model calls "positive" or "negative" under a certified precision: as ``answered``, for
        ``min_precision``.
        """
        if certificate is None:
            threshold, unknown = self._threshold(call), calls_unknown(self.certificate, call)
        else:
            threshold, unknown = certificate.inputs["threshold"], UNKNOWN not in certificate.inputs
        _, rows, cols = self.pairs(users, items)
        outputs = self.predicted(rows, cols)
        score = self._without_unknown(outputs["score"], rows, cols)
        made = self.predictor.calls(call, np.inf if threshold is None else threshold, score, outputs["std"])
        return made & (unknown | ((rows >= 0) & (cols >= 0)))

    def _threshold(self, call: Call) -> float:
        return calling_threshold(self.certificate, call, self.max_error, self.min_precision, IN_ARGUMENTS)

    def sample(self, users: Any, items: Any, seed: int = 0) -> DoubleArray:
        """One random draw of the score per pair. Its sign is the predictor of the certificates for draws (§9.4).

        A draw is a function of the seed and the two ids, as in ``OneBitCompletionModel.sample``. Unknown ids are
        drawn from the prior.
        """
        ids, rows, cols = self.pairs(users, items)
        types = self.users.ids.type, self.items.ids.type
        keys = pair_hashes(*(array.cast(kind, safe=False) for array, kind in zip(ids, types, strict=True)))
        left, right = self.users.at(rows), self.items.at(cols)
        return self.predictor.sampled_scores(left, right, (rows < 0, cols < 0), keys, seed)

    def _output(self, name: str, users: Any, items: Any) -> DoubleArray:
        _, rows, cols = self.pairs(users, items)
        return self._without_unknown(self.predicted(rows, cols)[name], rows, cols)

    def pairs(self, users: Any, items: Any) -> tuple[list[pa.Array], Numbers, Numbers]:
        ids = [self.asked("user", users), self.asked("item", items)]
        numbers = self.users.positions(ids[0]), self.items.positions(ids[1])
        lengths = {len(asked) for asked in ids} - {1}
        if len(lengths) > 1:
            raise RequestError(f"there are {len(ids[0]):,} user ids, but {len(ids[1]):,} item ids")
        n = lengths.pop() if lengths else 1
        place = [np.arange(n) if len(asked) == n else np.zeros(n, np.int64) for asked in ids]
        taken = [asked.take(pa.array(at)) for asked, at in zip(ids, place, strict=True)]
        return taken, numbers[0][place[0]], numbers[1][place[1]]

    def _seen(self, seen: Any) -> tuple[list[pa.Array], Numbers, Numbers]:
        """``pairs`` of (user ids, item ids), or of a table."""
        return self.pairs(*(seen if is_pair(seen) else self._columns_of(seen, "the seen pairs", ("user", "item"))))

    def asked(self, who: Who, values: Any) -> pa.Array:
        return asked_ids(values, self.side(who).ids.type, f"the {who} ids")

    def predicted(self, rows: Numbers, cols: Numbers) -> dict[str, DoubleArray]:
        """Score, std, probability and prediction of positions of the two sides. Position −1 is an unknown id."""
        dimension, threads = self.users.prior.dimension, available_cores()
        both = moments(
            lambda part: (self.users.at(rows[part]), self.items.at(cols[part])), len(rows), dimension, threads
        )
        return self.predictor.outputs(*both)

    def _outputs(self, rows: Numbers, cols: Numbers) -> dict[str, NDArray[Any]]:
        outputs: dict[str, NDArray[Any]] = {
            name: self._without_unknown(values, rows, cols) for name, values in self.predicted(rows, cols).items()
        }
        for call in TOWARDS:
            if ungrouped_certificates(self.certificate, call):
                made = self.predictor.calls(call, self._threshold(call), outputs["score"], outputs["std"])
                known = calls_unknown(self.certificate, call) | ((rows >= 0) & (cols >= 0))
                outputs[call] = made & known
        return outputs

    def _without_unknown(self, values: DoubleArray, rows: Numbers, cols: Numbers) -> DoubleArray:
        """The values, with NaN for pairs with an unknown id unless these are predicted from the prior."""
        if self.cold_start != "prior":
            values[(rows < 0) | (cols < 0)] = np.nan
        return values

    # ---- recommendations ---------------------------------------------------------------------------------------------

    def recommend(
        self, ids: Any = None, n: int = 10, who: Who = "user", *, z: float | None = None,
        seen: Any = None, answered_only: bool = False,
    ) -> pa.Table:  # fmt: skip
        """The best items of users (``who`` = "user"), or the best users of items, ranked by probability.

        ``ids`` are by default all that the model knows. Unknown ones are left out, with a warning. With ``z`` the order
        is that of score − z·std. The pairs of ``seen``, (user ids, item ids) or a table with the columns of the fit,
        are not recommended. With ``answered_only`` only pairs are listed that the model answers; no certificate is
        about the lists (docs/predictions.md).

        Returns
        -------
        pyarrow.Table
            The id, ``rank`` from 1 to n, the recommended id, score, std, probability.
        """
        refuse(ranking_problems(n, z) + who_problems(who))
        floor = self._threshold("answered") if answered_only else None
        asking, others = self.side(who), self.side(PARTNER[who])
        rows = np.arange(len(asking.ids)) if ids is None else asking.positions(self.asked(who, ids))
        if unknown := int(np.count_nonzero(rows < 0)):
            log.warning(
                f"{unknown:,} of {len(rows):,} {who}s are unknown to the model and get no recommendations: fold them "
                "in, or ask for their probabilities, which come from the prior"
            )
        rows = rows[rows >= 0]
        pairs = None if seen is None else self._seen(seen)[1:]
        if pairs is not None and who == "item":
            pairs = pairs[::-1]
        best = best_of(asking.known, rows, others.known, n, self.predictor.ranking(z, floor), pairs)
        row, rank = np.nonzero(best.present)
        outputs = self.predictor.outputs(best.score[best.present], best.variance[best.present])
        ids, partners = asking.ids.take(pa.array(rows[row])), others.ids.take(pa.array(best.partner[best.present]))
        figures = {name: outputs[name] for name in ("score", "std", "probability")}
        return pa.table({who: ids, "rank": pa.array(rank + 1), PARTNER[who]: partners, **figures})

    # ---- positions ---------------------------------------------------------------------------------------------------

    def positions(
        self, who: Who = "user", dimensions: int | None = None, anchors: Mapping[Any, int] | None = None
    ) -> pa.Table:
        """Positions of the users, or intercepts and slopes of the items, with standard deviations (docs/positions.md).

        The score of a pair is intercept + Σ slope·position, over all dimensions. Positions have mean 0, unit variance
        and no correlation; the first dimension explains the largest share of the scores' variance. By default the table
        has two dimensions, or as many as the model has.

        ``anchors`` map users to ±1, the side on which their position in the first dimension is to be. They turn the
        axis of the items as well. By default the longer tail is positive.

        Returns
        -------
        pyarrow.Table
            ``user``, ``n_ratings``, ``dim1``, ``dim1_std``, … of users; ``item``, ``n_ratings``, ``intercept``,
            ``intercept_std``, ``slope1``, ``slope1_std``, … of items, with one dimension also ``difficulty``
            (−intercept/slope) and ``difficulty_std``. Both are null where one of them exceeds 10 in magnitude, because
            the slope is near 0. ``schema.metadata`` has the ``shares`` of the scores' variance.
        """
        axes, side = self._axes, self.side(who)
        refuse(who_problems(who) + position_problems(axes, who, dimensions, anchors))
        if side.measured is None:
            log.warning(NOT_MEASURED)
        sign, dimensions = anchored_sign(axes, self.users, anchors or {}), axes.shown(dimensions)
        shares = {"shares": json.dumps(axes.shares[:dimensions].tolist())}
        return position_table(axes, side, who, dimensions, sign).replace_schema_metadata(shares)

    def map(
        self, path: str | os.PathLike[str], anchors: Mapping[Any, int] | None = None,
        groups: Mapping[Any, Any] | None = None, overwrite: bool = False,
    ) -> None:  # fmt: skip
        """Draw the first two dimensions of all users on one page, map.html (docs/positions.md).

        ``groups`` are words by user, such as parties: they are the colours. For ``anchors`` see ``positions``. With
        ``overwrite`` the page replaces another map.
        """
        if not isinstance(groups, Mapping | None):
            raise RequestError(f"groups must map ids of users to words, such as {{'ann': 'red'}}, not be {groups!r}")
        page = map_page(coloured(self.drawing(anchors), groups or {}))
        write_page(path, page, MAP, overwrite)

    def drawing(self, anchors: Mapping[Any, int] | None = None, most: int = MOST_POINTS) -> dict[str, Any]:
        """What a map of so many users shows: see ``onebit_spark.report.map``."""
        refuse(map_problems(self._axes))
        users, items = (self.positions(who, 2, anchors) for who in SIDE_OF)
        return drawing(users, items, self._axes.shares, most)

    def next_questions(self, ids: Any, n: int = 10, *, seen: Any = None, items: Any = None) -> pa.Table:
        """The n items whose answers would say most about each user: an adaptive test (docs/positions.md).

        Each different user gets one list, to be asked as a whole. To use the answers, fold them in and ask for the next
        question. An unknown user is a new one. The pairs of ``seen``, (user ids, item ids) or a table with the columns
        of the fit, are not asked again. ``items`` are those that may be asked, by default all.

        Returns
        -------
        pyarrow.Table
            The user, ``rank`` from 1 on, the item, and ``information``: the mutual information, in nats, of the answer
            and what is not yet known of the user, given the answers before it in the list.
        """
        refuse(question_problems(self.info, n))
        users, known = self.asked("user", ids).unique(), self.items.known
        rows, allowed = self.users.positions(users), np.full(len(self.items.ids), items is None)
        if items is not None:
            places = self.items.positions(self.asked("item", items))
            allowed[places[places >= 0]] = True
        asked: dict[Any, list[Any]] = {}
        if seen is not None:
            (of, _), _, cols = self._seen(seen)
            for user, col in zip(of.to_pylist(), cols, strict=True):
                asked.setdefault(user, []).append(col)
        none = np.zeros(0, np.int64)
        lines: list[tuple[Numbers, Numbers, Numbers, DoubleArray]] = [(none, none, none, np.zeros(0))]
        for place, (row, user) in enumerate(zip(rows, users.to_pylist(), strict=True)):
            may, own = allowed.copy(), self.users.at(np.array([row]))
            may[[col for col in asked.get(user, []) if col >= 0]] = False
            best = best_questions(own.location[0], own.covariance[0], known.location, known.has_intercept, n, may)
            lines.append((np.full(len(best[0]), place), np.arange(1, len(best[0]) + 1), *best))
        of_user, rank, item, gain = map(np.concatenate, zip(*lines, strict=True))
        columns = {"user": users.take(pa.array(of_user)), "rank": rank, "item": self.items.ids.take(pa.array(item))}
        return pa.table({**columns, "information": gain})

    @cached_property
    def _axes(self) -> Axes:
        """The axes of the fit. A checkpoint has those of its rows."""
        known = self.info.position_axes
        return Axes.of_posteriors(self.users.known, self.items.known) if known is None else known

    # ---- quality -----------------------------------------------------------------------------------------------------

    def scored(
        self, rows: Numbers, cols: Numbers, positive: NDArray[np.bool_], groups: pa.ChunkedArray | None = None
    ) -> pa.Table:
        """Ratings at positions of the two sides, with their predictions: see ``scored_table``."""
        none = pa.nulls(len(rows), pa.string())
        columns = {"positive": positive, "unknown_user": rows < 0, "unknown_item": cols < 0}
        lines = {**columns, "group": none if groups is None else groups, **self.predicted(rows, cols)}
        return scored_table(self.info, pa.table(lines))

    def certify(
        self, users: Any, items: Any = None, labels: ArrayLike | None = None, terms: Terms | None = None,
        max_error: float | Sequence[float] = (), groups: ArrayLike | None = None, min_precision: Any = (),
    ) -> list[Certificate]:  # fmt: skip
        """Certify the model on ratings that were not fitted: ``holdout``, and one certificate for each request.

        The ratings are users, items and labels, or one table with the columns of the fit. Those of cells that the model
        was fitted on are refused, as far as it knows them. ``terms`` are δ and the number of settings that were
        compared.

        With ``cold_start`` "drop" or "nan", pairs with an unknown id count as not answered, and not in ``holdout``.

        ``max_error`` requests error rates among the answered pairs (docs/MATH.md, §10): ``selective``.
        ``min_precision`` requests precisions among the pairs that are called positive, such as 0.9, or negative, such
        as "negative:0.99" (§10.6): ``precision``. ``groups`` has one value per rating: certify within each group as
        well; the groups share δ.
        """
        by, terms = None if groups is None else "group", terms or Terms()
        request = CertificateRequest(terms, max_error, by, min_precision)
        refuse(request.problems(self.info, {}))
        given = self._ratings(users, items, labels, "certify")
        if not len(given.rows):
            raise RequestError("cannot certify: there is no rating")
        text = None
        if groups is not None:
            values = np.asarray(groups)
            if values.shape != given.kept.shape:
                raise RequestError(
                    f"groups must be {len(given.kept):,} values, one per rating, not of shape {values.shape}"
                )
            text = pa.chunked_array([pa.array([str(value) for value in values[given.kept]])])
        scored = self.scored(given.rows, given.cols, given.positive, text)
        return self.certified(scored, request, fresh_to(self.fitted, self._sketch(given)))[1]

    def with_certificates(
        self, certificates: Sequence[Certificate], instead_of: Sequence[str] = OF_PREDICTIONS
    ) -> FittedModel:
        """This model with the certificates of ``certify``, which replace earlier ones; those of the fit remain.

        ``instead_of`` are the names of those that are replaced.
        """
        return replace(self, certificate=with_certificates(self.certificate, certificates, instead_of))

    def _sketch(self, given: _Ratings) -> CellSketch:
        return CellSketch.of(cell_hashes(*given.ids), HIGHEST if self.fitted is None else self.fitted.limit)

    def calibrate(self, users: Any, items: Any = None, labels: ArrayLike | None = None) -> FittedModel:
        """This model with a probability that agrees with the frequencies in these ratings (docs/MATH.md, §8.4).

        The ratings, or one table with the columns of the fit, must not have been fitted. Score, std and prediction do
        not change. The probability is above ½ exactly where the score is above 0.
        """
        given = self._ratings(users, items, labels, "calibrate")
        return self.changed(calibration=asdict(calibrated(self.scored(given.rows, given.cols, given.positive))))

    def diagnose(
        self, users: Any, items: Any = None, labels: ArrayLike | None = None, *, source: str = "held-out ratings",
        fitted: bool = False,
    ) -> FittedModel:  # fmt: skip
        """This model with the figures of its report, measured on these ratings, or on a sample of them.

        The ratings are users, items and labels, or one table with the columns of the fit. ``source`` says in words what
        they are. If the model was ``fitted`` to them, the report warns that the figures are too good.
        """
        given = self._ratings(users, items, labels, "diagnose")
        if not (n := len(given.rows)):
            raise RequestError("cannot diagnose: there is no rating")
        places, source = sampled(n), f"a sample of {source}" if n > SAMPLE else source
        scored = self.scored(given.rows[places], given.cols[places], given.positive[places])
        return self.with_figures(scored, source, fitted)

    def with_figures(self, scored: pa.Table, source: str, fitted: bool) -> FittedModel:
        """This model with what its report shows: the figures of scored ratings, and a map of its users."""
        figures = diagnosed(scored, source, fitted)
        if self.users.measured is not None and self._axes.dimensions > 1:
            figures["map"] = self.drawing(most=REPORTED)
        return self.changed(diagnostics=figures)

    def changed(self, **info: Any) -> FittedModel:
        """This model with other fields of its ``info``."""
        return replace(self, info=replace(self.info, **info))

    def report(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write the report of the fit, the page ``report.html`` of a job, to a file. Its plots need matplotlib.

        It shows errors and probabilities after ``fit_table(holdout=…)`` or ``diagnose``. With ``overwrite`` it replaces
        another report.
        """
        if find_spec("matplotlib") is None:
            raise RequestError("the plots of a report need matplotlib: pip install '.[plots]'")
        write_page(path, report_page(self.info, self.certificate), PAGE, overwrite)

    def ranking(
        self, users: Any, items: Any = None, labels: ArrayLike | None = None, *, n: int = 10, seen: Any = None
    ) -> dict[str, Any]:
        """How many positive ratings the lists of ``recommend`` find: see ``core.prediction.ranking_figures``.

        The ratings, users, items and labels or one table with the columns of the fit, were not fitted. The positive
        ones are relevant. ``seen`` are the ratings that were fitted, (users, items, labels) or a table, or their pairs,
        (users, items): the model does not keep them. They are neither listed nor relevant. Without them, lists consist
        largely of fitted items, so the figures are too low.

        Returns
        -------
        dict
            ``model``, and with ratings in ``seen`` also ``popularity``: the items with their most positive ones. Each
            has precisionAtK, recallAtK, ndcgAtK and meanAveragePrecisionAtK. Also ``n``, ``n_users``, the users with
            relevant items over whom these are means, and ``n_unknown_user``, which are left out. Unknown items count
            as not found.
        """
        given = self._ratings(users, items, labels, "rank")
        if seen is None:
            return self.ranked((*given.ids, given.positive), n)
        before = self._seen_ratings(seen)
        if not len(before[0]):
            raise RequestError(NOTHING_SEEN.format("seen"))
        return self.ranked((*given.ids, given.positive), n, before)

    def _seen_ratings(self, seen: Any) -> IdLabels:
        """Ratings of (users, items, labels) or of a table, or the pairs of (users, items)."""
        if is_pair(seen):
            return (*self.pairs(*seen)[0], None)
        users, items, labels = seen, None, None
        if isinstance(seen, tuple | list):
            if len(seen) != 3:
                raise RequestError("seen must be (users, items), (users, items, labels) or a table")
            users, items, labels = seen
        given = self._ratings(users, items, labels, "exclude what was seen")
        return (*given.ids, given.positive)

    def ranked(self, given: IdLabels, n: int, seen: IdLabels | None = None) -> dict[str, Any]:
        """``ranking`` of ratings that were checked: ids of users and items, and whether they are positive.

        Without the labels of what was ``seen`` there is no popularity.
        """
        refuse(ranking_problems(n, None))
        parts = [given] if seen is None else [given, seen]
        users, items = (one_array([self.asked(who, part[at]) for part in parts]) for at, who in enumerate(SIDE_OF))
        rows, cols, known = self.users.positions(users), self.items.positions(items), len(self.items.ids)
        positive = np.concatenate([np.zeros(len(part[0]), bool) if part[2] is None else part[2] for part in parts])
        new = np.arange(len(users)) < len(given[0])
        codes = items.dictionary_encode().indices.to_numpy()  # unknown items come after the others
        width = known + len(codes)
        cells = rows * width + np.where(cols < 0, known + codes, cols)
        wanted = np.setdiff1d(cells[new & positive & (rows >= 0)], cells[~new])
        asking, relevant = np.unique(wanted // width, return_counts=True)
        if not len(asking):
            raise RequestError("cannot rank: no user that the model knows has a positive rating that was not seen")
        lists = {"model": (self.users.known, self.items.known, self.predictor.ranking(None, None))}
        if seen is not None and seen[2] is not None:
            counts = np.bincount(cols[~new & positive & (cols >= 0)], minlength=known)
            equal, popular = (
                RowPosterior.isotropic(values.astype(np.float32)[:, None], 0.0, "spread", True)
                for values in (np.zeros(len(self.users.ids)), counts)
            )
            lists["popularity"] = equal, popular, Ranking(1.0)
        unknown = users.filter(pa.array(new & positive & (rows < 0)))
        figures: dict[str, Any] = {"n": int(n), "n_users": len(asking), "n_unknown_user": len(unknown.unique())}
        for name, (own, others, order) in lists.items():
            best = best_of(own, asking, others, n, order, (rows[~new], cols[~new]))
            hits = np.isin(asking[:, None] * width + best.partner, wanted) & best.present
            figures[name] = ranking_figures(hits, relevant)
        return figures

    def certified(
        self, scored: pa.Table, request: CertificateRequest, fresh: Mapping[str, Any]
    ) -> tuple[dict[str, Any], list[Certificate]]:
        """The figures of scored ratings, and the certificates that they give: ``holdout`` first."""
        sums = sums_of(scored)
        counts = count_by_level(self.info, sums, request.by, self.cold_start == "prior")
        return figures_of(sums), certificates_of(self.info, counts, request, fresh)

    # ---- new ratings -------------------------------------------------------------------------------------------------

    def fold_in(
        self, users: Any, items: Any = None, labels: ArrayLike | None = None, who: Who = "user", *,
        threshold: float | None = None, only_new: bool = False, features: Any = None,
    ) -> FittedModel:  # fmt: skip
        """A model that also knows these users (or items), without a refit (docs/MATH.md, §8.3).

        ``users``, ``items`` and ``labels`` are all ratings of the new ids; or ``users`` is one table with the columns
        of the fit. Ratings of unknown partners are ignored; a warning counts the ids that have no others and are not
        folded in. If no id is folded in, the model stays as it is. An id that the model already knows is replaced. The
        new model has no certificates.

        Labels are ±1, 0/1 or booleans; with a ``threshold`` (default: that of the fit) any numbers, and those strictly
        above it are positive. ``features`` are side features of the new ids, if the model was fitted with such
        features. With ``only_new`` the new model knows only the new users, and all items. Then no factor table is
        copied, so a request is answered in milliseconds however large the model is.
        """
        given, own = self._ratings(users, items, labels, "fold in", who, threshold), self.side(who)
        if not len(given.rows) and not only_new:
            return self
        new_ids, partners = (given.ids[0], given.cols) if who == "user" else (given.ids[1], given.rows)
        means = None if features is None else self._explained(features, who)
        folded = self.folded_rows(who, new_ids.cast(own.ids.type), partners, given.positive, given.weights, means)
        ids, rows, measured = folded
        if not len(ids) and not only_new:
            return self
        side = ModelSide(ids, rows, own.prior, measured=measured) if only_new else own.with_rows(*folded)
        fitted = merged_sketch(None if only_new else self.fitted, self._sketch(given))
        return replace(self._with_sides({who: side}), fitted=fitted)

    def update(
        self, users: Any, items: Any = None, labels: ArrayLike | None = None, *, threshold: float | None = None,
        user_features: Any = None, item_features: Any = None,
    ) -> FittedModel:  # fmt: skip
        """This model after new ratings, without a refit (docs/MATH.md, §8.6).

        The ratings may be of known and of unknown users and items. The posterior of the model is the prior of these
        users and items. Their rows are updated in turn, and no others. The scales of the factors do not change, so fit
        again from time to time. The new model has no certificates.

        ``users`` and ``items`` are those of the new ratings only. A rating that was fitted before counts once more. The
        other parameters are those of ``fold_in``.
        """
        given = self._ratings(users, items, labels, "update", threshold=threshold)
        features: dict[Who, Any] = {"user": user_features, "item": item_features}
        means = {who: self._explained(table, who) for who, table in features.items() if table is not None}
        if not len(given.rows):
            return self
        sides: dict[Who, ModelSide] = {"user": self.users, "item": self.items}
        ids: dict[Who, pa.Array] = {"user": given.ids[0], "item": given.ids[1]}
        after = updated_rows(self.info, sides, ids, given.positive, given.weights, means)
        changed = {who: sides[who].with_rows(*lines) for who, lines in after.items()}
        return replace(self._with_sides(changed), fitted=merged_sketch(self.fitted, self._sketch(given)))

    def _with_sides(self, sides: Mapping[Who, ModelSide], **info: Any) -> FittedModel:
        """The model with other users or other items, and so without certificates."""
        users, items = sides.get("user", self.users), sides.get("item", self.items)
        plain = replace(self.info, n_users=len(users.ids), n_items=len(items.ids), **info)
        certificate = certificate_document([])
        return replace(self, info=plain, users=users, items=items, certificate=certificate, history=(), shape=None)

    def fold_in_features(self, features: Any, who: Who = "user") -> FittedModel:
        """A model that also knows these users (or items), from their side features alone.

        ``features`` has one line per id: the column of the ids, and those that the model was fitted with. Ids that the
        model already knows do not change; if there are no others, the model stays as it is. Else the new model has no
        certificates, because they are about predictions without these features; a warning names those that it drops.
        """
        info, own, means = self.info, self.side(who), self._explained(features, who)
        new = np.flatnonzero(own.positions(means.ids) < 0)
        if not len(new):
            return self
        warn_dropped(self.certificate, who, len(new))
        rows = model_info.newcomer_rows(own.prior, means.lines[new])
        learnt = dict(info.side_features or {})
        learnt[who] = {**learnt[who], "newcomers": learnt[who]["newcomers"] + len(new)}
        side = own.with_rows(means.ids.take(pa.array(new)), rows, unrated_spreads(info, who, rows))
        return self._with_sides({who: side}, side_features=learnt)

    def _explained(self, features: Any, who: Who) -> model_info.IdLines:
        table, column = arrow_table(features, f"the {who} features"), self.info.columns[who]
        kind = self.side(who).ids.type
        coding = model_info.coding_of(self.info, who)
        spelt = {name.lower(): name for name in (column, *coding.columns)}
        named = table.rename_columns([spelt.get(name.lower(), name) for name in table.column_names])
        if lacking := [name for name in coding.columns if name not in named.column_names]:
            raise RequestError(f"{who} features: the model was fitted with {', '.join(lacking)}, which is not there")
        warn_of_unknown_values(coding, named, f"{who} features")
        ids = asked_ids(named[column], kind, f"the {who} ids").cast(kind)
        checked_lines(pa.table({column: ids}), column, who)
        return model_info.IdLines(ids, model_info.feature_means(self.info, who, coding.coded(named)))

    def folded_rows(
        self, who: Who, ids: pa.Array, partners: Numbers, positive: NDArray[np.bool_],
        weights: NDArray[np.floating] | None = None, explained: model_info.IdLines | None = None,
    ) -> tuple[pa.Array, RowPosterior, FloatArray | None]:  # fmt: skip
        """The different ids of ratings, and the rows that follow from them, as ``MeasureSpreads`` measures them.
        Partners at position −1 are ignored.

        ``explained`` are the means that side features of the ids explain.
        """
        known = partners >= 0
        encoded = ids.filter(pa.array(known)).dictionary_encode()
        warn_left_out(who, len(ids.unique()), len(encoded.dictionary))
        rated, columns = np.unique(partners[known], return_inverse=True)
        rows, shape = encoded.indices.to_numpy().astype(np.int64), (len(encoded.dictionary), len(rated))
        kept = None if weights is None else weights[known]
        block = RatingBlock.from_coordinates(rows, columns, positive[known], shape, kept)
        lines = self.side(PARTNER[who]).known.take(rated)
        means = None if explained is None else explained.at(encoded.dictionary)
        task = FoldIn.of(self.info, SIDE_OF[who])
        folded = task.rows(block, lines, means)
        return encoded.dictionary, folded, task.measured(block, folded, lines)

    # ---- folders -----------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write a model folder, for ``load`` and for ``OneBitCompletionModel.load``. It appears whole or not at all.

        The folder of a model that was diagnosed has its ``report.html``.
        """
        own = {"coldStartStrategy": self.cold_start, "maxError": self.max_error, "minPrecision": self.min_precision}
        params = {**self.params, **own}
        text = page_of(self.info, self.certificate)
        files = {} if text is None else {REPORT: text}
        with replaced_folder(path, MODEL, overwrite) as folder:
            write_into(folder, (self.info, self.users, self.items, self.certificate, params, self.fitted), files)

    def export_vectors(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write vectors whose inner product is the score, for any nearest-neighbour index (docs/serving.md).

        The folder has two Parquet tables, ``users`` and ``items``, with the columns ``id`` and ``vector``: [L, 1, b] of
        a user, [R, d, 1] of an item, or L and R without intercepts. It appears whole or not at all.
        """
        write_vectors(path, self.users, self.items, overwrite)


def is_pair(given: Any) -> bool:
    return isinstance(given, tuple | list) and len(given) == 2


def _posterior(side: ModelSide, n: int | None) -> RowPosterior:
    """The posterior of the ids of a side, or of the ids 0, …, n − 1."""
    return side.known if n is None else side.at(side.positions(pa.array(np.arange(n))), implicit=True)


NOT_MEASURED = (
    "the standard deviations of these positions are those of the fit, which are too small: the model is a checkpoint, "
    "or was updated after its fit. Fit it again"
)


def position_problems(
    axes: Axes, who: Who, dimensions: int | None, anchors: Mapping[Any, int] | None
) -> list[str]:  # fmt: skip
    problems = []
    if not axes.dimensions and (who == "user" or dimensions is not None):
        problems.append("this model has no dimensions: its scores do not depend on the user")
    elif dimensions is not None and not (is_integer(dimensions) and 1 <= dimensions <= axes.dimensions):
        problems.append(f"dimensions must be an integer from 1 to {axes.dimensions}, not {dimensions!r}")
    if not isinstance(anchors, Mapping | None):
        problems.append(f"anchors must map ids to 1 or -1, such as {{'ann': 1}}, not be {anchors!r}")
    elif wrong := [repr(sign) for sign in (anchors or {}).values() if sign not in (-1, 1)]:
        problems.append(f"anchors must map ids to 1 or -1, not to {', '.join(wrong)}")
    return problems


def map_problems(axes: Axes) -> list[str]:
    has = ("none", "one")
    return [f"a map needs two dimensions, and this model has {has[axes.dimensions]}"] if axes.dimensions < 2 else []


def question_problems(info: ModelInfo, n: int) -> list[str]:
    problems = [] if is_integer(n) and n >= 1 else [f"n must be an integer of at least 1, not {n!r}"]
    if info.config.loss != "logistic":
        problems.append("questions need the logistic loss, whose scores have probabilities; this model has the hinge")
    return problems


def anchored_sign(axes: Axes, users: ModelSide, anchors: Mapping[Any, int]) -> float:
    """Whether the first axis is turned, −1, so that the anchors are on their sides."""
    if not anchors:
        return 1.0
    places = users.positions(asked_ids(list(anchors), users.ids.type, "the anchors"))
    if missing := [repr(each) for each, place in zip(anchors, places, strict=True) if place < 0]:
        raise RequestError(f"anchors: the model does not know {', '.join(missing)}")
    along = axes.values("rows", users.known.location[places])[:, 0] @ np.array(list(anchors.values()))
    return -1.0 if along < 0 else 1.0


def position_table(axes: Axes, side: ModelSide, who: Who, dimensions: int, sign: float) -> pa.Table:
    """The positions of a side. Rows that were not measured have the standard deviations of the fit."""
    measured = side.measured
    if measured is None:
        unknown = np.full((len(side.ids), 1), np.nan)
        measured = np.hstack([unknown, axes.spreads(SIDE_OF[who], side.known)])
    columns = axes.columns(SIDE_OF[who], side.known.location, measured, dimensions, sign)
    return pa.table({who: side.ids, **columns})


def unrated_spreads(info: ModelInfo, who: Who, rows: RowPosterior) -> FloatArray | None:
    """The numbers of ``core.work.MeasureSpreads`` of ids without ratings."""
    axes = info.position_axes
    return None if axes is None else np.insert(axes.spreads(SIDE_OF[who], rows), 0, 0.0, axis=1)


def who_problems(who: str) -> list[str]:
    return [] if who in ("user", "item") else [f"who must be 'user' or 'item', not {who!r}"]


def positive_labels(labels: ArrayLike, threshold: float | None, n: int, who: str, to: str) -> NDArray[np.bool_]:
    """Which labels are positive. Raises a RequestError with all problems of them."""
    values = np.atleast_1d(np.asarray(labels))
    problems = who_problems(who)
    if values.shape != (n,):
        problems.append(f"labels must be {n:,} numbers, one per pair, not of shape {values.shape}")
    if threshold is None:
        problems += label_problems(values)
    elif values.dtype.kind not in "biuf" or np.any(np.isnan(values)):
        problems.append("labels must be numbers, and not NaN")
    if problems:
        raise RequestError(f"cannot {to}: " + "; ".join(problems))
    return np.asarray(values > (0.0 if threshold is None else threshold))
