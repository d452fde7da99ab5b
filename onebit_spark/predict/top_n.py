"""The n best partners of every row of one block among the rows of another, by matrix products.

A score is a product of two augmented means. Its variance is also a product, of longer vectors
(``_variance_terms``)::

    var u = <V_i, z_j z_jᵀ> + <w_i w_iᵀ + V_i^F, V_j>
    z_j = [1, R_j], w_i = [1, L_i], V^F without the intercept

Pairs are ranked by score/√(c + variance), which is the order of their probabilities, or by score −
z·√variance. The score of a pair and the limits of the variance over the block bound both, so the
score alone excludes most pairs. If few pairs of a tile remain, their variances are computed one by
one; otherwise one product computes all of them. For a few rows, the variances with all partners are
computed directly (``_variances``), which is cheaper than the longer vectors.
"""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core.posterior import FloatArray, RowPosterior
from onebit_spark.kernels.jit import inner, jit
from onebit_spark.settings import available_cores, is_integer

Numbers = NDArray[np.int64]
# Row i has seen the partners positions[pointers[i] : pointers[i + 1]]
Seen = tuple[Numbers, NDArray[np.int32]]

ROWS_PER_SLICE = 1024  # that one thread ranks at a time
TILE_ROWS = 256
TILE_COLUMNS = 2048  # 2 MB of scores, which stay in the cache between the product and the search
STRETCH = 64  # scores in one loop without a branch, which counts those above the limit
FEW = 16  # for at most so many rows, the variances with all partners are computed first
MANY = 0.1  # above this share of a tile's pairs, one product is faster than variances one by one


class Ranking(NamedTuple):
    noise: float  # rank by score/√(noise + variance), the order of the probabilities
    z: float = math.nan  # if it is a number: rank by the lower limit score − z·std instead
    floor: float = 0.0  # keep only pairs with |score|/√(floor_noise + variance) ≥ floor
    floor_noise: float = 0.0  # see ``floor``


def ranking_problems(n: int, z: float | None) -> list[str]:
    problems = []
    if not is_integer(n) or n < 1:
        problems.append(
            f"the number of recommendations must be an integer of at least 1, not {n!r}"
        )
    if z is not None and not 0 <= z < np.inf:
        problems.append(f"z must be a number of at least 0, not {z!r}")
    return problems


class Best(NamedTuple):
    """The n best partners of every row, the best first. All arrays are m × n."""

    key: NDArray[np.float64]  # what they are ranked by: the best has the largest
    partner: NDArray[np.int32]  # positions of the partners; −1 where there are fewer than n
    score: NDArray[np.float64]  # score of each pair, and its variance
    variance: NDArray[np.float64]

    @property
    def present(self) -> NDArray[np.bool_]:
        return self.partner >= 0


def best_of(
    asking: RowPosterior,
    rows: Numbers,
    partners: RowPosterior,
    n: int,
    ranking: Ranking,
    seen: tuple[Numbers, Numbers] | None = None,
) -> Best:
    """The n best partners of each of these rows of ``asking``, without the pairs of ``seen``,
    computed on all cores.
    """
    pointers, positions = _seen_by(rows, seen)

    def ranked(lo: int) -> Best:
        hi = min(lo + ROWS_PER_SLICE, len(rows))
        inside = pointers[lo : hi + 1]
        excluded = inside - inside[0], positions[inside[0] : inside[-1]]
        return best_partners(asking.take(rows[lo:hi]), partners, n, ranking, excluded)

    if len(rows) <= ROWS_PER_SLICE:
        return ranked(0)
    with ThreadPoolExecutor(available_cores()) as pool:
        parts = list(pool.map(ranked, range(0, len(rows), ROWS_PER_SLICE)))
    return Best(*map(np.concatenate, zip(*parts, strict=True)))


def _seen_by(rows: Numbers, seen: tuple[Numbers, Numbers] | None) -> Seen:
    """The partners that rows[0], rows[1], … have seen. Unknown ids (−1) are ignored."""
    if seen is None or len(seen[0]) == 0:
        return np.zeros(len(rows) + 1, np.int64), np.zeros(0, np.int32)
    who, partner = (numbers[(seen[0] >= 0) & (seen[1] >= 0)] for numbers in seen)
    order = np.argsort(who, kind="stable")
    who = who[order]
    partner = partner[order]
    first = np.searchsorted(who, rows, "left")
    last = np.searchsorted(who, rows, "right")
    pointers = np.concatenate([[0], np.cumsum(last - first)]).astype(np.int64)
    taken = np.arange(pointers[-1]) + np.repeat(first - pointers[:-1], last - first)
    return pointers, partner[taken].astype(np.int32)


