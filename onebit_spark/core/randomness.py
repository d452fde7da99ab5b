"""Random numbers that belong to a rating: functions of the seed, the row and the position in the row only.

The ratings of a row are in the order of their columns, in every engine and for every order of the input. So the random
numbers of a rating are the same in every layout, and the same again when a lost task is repeated.

A stream is a 64-bit counter with steps of the golden ratio, and each value is scrambled when it is read (SplitMix64:
Steele, Lea and Flood, 2014). The streams of different ratings start at scrambled values, so they are practically
independent.

``Split`` divides ratings by a random coin per rating or per cell, which does not depend on the labels.
"""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core.blocks import RatingBlock, empty_like
from onebit_spark.core.compiled import inner, jit

STEP = np.uint64(0x9E3779B97F4A7C15)  # 2⁶⁴ divided by the golden ratio
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)
_UNIT = 2.0**-53
_MANTISSA, _ONE = (1 << 52) - 1, 1023 << 52  # of a double in [1, 2)
_ROOT, _LOG2 = math.sqrt(2.0), math.log(2.0)


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
def fill_normals(state, out):
    """Overwrite ``out`` with standard normals (Box and Muller, 1958) and return the state after them."""
    for k in range(0, len(out), 2):
        radius = math.sqrt(-2.0 * math.log(uniform(state)))
        angle = 2.0 * math.pi * uniform(state + STEP)
        state += STEP + STEP
        out[k] = radius * math.cos(angle)
        if k + 1 < len(out):
            out[k + 1] = radius * math.sin(angle)
    return state


@jit
def fill_lanes(states, n, out, work):
    """``fill_normals`` for n streams side by side: out[a, k] is the a-th normal of stream k, and its state moves on.

    Logarithm, cosine and sine are short sums here, right to 1e−15, because the compiler turns a loop over them into
    vector instructions. ``work`` is an array of 4 lines that are as long as those of ``out``.
    """
    uniforms, turns, radii, spare = work[0], work[1], work[2], work[3]
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
        tail = 1 / 3 + z * (1 / 5 + z * (1 / 7 + z * (1 / 9 + z * (1 / 11 + z * (1 / 13 + z * far)))))
        radii[k] = math.sqrt(-2.0 * (exponent * _LOG2 + 2.0 * (s + s * z * tail)))


@inner
def _fill_points(radii, turns, n, first, second):
    """r·cos and r·sin of angles that are given in turns, by the angle to the nearest multiple of π/2."""
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
    """The first state of every pair (first[l], second[l])."""
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


# ---- parts of the ratings --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Split:
    """Chooses every rating, or every cell, with the probability ``fraction``.

    The coin is a function of the seed, the row and the position in the row. It does not depend on the label. A coin per
    rating makes the chosen ratings A and the others B independent samples from one distribution, as a learnt prior
    needs (docs/MATH.md, §9.5). A coin per cell keeps all ratings of a cell together, so that none of B is predicted
    from another of its own cell (§14).
    """

    seed: int  # seed of the coins
    fraction: float  # probability that a rating is chosen, between 0 and 1
    by_cell: bool = False  # whether all ratings of a cell share a coin

    def __post_init__(self) -> None:
        if not 0 < self.fraction < 1:
            raise ValueError(f"the fraction of a split must lie strictly between 0 and 1, not {self.fraction!r}")

    def chosen_of(self, block: RatingBlock, row_numbers: NDArray[np.int64]) -> RatingBlock:
        """The chosen ratings of a block. Rows and columns keep their numbers."""
        return self._kept(block, row_numbers, True)

    def left_of(self, block: RatingBlock, row_numbers: NDArray[np.int64]) -> RatingBlock:
        """The other ratings of a block. Rows and columns keep their numbers."""
        return self._kept(block, row_numbers, False)

    def _kept(self, block: RatingBlock, row_numbers: NDArray[np.int64], those: bool) -> RatingBlock:
        coin = self.seed, self.fraction, self.by_cell
        pointers, codes, weights = _keep(block.row_pointers, block.codes, block.weights, row_numbers, coin, those)
        return RatingBlock(pointers, codes, block.n_columns, weights)


@jit
def chosen(seed, fraction, row, position):
    """Whether one rating is chosen."""
    return uniform(stream(seed, row, position)) < fraction


@jit
def _keep(pointers, codes, weights, row_numbers, coin, those):
    """The ratings whose coin fell on ``those``."""
    seed, fraction, by_cell = coin
    kept_pointers, kept = np.zeros_like(pointers), np.empty_like(codes)
    carried = empty_like(weights)
    n = 0
    for i in range(len(pointers) - 1):
        position = -1
        for l in range(pointers[i], pointers[i + 1]):
            # The ratings of a row are in the order of their columns, so those of a cell follow each other.
            if not by_cell or l == pointers[i] or codes[l] >> 1 != codes[l - 1] >> 1:
                position += 1
            if chosen(seed, fraction, row_numbers[i], position) == those:
                kept[n] = codes[l]
                if weights is not None:
                    carried[n] = weights[l]
                n += 1
        kept_pointers[i + 1] = n
    return kept_pointers, kept[:n].copy(), None if weights is None else carried[:n].copy()
