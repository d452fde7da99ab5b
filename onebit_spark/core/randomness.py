"""Random numbers that belong to a rating: functions of the seed, the row and the position in the row only.

The ratings of a row are in the order of their columns, in every engine and for every order of the input. So the random
numbers of a rating are the same in every layout, and the same again when a lost task is repeated.

A stream is a 64-bit counter with steps of the golden ratio, and each value is scrambled when it is read (SplitMix64:
Steele, Lea and Flood, 2014). The streams of different ratings start at scrambled values, so they are practically
independent.
"""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import math

import numpy as np

from onebit_spark.core.compiled import jit

STEP = np.uint64(0x9E3779B97F4A7C15)  # 2⁶⁴ divided by the golden ratio
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)
_UNIT = 2.0**-53


@jit
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
