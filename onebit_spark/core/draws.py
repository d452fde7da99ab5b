"""The Gibbs risk ∫ r_n dρ: how often a *draw* from the posterior errs on the ratings, by drawing.

For every rating, and ``per_rating`` times over, one fresh pair (L_i, R_j) is drawn from ρ and y·u ≤ 0 is an error.
Given the ratings and ρ these are independent Bernoulli trials whose mean is ∫ r_n dρ, so that their sum carries a
confidence limit of its own (``certificate.gibbs_limit``).

u = b_i + d_j + L_i·R_j is drawn in two steps of the same law: x_i = [b_i, L_i] from N(M_i, V_i), then u given x_i. That
is normal with mean b_i + E[d_j] + L_i·E[R_j] and variance x'ᵀ V_j x', where x' = [1, L_i] meets [d_j, R_j].
"""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.compiled import jit
from onebit_spark.core.posterior import RowPosterior
from onebit_spark.core.randomness import STEP, fill_normals, stream
from onebit_spark.core.split import Split, chosen

ENOUGH_DRAWS = 2_000_000  # in all: they make the confidence limit exceed the risk by about .001
MOST_PER_RATING = 16  # more would sharpen what few ratings leave blunt anyway


@dataclass(frozen=True)
class Draws:
    """Which draws are made: ``per_rating`` for every rating, or every rating that the prior has *not* seen."""

    seed: int
    per_rating: int
    unseen_by: Split | None = None

    @classmethod
    def enough(cls, n_ratings: int, seed: int, unseen_by: Split | None = None) -> Draws:
        """As many as a sharp limit needs; their number is fixed before any is made."""
        wanted = -(-ENOUGH_DRAWS // max(1, n_ratings))
        return cls(seed, max(1, min(wanted, MOST_PER_RATING)), unseen_by)


class GibbsErrors(NamedTuple):
    """Errors among the draws; ``ratings`` were looked at, each the same number of times. Adding them up joins rows."""

    errors: int
    ratings: int


def count_errors(
    block: RatingBlock, lo: int, hi: int, row_numbers: NDArray[np.int64], rows: RowPosterior, cols: RowPosterior,
    draws: Draws,
) -> GibbsErrors:  # fmt: skip
    """Draw for the ratings of rows lo … hi−1; row r of the block is row ``row_numbers[r]`` of the matrix."""
    split = draws.unseen_by
    return GibbsErrors(
        *_count_errors(
            block.row_pointers,
            block.codes,
            lo,
            hi,
            row_numbers,
            rows.location,
            rows.scale,
            cols.location,
            cols.scale,
            rows.kind == "covariance",
            rows.has_intercept,
            draws.seed,
            draws.per_rating,
            -1 if split is None else split.seed,
            0.0 if split is None else split.fraction,
        )
    )


@jit
def _cholesky_of_row(scale, full, out):
    """The lower triangle of C, V_i = C Cᵀ. A pivot that rounding made negative counts as 0."""
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


@jit
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


@jit
def _draw_score(row_location, root, col_location, col_scale, full, has_intercept, normals, x):
    """u of one draw from a row (its Cholesky factor in ``root``) and a column; ``x`` is room to work in."""
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
def _count_errors(
    pointers, codes, first, last, row_numbers, row_location, row_scale, col_location, col_scale, full, has_intercept,
    seed, per_rating, split_seed, split_fraction,
):  # fmt: skip
    size = row_location.shape[1]
    root, normals, x = np.zeros((size, size)), np.empty(size + 1), np.empty(size)
    errors, ratings = 0, 0
    for i in range(first, last):
        if pointers[i] == pointers[i + 1]:
            continue
        _cholesky_of_row(row_scale[i], full, root)
        for l in range(pointers[i], pointers[i + 1]):
            position = l - pointers[i]
            if split_seed >= 0 and chosen(split_seed, split_fraction, row_numbers[i], position):
                continue
            ratings += 1
            j = codes[l] >> 1
            y = 2.0 * (codes[l] & 1) - 1.0
            state = stream(seed, row_numbers[i], position)
            for _ in range(per_rating):
                state = fill_normals(state, normals) + STEP
                u = _draw_score(row_location[i], root, col_location[j], col_scale[j], full, has_intercept, normals, x)
                if y * u <= 0.0:
                    errors += 1
    return errors, ratings


def drawn_scores(rows: RowPosterior, cols: RowPosterior, states: NDArray[np.uint64]) -> NDArray[np.float64]:
    """One draw of u for every pair (line l of ``rows``, line l of ``cols``), from the pair's own stream."""
    full, out = rows.kind == "covariance", np.empty(rows.n_rows)
    _draw_pairs(rows.location, rows.scale, cols.location, cols.scale, full, rows.has_intercept, states, out)
    return out


@jit
def _draw_pairs(row_location, row_scale, col_location, col_scale, full, has_intercept, states, out):
    size = row_location.shape[1]
    root, normals, x = np.zeros((size, size)), np.empty(size + 1), np.empty(size)
    for l in range(len(out)):
        _cholesky_of_row(row_scale[l], full, root)
        fill_normals(states[l], normals)
        out[l] = _draw_score(row_location[l], root, col_location[l], col_scale[l], full, has_intercept, normals, x)