def best_partners(
    rows: RowPosterior, partners: RowPosterior, n: int, ranking: Ranking, seen: Seen | None = None
) -> Best:
    """The n best partners of every row of a block, without those that it has seen."""
    m = rows.n_rows
    pointers, positions = (
        seen if seen is not None else (np.zeros(m + 1, np.int64), np.zeros(0, np.int32))
    )
    row = np.repeat(np.arange(m), np.diff(pointers))
    excluded = pointers, positions[np.lexsort((positions, row))]
    best = Best(
        np.full((m, n), -np.inf), np.full((m, n), -1, np.int32), np.zeros((m, n)), np.zeros((m, n))
    )
    left = _augmented(rows, 0)
    right = np.ascontiguousarray(_augmented(partners, 1).T)
    nothing = np.zeros((0, 0), np.float32)
    limits = np.full(m, -np.inf, np.float32)
    if 0 < m <= FEW and rows.kind == "covariance" and partners.n_rows:
        variances = _variances(rows, partners)
        bounds = _Bounds(np.zeros(m), variances.max(axis=1), limits)
        _offer(
            _Tile(left @ right, variances, 0, 0),
            _Terms(nothing, nothing),
            ranking,
            bounds,
            excluded,
            best,
        )
        return best
    terms = _Terms(_variance_terms(rows, "row"), _variance_terms(partners, "partner"))
    bounds = _Bounds(*_variance_limits(terms, signed=rows.kind == "covariance"), limits)
    for top in range(0, m, TILE_ROWS):
        these = slice(top, min(top + TILE_ROWS, m))
        for column in range(0, partners.n_rows, TILE_COLUMNS):
            those = slice(column, column + TILE_COLUMNS)
            scores = left[these] @ right[:, those]
            many = _count_above(scores, bounds.score[these]) > MANY * scores.size
            variances = terms.rows[these] @ terms.partners[those].T if many else nothing
            _offer(_Tile(scores, variances, top, column), terms, ranking, bounds, excluded, best)
    return best


# ---- arguments of the kernel -------------------------------------------------------------------


class _Tile(NamedTuple):
    """Scores of some rows with some partners, and their variances, or an empty array."""

    scores: FloatArray
    variances: FloatArray
    row: int  # of the first row
    partner: int  # of the first partner


class _Terms(NamedTuple):
    """The inner product of a row's and a partner's terms is the variance of their score."""

    rows: FloatArray
    partners: FloatArray


class _Bounds(NamedTuple):
    """Limits of the variances of every row, and the score that a pair of the row must exceed."""

    low: FloatArray
    high: FloatArray
    score: NDArray[np.float32]


def _augmented(side: RowPosterior, one: int) -> FloatArray:
    """[b, 1, L] for ``one`` = 0, [1, d, R] for ``one`` = 1. Products of the two are scores."""
    if not side.has_intercept:
        return np.ascontiguousarray(side.location, np.float32)
    return np.insert(side.location, 1 - one, 1, axis=1).astype(np.float32)


def _variance_limits(terms: _Terms, signed: bool) -> tuple[FloatArray, FloatArray]:
    """For every row, a lower and an upper limit of its variance with any of the partners."""
    zeros = np.zeros(len(terms.rows))
    if len(terms.partners) == 0:
        return zeros, zeros
    high = np.abs(terms.rows) @ np.max(np.abs(terms.partners), axis=0) * (1 + 1e-5)
    if signed:  # the terms have either sign; a variance is at least 0
        return zeros, high
    return terms.rows @ np.min(terms.partners, axis=0) * (1 - 1e-5), high


def _variance_terms(side: RowPosterior, role: str) -> FloatArray:
    """Vectors of a row or of a partner.

    The inner product of the two is the variance of the pair's score.
    """
    first = int(side.has_intercept)
    x = side.location.astype(np.float64)
    z = x.copy()
    z[:, :first] = 1.0
    if side.kind == "spread":
        v = side.scale.astype(np.float64) ** 2
        second = v.copy()
        second[:, :first] = 0.0
        return np.hstack([v, z**2 + second] if role == "row" else [z**2, v]).astype(np.float32)
    a, b = np.tril_indices(side.dimension)
    twice = np.where(a == b, 1.0, 2.0)
    v = side.scale.astype(np.float64)
    outer = z[:, a] * z[:, b]
    if role == "row":
        return np.hstack([v, outer + v * ((a >= first) & (b >= first))]).astype(np.float32)
    return np.hstack([outer * twice, v * twice]).astype(np.float32)


