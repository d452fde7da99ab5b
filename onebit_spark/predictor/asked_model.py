"""AskedModel: what a fitted model in this process says about pairs of ids, and how good that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from onebit_spark.certificate.certificates import Certificate, with_freshness
from onebit_spark.certificate.held_out import answering_threshold, held_out_certificates, ungrouped_certificates
from onebit_spark.core.array_input import label_problems
from onebit_spark.core.arrow import arrow_table
from onebit_spark.core.config import Terms
from onebit_spark.core.fitted_features import SIDE_OF, Who
from onebit_spark.core.hashes import cell_hashes
from onebit_spark.core.model_info import ModelInfo
from onebit_spark.core.prediction import EVERYTHING
from onebit_spark.core.sketch import HIGHEST, CellSketch
from onebit_spark.errors import RequestError
from onebit_spark.predictor.certification import CertificateRequest, fresh_to
from onebit_spark.predictor.predictor import Predictor, moments_at
from onebit_spark.predictor.scored import count_by_level, figures_of, scored_table
from onebit_spark.predictor.side import ModelSide, asked_ids
from onebit_spark.predictor.top_n import Numbers

COLD_START = ("prior", "drop", "nan")


@dataclass(frozen=True)
class AskedModel:
    """Base class of ``ServedModel``, which documents the fields."""

    info: ModelInfo
    users: ModelSide = field(repr=False)
    items: ModelSide = field(repr=False)
    certificate: dict[str, Any] = field(repr=False)
    cold_start: str = "prior"
    max_error: float | None = None
    params: dict[str, Any] = field(default_factory=dict, repr=False)
    fitted: CellSketch | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.cold_start not in COLD_START:
            raise RequestError(f"cold_start must be one of {', '.join(COLD_START)}, not {self.cold_start!r}")

    def __repr__(self) -> str:
        info = self.info
        return f"{type(self).__name__}({info.n_users:,} users, {info.n_items:,} items, rank {info.config.rank})"

    @cached_property
    def predictor(self) -> Predictor:
        """Computes what the model says about pairs."""
        return Predictor.of(self.info)

    def side(self, who: Who) -> ModelSide:
        """The users or the items."""
        return self.users if who == "user" else self.items

    # ---- predictions -------------------------------------------------------------------------------------------------

    def predictions(self, users: Any, items: Any) -> pa.Table:
        """What ``transform`` appends, for pairs of ids (docs/predictions.md).

        Returns
        -------
        pyarrow.Table
            user, item, score, std, probability, prediction; ``answered`` after a selective certificate.
        """
        ids, rows, cols = self.pairs(users, items)
        columns = {"user": ids[0], "item": ids[1], **self._outputs(rows, cols)}
        table = pa.table(columns)
        return table.filter(pa.array((rows >= 0) & (cols >= 0))) if self.cold_start == "drop" else table

    def transform(self, pairs: Any) -> pa.Table:
        """A table with the predictions appended: score, std, probability, prediction, and ``answered`` as above.

        Parameters
        ----------
        pairs : pyarrow.Table, or DataFrame of pandas or polars
            It has the columns of users and items of the fit, and any others.
        """
        table = arrow_table(pairs, "the pairs")
        names = [self.info.columns[who] for who in SIDE_OF]
        if absent := [name for name in names if name not in table.column_names]:
            raise RequestError(f"the pairs have no column {', '.join(map(repr, absent))}")
        _, rows, cols = self.pairs(*(table[name] for name in names))
        for name, values in self._outputs(rows, cols).items():
            table = table.append_column(name, pa.array(values))
        return table.filter(pa.array((rows >= 0) & (cols >= 0))) if self.cold_start == "drop" else table

    def score(self, users: Any, items: Any) -> NDArray[np.float64]:
        """Posterior mean of the score, E[b_i] + E[d_j] + E[L_i]·E[R_j] (docs/MATH.md, §8.1).

        One number per pair, also in ``std``, ``probability`` and ``predict``: with ``cold_start`` "nan" or "drop", a
        pair with an unknown id is NaN.
        """
        return self._output("score", users, items)

    def std(self, users: Any, items: Any) -> NDArray[np.float64]:
        """Spread of the score: the standard deviation of an approximate posterior, which depends on the rank and on κ.

        It compares pairs of one model. It is no error bar (docs/predictions.md, Std).
        """
        return self._output("std", users, items)

    def probability(self, users: Any, items: Any) -> NDArray[np.float64]:
        """P(+), calibrated if the model is. Its meaning depends on the loss (§8.1)."""
        return self._output("probability", users, items)

    def predict(self, users: Any, items: Any) -> NDArray[np.float64]:
        """The label in the coding of the ratings, by the sign of the score; the majority label for a score of 0."""
        return self._output("prediction", users, items)

    def _output(self, name: str, users: Any, items: Any) -> NDArray[np.float64]:
        _, rows, cols = self.pairs(users, items)
        return self._outputs(rows, cols)[name]

    def pairs(self, users: Any, items: Any) -> tuple[list[pa.Array], Numbers, Numbers]:
        """The ids of the pairs, and their positions."""
        ids = [self.asked("user", users), self.asked("item", items)]
        numbers = [side.positions(asked) for side, asked in zip((self.users, self.items), ids, strict=True)]
        lengths = {len(asked) for asked in ids} - {1}
        if len(lengths) > 1:
            raise RequestError(f"there are {len(ids[0]):,} user ids, but {len(ids[1]):,} item ids")
        n = lengths.pop() if lengths else 1
        place = [np.arange(n) if len(asked) == n else np.zeros(n, np.int64) for asked in ids]
        taken = [asked.take(pa.array(at)) for asked, at in zip(ids, place, strict=True)]
        return taken, numbers[0][place[0]], numbers[1][place[1]]

    def asked(self, who: Who, values: Any) -> pa.Array:
        """Ids as an Arrow array that can be looked up."""
        return asked_ids(values, self.side(who).ids.type, f"the {who} ids")

    def predicted(self, rows: Numbers, cols: Numbers) -> dict[str, NDArray[np.float64]]:
        """Score, std, probability and prediction of positions of the two sides. Position −1 is an unknown id."""
        return self.predictor.outputs(*moments_at(self.users.posterior, self.items.posterior, rows, cols))

    def _outputs(self, rows: Numbers, cols: Numbers) -> dict[str, NDArray[Any]]:
        outputs: dict[str, NDArray[Any]] = dict(self.predicted(rows, cols))
        known = (rows >= 0) & (cols >= 0) if self.cold_start != "prior" else np.full(len(rows), True)
        for values in outputs.values():
            values[~known] = np.nan
        if ungrouped_certificates(self.certificate):
            threshold = answering_threshold(self.certificate, self.max_error)
            sure = self.predictor.confidence(outputs["score"], outputs["std"]) >= threshold
            outputs["answered"] = known & sure & (threshold < np.inf)
        return outputs

    # ---- quality -----------------------------------------------------------------------------------------------------

    def scored(
        self, rows: Numbers, cols: Numbers, positive: NDArray[np.bool_], groups: pa.ChunkedArray | None = None
    ) -> pa.Table:
        """Ratings at positions of the two sides, with what the model says: see ``predictor.scored``."""
        none = pa.nulls(len(rows), pa.string())
        columns = {"positive": positive, "unknown_user": rows < 0, "unknown_item": cols < 0}
        lines = {**columns, "group": none if groups is None else groups, **self.predicted(rows, cols)}
        return scored_table(self.info, pa.table(lines))

    def certify(
        self, users: Any, items: Any, labels: ArrayLike, terms: Terms | None = None,
        max_error: Sequence[float] = (), groups: ArrayLike | None = None,
    ) -> list[Certificate]:  # fmt: skip
        """Certify the predictions on ratings that were not fitted: ``holdout``, and ``selective`` for each request.

        Parameters
        ----------
        users, items, labels
            The ratings. Those of cells that the model was fitted on are refused, as far as it knows them.
        terms : Terms, optional
            δ, and the number of settings that were compared.
        max_error : sequence of float
            Requested error rates among the answered pairs (docs/MATH.md, §10).
        groups : array_like, optional
            One value per rating. Certify within each group as well; the groups share δ.
        """
        request = CertificateRequest(terms or Terms(), tuple(max_error), None if groups is None else "group")
        if problems := request.problems(self.info):
            raise RequestError("; ".join(problems))
        ids, rows, cols = self.pairs(users, items)
        positive = positive_labels(labels, self.info.threshold, len(rows), "user", "certify")
        asked = CellSketch.of(cell_hashes(*ids), HIGHEST if self.fitted is None else self.fitted.limit)
        text = None if groups is None else pa.chunked_array([pa.array([str(value) for value in np.asarray(groups)])])
        return self.certified(self.scored(rows, cols, positive, text), request, fresh_to(self.fitted, asked))[1]

    def certified(
        self, scored: pa.Table, request: CertificateRequest, fresh: Mapping[str, Any]
    ) -> tuple[dict[str, Any], list[Certificate]]:
        """The figures of scored ratings, and the certificates that they give: ``holdout`` first."""
        figures, lines = figures_of(scored)
        counts = count_by_level(self.info, lines, request.by)
        thresholds = self.info.confidence_thresholds or EVERYTHING
        certificates = held_out_certificates(thresholds, counts, request.terms, request.max_error)
        return figures, [with_freshness(item, fresh) for item in certificates]


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
