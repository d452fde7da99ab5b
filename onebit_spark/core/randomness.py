"""Random numbers of ratings, random splits (``Split``) and random draws from the posterior
(``Draws``).

The random numbers of a rating are functions of the seed, the row and the position in the row. The
ratings of a row are in the order of their columns, in every engine and for every order of the
input. So the numbers are the same in every layout, and the same again when a lost task is repeated.

A stream is a 64-bit counter with steps of the golden ratio; each value is scrambled when it is read
(SplitMix64: Steele, Lea and Flood, 2014). The streams of different ratings start at scrambled
values, so they are practically independent.
"""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core.arrays import DoubleArray, Indices
from onebit_spark.core.blocks import RatingBlock, empty_like
from onebit_spark.core.posterior import RowPosterior
from onebit_spark.kernels.jit import inner, jit

STEP = np.uint64(0x9E3779B97F4A7C15)  # 2⁶⁴ divided by the golden ratio
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_S30 = np.uint64(30)
_S27 = np.uint64(27)
_S31 = np.uint64(31)
_S11 = np.uint64(11)
_UNIT = 2.0**-53
_MANTISSA = (1 << 52) - 1
_ONE = 1023 << 52  # of a double in [1, 2)
_ROOT = math.sqrt(2.0)
_LOG2 = math.log(2.0)


@inner
def scrambled(state):
    """SplitMix64's output function, a bijection of 64-bit integers."""
    state = (state ^ (state >> _S30)) * _FIRST
    state = (state ^ (state >> _S27)) * _SECOND
    return state ^ (state >> _S31)


@jit
def stream(seed, row, position):
    """The first state of a rating's stream."""
    state = scrambled(np.uint64(seed) + STEP)
    state = scrambled(state ^ (np.uint64(row) + STEP))
    return scrambled(state ^ (np.uint64(position) + STEP))


@jit
def uniform(state):
    """A number in (0, 1) from one state of a stream; the next state is ``state + STEP``."""
    return (np.float64(scrambled(state) >> _S11) + 0.5) * _UNIT


@jit
def fill_lanes(states, n, out, work):
    """Standard normals (Box and Muller, 1958) of n streams: out[a, k] is the a-th of stream k,
    whose state moves on.

    Logarithm, cosine and sine are short sums with an error of 1e−15, because the compiler turns a
    loop over these into vector instructions. ``work`` has 4 lines of the same length as those of
    ``out``.
    """
    uniforms = work[0]
    turns = work[1]
    radii = work[2]
    spare = work[3]
    for a in range(0, len(out), 2):
        for k in range(n):
            uniforms[k], turns[k] = uniform(states[k]), uniform(states[k] + STEP)
            states[k] += STEP + STEP
        _fill_radii(uniforms.view(np.int64), n, spare, spare.view(np.int64), radii)
        _fill_points(radii, turns, n, out[a], out[a + 1] if a + 1 < len(out) else spare)


@inner
def _fill_radii(bits, n, mantissas, mantissa_bits, radii):
    """√(−2 log u) of the doubles u with these bits.

    With u = m·2ᵉ and m in [√½, √2), log u = 2 artanh((m − 1)/(m + 1)) + e·log 2.
    """
    for k in range(n):
        mantissa_bits[k] = (bits[k] & _MANTISSA) | _ONE
    for k in range(n):
        large = mantissas[k] > _ROOT
        m = 0.5 * mantissas[k] if large else mantissas[k]
        exponent = (bits[k] >> 52) - (1022 if large else 1023)
        s = np.true_divide(m - 1.0, m + 1.0)  # without the check for 0 of Python's division
        z = s * s
        far = 1 / 15 + z * (1 / 17 + z * (1 / 19 + z * (1 / 21)))
        tail = 1 / 3 + z * (
            1 / 5 + z * (1 / 7 + z * (1 / 9 + z * (1 / 11 + z * (1 / 13 + z * far))))
        )
        radii[k] = math.sqrt(-2.0 * (exponent * _LOG2 + 2.0 * (s + s * z * tail)))


@inner
def _fill_points(radii, turns, n, first, second):
    """r·cos and r·sin of angles in turns, by the angle to the nearest multiple of π/2."""
    for k in range(n):
        quarter = int(4.0 * turns[k] + 0.5)
        g = (4.0 * turns[k] - quarter) * (0.5 * math.pi)
        z = g * g
        far = 1 / 362880 + z * (-1 / 39916800 + z * (1 / 6227020800 - z * (1 / 1307674368000)))
        sine = g * (1 + z * (-1 / 6 + z * (1 / 120 + z * (-1 / 5040 + z * far))))
        far = -1 / 3628800 + z * (1 / 479001600 + z * (-1 / 87178291200 + z * (1 / 20922789888000)))
        cosine = 1 + z * (-1 / 2 + z * (1 / 24 + z * (-1 / 720 + z * (1 / 40320 + z * far))))
        x = sine if quarter & 1 else cosine
        y = cosine if quarter & 1 else sine
        first[k] = -radii[k] * x if (quarter + 1) & 2 else radii[k] * x
        second[k] = -radii[k] * y if quarter & 2 else radii[k] * y


