"""Cholesky solves of the D×D system of one row, in place and without allocation, inside compiled kernels."""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import math

from onebit_spark.core.compiled import jit


@jit
def cholesky(a):
    """Overwrite the lower triangle of ``a`` with C, a = C Cᵀ; return log det a. Only the lower triangle is read."""
    log_det = 0.0
    for i in range(len(a)):
        for j in range(i + 1):
            s = a[i, j]
            for k in range(j):
                s -= a[i, k] * a[j, k]
            if i == j:
                a[i, i] = math.sqrt(s)
                log_det += math.log(s)
            else:
                a[i, j] = s / a[j, j]
    return log_det


@jit
def solve(c, b):
    """Overwrite ``b`` with (C Cᵀ)⁻¹ b."""
    size = len(b)
    for i in range(size):
        s = b[i]
        for k in range(i):
            s -= c[i, k] * b[k]
        b[i] = s / c[i, i]
    for i in range(size - 1, -1, -1):
        b[i] /= c[i, i]
        v = b[i]
        for k in range(i):
            b[k] -= v * c[i, k]


@jit
def inverse(c, inverted, packed):
    """packed = lower triangle of (C Cᵀ)⁻¹ = C⁻ᵀC⁻¹, row after row; ``inverted`` is room for (C⁻¹)ᵀ."""
    size = len(c)
    # Row j of `inverted` is column j of C⁻¹, so that both loops below run along rows.
    for j in range(size):
        column = inverted[j]
        column[j] = 1.0 / c[j, j]
        for i in range(j + 1, size):
            s = 0.0
            for k in range(j, i):
                s -= c[i, k] * column[k]
            column[i] = s / c[i, i]
    p = 0
    for i in range(size):
        for j in range(i + 1):
            s = 0.0
            for k in range(i, size):
                s += inverted[i, k] * inverted[j, k]
            packed[p] = s
            p += 1
