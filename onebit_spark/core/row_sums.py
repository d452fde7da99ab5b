"""The inner loops of the row kernels: gather the other side's rows of a row's ratings, and sum over
them.

A row's ratings are processed in chunks of ``CHUNK``. The coordinates of a chunk are gathered
*transposed* (coordinate by rating), so that every sum below runs over a contiguous axis and
compiles to vector instructions; four coordinates, or four ratings, are processed together to halve
the loads.

Tables may be float32. Sums over ratings are float64. ``table_dots``, a sum over the coordinates of
one rating, uses the table's type (MovieLens-100K: ξ² is off by 1e−7, at most 4e−6). So does the sum
over one chunk in ``add_weighted_rows``, which takes two thirds of the time of a sum in float64
(relative error of a sum: below 1e−6).

``weights`` are those of all ratings of a block, or None. For None the compiler makes another
version of a function, in which every w_l is the constant 1.

Each function is compiled separately on purpose: LLVM vectorises these loops when they are alone and
often fails to do so inside a larger kernel (4–10 times slower).
"""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import numpy as np

from onebit_spark.kernels.jit import AHEAD, inner, prefetch_rows

CHUNK = 256  # a chunk of 12 float64 coordinates is 24 kB: it stays in the first-level cache
# The lines of a chunk must not all begin in the same set of the cache.
CHUNK_STRIDE = CHUNK + 8


@inner
def weight_of(weights, l):
    """w_l, or 1 without weights."""
    if weights is None:
        return 1.0
    return np.float64(weights[l])


@inner
def chunk_of(array, lo, n):
    """array[lo : lo + n], or None for None. For loops that read and write.

    An index lo + l could be negative, which counts from the end in Python, so the compiler must
    allow for both places. If the output happens to overlap the other place in memory, the program
    takes a slower loop that sums in another order, and two runs differ in the last bit.
    """
    if array is None:
        return None
    return array[lo : lo + n]


@inner
def gather(table, codes, lo, hi, out):
    """out[k, l] = table[column of rating lo + l, k]."""
    l = lo
    while l + 4 <= hi:
        prefetch_rows(table, codes, l + AHEAD, 4)
        r0 = table[codes[l] >> 1]
        r1 = table[codes[l + 1] >> 1]
        r2 = table[codes[l + 2] >> 1]
        r3 = table[codes[l + 3] >> 1]
        for k in range(len(out)):
            line = out[k, l - lo : l - lo + 4]
            line[0], line[1], line[2], line[3] = r0[k], r1[k], r2[k], r3[k]
        l += 4
    prefetch_rows(table, codes, l + AHEAD, hi - l)
    while l < hi:
        row = table[codes[l] >> 1]
        for k in range(len(out)):
            out[k, l - lo] = row[k]
        l += 1


@inner
def signed_weight(codes, weights, l):
    return weight_of(weights, l) * (2.0 * (codes[l] & 1) - 1.0)


@inner
def gather_and_add(table, codes, weights, lo, hi, out, sums):
    """``gather`` of the first half of the table's columns, and sums += Σ_l w_l times the second
    half.
    """
    size = len(out)
    l = lo
    while l + 4 <= hi:
        prefetch_rows(table, codes, l + AHEAD, 4)
        r0 = table[codes[l] >> 1]
        r1 = table[codes[l + 1] >> 1]
        r2 = table[codes[l + 2] >> 1]
        r3 = table[codes[l + 3] >> 1]
        for k in range(size):
            line = out[k, l - lo : l - lo + 4]
            line[0], line[1], line[2], line[3] = r0[k], r1[k], r2[k], r3[k]
        q0 = r0[size:]
        q1 = r1[size:]
        q2 = r2[size:]
        q3 = r3[size:]
        w0 = weight_of(weights, l)
        w1 = weight_of(weights, l + 1)
        w2 = weight_of(weights, l + 2)
        w3 = weight_of(weights, l + 3)
        for k in range(size):
            sums[k] += (w0 * q0[k] + w1 * q1[k]) + (w2 * q2[k] + w3 * q3[k])
        l += 4
    prefetch_rows(table, codes, l + AHEAD, hi - l)
    while l < hi:
        row = table[codes[l] >> 1]
        w = weight_of(weights, l)
        for k in range(size):
            out[k, l - lo] = row[k]
            sums[k] += w * row[size + k]
        l += 1


@inner
def scores(others, n, x, out):
    """out[l] = Σ_k x_k others[k, l]."""
    for l in range(n):
        out[l] = 0.0
    k = 0
    size = len(others)
    while k + 4 <= size:
        p0 = others[k]
        p1 = others[k + 1]
        p2 = others[k + 2]
        p3 = others[k + 3]
        x0 = x[k]
        x1 = x[k + 1]
        x2 = x[k + 2]
        x3 = x[k + 3]
        for l in range(n):
            out[l] += x0 * p0[l] + x1 * p1[l] + x2 * p2[l] + x3 * p3[l]
        k += 4
    while k < size:
        p = others[k]
        v = x[k]
        for l in range(n):
            out[l] += v * p[l]
        k += 1


