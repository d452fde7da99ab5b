"""The inner loops that every row kernel is made of: gather a row's partners, and sum over them.

A row's ratings are worked off in chunks of ``CHUNK``. The partners' coordinates of a chunk are gathered *transposed*
(coordinate by rating), so that every sum below runs over a contiguous axis and compiles to vector instructions; four
coordinates, or four ratings, go together to halve the loads.

Tables may be float32. Sums over ratings are float64; ``table_dots``, a sum over the coordinates of one rating, is in
the table's type (MovieLens-100K: ξ² off by 1e−7, at most 4e−6).

Each function is a compiled function of its own on purpose: LLVM vectorises these loops when they stand alone and
often gives up inside a larger kernel (4–10 times slower).
"""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import numpy as np

from onebit_spark.core.compiled import jit

CHUNK = 256  # a chunk of 12 float64 coordinates is 24 kB: it stays in the first-level cache
LANES = 8  # tables padded to a multiple of this leave no scalar remainder to a vector loop


@jit
def gather(table, codes, lo, hi, out):
    """out[k, l] = table[column of rating lo + l, k]."""
    l = lo
    while l + 4 <= hi:
        r0, r1 = table[codes[l] >> 1], table[codes[l + 1] >> 1]
        r2, r3 = table[codes[l + 2] >> 1], table[codes[l + 3] >> 1]
        for k in range(len(out)):
            line = out[k, l - lo : l - lo + 4]
            line[0], line[1], line[2], line[3] = r0[k], r1[k], r2[k], r3[k]
        l += 4
    while l < hi:
        row = table[codes[l] >> 1]
        for k in range(len(out)):
            out[k, l - lo] = row[k]
        l += 1


@jit
def gather_and_add(table, codes, lo, hi, out, sums):
    """``gather`` of the first half of the table's columns, and sums += Σ_l of the second half."""
    size = len(out)
    l = lo
    while l + 4 <= hi:
        r0, r1 = table[codes[l] >> 1], table[codes[l + 1] >> 1]
        r2, r3 = table[codes[l + 2] >> 1], table[codes[l + 3] >> 1]
        for k in range(size):
            line = out[k, l - lo : l - lo + 4]
            line[0], line[1], line[2], line[3] = r0[k], r1[k], r2[k], r3[k]
        q0, q1, q2, q3 = r0[size:], r1[size:], r2[size:], r3[size:]
        for k in range(size):
            sums[k] += (np.float64(q0[k]) + q1[k]) + (np.float64(q2[k]) + q3[k])
        l += 4
    while l < hi:
        row = table[codes[l] >> 1]
        for k in range(size):
            out[k, l - lo] = row[k]
            sums[k] += row[size + k]
        l += 1


@jit
def scores(partners, x, n, out):
    """out[l] = Σ_k x_k partners[k, l]."""
    for l in range(n):
        out[l] = 0.0
    k, size = 0, len(partners)
    while k + 4 <= size:
        p0, p1, p2, p3 = partners[k], partners[k + 1], partners[k + 2], partners[k + 3]
        x0, x1, x2, x3 = x[k], x[k + 1], x[k + 2], x[k + 3]
        for l in range(n):
            out[l] += x0 * p0[l] + x1 * p1[l] + x2 * p2[l] + x3 * p3[l]
        k += 4
    while k < size:
        p, v = partners[k], x[k]
        for l in range(n):
            out[l] += v * p[l]
        k += 1


@jit
def add_gram(partners, weights, n, scratch, out):
    """Lower triangle of out += Σ_l weights_l partners_l partners_lᵀ."""
    for a in range(len(partners)):
        row = partners[a]
        for l in range(n):
            scratch[l] = weights[l] * row[l]
        b = 0
        while b + 4 <= a + 1:
            p0, p1, p2, p3 = partners[b], partners[b + 1], partners[b + 2], partners[b + 3]
            s0, s1, s2, s3 = 0.0, 0.0, 0.0, 0.0
            for l in range(n):
                t = scratch[l]
                s0 += t * p0[l]
                s1 += t * p1[l]
                s2 += t * p2[l]
                s3 += t * p3[l]
            out[a, b] += s0
            out[a, b + 1] += s1
            out[a, b + 2] += s2
            out[a, b + 3] += s3
            b += 4
        while b <= a:
            p = partners[b]
            s = 0.0
            for l in range(n):
                s += scratch[l] * p[l]
            out[a, b] += s
            b += 1


