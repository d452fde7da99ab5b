"""The n best partners of every row of one block among the rows of another, by matrix products.

A score is a product of two augmented means. Its variance is also a product, of longer vectors (``_variance_terms``)::

    var u = <V_i, z_j z_jᵀ> + <w_i w_iᵀ + V_i^F, V_j>        z_j = [1, R_j], w_i = [1, L_i], V^F without the intercept

Pairs are ranked by score/√(c + variance), which is the order of their probabilities, or by score − z·√variance. Both
are bounded by functions of the score and of limits of the variance over the block of partners. So the score alone
excludes most pairs. If few pairs of a tile are left, their variances are computed one by one. Otherwise one product
gives them all.
"""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core.compiled import jit
from onebit_spark.core.posterior import FloatArray, RowPosterior

TILE_ROWS, TILE_COLUMNS = 256, 2048  # 2 MB of scores, which stay in the cache between the product and the search
STRETCH = 64  # scores that are compared with the limit in one loop without a branch
MANY = 0.1  # from this share of a tile's pairs on, one product is faster than variances one by one


@dataclass(frozen=True)
class Ranking:
    """The order of the partners of a row.

    Parameters
    ----------
    noise : float
        Rank by score/√(noise + variance), the order of the probabilities.
    z : float, optional
        Rank by the lower limit score − z·std instead.
    floor : float, optional
        Keep only pairs with |score|/√(floor_noise + variance) ≥ floor.
    floor_noise : float
        See ``floor``.
    """

    noise: float
    z: float | None = None
    floor: float | None = None
    floor_noise: float = 0.0

    def key(self, score: NDArray[np.float64], variance: NDArray[np.float64]) -> NDArray[np.float64]:
        """The value that pairs are ranked by. The best has the largest."""
        if self.z is not None:
            return score - self.z * np.sqrt(variance)
        return score / np.maximum(np.sqrt(self.noise + variance), 1e-150)


@dataclass(frozen=True)
class Best:
    """The n best partners of every row, the best first. All arrays are m × n.

    Parameters
    ----------
    partner : array of int32
        Positions of the partners; −1 where there are fewer than n.
    score, variance : arrays
        Score of each pair, and its variance.
    """

    partner: NDArray[np.int32]
    score: NDArray[np.float64]
    variance: NDArray[np.float64]


def best_partners(
    rows: RowPosterior,
    partners: RowPosterior,
    n: int,
    ranking: Ranking,
    seen: tuple[NDArray[np.int64], NDArray[np.int32]] | None = None,
) -> Best:
    """The n best partners of every row.

    Parameters
    ----------
    rows, partners : RowPosterior
        The two blocks.
    n : int
        Partners per row.
    ranking : Ranking
        Their order.
    seen : (pointers, positions), optional
        Row i does not get the partners ``positions[pointers[i] : pointers[i + 1]]``.
    """
    m = rows.n_rows
    pointers, positions = seen if seen is not None else (np.zeros(m + 1, np.int64), np.zeros(0, np.int32))
    positions = _sorted_within(pointers, positions)
    z = math.nan if ranking.z is None else float(ranking.z)
    key, partner = np.full((m, n), -np.inf), np.full((m, n), -1, np.int32)
    score, variance = np.zeros((m, n)), np.zeros((m, n))
    left, right = _augmented(rows, 0), np.ascontiguousarray(_augmented(partners, 1).T)
    row_terms, partner_terms = _variance_terms(rows, "row"), _variance_terms(partners, "partner")
    low, high = _variance_limits(row_terms, partner_terms, signed=rows.kind == "covariance")
    limits = np.full(m, -np.inf, np.float32)
    nothing = np.zeros((0, 0), np.float32)
    for top in range(0, m, TILE_ROWS):
        these = slice(top, min(top + TILE_ROWS, m))
        for column in range(0, partners.n_rows, TILE_COLUMNS):
            those = slice(column, column + TILE_COLUMNS)
            tile = left[these] @ right[:, those]
            many = _count_above(tile, limits[these]) > MANY * tile.size
            variances = row_terms[these] @ partner_terms[those].T if many else nothing
            _offer(
                tile, variances, top, column, row_terms, partner_terms, ranking.noise, z, low, high, limits,
                pointers, positions, key, partner, score, variance, ranking.floor or 0.0, ranking.floor_noise,
            )  # fmt: skip
    return Best(partner, score, variance)