@inner
def add_gram(others, n, weights, scratch, out):
    """Packed lower triangle of out += Σ_l weights_l z_l z_lᵀ, z_l = others[:, l]."""
    q = 0
    for a in range(len(others)):
        row = others[a]
        for l in range(n):
            scratch[l] = weights[l] * row[l]
        b = 0
        while b + 4 <= a + 1:
            p0 = others[b]
            p1 = others[b + 1]
            p2 = others[b + 2]
            p3 = others[b + 3]
            s0 = 0.0
            s1 = 0.0
            s2 = 0.0
            s3 = 0.0
            for l in range(n):
                t = scratch[l]
                s0 += t * p0[l]
                s1 += t * p1[l]
                s2 += t * p2[l]
                s3 += t * p3[l]
            out[q] += s0
            out[q + 1] += s1
            out[q + 2] += s2
            out[q + 3] += s3
            b += 4
            q += 4
        while b <= a:
            p = others[b]
            s = 0.0
            for l in range(n):
                s += scratch[l] * p[l]
            out[q] += s
            b += 1
            q += 1


@inner
def add_projection_and_absolute(others, n, signed, weights, lo, projection, absolute):
    """projection_k += Σ_l signed_l others[k, l] and absolute_k += Σ_l w_l |others[k, l]|, in one
    pass.

    The chunk begins with rating ``lo``.
    """
    for k in range(len(others)):
        row = others[k]
        s = 0.0
        t = 0.0
        for l in range(n):
            s += signed[l] * row[l]
            t += weight_of(weights, lo + l) * abs(row[l])
        projection[k] += s
        absolute[k] += t


@inner
def table_dots(table, codes, lo, hi, first, x, out, ahead):
    """out[l] = ⟨x, table[column of rating lo + l, first:]⟩, read from the table and summed in its
    type.

    In float64 the sum of a float32 table takes twice as long (27 ns instead of 13 for 80 entries,
    on one core of a Neoverse-N1), since each entry is converted and an instruction holds half as
    many. The difference is small: 5e−10 of the objective of MovieLens-100K after 30 iterations at
    rank 10, and at most 5e−7 in a score.
    """
    size = len(x)
    zero = table.dtype.type(0)
    l = lo
    while l + 4 <= hi:
        if ahead:
            prefetch_rows(table, codes, l + AHEAD, 4)
        r0 = table[codes[l] >> 1, first:]
        r1 = table[codes[l + 1] >> 1, first:]
        r2 = table[codes[l + 2] >> 1, first:]
        r3 = table[codes[l + 3] >> 1, first:]
        s0 = zero
        s1 = zero
        s2 = zero
        s3 = zero
        for k in range(size):
            v = x[k]
            s0 += v * r0[k]
            s1 += v * r1[k]
            s2 += v * r2[k]
            s3 += v * r3[k]
        out[l - lo] = s0
        out[l - lo + 1] = s1
        out[l - lo + 2] = s2
        out[l - lo + 3] = s3
        l += 4
    if ahead:
        prefetch_rows(table, codes, l + AHEAD, hi - l)
    while l < hi:
        r = table[codes[l] >> 1, first:]
        s = zero
        for k in range(size):
            s += x[k] * r[k]
        out[l - lo] = s
        l += 1


@inner
def add_weighted_rows(table, codes, lo, hi, first, weights, part, out, ahead):
    """out += Σ_l weights_l table[column of rating lo + l, first:], read from the table.

    A chunk is summed in the type of ``part``, which is overwritten. ``ahead`` prefetches the lines.
    Lines that ``table_dots`` has just read are in the cache already.
    """
    size = len(out)
    part[:] = 0.0
    l = lo
    while l + 4 <= hi:
        if ahead:
            prefetch_rows(table, codes, l + AHEAD, 4)
        r0 = table[codes[l] >> 1, first:]
        r1 = table[codes[l + 1] >> 1, first:]
        r2 = table[codes[l + 2] >> 1, first:]
        r3 = table[codes[l + 3] >> 1, first:]
        w0 = weights[l - lo]
        w1 = weights[l - lo + 1]
        w2 = weights[l - lo + 2]
        w3 = weights[l - lo + 3]
        for k in range(size):
            part[k] += w0 * r0[k] + w1 * r1[k] + w2 * r2[k] + w3 * r3[k]
        l += 4
    if ahead:
        prefetch_rows(table, codes, l + AHEAD, hi - l)
    while l < hi:
        r = table[codes[l] >> 1, first:]
        w = weights[l - lo]
        for k in range(size):
            part[k] += w * r[k]
        l += 1
    for k in range(size):
        out[k] += part[k]


@inner
def add_signed_rows(table, codes, weights, lo, hi, out, first=0, ahead=False):
    """out += Σ_l w_l y_l table[column of rating l, first:], read from the table.

    ``ahead``: with prefetch.
    """
    l = lo
    while l + 4 <= hi:
        if ahead:
            prefetch_rows(table, codes, l + AHEAD, 4)
        r0 = table[codes[l] >> 1, first:]
        r1 = table[codes[l + 1] >> 1, first:]
        r2 = table[codes[l + 2] >> 1, first:]
        r3 = table[codes[l + 3] >> 1, first:]
        y0 = signed_weight(codes, weights, l)
        y1 = signed_weight(codes, weights, l + 1)
        y2 = signed_weight(codes, weights, l + 2)
        y3 = signed_weight(codes, weights, l + 3)
        for k in range(len(out)):
            out[k] += y0 * r0[k] + y1 * r1[k] + y2 * r2[k] + y3 * r3[k]
        l += 4
    if ahead:
        prefetch_rows(table, codes, l + AHEAD, hi - l)
    while l < hi:
        r = table[codes[l] >> 1, first:]
        y = signed_weight(codes, weights, l)
        for k in range(len(out)):
            out[k] += y * r[k]
        l += 1