@jit
def pair_streams(seed, first, second):
    states = np.empty(len(first), np.uint64)
    for l in range(len(first)):
        states[l] = stream(seed, first[l], second[l])
    return states


@jit
def uniforms(states, width):
    """``width`` numbers in (0, 1) from each stream."""
    out = np.empty((len(states), width))
    for l in range(len(states)):
        state = states[l]
        for k in range(width):
            out[l, k] = uniform(state)
            state += STEP
    return out


# ---- random splits of the ratings --------------------------------------------------------------


UNITS = ("cell", "rows", "cols")


@dataclass(frozen=True)
class Split:
    """Chooses every cell, row or column with the probability ``fraction``, not by its labels.

    All ratings of a cell stay together. The rows that a smaller fraction chooses are among those of
    a larger one, and a cell is chosen in them if it is chosen among all ratings (docs/MATH.md,
    §14).
    """

    seed: int
    fraction: float  # probability that a cell, row or column is chosen, between 0 and 1
    by: Literal["cell", "rows", "cols"] = "cell"  # what is chosen as a whole

    def __post_init__(self) -> None:
        if not 0 < self.fraction < 1:
            raise ValueError(
                f"the fraction of a split must lie strictly between 0 and 1, not {self.fraction!r}"
            )

    def part_of(
        self, block: RatingBlock, rows: Indices, columns: Indices, those: bool = True
    ) -> RatingBlock:
        """The chosen ratings of a block (``those``), or the others.

        ``rows`` and ``columns`` are its numbers.

        The part has all rows and columns of the block.
        """
        coin = self.seed, self.fraction, UNITS.index(self.by)
        pointers, codes, weights = _keep(
            block.row_pointers, block.codes, block.weights, rows, columns, coin, those
        )
        return RatingBlock(pointers, codes, block.n_columns, weights)


@jit
def chosen(seed, fraction, row, column):
    return uniform(stream(seed, row, column)) < fraction


@jit
def _keep(pointers, codes, weights, rows, columns, coin, those):
    seed, fraction, by = coin  # 0 … 2: the place in ``UNITS``
    kept_pointers = np.zeros_like(pointers)
    kept = np.empty_like(codes)
    carried = empty_like(weights)
    n = 0
    for i in range(len(pointers) - 1):
        row = 0 if by == 2 else rows[i]
        for l in range(pointers[i], pointers[i + 1]):
            column = 0 if by == 1 else columns[codes[l] >> 1]
            if chosen(seed, fraction, row, column) == those:
                kept[n] = codes[l]
                if weights is not None:
                    carried[n] = weights[l]
                n += 1
        kept_pointers[i + 1] = n
    return kept_pointers, kept[:n].copy(), None if weights is None else carried[:n].copy()


# ---- draws from the posterior ------------------------------------------------------------------

ENOUGH_DRAWS = 2_000_000  # in total; the confidence limit then exceeds the risk by about .001
LANES = 32  # ratings whose draws are computed side by side
MOST_PER_RATING = 16  # with so few ratings, more draws hardly improve the bound