def _augmented(side: RowPosterior, one: int) -> FloatArray:
    """[b, 1, L] for ``one`` = 0, [1, d, R] for ``one`` = 1. Products of the two are scores."""
    if not side.has_intercept:
        return np.ascontiguousarray(side.location, np.float32)
    return np.insert(side.location, 1 - one, 1, axis=1).astype(np.float32)


def _sorted_within(pointers: NDArray[np.int64], positions: NDArray[np.int32]) -> NDArray[np.int32]:
    row = np.repeat(np.arange(len(pointers) - 1), np.diff(pointers))
    return positions[np.lexsort((positions, row))]


def _variance_limits(row_terms: FloatArray, partner_terms: FloatArray, signed: bool) -> tuple[FloatArray, FloatArray]:
    """For every row, a lower and an upper limit of its variance with any of the partners."""
    if len(partner_terms) == 0:
        return np.zeros(len(row_terms)), np.zeros(len(row_terms))
    high = np.abs(row_terms) @ np.max(np.abs(partner_terms), axis=0) * (1 + 1e-5)
    if signed:  # the terms have either sign; a variance is at least 0
        return np.zeros(len(row_terms)), high
    return row_terms @ np.min(partner_terms, axis=0) * (1 - 1e-5), high


def _variance_terms(side: RowPosterior, role: str) -> FloatArray:
    """Vectors of a row or of a partner. The inner product of the two is the variance of the pair's score."""
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


@jit
def _count_above(tile, limits):
    hits = 0
    for r in range(tile.shape[0]):
        scores, limit = tile[r], limits[r]
        for j in range(tile.shape[1]):
            hits += scores[j] > limit
    return hits


@jit
def _offer(
    tile, variances, top, column, row_terms, partner_terms, noise, z, low, high, limits, pointers, positions,
    best_key, best_partner, best_score, best_variance, floor, floor_noise,
):  # fmt: skip
    """Offer the pairs of a tile to the lists of its rows. ``variances`` are those of the tile, or empty."""
    last = best_key.shape[1] - 1
    for r in range(tile.shape[0]):
        i = top + r
        scores, limit = tile[r], limits[i]
        for lo in range(0, tile.shape[1], STRETCH):
            hi = min(lo + STRETCH, tile.shape[1])
            hits = 0
            for j in range(lo, hi):
                hits += scores[j] > limit
            if hits == 0:
                continue
            for j in range(lo, hi):
                score, partner = np.float64(scores[j]), column + j
                if not scores[j] > limit:
                    continue
                variance = variances[r, j] if len(variances) else _dot(row_terms[i], partner_terms[partner])
                variance = max(np.float64(variance), 0.0)
                key = _key(score, variance, noise, z)
                if floor > 0.0 and not abs(score) >= floor * math.sqrt(floor_noise + variance):
                    continue
                if not key > best_key[i, last] or _contains(positions, pointers[i], pointers[i + 1], partner):
                    continue
                k = last
                while k > 0 and best_key[i, k - 1] < key:
                    best_key[i, k], best_partner[i, k] = best_key[i, k - 1], best_partner[i, k - 1]
                    best_score[i, k], best_variance[i, k] = best_score[i, k - 1], best_variance[i, k - 1]
                    k -= 1
                best_key[i, k], best_partner[i, k] = key, partner
                best_score[i, k], best_variance[i, k] = score, variance
                limit = _limit(best_key[i, last], noise, z, low[i], high[i])
        limits[i] = limit


@jit
def _dot(a, b):
    total = np.float32(0.0)
    for k in range(len(a)):
        total += a[k] * b[k]
    return total


@jit
def _key(score, variance, noise, z):
    if math.isnan(z):
        return score / max(math.sqrt(noise + variance), 1e-150)
    return score - z * math.sqrt(variance)


@jit
def _limit(worst, noise, z, low, high):
    """The score that a pair must exceed to be better than the worst of a list, at the most favourable variance."""
    if worst == -math.inf:
        return np.float32(-math.inf)
    if not math.isnan(z):
        bound = worst + z * math.sqrt(low)
    else:
        bound = worst * math.sqrt(noise + (low if worst > 0.0 else high))
    return np.float32(bound - 1e-6 * abs(bound))


@jit
def _contains(ascending, lo, hi, value):
    end = hi
    while lo < hi:
        middle = (lo + hi) // 2
        if ascending[middle] < value:
            lo = middle + 1
        else:
            hi = middle
    return lo < end and ascending[lo] == value
