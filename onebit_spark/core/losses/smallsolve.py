"""Cholesky solves of the D×D systems of eight rows at once, in place and without allocation, inside compiled kernels.

A lower triangle is packed row after row: entry (i, j) of all eight systems is line i(i+1)/2 + j of an array with LANES
columns (see ``lanes``).
"""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import math

from onebit_spark.core.compiled import jit
from onebit_spark.core.losses.lanes import load, minus_product, plus_product, reciprocal_root, store, times, zeros


@jit
def cholesky(c, size):
    """Overwrite A with C, A = C Cᵀ; the diagonal holds 1/C_ii."""
    for i in range(size):
        row_i = i * (i + 1) // 2
        for j in range(i):
            row_j = j * (j + 1) // 2
            s = load(c, row_i + j)
            for k in range(j):
                s = minus_product(s, load(c, row_i + k), load(c, row_j + k))
            store(c, row_i + j, times(s, load(c, row_j + j)))
        s = load(c, row_i + i)
        for k in range(i):
            v = load(c, row_i + k)
            s = minus_product(s, v, v)
        store(c, row_i + i, reciprocal_root(s))


@jit
def solve(c, b, size):
    """Overwrite ``b`` (D lines) with (C Cᵀ)⁻¹ b."""
    for i in range(size):
        row = i * (i + 1) // 2
        s = load(b, i)
        for k in range(i):
            s = minus_product(s, load(c, row + k), load(b, k))
        store(b, i, times(s, load(c, row + i)))
    for i in range(size - 1, -1, -1):
        row = i * (i + 1) // 2
        v = times(load(b, i), load(c, row + i))
        store(b, i, v)
        for k in range(i):
            store(b, k, minus_product(load(b, k), load(c, row + k), v))


@jit
def inverse(c, columns, out, size):
    """out = lower triangle of (C Cᵀ)⁻¹ = C⁻ᵀC⁻¹; ``columns`` is room for C⁻¹, column after column."""
    start = 0  # of column j: its entries j … D−1
    for j in range(size):
        store(columns, start, load(c, j * (j + 1) // 2 + j))
        for i in range(j + 1, size):
            row = i * (i + 1) // 2
            s = zeros()
            for k in range(i - j):
                s = minus_product(s, load(c, row + j + k), load(columns, start + k))
            store(columns, start + i - j, times(s, load(c, row + i)))
        start += size - j
    q, start_i = 0, 0
    for i in range(size):
        start_j = 0
        for j in range(i + 1):
            s = zeros()
            for k in range(size - i):
                s = plus_product(s, load(columns, start_i + k), load(columns, start_j + i - j + k))
            store(out, q, s)
            q += 1
            start_j += size - j
        start_i += size - i


@jit
def half_log_det_inverse(c, size, lane):
    """½ log det A⁻¹ = Σ_i log(1/C_ii) of one row, by one logarithm per four factors."""
    total, product = 0.0, 1.0
    for i in range(size):
        product *= c[i * (i + 3) // 2, lane]
        if i % 4 == 3:
            total += math.log(product)
            product = 1.0
    return total + math.log(product)


@jit
def sum_of_logs(table, i):
    """Σ_k log table[i, k], by one logarithm per four factors."""
    total, product = 0.0, 1.0
    for k in range(table.shape[1]):
        product *= table[i, k]
        if k % 4 == 3:
            total += math.log(product)
            product = 1.0
    return total + math.log(product)
