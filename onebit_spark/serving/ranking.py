"""The best partners of some ids, ranked in this process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from onebit_spark.core import prediction
from onebit_spark.core.machine import available_cores
from onebit_spark.core.model_info import ModelInfo
from onebit_spark.core.top_n import Best, Ranking, best_partners
from onebit_spark.serving.side import Numbers, ResidentSide

ROWS_PER_SLICE = 1024  # that one thread ranks at a time


def ranking_problems(n: int, z: float | None) -> list[str]:
    """What is wrong with a wish for the n best by score − z·std, in words."""
    found = []
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        found.append(f"the number of recommendations must be an integer of at least 1, not {n!r}")
    if z is not None and not 0 <= z < np.inf:
        found.append(f"z must be a number of at least 0, not {z!r}")
    return found


def ranking_of(info: ModelInfo, z: float | None, floor: float | None) -> Ranking:
    """The order of a model's pairs: by probability, or by score − z·std. ``floor`` is the least confidence."""
    loss = info.config.loss
    return Ranking(prediction.score_noise(loss, info.calibrated), z, floor, prediction.score_noise(loss))


def best_of(
    asking: ResidentSide, rows: Numbers, others: ResidentSide, n: int, ranking: Ranking,
    seen: tuple[Numbers, Numbers] | None = None,
) -> Best:  # fmt: skip
    """The n best of ``others`` for each of these rows of ``asking``, but no pair (row, other) of ``seen``."""
    partners = others.known
    pointers, positions = _pointers(rows, seen)

    def ranked(lo: int) -> Best:
        hi = min(lo + ROWS_PER_SLICE, len(rows))
        inside = pointers[lo : hi + 1]
        excluded = inside - inside[0], positions[inside[0] : inside[-1]]
        return best_partners(asking.posterior.take(rows[lo:hi]), partners, n, ranking, excluded)

    with ThreadPoolExecutor(available_cores()) as pool:
        parts = list(pool.map(ranked, range(0, max(1, len(rows)), ROWS_PER_SLICE)))
    partner, score, variance = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("partner", "score", "variance")
    )
    return Best(partner, score, variance)


def long_table(info: ModelInfo, names: tuple[str, str], asking: pa.Array, partners: pa.Array, best: Best) -> pa.Table:
    """One line per id and recommendation: the id, ``rank`` from 1 on, the partner, score, std, probability."""
    found = best.partner >= 0
    score, variance = best.score[found], best.variance[found]
    row, rank = np.nonzero(found)
    return pa.table(
        {
            names[0]: asking.take(pa.array(row)),
            "rank": pa.array(rank + 1),
            names[1]: partners.take(pa.array(best.partner[found])),
            "score": score,
            "std": np.sqrt(variance),
            "probability": prediction.probability(info.config.loss, score, variance, info.calibrated),
        }
    )


def _pointers(rows: Numbers, seen: tuple[Numbers, Numbers] | None) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """The seen partners of rows[0], rows[1], …: pointers into positions. Unknown ids (−1) are nobody's."""
    if seen is None or len(seen[0]) == 0:
        return np.zeros(len(rows) + 1, np.int64), np.zeros(0, np.int32)
    who, partner = (numbers[(seen[0] >= 0) & (seen[1] >= 0)] for numbers in seen)
    order = np.argsort(who, kind="stable")
    who, partner = who[order], partner[order]
    first, last = np.searchsorted(who, rows, "left"), np.searchsorted(who, rows, "right")
    pointers = np.concatenate([[0], np.cumsum(last - first)]).astype(np.int64)
    taken = np.arange(pointers[-1]) + np.repeat(first - pointers[:-1], last - first)
    return pointers, partner[taken].astype(np.int32)
