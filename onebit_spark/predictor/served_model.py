"""ServedModel: a fitted model in this process, asked by the ids of the ratings. ``onebit_spark.load`` reads it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from onebit_spark.certificate.certificates import certificate_document
from onebit_spark.certificate.held_out import answering_threshold
from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.factor_tables import newcomer_rows
from onebit_spark.core.fitted_features import PARTNER, SIDE_OF, IdLines, Who, coding_of, feature_means
from onebit_spark.core.posterior import RowPosterior
from onebit_spark.errors import RequestError, refuse
from onebit_spark.predictor.asked_model import AskedModel, positive_labels, who_problems
from onebit_spark.predictor.model_folder import read_model, write_model, write_vectors
from onebit_spark.predictor.new_ratings import FoldIn, warn_left_out
from onebit_spark.predictor.side import ModelSide, asked_ids
from onebit_spark.predictor.top_n import Numbers, best_of, ranking_problems


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
    info, users, items, certificate, params, fitted = read_model(path)
    cold_start, max_error = params.get("coldStartStrategy", "prior"), params.get("maxError")
    return ServedModel(info, users, items, certificate, cold_start, max_error, params, fitted)


@dataclass(frozen=True, repr=False)
class ServedModel(AskedModel):
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
    fitted : CellSketch, optional
        Which cells were fitted, so that ``certify`` can refuse their ratings.

    Notes
    -----
    Ids are those of the ratings: one id, or a sequence, a numpy or an Arrow array, a pandas Series. A single id is
    repeated for all partners.
    """

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
        refuse(ranking_problems(n, z) + who_problems(who))
        floor = answering_threshold(self.certificate, self.max_error) if answered_only else None
        asking, others = self.side(who), self.side(PARTNER[who])
        rows = np.arange(len(asking.ids)) if ids is None else asking.positions(self.asked(who, ids))
        rows = rows[rows >= 0]
        pairs = None
        if seen is not None:
            _, *both = self.pairs(*seen)
            pairs = (both[0], both[1]) if who == "user" else (both[1], both[0])
        best = best_of(asking.posterior, rows, others.known, n, self.predictor.ranking(z, floor), pairs)
        row, rank = np.nonzero(best.present)
        outputs = self.predictor.outputs(best.score[best.present], best.variance[best.present])
        return pa.table(
            {
                who: asking.ids.take(pa.array(rows[row])),
                "rank": pa.array(rank + 1),
                PARTNER[who]: others.ids.take(pa.array(best.partner[best.present])),
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
        ids, rows, cols = self.pairs(users, items)
        positive = positive_labels(
            labels, self.info.threshold if threshold is None else threshold, len(rows), who, "fold in"
        )
        new_ids, partners = (ids[0], cols) if who == "user" else (ids[1], rows)
        if not len(rows) and not only_new:
            return self
        encoded, folded = self.folded_rows(who, new_ids.cast(self.side(who).ids.type), partners, positive)
        own = self.side(who)
        side = ModelSide.of_rows(encoded, folded, own.prior) if only_new else own.with_rows(encoded, folded)
        return self._with_side(who, side)

    def _with_side(self, who: Who, side: ModelSide, **info: Any) -> ServedModel:
        """The model with other users or other items, and so without certificates."""
        users, items = (side, self.items) if who == "user" else (self.users, side)
        plain = replace(self.info, draw_narrowing=None, n_users=len(users.ids), n_items=len(items.ids), **info)
        return ServedModel(plain, users, items, certificate_document([]), self.cold_start, self.max_error, self.params)

    def fold_in_features(self, features: pa.Table, who: Who = "user") -> ServedModel:
        """A model that also knows these users (or items), from their side features alone.

        Ids that the model already knows do not change. The new model has no certificates.

        Parameters
        ----------
        features : pyarrow.Table
            One line per id: the column of the ids, and those that the model was fitted with.
        who : {"user", "item"}
            Whose features they are.
        """
        info, own, column = self.info, self.side(who), self.info.columns[who]
        coding = coding_of(info, who)
        named = features.rename_columns([_spelt(name, (column, *coding.columns)) for name in features.column_names])
        if lacking := [name for name in coding.columns if name not in named.column_names]:
            raise RequestError(f"{who} features: the model was fitted with {', '.join(lacking)}, which is not there")
        ids = asked_ids(named[column], own.ids.type, f"the {who} ids").cast(own.ids.type)
        rows = newcomer_rows(own.prior, feature_means(info, who, coding.coded(named)))
        new = np.flatnonzero(own.positions(ids) < 0)
        side, learnt = own.with_rows(ids.take(pa.array(new)), rows.take(new)), dict(info.side_features or {})
        learnt[who] = {**learnt[who], "newcomers": learnt[who]["newcomers"] + len(new)}
        return self._with_side(who, side, side_features=learnt)

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

    def save(
        self, path: str | os.PathLike[str], overwrite: bool = False, files: Mapping[str, str] | None = None
    ) -> None:
        """Write a model folder, for ``load`` and for ``OneBitCompletionModel.load``. It appears whole or not at all.

        ``files`` are texts that the folder has besides, such as a report, by their names.
        """
        params = {**self.params, "coldStartStrategy": self.cold_start, "maxError": self.max_error}
        content = self.info, self.users, self.items, self.certificate, params, self.fitted
        write_model(path, content, overwrite, files)

    def export_vectors(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write vectors whose inner product is the score, for any nearest-neighbour index (docs/serving.md).

        The folder has two Parquet tables, ``users`` and ``items``, with the columns ``id`` and ``vector``: [L, 1, b] of
        a user, [R, d, 1] of an item, or L and R without intercepts. It appears whole or not at all.
        """
        write_vectors(path, self.users, self.items, overwrite)


def _spelt(name: str, known: Sequence[str]) -> str:
    """A column's name as the model spells it: upper and lower case do not differ, as in Spark."""
    return next((each for each in known if each.lower() == name.lower()), name)
