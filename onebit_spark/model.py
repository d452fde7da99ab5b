"""FittedModel: a fitted model in this process. ``fit_arrays``, ``fit_table`` and ``load`` return
it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.util import find_spec
from typing import NamedTuple

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
    ungrouped_certificates,
)
from onebit_spark.certify.requests import CertificateRequest, Document, Precisions
from onebit_spark.core.confidences import TOWARDS, Call
from onebit_spark.core.hyper_posterior import HyperPosterior
from onebit_spark.core.posterior import DoubleArray, RowPosterior
from onebit_spark.core.solver import Iteration
from onebit_spark.data.features import warn_of_unknown_values
from onebit_spark.data.files import ArrowTable
from onebit_spark.data.hashes import CellSketch, merged_sketch, pair_hashes
from onebit_spark.data.locations import MAP, MODEL, PAGE
from onebit_spark.data.ratings import (
    ArrowRatings,
    CollectedRatings,
    Columns,
    KeptRatings,
    checked_lines,
)
from onebit_spark.data.user_tables import arrow_table, label_problems, weight_problems
from onebit_spark.errors import RequestError, refuse
from onebit_spark.model_folder import (
    read_model,
    replaced_folder,
    write_into,
    write_page,
    write_vectors,
)
from onebit_spark.model_info import PARTNER, ModelInfo
from onebit_spark.predict.factors import Factors
from onebit_spark.predict.figures import Figures, Flags, sampled
from onebit_spark.predict.judged import JudgedModel, RatingsHere
from onebit_spark.predict.new_ratings import fold_in, unrated_spreads, updated_rows, warn_dropped
from onebit_spark.predict.positions import draw, locate, who_problems
from onebit_spark.predict.questions import ask_next
from onebit_spark.predict.ranking import NOTHING_SEEN, RatedPairs, rank
from onebit_spark.predict.sides import Anchors, IdsLike, ModelSide, TableLike, asked_ids
from onebit_spark.predict.top_n import Numbers, best_of, ranking_problems
from onebit_spark.report.map import MOST_POINTS, REPORTED, coloured
from onebit_spark.report.map import page as map_page
from onebit_spark.report.page import REPORT, page_of
from onebit_spark.report.page import report as report_page
from onebit_spark.settings import FitConfig, Terms, Who

log = logging.getLogger("onebit_spark")

COLD_START = ("prior", "drop", "nan")


class _Ratings(NamedTuple):
    ids: list[pa.Array]  # of the users and of the items
    rows: Numbers  # their positions
    cols: Numbers
    positive: NDArray[np.bool_]
    weights: NDArray[np.floating] | None
    kept: NDArray[np.bool_]  # which of the given ratings they are


def load(path: str | os.PathLike[str]) -> FittedModel:
    """The model of a folder on this machine, without Spark. It is read once, into memory.

    ``jobs/fit.py``, ``OneBitCompletionModel.save`` or ``FittedModel.save`` wrote the folder. A
    RequestError says if there is no model, or if it is damaged, of another format, or on another
    machine (hdfs://, s3://).
    """
    info, users, items, certificate, params, fitted = read_model(path)
    cold_start = params.get("coldStartStrategy", "prior")
    max_error = params.get("maxError")
    content = info, users, items, certificate, cold_start, max_error, params, fitted
    return FittedModel(*content, min_precision=params.get("minPrecision"))


@dataclass(frozen=True, eq=False, repr=False)
class FittedModel(JudgedModel):
    """A fitted model in this process: the result of ``fit_arrays``, ``fit_table`` and ``load``.

    It predicts what ``OneBitCompletionModel.transform`` predicts. The methods change nothing, so
    threads may share it.

    Attributes
    ----------
    info : ModelInfo
        Settings, counts and history of the fit: the content of ``metadata.json``.
    users, items : ModelSide
        Ids and posterior of each side.
    certificate : dict
        Upper limits on the error rate: the content of ``certificate.json``.
    cold_start : {"prior", "drop", "nan"}
        Pairs with an unknown id: predicted from the prior, left out, or NaN. The Param
        ``coldStartStrategy``.
    max_error, min_precision
        Which certified error rate ``answered`` has, and which precisions ``positive`` and
        ``negative``, such as "0.8,negative:0.99". Default: the first that were requested. The
        Params ``maxError`` and ``minPrecision``.

    Notes ----- The methods take the ids of the ratings: one id, or a sequence, a numpy or an Arrow
    array, a pandas Series. A single id is repeated for all partners. After ``fit_arrays`` the ids
    are the numbers of the rows and columns; one without ratings, or outside the shape, is an
    unknown id."""

    info: ModelInfo
    users: ModelSide
    items: ModelSide
    certificate: Document
    cold_start: str = "prior"
    max_error: float | None = None
    # All Params of the folder, which ``save`` writes again
    params: Mapping[str, object] = field(default_factory=dict)
    fitted: CellSketch | None = (
        None  # which cells were fitted, so that ``certify`` can refuse their ratings
    )
    history: Sequence[
        Iteration
    ] = ()  # of a fit in this process; a folder keeps ``objective_history`` of it
    shape: tuple[int, int] | None = None  # of the matrix, after ``fit_arrays``
    min_precision: str | None = None

    def __post_init__(self) -> None:
        if self.cold_start not in COLD_START:
            raise RequestError(
                f"cold_start must be one of {', '.join(COLD_START)}, not {self.cold_start!r}"
            )

    def __repr__(self) -> str:
        info = self.info
        return (
            f"{type(self).__name__}({info.n_users:,} users, {info.n_items:,} items, rank "
            f"{info.config.rank})"
        )

    # ---- the fit --------------------------------------------------------------------------------

    @cached_property
    def rows(self) -> RowPosterior:
        """Posterior of the users, in the order of ``users.ids``; after ``fit_arrays``, of every row
        of the shape.
        """
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

    def feature_weights(self, who: Who = "user") -> pa.Table:
        """What was learnt from side features: see ``OneBitCompletionModel.userFeatureWeights``."""
        columns = zip(*model_info.feature_effects(self.info, who), strict=True)
        return pa.table(
            dict(
                zip(("feature", "effect", "intercept", "factors"), map(list, columns), strict=True)
            )
        )

    @cached_property
    def factors(self) -> Factors:
        return Factors(self.info, self.users, self.items)

    @property
    def predicts_unknown(self) -> bool:
        return self.cold_start == "prior"

    # ---- predictions ----------------------------------------------------------------------------

    def predictions(self, users: IdsLike, items: IdsLike) -> pa.Table:
        """What ``transform`` appends, for pairs of ids (docs/predictions.md).

        The columns are user, item, score, std, probability and prediction; ``answered`` after a
        selective certificate, ``positive`` and ``negative`` after a certified precision.
        """
        ids, rows, cols = self._pairs(users, items)
        table = pa.table({"user": ids[0], "item": ids[1], **self._outputs(rows, cols)})
        return (
            table.filter(pa.array((rows >= 0) & (cols >= 0)))
            if self.cold_start == "drop"
            else table
        )

    def transform(self, pairs: TableLike) -> TableLike:
        """A table with the predictions appended: score, std, probability, prediction, and the calls
        as above.

        ``pairs`` is a pyarrow.Table or a DataFrame of pandas or polars, with the columns of users
        and items of the fit, and any others. The result is of the same kind.
        """
        table = arrow_table(pairs, "the pairs")
        _, rows, cols = self._pairs(*self._columns_of(table, "the pairs", ("user", "item")))
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

    def _columns_of(
        self, given: TableLike, what: str, roles: Sequence[str]
    ) -> list[pa.ChunkedArray]:
        """The columns of users, items or labels in a table.

        Upper and lower case do not differ, as in Spark.
        """
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
        self,
        users: IdsLike,
        items: IdsLike,
        labels: ArrayLike | None,
        to: str,
        who: str = "user",
        threshold: float | None = None,
    ) -> _Ratings:
        """Ratings that were checked: users, items and labels, or the columns of the fit in one
        table, ``users``.

        A table may have the column of the weights. Ratings of weight 0 are left out. ``to`` is the
        purpose, in messages; ``threshold`` replaces that of the fit.
        """
        weights = None
        weight = self.info.columns.get("weight")
        if items is None and labels is None:
            table = arrow_table(users, "the ratings")
            if weight is not None and weight.lower() in map(str.lower, table.column_names):
                weights = self._columns_of(table, "the ratings", ("weight",))[0].to_numpy()
            users, items, given = self._columns_of(table, "the ratings", ("user", "item", "label"))
            labels = given.to_numpy()
        elif items is None or labels is None:
            raise RequestError(
                "the ratings must be users, items and labels, or one table; other arguments go by "
                "name"
            )
        ids, rows, cols = self._pairs(users, items)
        positive = positive_labels(
            labels, self.info.threshold if threshold is None else threshold, len(rows), who, to
        )
        kept = np.full(len(rows), True)
        if weights is not None:
            refuse(weight_problems(weights))
            kept = weights.astype(np.float32) != 0
            weights = weights[kept].astype(np.float32)
        chosen = [array.filter(pa.array(kept)) for array in ids]
        return _Ratings(chosen, rows[kept], cols[kept], positive[kept], weights, kept)

    def score(self, users: IdsLike, items: IdsLike) -> DoubleArray:
        """Posterior mean of the score, E[b_i] + E[d_j] + E[L_i]·E[R_j] (docs/MATH.md, §8.1).

        One number per pair, also in ``std``, ``probability`` and ``predict``: with ``cold_start``
        "nan" or "drop", a pair with an unknown id is NaN.
        """
        _, rows, cols = self._pairs(users, items)
        return self._without_unknown(self.factors.score(rows, cols), rows, cols)

    def std(self, users: IdsLike, items: IdsLike) -> DoubleArray:
        """Standard deviation of the score in an approximate posterior, which depends on the rank
        and on κ.

        It compares pairs of one model. It is no error bar (docs/predictions.md, Std).
        """
        return self._output("std", users, items)

    def probability(self, users: IdsLike, items: IdsLike) -> DoubleArray:
        """P(+), calibrated if the model is. Its meaning depends on the loss (§8.1)."""
        return self._output("probability", users, items)

    def predict(self, users: IdsLike, items: IdsLike) -> DoubleArray:
        """The label in the coding of the ratings, by the sign of the score; the majority label for
        a score of 0.

        The labels are −1 and 1 after a fit of such labels, else 0 and 1.
        """
        _, rows, cols = self._pairs(users, items)
        labels = self.factors.predictor.label(self.factors.score(rows, cols))
        return self._without_unknown(labels, rows, cols)

    def confidence(self, users: IdsLike, items: IdsLike) -> DoubleArray:
        """|score|/√(c + variance): how sure the model is of the sign (§10.1)."""
        _, rows, cols = self._pairs(users, items)
        outputs = self.factors.predict(rows, cols)
        z = self.factors.predictor.confidence(outputs["score"], outputs["std"])
        return self._without_unknown(np.abs(z), rows, cols)

    def answered(
        self, users: IdsLike, items: IdsLike, certificate: Certificate | None = None
    ) -> NDArray[np.bool_]:
        """Which pairs the model answers under a selective certificate; none if its request could
        not be met.

        The default is the model's own certificate, for ``max_error``.
        """
        return self.called("answered", users, items, certificate)

    def called(
        self, call: Call, users: IdsLike, items: IdsLike, certificate: Certificate | None = None
    ) -> NDArray[np.bool_]:
        """Which pairs the model calls "positive" or "negative" under a certified precision: as
        ``answered``, for ``min_precision``.
        """
        if certificate is None:
            threshold = self._threshold(call)
            unknown = calls_unknown(self.certificate, call)
        else:
            threshold = certificate.inputs["threshold"]
            unknown = UNKNOWN not in certificate.inputs
        _, rows, cols = self._pairs(users, items)
        outputs = self.factors.predict(rows, cols)
        score = self._without_unknown(outputs["score"], rows, cols)
        made = self.factors.predictor.calls(
            call, np.inf if threshold is None else threshold, score, outputs["std"]
        )
        return made & (unknown | ((rows >= 0) & (cols >= 0)))

    def _threshold(self, call: Call) -> float:
        return calling_threshold(
            self.certificate, call, self.max_error, self.min_precision, IN_ARGUMENTS
        )

    def sample(self, users: IdsLike, items: IdsLike, seed: int = 0) -> DoubleArray:
        """One random draw of the score per pair.

        Its sign is the predictor of the certificates for draws (§9.4).

        A draw is a function of the seed and the two ids, as in ``OneBitCompletionModel.sample``.
        Unknown ids are drawn from the prior.
        """
        ids, rows, cols = self._pairs(users, items)
        types = self.users.ids.type, self.items.ids.type
        keys = pair_hashes(
            *(array.cast(kind, safe=False) for array, kind in zip(ids, types, strict=True))
        )
        return self.factors.sample(rows, cols, keys, seed)

    def _output(self, name: str, users: IdsLike, items: IdsLike) -> DoubleArray:
        _, rows, cols = self._pairs(users, items)
        return self._without_unknown(self.factors.predict(rows, cols)[name], rows, cols)

    def _pairs(
        self, users: IdsLike, items: IdsLike
    ) -> tuple[tuple[pa.Array, pa.Array], Numbers, Numbers]:
        ids = [self._asked("user", users), self._asked("item", items)]
        numbers = self.users.positions(ids[0]), self.items.positions(ids[1])
        lengths = {len(asked) for asked in ids} - {1}
        if len(lengths) > 1:
            raise RequestError(f"there are {len(ids[0]):,} user ids, but {len(ids[1]):,} item ids")
        n = lengths.pop() if lengths else 1
        place = [np.arange(n) if len(asked) == n else np.zeros(n, np.int64) for asked in ids]
        repeated = ids[0].take(pa.array(place[0])), ids[1].take(pa.array(place[1]))
        return repeated, numbers[0][place[0]], numbers[1][place[1]]

    def _seen(self, seen: IdsLike) -> tuple[tuple[pa.Array, pa.Array], Numbers, Numbers]:
        """``pairs`` of (user ids, item ids), or of a table."""
        return self._pairs(
            *(seen if is_pair(seen) else self._columns_of(seen, "the seen pairs", ("user", "item")))
        )

    def _asked(self, who: Who, values: IdsLike) -> pa.Array:
        return asked_ids(values, self.factors.side(who).ids.type, f"the {who} ids")

    def _outputs(self, rows: Numbers, cols: Numbers) -> dict[str, DoubleArray | Flags]:
        found = self.factors.predict(rows, cols)
        values = {name: self._without_unknown(each, rows, cols) for name, each in found.items()}
        known = (rows >= 0) & (cols >= 0)
        calls: dict[str, Flags] = {}
        for call in TOWARDS:
            if ungrouped_certificates(self.certificate, call):
                threshold = self._threshold(call)
                made = self.factors.predictor.calls(call, threshold, values["score"], values["std"])
                calls[call] = made & (calls_unknown(self.certificate, call) | known)
        return {**values, **calls}

    def _without_unknown(self, values: DoubleArray, rows: Numbers, cols: Numbers) -> DoubleArray:
        """The values, with NaN for pairs with an unknown id unless these are predicted from the
        prior.
        """
        if self.cold_start != "prior":
            values[(rows < 0) | (cols < 0)] = np.nan
        return values

    # ---- recommendations ------------------------------------------------------------------------

    def recommend(
        self,
        ids: IdsLike = None,
        n: int = 10,
        who: Who = "user",
        *,
        z: float | None = None,
        seen: IdsLike = None,
        answered_only: bool = False,
    ) -> pa.Table:
        """The best items of users (``who`` = "user"), or the best users of items, ranked by
        probability.

        ``ids`` are by default all that the model knows. Unknown ones are left out, with a warning.
        With ``z`` the order is that of score − z·std. The pairs of ``seen``, (user ids, item ids)
        or a table with the columns of the fit, are not recommended. With ``answered_only`` only
        pairs are listed that the model answers; no certificate is about the lists
        (docs/predictions.md).

        Returns
        -------
        pyarrow.Table
            The id, ``rank`` from 1 to n, the recommended id, score, std, probability.
        """
        refuse(ranking_problems(n, z) + who_problems(who))
        floor = self._threshold("answered") if answered_only else None
        asking = self.factors.side(who)
        others = self.factors.side(PARTNER[who])
        rows = (
            np.arange(len(asking.ids)) if ids is None else asking.positions(self._asked(who, ids))
        )
        if unknown := int(np.count_nonzero(rows < 0)):
            log.warning(
                f"{unknown:,} of {len(rows):,} {who}s are unknown to the model and get no "
                "recommendations: fold them "
                "in, or ask for their probabilities, which come from the prior"
            )
        rows = rows[rows >= 0]
        pairs = None if seen is None else self._seen(seen)[1:]
        if pairs is not None and who == "item":
            pairs = pairs[::-1]
        best = best_of(
            asking.known, rows, others.known, n, self.factors.predictor.ranking(z, floor), pairs
        )
        row, rank = np.nonzero(best.present)
        outputs = self.factors.predictor.outputs(
            best.score[best.present], best.variance[best.present]
        )
        ids = asking.ids.take(pa.array(rows[row]))
        partners = others.ids.take(pa.array(best.partner[best.present]))
        figures = {name: outputs[name] for name in ("score", "std", "probability")}
        return pa.table({who: ids, "rank": pa.array(rank + 1), PARTNER[who]: partners, **figures})

    # ---- positions ------------------------------------------------------------------------------

    def positions(
        self, who: Who = "user", dimensions: int | None = None, anchors: Anchors | None = None
    ) -> pa.Table:
        """Positions of the users, or intercepts and slopes of the items, with standard deviations
        (docs/positions.md).

        The score of a pair is intercept + Σ slope·position, over all dimensions. Positions have
        mean 0, unit variance and no correlation; the first dimension explains the largest share of
        the scores' variance. By default the table has two dimensions, or as many as the model has.

        ``anchors`` map users to ±1, the side on which their position in the first dimension is to
        be. They turn the axis of the items as well. By default the longer tail is positive.

        Returns
        -------
        pyarrow.Table
            ``user``, ``n_ratings``, ``dim1``, ``dim1_std``, … of users; ``item``, ``n_ratings``,
            ``intercept``, ``intercept_std``, ``slope1``, ``slope1_std``, … of items, with one
            dimension also ``difficulty`` (−intercept/slope) and ``difficulty_std``. Both are null
            where one of them exceeds 10 in magnitude, because the slope is near 0.
            ``schema.metadata`` has the ``shares`` of the scores' variance.
        """
        return locate(self.factors, who, dimensions, anchors)

    def map(
        self,
        path: str | os.PathLike[str],
        anchors: Anchors | None = None,
        groups: Mapping[IdsLike, str] | None = None,
        overwrite: bool = False,
    ) -> None:
        """Draw the first two dimensions of all users on one page, map.html (docs/positions.md).

        ``groups`` are words by user, such as parties: they are the colours. For ``anchors`` see
        ``positions``. With ``overwrite`` the page replaces another map.
        """
        if not isinstance(groups, Mapping | None):
            raise RequestError(
                f"groups must map ids of users to words, such as {{'ann': 'red'}}, not be "
                f"{groups!r}"
            )
        page = map_page(coloured(self.draw(anchors), groups or {}))
        write_page(path, page, MAP, overwrite)

    def next_questions(
        self, ids: IdsLike, n: int = 10, *, seen: IdsLike = None, items: IdsLike = None
    ) -> pa.Table:
        """The n items whose answers would say most about each user: an adaptive test
        (docs/positions.md).

        Each different user gets one list, to be asked as a whole. To use the answers, fold them in
        and ask for the next question. An unknown user is a new one. The pairs of ``seen``, (user
        ids, item ids) or a table with the columns of the fit, are not asked again. ``items`` are
        those that may be asked, by default all.

        Returns
        -------
        pyarrow.Table
            The user, ``rank`` from 1 on, the item, and ``information``: the mutual information, in
            nats, of the answer and what is not yet known of the user, given the answers before it
            in the list.
        """
        users = self._asked("user", ids).unique()
        may = None if items is None else self._asked("item", items)
        pairs = None if seen is None else self._seen(seen)[0]
        return ask_next(self.factors, users, n, pairs, may)

    # ---- quality --------------------------------------------------------------------------------

    def judge(
        self, table: ArrowTable, threshold: float | None = None, by: str | None = None
    ) -> RatingsHere:
        names = self.info.columns
        labels = table.matching(names["label"])
        is_boolean = any(pa.types.is_boolean(table.schema.field(label).type) for label in labels)
        if threshold is None and not is_boolean:
            threshold = self.info.threshold
        weight = names.get("weight")
        if weight is not None and not table.matching(weight):
            weight = None
        columns = Columns(names["user"], names["item"], names["label"], threshold, weight)
        return self.judge_kept(ArrowRatings(table, columns, by).kept())

    def judge_kept(self, kept: KeptRatings) -> RatingsHere:
        """Ratings that were read and checked."""
        ids = kept.users, kept.items
        return RatingsHere.of(self.factors, ids, kept.positive, kept.groups, kept.threshold)

    def judge_fitted(self, ratings: CollectedRatings) -> RatingsHere:
        """A sample of the ratings of this very fit."""
        block = ratings.ratings
        places = sampled(block.n_ratings)
        rows = np.searchsorted(block.row_pointers, places, side="right") - 1
        codes = block.codes[places]
        cols = (codes >> 1).astype(np.int64)
        positive = (codes & 1).astype(bool)
        return RatingsHere(self.factors, rows, cols, positive, n_all=block.n_ratings)

    def certify(
        self,
        users: IdsLike,
        items: IdsLike = None,
        labels: ArrayLike | None = None,
        terms: Terms | None = None,
        max_error: float | Sequence[float] = (),
        groups: ArrayLike | None = None,
        min_precision: Precisions = (),
    ) -> list[Certificate]:
        """Certify the model on ratings that were not fitted: ``holdout``, and one certificate for
        each request.

        The ratings are users, items and labels, or one table with the columns of the fit. Those of
        cells that the model was fitted on are refused, as far as it knows them. ``terms`` are δ and
        the number of settings that were compared.

        With ``cold_start`` "drop" or "nan", pairs with an unknown id count as not answered, and not
        in ``holdout``.

        ``max_error`` requests error rates among the answered pairs (docs/MATH.md, §10):
        ``selective``. ``min_precision`` requests precisions among the pairs that are called
        positive, such as 0.9, or negative, such as "negative:0.99" (§10.6): ``precision``.
        ``groups`` has one value per rating: certify within each group as well; the groups share δ.
        """
        by = None if groups is None else "group"
        terms = terms or Terms()
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
                    f"groups must be {len(given.kept):,} values, one per rating, not of shape "
                    f"{values.shape}"
                )
            text = pa.chunked_array([pa.array([str(value) for value in values[given.kept]])])
        return self.certify_on(self._judged(given, text), request)[1]

    def _judged(self, given: _Ratings, groups: pa.ChunkedArray | None = None) -> RatingsHere:
        ids = given.ids[0], given.ids[1]
        return RatingsHere(self.factors, given.rows, given.cols, given.positive, ids, groups)

    def with_certificates(
        self, certificates: Sequence[Certificate], instead_of: Sequence[str] = OF_PREDICTIONS
    ) -> FittedModel:
        """This model with the certificates of ``certify``, which replace earlier ones; those of the
        fit remain.

        ``instead_of`` are the names of those that are replaced.
        """
        return self.replace_certificates(certificates, instead_of)

    def with_certificate(self, certificate: Document) -> FittedModel:
        return replace(self, certificate=certificate)

    def with_info(self, info: ModelInfo) -> FittedModel:
        return replace(self, info=info)

    def calibrate(
        self, users: IdsLike, items: IdsLike = None, labels: ArrayLike | None = None
    ) -> FittedModel:
        """This model with a probability that agrees with the frequencies in these ratings
        (docs/MATH.md, §8.4).

        The ratings, or one table with the columns of the fit, must not have been fitted. Score, std
        and prediction do not change. The probability is above ½ exactly where the score is above 0.
        """
        given = self._ratings(users, items, labels, "calibrate")
        return self.calibrate_on(self._judged(given))

    def diagnose(
        self,
        users: IdsLike,
        items: IdsLike = None,
        labels: ArrayLike | None = None,
        *,
        source: str = "held-out ratings",
        fitted: bool = False,
    ) -> FittedModel:
        """This model with the figures of its report, measured on these ratings, or on a sample of
        them.

        The ratings are users, items and labels, or one table with the columns of the fit.
        ``source`` says in words what they are. If the model was ``fitted`` to them, the report
        warns that the figures are too good.
        """
        given = self._ratings(users, items, labels, "diagnose")
        return self.diagnose_on(self._judged(given), source, fitted)

    def draw(self, anchors: Anchors | None = None, most: int = MOST_POINTS) -> Figures:
        return draw(self.factors, anchors, most)

    def draw_report(self) -> Figures | None:
        if self.users.measured is None or self.factors.axes.dimensions < 2:
            return None
        return self.draw(most=REPORTED)

    def report(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write the report of the fit, the page ``report.html`` of a job, to a file.

        Its plots need matplotlib.

        It shows errors and probabilities after ``fit_table(holdout=…)`` or ``diagnose``. With
        ``overwrite`` it replaces another report.
        """
        if find_spec("matplotlib") is None:
            raise RequestError("the plots of a report need matplotlib: pip install '.[plots]'")
        write_page(path, report_page(self.info, self.certificate), PAGE, overwrite)

    def ranking(
        self,
        users: IdsLike,
        items: IdsLike = None,
        labels: ArrayLike | None = None,
        *,
        n: int = 10,
        seen: IdsLike = None,
    ) -> Figures:
        """How many positive ratings the lists of ``recommend`` find: see
        ``predict.metrics.ranking_figures``.

        The ratings, users, items and labels or one table with the columns of the fit, were not
        fitted. The positive ones are relevant. ``seen`` are the ratings that were fitted, (users,
        items, labels) or a table, or their pairs, (users, items): the model does not keep them.
        They are neither listed nor relevant. Without them, lists consist largely of fitted items,
        so the figures are too low.

        Returns
        -------
        dict
            ``model``, and with ratings in ``seen`` also ``popularity``: the items with their most
            positive ones. Each has precisionAtK, recallAtK, ndcgAtK and meanAveragePrecisionAtK.
            Also ``n``, ``n_users``, the users with relevant items over whom these are means, and
            ``n_unknown_user``, which are left out. Unknown items count as not found.
        """
        given = RatedPairs.of(self._judged(self._ratings(users, items, labels, "rank")))
        before = None if seen is None else self._seen_ratings(seen)
        if before is not None and not len(before.users):
            raise RequestError(NOTHING_SEEN.format("seen"))
        return rank(self.factors, given, n, before)

    def _seen_ratings(self, seen: IdsLike) -> RatedPairs:
        """Ratings of (users, items, labels) or of a table, or the pairs of (users, items)."""
        if is_pair(seen):
            return RatedPairs(*self._pairs(*seen)[0])
        users = seen
        items = None
        labels = None
        if isinstance(seen, tuple | list):
            if len(seen) != 3:
                raise RequestError("seen must be (users, items), (users, items, labels) or a table")
            users, items, labels = seen
        return RatedPairs.of(
            self._judged(self._ratings(users, items, labels, "exclude what was seen"))
        )

    def rank_on(self, on: RatingsHere, n: int, seen: RatingsHere | None = None) -> Figures:
        before = None if seen is None else RatedPairs.of(seen)
        return rank(self.factors, RatedPairs.of(on), n, before)

    # ---- new ratings ----------------------------------------------------------------------------

    def fold_in(
        self,
        users: IdsLike,
        items: IdsLike = None,
        labels: ArrayLike | None = None,
        who: Who = "user",
        *,
        threshold: float | None = None,
        only_new: bool = False,
        features: TableLike = None,
    ) -> FittedModel:
        """A model that also knows these users (or items), without a refit (docs/MATH.md, §8.3).

        ``users``, ``items`` and ``labels`` are all ratings of the new ids; or ``users`` is one
        table with the columns of the fit. Ratings of unknown partners are ignored; a warning counts
        the ids that have no others and are not folded in. If no id is folded in, the model stays as
        it is. An id that the model already knows is replaced. The new model has no certificates.

        Labels are ±1, 0/1 or booleans; with a ``threshold`` (default: that of the fit) any numbers,
        and those strictly above it are positive. ``features`` are side features of the new ids, if
        the model was fitted with such features. With ``only_new`` the new model knows only the new
        users, and all items. Then no factor table is copied, so a request is answered in
        milliseconds however large the model is.
        """
        given = self._ratings(users, items, labels, "fold in", who, threshold)
        own = self.factors.side(who)
        if not len(given.rows) and not only_new:
            return self
        new_ids, partners = (
            (given.ids[0], given.cols) if who == "user" else (given.ids[1], given.rows)
        )
        means = None if features is None else self._explained(features, who)
        new_ids = new_ids.cast(own.ids.type)
        folded = fold_in(self.factors, who, new_ids, partners, given.positive, given.weights, means)
        ids, rows, measured = folded
        if not len(ids) and not only_new:
            return self
        side = (
            ModelSide(ids, rows, own.prior, measured=measured)
            if only_new
            else own.with_rows(*folded)
        )
        new = self._judged(given).sketch(self.sketch_limit)
        fitted = merged_sketch(None if only_new else self.fitted, new)
        return replace(self._with_sides({who: side}), fitted=fitted)

    def update(
        self,
        users: IdsLike,
        items: IdsLike = None,
        labels: ArrayLike | None = None,
        *,
        threshold: float | None = None,
        user_features: TableLike = None,
        item_features: TableLike = None,
    ) -> FittedModel:
        """This model after new ratings, without a refit (docs/MATH.md, §8.6).

        The ratings may be of known and of unknown users and items. The posterior of the model is
        the prior of these users and items. Their rows are updated in turn, and no others. The
        scales of the factors do not change, so fit again from time to time. The new model has no
        certificates.

        ``users`` and ``items`` are those of the new ratings only. A rating that was fitted before
        counts once more. The other parameters are those of ``fold_in``.
        """
        given = self._ratings(users, items, labels, "update", threshold=threshold)
        features: dict[Who, TableLike] = {"user": user_features, "item": item_features}
        means = {
            who: self._explained(table, who) for who, table in features.items() if table is not None
        }
        if not len(given.rows):
            return self
        sides: dict[Who, ModelSide] = {"user": self.users, "item": self.items}
        ids: dict[Who, pa.Array] = {"user": given.ids[0], "item": given.ids[1]}
        after = updated_rows(self.info, sides, ids, given.positive, given.weights, means)
        changed = {who: sides[who].with_rows(*lines) for who, lines in after.items()}
        new = self._judged(given).sketch(self.sketch_limit)
        return replace(self._with_sides(changed), fitted=merged_sketch(self.fitted, new))

    def _with_sides(
        self, sides: Mapping[Who, ModelSide], info: ModelInfo | None = None
    ) -> FittedModel:
        """The model with other users or other items, and so without certificates."""
        users = sides.get("user", self.users)
        items = sides.get("item", self.items)
        plain = replace(info or self.info, n_users=len(users.ids), n_items=len(items.ids))
        certificate = certificate_document([])
        return replace(
            self,
            info=plain,
            users=users,
            items=items,
            certificate=certificate,
            history=(),
            shape=None,
        )

    def fold_in_features(self, features: TableLike, who: Who = "user") -> FittedModel:
        """A model that also knows these users (or items), from their side features alone.

        ``features`` has one line per id: the column of the ids, and those that the model was fitted
        with. Ids that the model already knows do not change; if there are no others, the model
        stays as it is. Else the new model has no certificates, because they are about predictions
        without these features; a warning names those that it drops.
        """
        info = self.info
        own = self.factors.side(who)
        means = self._explained(features, who)
        new = np.flatnonzero(own.positions(means.ids) < 0)
        if not len(new):
            return self
        warn_dropped(self.certificate, who, len(new))
        rows = model_info.newcomer_rows(own.prior, means.lines[new])
        learnt = dict(info.side_features or {})
        learnt[who] = {**learnt[who], "newcomers": learnt[who]["newcomers"] + len(new)}
        side = own.with_rows(means.ids.take(pa.array(new)), rows, unrated_spreads(info, who, rows))
        return self._with_sides({who: side}, replace(info, side_features=learnt))

    def _explained(self, features: TableLike, who: Who) -> model_info.IdLines:
        table = arrow_table(features, f"the {who} features")
        column = self.info.columns[who]
        kind = self.factors.side(who).ids.type
        coding = model_info.coding_of(self.info, who)
        spelt = {name.lower(): name for name in (column, *coding.columns)}
        named = table.rename_columns([spelt.get(name.lower(), name) for name in table.column_names])
        if lacking := [name for name in coding.columns if name not in named.column_names]:
            raise RequestError(
                f"{who} features: the model was fitted with {', '.join(lacking)}, which is not "
                "there"
            )
        warn_of_unknown_values(coding, named, f"{who} features")
        ids = asked_ids(named[column], kind, f"the {who} ids").cast(kind)
        checked_lines(pa.table({column: ids}), column, who)
        return model_info.IdLines(
            ids, model_info.feature_means(self.info, who, coding.coded(named))
        )

    # ---- folders --------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write a model folder, for ``load`` and for ``OneBitCompletionModel.load``.

        It appears whole or not at all.

        The folder of a model that was diagnosed has its ``report.html``.
        """
        own = {
            "coldStartStrategy": self.cold_start,
            "maxError": self.max_error,
            "minPrecision": self.min_precision,
        }
        params = {**self.params, **own}
        text = page_of(self.info, self.certificate)
        files = {} if text is None else {REPORT: text}
        with replaced_folder(path, MODEL, overwrite) as folder:
            write_into(
                folder,
                (self.info, self.users, self.items, self.certificate, params, self.fitted),
                files,
            )

    def export_vectors(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write vectors whose inner product is the score, for any nearest-neighbour index
        (docs/serving.md).

        The folder has two Parquet tables, ``users`` and ``items``, with the columns ``id`` and
        ``vector``: [L, 1, b] of a user, [R, d, 1] of an item, or L and R without intercepts. It
        appears whole or not at all.
        """
        write_vectors(path, self.users, self.items, overwrite)


def is_pair(given: TableLike) -> bool:
    return isinstance(given, tuple | list) and len(given) == 2


def _posterior(side: ModelSide, n: int | None) -> RowPosterior:
    """The posterior of the ids of a side, or of the ids 0, …, n − 1."""
    return (
        side.known if n is None else side.at(side.positions(pa.array(np.arange(n))), implicit=True)
    )


def positive_labels(
    labels: ArrayLike, threshold: float | None, n: int, who: str, to: str
) -> NDArray[np.bool_]:
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
