"""The Gibbs risk ∫ r_n dρ, estimated by random draws: how often a *draw* from the posterior errs (docs/MATH.md, §9.3).

For every rating, ``per_rating`` fresh pairs (L_i, R_j) are drawn from ρ. A draw with y·u ≤ 0 is an error. Given the
ratings and ρ, the draws are independent Bernoulli trials whose mean is ∫ r_n dρ. ``certificate.gibbs_limit`` turns
their sum into a confidence limit.

u = b_i + d_j + L_i·R_j is drawn in two steps: x_i = [b_i, L_i] from N(M_i, V_i), then u given x_i. The latter is normal
with mean b_i + E[d_j] + L_i·E[R_j] and variance x'ᵀ V_j x', where x' = [1, L_i] multiplies [d_j, R_j].
"""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.compiled import inner, jit
from onebit_spark.core.posterior import RowPosterior
from onebit_spark.core.randomness import STEP, Split, chosen, fill_lanes, fill_normals, stream

ENOUGH_DRAWS = 2_000_000  # in total; the confidence limit then exceeds the risk by about .001
LANES = 32  # ratings that are drawn for side by side
MOST_PER_RATING = 16  # with so few ratings, more draws hardly improve the bound


@dataclass(frozen=True)
class Draws:
    """Which draws are made."""

    seed: int  # seed of the draws
    per_rating: int  # T, the number of draws per rating
    # draw only on the ratings that this split did *not* choose: those that a learnt prior has not seen
    unseen_by: Split | None = None

    @classmethod
    def enough(cls, n_ratings: int, seed: int, unseen_by: Split | None = None) -> Draws:
        """As many draws as a sharp limit needs. Their number is fixed before the first draw."""
        wanted = -(-ENOUGH_DRAWS // max(1, n_ratings))
        return cls(seed, max(1, min(wanted, MOST_PER_RATING)), unseen_by)


class GibbsErrors(NamedTuple):
    """Counts over some rows. The counts of several sets of rows are added."""

    errors: int  # draws that erred
    ratings: int  # ratings that were drawn for


def count_errors(
    block: RatingBlock, lo: int, hi: int, row_numbers: NDArray[np.int64], rows: RowPosterior, cols: RowPosterior,
    draws: Draws,
) -> GibbsErrors:  # fmt: skip
    """Draw for the ratings of the rows lo … hi−1. Row r of the block is row ``row_numbers[r]`` of the matrix."""
    split = draws.unseen_by
    coin = (-1, 0.0) if split is None else (split.seed, split.fraction)
    how = _How(rows.kind == "covariance", rows.has_intercept, draws.seed, draws.per_rating, *coin)
    return GibbsErrors(
        *_count_errors(
            block.row_pointers, block.codes, (lo, hi), row_numbers, _posteriors(rows), _posteriors(cols), how
        )
    )


class _Posteriors(NamedTuple):
    """The posteriors of some rows, as a kernel reads them."""

    location: NDArray[Any]
    scale: NDArray[Any]


def _posteriors(rows: RowPosterior) -> _Posteriors:
    return _Posteriors(rows.location, rows.scale)


class _How(NamedTuple):
    """The form of a row, and which draws are made. A seed of −1: there is no split."""

    full: bool
    has_intercept: bool
    seed: int
    per_rating: int
    split_seed: int
    split_fraction: float


@inner
def _cholesky_of_row(scale, full, out):
    """The lower triangle C with V_i = C Cᵀ. A pivot that is negative by rounding is replaced by 0."""
    size = len(out)
    if not full:
        for k in range(size):
            out[k, k] = scale[k]
        return
    q = 0
    for a in range(size):
        for b in range(a + 1):
            s = np.float64(scale[q])
            for k in range(b):
                s -= out[a, k] * out[b, k]
            if a == b:
                out[a, a] = math.sqrt(max(s, 0.0))
            else:
                out[a, b] = s / out[b, b] if out[b, b] > 0.0 else 0.0
            q += 1


@inner
def _quadratic_form(scale, full, x):
    """xᵀ V x from the packed lower triangle, or from standard deviations."""
    total, q = 0.0, 0
    for a in range(len(x)):
        if full:
            s = 0.0
            for b in range(a):
                s += scale[q + b] * x[b]
            q += a + 1
            total += x[a] * (2.0 * s + scale[q - 1] * x[a])
        else:
            total += (scale[a] * x[a]) ** 2
    return total


@inner
def _draw_score(row_location, root, col_location, col_scale, full, has_intercept, normals, x):
    """One draw of u for a row (its Cholesky factor is ``root``) and a column. ``x`` is a work array."""
    size = len(row_location)
    for a in range(size):
        s = np.float64(row_location[a])
        if full:
            for b in range(a + 1):
                s += root[a, b] * normals[b]
        else:
            s += root[a, a] * normals[a]
        x[a] = s
    u = 0.0
    if has_intercept:
        u += x[0]
        x[0] = 1.0
    for a in range(size):
        u += x[a] * col_location[a]
    return u + math.sqrt(max(_quadratic_form(col_scale, full, x), 0.0)) * normals[size]


@jit
def _count_errors(pointers, codes, span, row_numbers, rows, cols, how):
    """As ``_draw_score`` says, for ``LANES`` ratings of a row side by side. They share the row's Cholesky factor."""
    first, last = span
    row_location, row_scale, col_location, col_scale = rows.location, rows.scale, cols.location, cols.scale
    full, has_intercept, seed, per_rating, split_seed, split_fraction = how
    size, packed = row_location.shape[1], row_scale.shape[1]
    root, work = np.zeros((size, size)), np.empty((4, LANES))
    states, signs = np.empty(LANES, np.uint64), np.empty(LANES)
    mean, scale = np.empty((size, LANES)), np.empty((packed, LANES))  # of the partners
    drawn, x = np.empty((size + 1, LANES)), np.empty((size, LANES))
    score, variance, part = np.empty(LANES), np.empty(LANES), np.empty(LANES)
    errors, ratings = 0, 0
    for i in range(first, last):
        if pointers[i] == pointers[i + 1]:
            continue
        _cholesky_of_row(row_scale[i], full, root)
        n = 0
        for l in range(pointers[i], pointers[i + 1]):
            position = l - pointers[i]
            if split_seed < 0 or not chosen(split_seed, split_fraction, row_numbers[i], position):
                j = codes[l] >> 1
                states[n], signs[n] = stream(seed, row_numbers[i], position), 2.0 * (codes[l] & 1) - 1.0
                for a in range(size):
                    mean[a, n] = col_location[j, a]
                for q in range(packed):
                    scale[q, n] = col_scale[j, q]
                n += 1
            if n == 0 or (n < LANES and l + 1 < pointers[i + 1]):
                continue
            for _ in range(per_rating):
                fill_lanes(states, n, drawn, work)
                for k in range(n):
                    states[k] += STEP
                _draw_rows(row_location[i], root, full, drawn, n, x)
                _scores_of(x, mean, scale, full, has_intercept, n, score, variance, part)
                for k in range(n):
                    u = score[k] + math.sqrt(max(variance[k], 0.0)) * drawn[size, k]
                    errors += signs[k] * u <= 0.0
            ratings += n
            n = 0
    return errors, ratings


@inner
def _draw_rows(location, root, full, drawn, n, x):
    """n draws of one row, side by side: x = M_i + C·normals."""
    for a in range(len(location)):
        for k in range(n):
            x[a, k] = location[a]
        for b in range(0 if full else a, a + 1):
            c = root[a, b]
            for k in range(n):
                x[a, k] += c * drawn[b, k]


@inner
def _scores_of(x, mean, scale, full, has_intercept, n, score, variance, part):
    """Mean and variance of u given the draws x of the rows, side by side. An intercept in x becomes 1."""
    for k in range(n):
        score[k], variance[k] = 0.0, 0.0
        if has_intercept:
            score[k], x[0, k] = x[0, k], 1.0
    q = 0
    for a in range(len(x)):
        for k in range(n):
            score[k] += x[a, k] * mean[a, k]
        if full:
            for k in range(n):
                part[k] = 0.0
            for b in range(a):
                for k in range(n):
                    part[k] += scale[q + b, k] * x[b, k]
            q += a + 1
            for k in range(n):
                variance[k] += x[a, k] * (2.0 * part[k] + scale[q - 1, k] * x[a, k])
        else:
            for k in range(n):
                variance[k] += (scale[a, k] * x[a, k]) ** 2


def drawn_scores(rows: RowPosterior, cols: RowPosterior, states: NDArray[np.uint64]) -> NDArray[np.float64]:
    """One draw of u per pair (line l of ``rows``, line l of ``cols``), from the random stream of the pair."""
    out = np.empty(rows.n_rows)
    _draw_pairs(_posteriors(rows), _posteriors(cols), rows.kind == "covariance", rows.has_intercept, states, out)
    return out


@jit
def _draw_pairs(rows, cols, full, has_intercept, states, out):
    row_location, row_scale, col_location, col_scale = rows.location, rows.scale, cols.location, cols.scale
    size = row_location.shape[1]
    root, normals, x = np.zeros((size, size)), np.empty(size + 1), np.empty(size)
    for l in range(len(out)):
        _cholesky_of_row(row_scale[l], full, root)
        fill_normals(states[l], normals)
        out[l] = _draw_score(row_location[l], root, col_location[l], col_scale[l], full, has_intercept, normals, x)
