"""Inverses of the D×D systems of eight rows at once, in place: Gauss and Jordan's sweeps.

A system is the packed lower triangle of [[A, b], [bᵀ, ·]], D + 1 lines of it, whose last line is b. A sweep of some
coordinates k (the others are r) makes of it::

    A_kk ─► −A_kk⁻¹,     A_rk ─► A_rk A_kk⁻¹,     A_rr ─► A_rr − A_rk A_kk⁻¹ A_kr

After the sweeps of all D coordinates A is −A⁻¹ and the line of b is A⁻¹b. The pivots are those of Cholesky's method, so
a positive definite A needs no exchange of lines. A sweep of four coordinates reads and writes each entry once for four
multiply-adds, where the triangular solves of Cholesky's method would read three numbers for each. The arithmetic is the
same: D³/2 multiply-adds.
"""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import math

import numpy as np

from onebit_spark.core.compiled import inner, jit
from onebit_spark.core.losses.batched_solve import LANES, load, minus_product, negative, reciprocal, store, times, zeros

BLOCK = 4  # coordinates that are swept together


@jit
def room_to_sweep(size):
    """Arrays for the systems of a batch, for the reciprocals of their pivots, and for the lines of a sweep."""
    lines = (size + 1) * (size + 2) // 2
    return np.zeros((lines, LANES)), np.empty((size, LANES)), np.empty((3, BLOCK * (size + 1 + BLOCK), LANES))


@jit
def sweep_all(system, pivots, scratch, size):
    """[A, b] ─► [−A⁻¹, A⁻¹b]. ``pivots`` are filled with the reciprocals of the pivots."""
    for k in range(0, size - BLOCK + 1, BLOCK):  # not from k = 0: numba would compile a form for this constant
        _sweep_block(system, pivots, scratch[0], scratch[1], scratch[2], size, k)
    for k in range(size - size % BLOCK, size):
        _sweep_one(system, size + 1, size, k, scratch[0], pivots, k)


@jit
def half_log_det_inverse(pivots, lane):
    """½ log det A⁻¹ of one row, by one logarithm per four pivots."""
    total, product = 0.0, 1.0
    for k in range(len(pivots)):
        product *= pivots[k, lane]
        if k % 4 == 3:
            total += math.log(product)
            product = 1.0
    return 0.5 * (total + math.log(product))


@inner
def _line(i, j):
    """Where the entry (i, j) of a symmetric matrix is."""
    return i * (i + 1) // 2 + j if i >= j else j * (j + 1) // 2 + i


@inner
def _sweep_one(a, rows, size, k, u, pivots, place):
    """The sweep of coordinate k; ``u`` is room for A_rk. Of the ``rows`` lines the first ``size`` are coordinates."""
    r = reciprocal(load(a, _line(k, k)))
    store(pivots, place, r)
    for i in range(rows):
        store(u, i, load(a, _line(i, k)))
    for i in range(rows):
        if i == k:
            continue
        w = times(load(u, i), r)
        row = i * (i + 1) // 2
        for j in range(min(i + 1, size)):
            store(a, row + j, minus_product(load(a, row + j), w, load(u, j)))
        store(a, _line(i, k), w)
    store(a, _line(k, k), negative(r))


@inner
def _sweep_block(a, pivots, u, w, d, size, k):
    """The sweep of the coordinates k … k + 3; ``u``, ``w`` and ``d`` are room for A_rk, A_rk A_kk⁻¹ and −A_kk⁻¹."""
    for p in range(BLOCK):
        for q in range(p + 1):
            store(d, _line(p, q), load(a, _line(k + p, k + q)))
    for p in range(BLOCK):
        _sweep_one(d, BLOCK, BLOCK, p, u, pivots, k + p)
    for p in range(BLOCK):
        for q in range(p + 1):
            store(a, _line(k + p, k + q), load(d, _line(p, q)))
    for i in range(size + 1):
        if k <= i < k + BLOCK:
            continue
        for p in range(BLOCK):
            store(u, BLOCK * i + p, load(a, _line(i, k + p)))
        for p in range(BLOCK):
            s = zeros()
            for q in range(BLOCK):
                s = minus_product(s, load(u, BLOCK * i + q), load(d, _line(p, q)))
            store(w, BLOCK * i + p, s)
            store(a, _line(i, k + p), s)
    for i in range(size + 1):
        if i < k:
            _subtract(a, u, w, i, 0, i + 1)
        elif i >= k + BLOCK:
            _subtract(a, u, w, i, 0, k)
            _subtract(a, u, w, i, k + BLOCK, min(i + 1, size))


@inner
def _subtract(a, u, w, i, first, last):
    """a_ij ─► a_ij − w_i·u_j for j = first … last − 1, with BLOCK numbers w_i and u_j."""
    row = i * (i + 1) // 2
    at = BLOCK * i
    w0 = load(w, at)
    w1 = load(w, at + 1)
    w2 = load(w, at + 2)
    w3 = load(w, at + 3)
    for j in range(first, last):
        at = BLOCK * j
        s = minus_product(load(a, row + j), w0, load(u, at))
        s = minus_product(s, w1, load(u, at + 1))
        s = minus_product(s, w2, load(u, at + 2))
        store(a, row + j, minus_product(s, w3, load(u, at + 3)))
