"""ServedModel: a fitted model in this process, asked by the ids of the ratings. ``onebit_spark.load`` reads it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from onebit_spark.certificate.certificates import document
from onebit_spark.certificate.selective import answering_threshold, applied
from onebit_spark.core.array_input import label_problems
from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.fitted_features import PARTNER, SIDE_OF, IdLines, Who
from onebit_spark.core.model_info import ModelInfo
from onebit_spark.core.posterior import RowPosterior
from onebit_spark.errors import RequestError, refuse
from onebit_spark.predictor.model_folder import read_model, write_model, write_vectors
from onebit_spark.predictor.new_ratings import FoldIn, warn_left_out
from onebit_spark.predictor.predictor import Predictor, moments_at
from onebit_spark.predictor.side import ModelSide, asked_ids
from onebit_spark.predictor.top_n import Numbers, best_of, ranking_problems

COLD_START = ("prior", "drop", "nan")


def load(path: str | os.PathLike[str]) -> ServedModel:
    """The model of a folder on this machine, without Spark.

    Parameters
    ----------
    path : str or path
        What ``jobs/fit.py``, ``OneBitCompletionModel.save`` or ``Fit.save`` wrote, in this or an earlier version.

    Returns
    -------
    ServedModel
        The whole model, in memory. It does not read the folder again.

    Raises
    ------
    RequestError
        There is no model, or it is damaged, newer than this package, or on another machine (hdfs://, s3://).
    """
    info, users, items, certificate, params = read_model(path)
    cold_start, max_error = params.get("coldStartStrategy", "prior"), params.get("maxError")
    return ServedModel(info, users, items, certificate, cold_start, max_error, params)


@dataclass(frozen=True)
class ServedModel:
    """A fitted model in this process. ``onebit_spark.load`` reads it from its folder.

    It predicts what ``OneBitCompletionModel.transform`` predicts. The methods change nothing, so threads may share it.

    Parameters
    ----------
    info : ModelInfo
        Settings, counts and history of the fit: the content of ``metadata.json``.
    users, items : ModelSide
        Ids and posterior of each side.
    certificate : dict
        Upper limits on the error rate: the content of ``certificate.json``.
    cold_start : {"prior", "drop", "nan"}
        Pairs with an unknown id: predicted from the prior, left out, or NaN. The Param ``coldStartStrategy``.
    max_error : float, optional
        The certified error rate of ``answered``. Default: the first that was requested. The Param ``maxError``.
    params : dict
        All Params of the folder. ``save`` writes them again.

    Notes
    -----
    Ids are those of the ratings: one id, or a sequence, a numpy or an Arrow array, a pandas Series. A single id is
    repeated for all partners.
    """

    info: ModelInfo
    users: ModelSide = field(repr=False)
    items: ModelSide = field(repr=False)
    certificate: dict[str, Any] = field(repr=False)
    cold_start: str = "prior"
    max_error: float | None = None
    params: dict[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.cold_start not in COLD_START:
            raise RequestError(f"cold_start must be one of {', '.join(COLD_START)}, not {self.cold_start!r}")

    def __repr__(self) -> str:
        return f"ServedModel({self.info.n_users:,} users, {self.info.n_items:,} items, rank {self.info.config.rank})"

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
        ids, rows, cols = self._pairs(users, items)
        columns = {"user": ids[0], "item": ids[1], **self._outputs(rows, cols)}
        table = pa.table(columns)
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
        _, rows, cols = self._pairs(users, items)
        return self._outputs(rows, cols)[name]

    def _pairs(self, users: Any, items: Any) -> tuple[list[pa.Array], Numbers, Numbers]:
        """The ids of the pairs, and their positions."""
        ids = [self._asked("user", users), self._asked("item", items)]
        numbers = [side.positions(asked) for side, asked in zip((self.users, self.items), ids, strict=True)]
        lengths = {len(asked) for asked in ids} - {1}
        if len(lengths) > 1:
            raise RequestError(f"there are {len(ids[0]):,} user ids, but {len(ids[1]):,} item ids")
        n = lengths.pop() if lengths else 1
        place = [np.arange(n) if len(asked) == n else np.zeros(n, np.int64) for asked in ids]
        taken = [asked.take(pa.array(at)) for asked, at in zip(ids, place, strict=True)]
        return taken, numbers[0][place[0]], numbers[1][place[1]]

    def _asked(self, who: Who, values: Any) -> pa.Array:
        return asked_ids(values, self.side(who).ids.type, f"the {who} ids")

    def predicted(self, rows: Numbers, cols: Numbers) -> dict[str, NDArray[np.float64]]:
        """Score, std, probability and prediction of positions of the two sides. Position −1 is an unknown id."""
        return self.predictor.outputs(*moments_at(self.users.posterior, self.items.posterior, rows, cols))

    def _outputs(self, rows: Numbers, cols: Numbers) -> dict[str, NDArray[Any]]:
        outputs: dict[str, NDArray[Any]] = dict(self.predicted(rows, cols))
        known = (rows >= 0) & (cols >= 0) if self.cold_start != "prior" else np.full(len(rows), True)
        for values in outputs.values():
            values[~known] = np.nan
        if applied(self.certificate):
            threshold = answering_threshold(self.certificate, self.max_error)
            sure = self.predictor.confidence(outputs["score"], outputs["std"]) >= threshold
            outputs["answered"] = known & sure & (threshold < np.inf)
        return outputs

    # ---- recommendations ---------------------------------------------------------------------------------------------

    def recommend(
        self, ids: Any = None, n: int = 10, who: Who = "user", *, z: float | None = None,
        seen: tuple[Any, Any] | None = None, answered_only: bool = False,
    ) -> pa.Table:  # fmt: skip
        """The best items of users (``who`` = "user"), or the best users of items.

        Parameters
        ----------
        ids : ids, optional
            Who gets recommendations. Unknown ids are left out. Default: all that the model knows.
        n : int
            Recommendations per id.
        who : {"user", "item"}
            What ``ids`` are.
        z : float, optional
            Rank by score − z·std. Default: by probability.
        seen : (user ids, item ids), optional
            Pairs that are not recommended.
        answered_only : bool
            List only pairs that the model answers. No certificate is about the lists (docs/predictions.md).

        Returns
        -------
        pyarrow.Table
            The id, ``rank`` from 1 on, the recommended id, score, std, probability.
        """
        refuse(ranking_problems(n, z) + _who_problems(who))
        floor = answering_threshold(self.certificate, self.max_error) if answered_only else None
        asking, others = self.side(who), self.side(PARTNER[who])
        rows = np.arange(len(asking.ids)) if ids is None else asking.positions(self._asked(who, ids))
        rows = rows[rows >= 0]
        pairs = None
        if seen is not None:
            _, *both = self._pairs(*seen)
            pairs = (both[0], both[1]) if who == "user" else (both[1], both[0])
        best = best_of(asking.posterior, rows, others.known, n, self.predictor.ranking(z, floor), pairs)
        row, rank = np.nonzero(best.found)
        outputs = self.predictor.outputs(best.score[best.found], best.variance[best.found])
        return pa.table(
            {
                who: asking.ids.take(pa.array(rows[row])),
                "rank": pa.array(rank + 1),
                PARTNER[who]: others.ids.take(pa.array(best.partner[best.found])),
                **{name: outputs[name] for name in ("score", "std", "probability")},
            }
        )

    # ---- new users and items -----------------------------------------------------------------------------------------

    def fold_in(
        self, users: Any, items: Any, labels: ArrayLike, who: Who = "user", *, threshold: float | None = None,
        only_new: bool = False,
    ) -> ServedModel:  # fmt: skip
        """A model that also knows these users (or items), without a refit (docs/MATH.md, §8.3).

        An id that the model already knows is replaced. The new model has no certificates.

        Parameters
        ----------
        users, items : ids
            All ratings of the new users (or items). Ratings of partners that the model does not know are ignored; a
            warning tells how many ids have no others and are not folded in. Without ratings the model stays as it is.
        labels : array_like
            ±1, 0/1 or booleans; with a threshold any numbers.
        who : {"user", "item"}
            Whether users or items are added.
        threshold : float, optional
            A label strictly above it is positive. Default: as in the fit.
        only_new : bool
            The new model knows only the new users, and all items. No factor table is copied, so a request is answered
            in milliseconds however large the model is.
        """
        ids, rows, cols = self._pairs(users, items)
        positive = _positive(labels, self.info.threshold if threshold is None else threshold, len(rows), who)
        new_ids, partners = (ids[0], cols) if who == "user" else (ids[1], rows)
        if not len(rows) and not only_new:
            return self
        encoded, folded = self.folded_rows(who, new_ids.cast(self.side(who).ids.type), partners, positive)
        own = self.side(who)
        side = ModelSide.of_rows(encoded, folded, own.prior) if only_new else own.with_rows(encoded, folded)
        users_after, items_after = (side, self.items) if who == "user" else (self.users, side)
        n_users, n_items = len(users_after.ids), len(items_after.ids)
        info = replace(self.info, draw_narrowing=None, n_users=n_users, n_items=n_items)
        return ServedModel(info, users_after, items_after, document([]), self.cold_start, self.max_error, self.params)

    def folded_rows(
        self, who: Who, ids: pa.Array, partners: Numbers, positive: NDArray[np.bool_],
        weights: NDArray[np.floating] | None = None, explained: IdLines | None = None,
    ) -> tuple[pa.Array, RowPosterior]:  # fmt: skip
        """The different ids of ratings, and the rows that follow from them. Partners at position −1 are ignored.

        ``explained`` are the means that side features of the ids explain.
        """
        known = partners >= 0
        encoded = ids.filter(pa.array(known)).dictionary_encode()
        warn_left_out(who, len(ids.unique()), len(encoded.dictionary))
        rated, columns = np.unique(partners[known], return_inverse=True)
        block = RatingBlock.from_coordinates(
            encoded.indices.to_numpy().astype(np.int64),
            columns,
            positive[known],
            (len(encoded.dictionary), len(rated)),
            None if weights is None else weights[known],
        )
        lines = self.side(PARTNER[who]).posterior.take(rated)
        means = None if explained is None else explained.at(encoded.dictionary)
        return encoded.dictionary, FoldIn.of(self.info, SIDE_OF[who]).rows(block, lines, means)

    # ---- folders -----------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write a model folder, for ``load`` and for ``OneBitCompletionModel.load``. It appears whole or not at all.

        It does not say which ratings were fitted: certificates cannot check that theirs are others.
        """
        params = {**self.params, "coldStartStrategy": self.cold_start, "maxError": self.max_error}
        write_model(path, (self.info, self.users, self.items, self.certificate, params), overwrite)

    def export_vectors(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write vectors whose inner product is the score, for any nearest-neighbour index (docs/serving.md).

        The folder has two Parquet tables, ``users`` and ``items``, with the columns ``id`` and ``vector``: [L, 1, b] of
        a user, [R, d, 1] of an item, or L and R without intercepts. It appears whole or not at all.
        """
        write_vectors(path, self.users, self.items, overwrite)


def _who_problems(who: str) -> list[str]:
    return [] if who in ("user", "item") else [f"who must be 'user' or 'item', not {who!r}"]


def _positive(labels: ArrayLike, threshold: float | None, n: int, who: str) -> NDArray[np.bool_]:
    """Which labels are positive. Raises a RequestError with all problems of them."""
    values = np.atleast_1d(np.asarray(labels))
    problems = _who_problems(who)
    if values.shape != (n,):
        problems.append(f"labels must be {n:,} numbers, one per pair, not of shape {values.shape}")
    if threshold is None:
        problems += label_problems(values, both_classes=False)
    elif values.dtype.kind not in "biuf" or np.any(np.isnan(values)):
        problems.append("labels must be numbers, and not NaN")
    if problems:
        raise RequestError("cannot fold in: " + "; ".join(problems))
    return np.asarray(values > (0.0 if threshold is None else threshold))