def _variances(rows: RowPosterior, partners: RowPosterior) -> FloatArray:
    a, b = np.tril_indices(rows.dimension)
    z = partners.location.astype(np.float32)
    z[:, : int(rows.has_intercept)] = 1.0
    own, second = np.split(_variance_terms(rows, "row"), 2, axis=1)
    variances = (
        second
        * np.where(a == b, np.float32(1), np.float32(2))
        @ partners.scale.T.astype(np.float32, copy=False)
    )
    for i, packed in enumerate(own):
        matrix = np.zeros((rows.dimension, rows.dimension), np.float32)
        matrix[a, b] = matrix[b, a] = packed
        variances[i] += np.einsum("jd,jd->j", z @ matrix, z)
    return variances


@jit
def _count_above(tile, limits):
    hits = 0
    for r in range(tile.shape[0]):
        scores = tile[r]
        limit = limits[r]
        for j in range(tile.shape[1]):
            hits += scores[j] > limit
    return hits


@jit
def _offer(tile, terms, order, bounds, seen, lists):
    variances = tile.variances
    (pointers, positions) = seen
    last = lists.key.shape[1] - 1
    for r in range(tile.scores.shape[0]):
        i = tile.row + r
        scores = tile.scores[r]
        limit = bounds.score[i]
        for lo in range(0, len(scores), STRETCH):
            hi = min(lo + STRETCH, len(scores))
            hits = 0
            for j in range(lo, hi):
                hits += scores[j] > limit
            if hits == 0:
                continue
            for j in range(lo, hi):
                score = np.float64(scores[j])
                partner = tile.partner + j
                if not scores[j] > limit:
                    continue
                variance = (
                    variances[r, j]
                    if len(variances)
                    else _dot(terms.rows[i], terms.partners[partner])
                )
                variance = max(np.float64(variance), 0.0)
                if order.floor > 0.0 and not abs(score) >= order.floor * math.sqrt(
                    order.floor_noise + variance
                ):
                    continue
                key = _key(score, variance, order)
                if not key > lists.key[i, last] or _contains(
                    positions, pointers[i], pointers[i + 1], partner
                ):
                    continue
                _insert(lists, i, key, partner, score, variance)
                limit = _limit(lists.key[i, last], order, bounds.low[i], bounds.high[i])
        bounds.score[i] = limit


@inner
def _insert(lists, i, key, partner, score, variance):
    k = lists.key.shape[1] - 1
    while k > 0 and lists.key[i, k - 1] < key:
        lists.key[i, k], lists.partner[i, k] = lists.key[i, k - 1], lists.partner[i, k - 1]
        lists.score[i, k], lists.variance[i, k] = lists.score[i, k - 1], lists.variance[i, k - 1]
        k -= 1
    lists.key[i, k] = key
    lists.partner[i, k] = partner
    lists.score[i, k] = score
    lists.variance[i, k] = variance


@inner
def _dot(a, b):
    total = np.float32(0.0)
    for k in range(len(a)):
        total += a[k] * b[k]
    return total


@inner
def _key(score, variance, order):
    if math.isnan(order.z):
        return score / max(math.sqrt(order.noise + variance), 1e-150)
    return score - order.z * math.sqrt(variance)


@inner
def _limit(worst, order, low, high):
    """The score that a pair must exceed to be better than the worst of a list, at the most
    favourable variance.
    """
    if worst == -math.inf:
        return np.float32(-math.inf)
    if not math.isnan(order.z):
        bound = worst + order.z * math.sqrt(low)
    else:
        bound = worst * math.sqrt(order.noise + (low if worst > 0.0 else high))
    return np.float32(bound - 1e-6 * abs(bound))


@inner
def _contains(ascending, lo, hi, value):
    end = hi
    while lo < hi:
        middle = (lo + hi) // 2
        if ascending[middle] < value:
            lo = middle + 1
        else:
            hi = middle
    return lo < end and ascending[lo] == value