@jit
def add_projection(partners, weights, n, out):
    """out_k += Σ_l weights_l partners[k, l]."""
    for k in range(len(partners)):
        row = partners[k]
        s = 0.0
        for l in range(n):
            s += weights[l] * row[l]
        out[k] += s


@jit
def add_projection_and_absolute(partners, weights, n, projection, absolute):
    """``add_projection``, and absolute_k += Σ_l |partners[k, l]|, in one pass."""
    for k in range(len(partners)):
        row = partners[k]
        s, t = 0.0, 0.0
        for l in range(n):
            s += weights[l] * row[l]
            t += abs(row[l])
        projection[k] += s
        absolute[k] += t


@jit
def table_dots(table, codes, lo, hi, x, out):
    """out[l] = ⟨x, table[column of rating lo + l]⟩, straight from the table and summed in its type."""
    size = table.shape[1]
    zero = table.dtype.type(0)
    l = lo
    while l + 4 <= hi:
        r0, r1 = table[codes[l] >> 1], table[codes[l + 1] >> 1]
        r2, r3 = table[codes[l + 2] >> 1], table[codes[l + 3] >> 1]
        s0, s1, s2, s3 = zero, zero, zero, zero
        for k in range(size):
            v = x[k]
            s0 += v * r0[k]
            s1 += v * r1[k]
            s2 += v * r2[k]
            s3 += v * r3[k]
        out[l - lo], out[l - lo + 1], out[l - lo + 2], out[l - lo + 3] = s0, s1, s2, s3
        l += 4
    while l < hi:
        r = table[codes[l] >> 1]
        s = zero
        for k in range(size):
            s += x[k] * r[k]
        out[l - lo] = s
        l += 1


@jit
def add_weighted_rows(table, codes, lo, hi, weights, out):
    """out += Σ_l weights_l table[column of rating lo + l], straight from the table."""
    size = table.shape[1]
    l = lo
    while l + 4 <= hi:
        r0, r1 = table[codes[l] >> 1], table[codes[l + 1] >> 1]
        r2, r3 = table[codes[l + 2] >> 1], table[codes[l + 3] >> 1]
        w0, w1, w2, w3 = weights[l - lo], weights[l - lo + 1], weights[l - lo + 2], weights[l - lo + 3]
        for k in range(size):
            out[k] += w0 * r0[k] + w1 * r1[k] + w2 * r2[k] + w3 * r3[k]
        l += 4
    while l < hi:
        r, w = table[codes[l] >> 1], weights[l - lo]
        for k in range(size):
            out[k] += w * r[k]
        l += 1


@jit
def add_signed_rows(table, codes, lo, hi, out):
    """out += Σ_l y_l table[column of rating l], straight from the table."""
    l = lo
    while l + 4 <= hi:
        r0, r1 = table[codes[l] >> 1], table[codes[l + 1] >> 1]
        r2, r3 = table[codes[l + 2] >> 1], table[codes[l + 3] >> 1]
        y0, y1 = 2.0 * (codes[l] & 1) - 1.0, 2.0 * (codes[l + 1] & 1) - 1.0
        y2, y3 = 2.0 * (codes[l + 2] & 1) - 1.0, 2.0 * (codes[l + 3] & 1) - 1.0
        for k in range(table.shape[1]):
            out[k] += y0 * r0[k] + y1 * r1[k] + y2 * r2[k] + y3 * r3[k]
        l += 4
    while l < hi:
        r = table[codes[l] >> 1]
        y = 2.0 * (codes[l] & 1) - 1.0
        for k in range(table.shape[1]):
            out[k] += y * r[k]
        l += 1
