"""Solves or inverts the D×D systems of eight rows at once, in place and without allocation, inside
compiled kernels.

One small system is too short to fill vector instructions; eight fill them. Entry q of all eight
systems is line q of an array with ``LANES`` columns, and every operation below acts on a whole
line. LLVM maps a line to the registers of the machine (four of two numbers, two of four, one of
eight). The lanes do not mix, so the result of a row does not depend on the other rows of its batch.

A batch is processed in two passes: ``next_batch`` picks the rows, the kernel computes their sums
one after the other, and then their systems are solved together. A lower triangle is packed row
after row: entry (i, j) of all eight systems is line i(i+1)/2 + j.

Systems are **solved** by Cholesky's method and **inverted** by Gauss-Jordan sweeps. For an inverse,
a system is the packed lower triangle of [[A, b], [bᵀ, ·]], D + 1 lines, the last of which is b. A
sweep of some coordinates k, with r the others, maps::

    A_kk ─► −A_kk⁻¹,     A_rk ─► A_rk A_kk⁻¹,     A_rr ─► A_rr − A_rk A_kk⁻¹ A_kr

After the sweeps of all D coordinates A has become −A⁻¹ and the line of b A⁻¹b. The pivots are those
of Cholesky's method, so a positive definite A needs no exchange of lines. A sweep of four
coordinates reads and writes each entry once for four multiply-adds; the triangular solves of
Cholesky's method would read three numbers for each. Both take D³/2 multiply-adds.
"""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import models, register_model
from numba.np.arrayobj import make_array

from onebit_spark.kernels.jit import inner, intrinsic, jit

LANES = 8  # rows whose systems are solved together
MOST_RATINGS = (
    1024  # of a batch of several rows, so that what they read stays in the second-level cache
)

_LINE = ir.VectorType(ir.DoubleType(), LANES)


class Lanes(types.Type):
    """The type of a line in a compiled function."""

    def __init__(self) -> None:
        super().__init__("Lanes")


lanes = Lanes()


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Lanes) -> None:
        super().__init__(manager, kind, _LINE)


def _address(context, builder, kind, array, line):
    data = make_array(kind)(context, builder, array).data
    first = builder.mul(line, ir.Constant(line.type, LANES))
    return builder.bitcast(builder.gep(data, [first]), _LINE.as_pointer())


def _of_llvm(builder, name, *arguments):
    kind = ir.FunctionType(_LINE, [_LINE] * len(arguments))
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}.v{LANES}f64")
    return builder.call(function, arguments)


@intrinsic
def load(typing, array, line):
    """Line ``line`` of a contiguous float64 array with LANES columns."""

    def generate(context, builder, signature, arguments):
        return builder.load(_address(context, builder, array, *arguments), align=8)

    return lanes(array, types.intp), generate


@intrinsic
def store(typing, array, line, value):
    def generate(context, builder, signature, arguments):
        *place, line_value = arguments
        builder.store(line_value, _address(context, builder, array, *place), align=8)
        return context.get_dummy_value()

    return types.void(array, types.intp, lanes), generate


def _of_lines(n, emit):
    """What an intrinsic of n lines returns: its type, and ``emit(builder, *lines)`` as its code."""

    def generate(context, builder, signature, arguments):
        return emit(builder, *arguments)

    return lanes(*[lanes] * n), generate


@intrinsic
def zeros(typing):
    return _of_lines(0, lambda builder: ir.Constant(_LINE, [0.0] * LANES))


@intrinsic
def times(typing, x, y):
    return _of_lines(2, lambda builder, x, y: builder.fmul(x, y))


@intrinsic
def minus_product(typing, s, x, y):
    """s − x·y, rounded once where the machine can."""
    return _of_lines(
        3, lambda builder, s, x, y: _of_llvm(builder, "fmuladd", builder.fneg(x), y, s)
    )


@intrinsic
def negative(typing, x):
    return _of_lines(1, lambda builder, x: builder.fneg(x))


@intrinsic
def reciprocal(typing, x):
    return _of_lines(1, lambda builder, x: builder.fdiv(ir.Constant(_LINE, [1.0] * LANES), x))


@intrinsic
def reciprocal_root(typing, x):
    one = ir.Constant(_LINE, [1.0] * LANES)
    return _of_lines(1, lambda builder, x: builder.fdiv(one, _of_llvm(builder, "sqrt", x)))


@inner
def next_batch(pointers, first, last, members):
    """Put the next rows with ratings, at most LANES, into ``members``; return their number and the
    row after them.
    """
    count = 0
    i = first
    begin = pointers[first]
    while i < last and count < LANES and (count == 0 or pointers[i + 1] - begin <= MOST_RATINGS):
        if pointers[i + 1] > pointers[i]:
            members[count] = i
            count += 1
        i += 1
    return count, i


@inner
def fill_up(system, solution, size, count):
    """Let lanes without a row solve x = 0."""
    for b in range(count, LANES):
        for q in range(size * (size + 1) // 2):
            system[q, b] = 0.0
        for k in range(size):
            system[k * (k + 3) // 2, b] = 1.0
            solution[k, b] = 0.0


@inner
def solve_arrays(size):
    return np.empty((size * (size + 1) // 2, LANES)), np.empty((size, LANES))


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
def cholesky_solve(c, b, size):
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


@inner
def sum_of_logs(table, i):
    """Σ_k log table[i, k], by one logarithm per four factors."""
    total = 0.0
    product = 1.0
    for k in range(table.shape[1]):
        product *= table[i, k]
        if k % 4 == 3:
            total += math.log(product)
            product = 1.0
    return total + math.log(product)


# ---- inverses ----------------------------------------------------------------------------------

BLOCK = 4  # coordinates that are swept together


@jit
def sweep_arrays(size):
    """Arrays for the systems of a batch, for the reciprocals of their pivots, and for the lines of
    a sweep.
    """
    lines = (size + 1) * (size + 2) // 2
    return (
        np.zeros((lines, LANES)),
        np.empty((size, LANES)),
        np.empty((3, BLOCK * (size + 1 + BLOCK), LANES)),
    )


@jit
def sweep_all(system, pivots, scratch, size):
    """[A, b] ─► [−A⁻¹, A⁻¹b]. ``pivots`` are filled with the reciprocals of the pivots."""
    # Not from k = 0: numba would compile a form for this constant
    for k in range(0, size - BLOCK + 1, BLOCK):
        _sweep_block(system, pivots, scratch[0], scratch[1], scratch[2], size, k)
    for k in range(size - size % BLOCK, size):
        _sweep_one(system, size + 1, size, k, scratch[0], pivots, k)


@jit
def half_log_det_inverse(pivots, lane):
    """½ log det A⁻¹ of one row, by one logarithm per four pivots."""
    total = 0.0
    product = 1.0
    for k in range(len(pivots)):
        product *= pivots[k, lane]
        if k % 4 == 3:
            total += math.log(product)
            product = 1.0
    return 0.5 * (total + math.log(product))


@inner
def _line(i, j):
    """The line of entry (i, j) of a symmetric matrix."""
    return i * (i + 1) // 2 + j if i >= j else j * (j + 1) // 2 + i


@inner
def _sweep_one(a, rows, size, k, u, pivots, place):
    """Sweep coordinate k; ``u`` is scratch for A_rk. The first ``size`` of the ``rows`` lines are
    coordinates.
    """
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
    """Sweep coordinates k … k + 3; ``u``, ``w`` and ``d`` are scratch for A_rk, A_rk A_kk⁻¹ and
    −A_kk⁻¹.
    """
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