@dataclass(frozen=True)
class Draws:
    """Draws that estimate the Gibbs risk ∫ r_n dρ: how often a draw from the posterior errs
    (docs/MATH.md, §9.3).

    u = b_i + d_j + L_i·R_j is drawn in two steps: x_i = [b_i, L_i] from N(M_i, V_i), then u given
    x_i. The latter is normal with mean b_i + E[d_j] + L_i·E[R_j] and variance x'ᵀ V_j x', where x'
    = [1, L_i] multiplies [d_j, R_j].
    """

    seed: int
    per_rating: int  # T, the number of draws per rating

    @classmethod
    def enough(cls, n_ratings: int, seed: int) -> Draws:
        """As many draws as a sharp limit requires. Their number is fixed before the first draw."""
        wanted = -(-ENOUGH_DRAWS // max(1, n_ratings))
        return cls(seed, max(1, min(wanted, MOST_PER_RATING)))


class GibbsErrors(NamedTuple):
    errors: int  # draws that erred
    ratings: int  # ratings that were drawn for


def count_errors(
    block: RatingBlock,
    lo: int,
    hi: int,
    row_numbers: Indices,
    rows: RowPosterior,
    cols: RowPosterior,
    draws: Draws,
) -> int:
    """The number of draws that err, for the ratings of the rows lo … hi−1.

    Row r of the block is row ``row_numbers[r]`` of the matrix.
    """
    how = _How(rows.kind == "covariance", rows.has_intercept, draws.seed, draws.per_rating)
    ratings = (block.row_pointers, block.codes)
    posteriors = (_Posteriors(side.location, side.scale) for side in (rows, cols))
    return int(_count_errors(*ratings, (lo, hi), row_numbers, *posteriors, how))


class _Posteriors(NamedTuple):
    """The posteriors of some rows, as a kernel reads them."""

    location: NDArray[np.generic]
    scale: NDArray[np.generic]


class _How(NamedTuple):
    """The form of a row, and which draws are made."""

    full: bool
    has_intercept: bool
    seed: int
    per_rating: int


@inner
def _cholesky_of_row(scale, full, out):
    """The lower triangle C with V_i = C Cᵀ.

    A pivot that is negative by rounding is replaced by 0.
    """
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
def _count_errors(pointers, codes, span, row_numbers, rows, cols, how):
    """Draws for ``LANES`` ratings of a row side by side, which share the Cholesky factor of the
    row.
    """
    first, last = span
    row_location = rows.location
    row_scale = rows.scale
    col_location = cols.location
    col_scale = cols.scale
    full, has_intercept, seed, per_rating = how
    size = row_location.shape[1]
    packed = row_scale.shape[1]
    root = np.zeros((size, size))
    work = np.empty((4, LANES))
    states = np.empty(LANES, np.uint64)
    signs = np.empty(LANES)
    mean = np.empty((size, LANES))
    scale = np.empty((packed, LANES))  # of the partners
    drawn = np.empty((size + 1, LANES))
    x = np.empty((size, LANES))
    score = np.empty(LANES)
    variance = np.empty(LANES)
    part = np.empty(LANES)
    errors = 0
    for i in range(first, last):
        if pointers[i] == pointers[i + 1]:
            continue
        _cholesky_of_row(row_scale[i], full, root)
        n = 0
        for l in range(pointers[i], pointers[i + 1]):
            position = l - pointers[i]
            j = codes[l] >> 1
            states[n] = stream(seed, row_numbers[i], position)
            signs[n] = 2.0 * (codes[l] & 1) - 1.0
            for a in range(size):
                mean[a, n] = col_location[j, a]
            for q in range(packed):
                scale[q, n] = col_scale[j, q]
            n += 1
            if n < LANES and l + 1 < pointers[i + 1]:
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
            n = 0
    return errors


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
    """Mean and variance of u given the draws x of the rows, side by side.

    An intercept in x becomes 1.
    """
    for k in range(n):
        score[k] = 0.0
        variance[k] = 0.0
        if has_intercept:
            score[k] = x[0, k]
            x[0, k] = 1.0
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


def drawn_scores(rows: RowPosterior, cols: RowPosterior, states: NDArray[np.uint64]) -> DoubleArray:
    """One draw of u per pair (line l of ``rows``, line l of ``cols``), from the random stream of
    the pair.
    """
    out = np.empty(rows.n_rows)
    posteriors = (_Posteriors(side.location, side.scale) for side in (rows, cols))
    _draw_pairs(*posteriors, rows.kind == "covariance", rows.has_intercept, states.copy(), out)
    return out


@jit
def _draw_pairs(rows, cols, full, has_intercept, states, out):
    size = rows.location.shape[1]
    packed = rows.scale.shape[1]
    root = np.zeros((size, size))
    work = np.empty((4, 1))
    mean = np.empty((size, 1))
    scale = np.empty((packed, 1))
    drawn = np.empty((size + 1, 1))
    x = np.empty((size, 1))
    score = np.empty(1)
    variance = np.empty(1)
    part = np.empty(1)
    for l in range(len(out)):
        _cholesky_of_row(rows.scale[l], full, root)
        fill_lanes(states[l : l + 1], 1, drawn, work)
        for a in range(size):
            mean[a, 0] = cols.location[l, a]
        for q in range(packed):
            scale[q, 0] = cols.scale[l, q]
        _draw_rows(rows.location[l], root, full, drawn, 1, x)
        _scores_of(x, mean, scale, full, has_intercept, 1, score, variance, part)
        out[l] = score[0] + math.sqrt(max(variance[0], 0.0)) * drawn[size, 0]
