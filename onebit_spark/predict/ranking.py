"""How many positive ratings the lists of recommendations find."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from onebit_spark.core.posterior import RowPosterior
from onebit_spark.data.user_tables import one_array
from onebit_spark.errors import RequestError, refuse
from onebit_spark.predict.factors import Factors
from onebit_spark.predict.figures import Figures
from onebit_spark.predict.judged import RatingsHere
from onebit_spark.predict.metrics import ranking_figures
from onebit_spark.predict.sides import asked_ids
from onebit_spark.predict.top_n import Ranking, best_of, ranking_problems

NOTHING_SEEN = "{} has no rating: leave it out, or give the ratings that were fitted"


class RatedPairs(NamedTuple):
    users: pa.Array
    items: pa.Array
    positive: NDArray[np.bool_] | None = None  # None: the labels are not known

    @classmethod
    def of(cls, ratings: RatingsHere) -> RatedPairs:
        assert ratings.ids is not None
        return cls(*ratings.ids, ratings.positive)


def rank(factors: Factors, given: RatedPairs, n: int, seen: RatedPairs | None = None) -> Figures:
    """The figures of ``FittedModel.ranking``.

    Without the labels of what was ``seen`` there is no popularity.
    """
    refuse(ranking_problems(n, None))
    parts = [given] if seen is None else [given, seen]
    kinds = factors.users.ids.type, factors.items.ids.type
    users = one_array([asked_ids(part.users, kinds[0], "the user ids") for part in parts])
    items = one_array([asked_ids(part.items, kinds[1], "the item ids") for part in parts])
    rows, cols = factors.find(users, items)
    known = len(factors.items.ids)
    positive = np.concatenate(
        [np.zeros(len(part[0]), bool) if part.positive is None else part.positive for part in parts]
    )
    new = np.arange(len(users)) < len(given.users)
    codes = items.dictionary_encode().indices.to_numpy()  # unknown items come after the others
    width = known + len(codes)
    cells = rows * width + np.where(cols < 0, known + codes, cols)
    wanted = np.setdiff1d(cells[new & positive & (rows >= 0)], cells[~new])
    asking, relevant = np.unique(wanted // width, return_counts=True)
    if not len(asking):
        raise RequestError(
            "cannot rank: no user that the model knows has a positive rating that was not seen"
        )
    lists = {
        "model": (factors.users.known, factors.items.known, factors.predictor.ranking(None, None))
    }
    if seen is not None and seen.positive is not None:
        counts = np.bincount(cols[~new & positive & (cols >= 0)], minlength=known)
        equal, popular = (
            RowPosterior.isotropic(values.astype(np.float32)[:, None], 0.0, "spread", True)
            for values in (np.zeros(len(factors.users.ids)), counts)
        )
        lists["popularity"] = equal, popular, Ranking(1.0)
    unknown = users.filter(pa.array(new & positive & (rows < 0)))
    figures: Figures = {
        "n": int(n),
        "n_users": len(asking),
        "n_unknown_user": len(unknown.unique()),
    }
    for name, (own, others, order) in lists.items():
        best = best_of(own, asking, others, n, order, (rows[~new], cols[~new]))
        hits = np.isin(asking[:, None] * width + best.partner, wanted) & best.present
        figures[name] = ranking_figures(hits, relevant)
    return figures
