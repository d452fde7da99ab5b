"""Slow twins of the GPU's kernels, in numpy: the same lines, tasks, places and sums, one rating after the other.

``tests/unit/test_cuda_twins.py`` holds them against the kernels of the CPU. In ``test_cuda_kernels.py`` beside it the
GPU's kernels are held against them, and in ``tests/gpu`` a device against the CPU.
"""

from __future__ import annotations

import numpy as np

from onebit_spark.core.posterior import packed_size


def signed_places(line, numbers):
    """The places of the signed sums of these moments. A plain sum has the place that the moment has in a line."""
    return numbers + line.signed * line.group


def implicit_places(line, numbers):
    """The places of the sums of these numbers of the implicit vectors.

    A thread's last numbers, fewer than four, take four places.
    """
    count, first = line.implicit, (line.moments + line.signed) * line.group
    rest, beyond = count % 4 or 4, numbers - (count - count % 4) * line.group
    return first + np.where(beyond < 0, numbers, numbers - beyond + 4 * (beyond // rest) + beyond % rest)


def triangle(a, b):
    return a * (a + 1) // 2 + b


def _covariance(rows, i, a, b):
    if rows.kind == "spread":
        return rows.scale[i, a] ** 2 if a == b else 0.0
    return rows.scale[i, triangle(max(a, b), min(a, b))]


def other_lines(shape, rows):
    """``fill_others``: [E[R Rᵀ] packed, E[R], 1, 0 …, w, r, z, d, 0 …], and a row of zeros for no rating."""
    out, line = np.zeros((rows.n_rows + 1, shape.line.width)), shape.line
    for j in range(rows.n_rows):
        x = np.append(rows.location[j], 1.0)
        for a in range(shape.size + 1):
            for b in range(a + 1):
                spread = _covariance(rows, j, a, b) if a < shape.size else 0.0
                out[j, triangle(a, b)] = x[a] * x[b] + spread
        if shape.implicit:
            begin = line.moments * line.group
            out[j, begin : begin + 4 * shape.rank] = rows.implicit[j, : 4 * shape.rank]
    return out


def row_lines(shape, rows):
    """``fill_rows``: E[x xᵀ] of [1, L, b] (or [L, 0]), off-diagonal entries doubled."""
    out, size = np.zeros((rows.n_rows, shape.row_width)), shape.size
    for i in range(rows.n_rows):
        # the coordinate of the row that stands beside each of the partner's
        order = [None, *range(1, size), 0] if shape.fixed else [*range(size), None]
        one = 1.0 if shape.fixed else 0.0
        for a in range(size + 1):
            for b in range(a + 1):
                p, q = order[a], order[b]
                x, y = (one if k is None else rows.location[i, k] for k in (p, q))
                spread = 0.0 if p is None or q is None else _covariance(rows, i, p, q)
                out[i, triangle(a, b)] = (1.0 if a == b else 2.0) * (x * y + spread)
    return out


def first_rows(pointers, task):
    """``fill_first_rows``: the row of the first rating of each task."""
    rows = np.repeat(np.arange(len(pointers) - 1), np.diff(pointers))
    return rows[::task].astype(np.int32)


def row_sums(line, pointers, codes, weights, own, table, kappa, task):
    """``sum_rows`` and the joins: the sums of every row, where the device has them, and the data term's first part.

    Every task adds up its ratings by groups of threads. Rows that several tasks share are joined from their parts.
    """
    first = first_rows(pointers, task)
    sums, parts, data = np.zeros((len(pointers) - 1, line.sums)), {}, 0.0
    for number, row in enumerate(first):
        begin, end = number * task, min((number + 1) * task, len(codes))
        at = begin
        while at < end:
            while pointers[row + 1] <= at:
                row += 1
            stop = min(int(pointers[row + 1]), end)
            values = np.zeros((line.groups, line.group, line.values))  # of every thread of a warp
            for l in range(at, stop):
                weight = 1.0 if weights is None else weights[l]
                data += _add_rating(line, values[(l - at) % line.groups], codes[l], weight, own[row], table, kappa)
            made = _kept(line, values)
            if pointers[row] >= begin and pointers[row + 1] <= end:
                sums[row] = made
            else:
                parts.setdefault(int(row), []).append(made)
            at = stop
    for row, some in parts.items():
        sums[row] = np.sum(some, axis=0)
    return sums, data


def _add_rating(line, values, code, weight, own, table, kappa):
    repeated, column, sign = code >> 31, (code & 0x7FFFFFFF) >> 1, 1.0 if code & 1 else -1.0
    partner = table[column]
    xi = np.sqrt(max(own @ partner[: len(own)], 1e-20))
    bend, pull = kappa * weight * np.tanh(xi / 2) / (2 * xi), 0.5 * kappa * weight * sign
    told = partner[line.moments * line.group :]
    for t in range(line.group):
        moments = [partner[4 * (q // 4 * line.group + t) + q % 4] for q in range(line.moments)]
        for q, moment in enumerate(moments):
            values[t, q] += bend * moment
            if q >= line.moments - line.signed:
                values[t, q + line.signed] += pull * moment
        first = line.moments + line.signed
        for q in range(line.implicit):
            values[t, first + q] += (1 - repeated) * _implicit_number(line, told, t, q)
    return kappa * weight * (np.log1p(np.exp(-xi)) + xi / 2)


def _implicit_number(line, numbers, t, q):
    """Number q of the implicit vectors that thread t reads: fours first, then what is left."""
    whole, rest = line.implicit // 4 * 4, line.implicit % 4
    return numbers[4 * (q // 4 * line.group + t) + q % 4 if q < whole else whole * line.group + t * rest + q - whole]


def _kept(line, values):
    """The groups of a warp add up by halves; group g keeps the g-th part of the values, and writes it like a line."""
    groups, half = list(values), line.values // 2
    bit = line.groups // 2
    while bit:
        moved = []
        for g, mine in enumerate(groups):
            theirs, high = groups[g ^ bit], bool(g & bit)
            part = slice(half, 2 * half) if high else slice(0, half)
            moved.append(mine[:, part] + theirs[:, part])
        groups, half, bit = moved, half // 2, bit // 2
    kept, out = line.values // line.groups, np.zeros(line.sums)
    for g, mine in enumerate(groups):
        for v in range(kept):
            for t in range(line.group):
                value = g * kept + v
                out[4 * (value // 4 * line.group + t) + value % 4] = mine[t, v]
    return out


def solved(shape, sums, mean, precision):
    """``solve`` for one row: mean and covariance (or standard deviations), from its sums and its prior N(p, G⁻¹)."""
    size, line = shape.size, shape.line
    moments = sums[: packed_size(size + 1)]
    whole = np.zeros((size + 1, size + 1))
    i, j = np.tril_indices(size + 1)
    whole[i, j] = whole[j, i] = moments
    signed = sums[signed_places(line, shape.packed + np.arange(size + 1))]
    free = [size, *range(1, size)] if shape.fixed else range(size)  # the partner is [d, R, 1], the row [1, L, b]
    system, right = whole[np.ix_(free, free)] + precision, signed[free]
    if shape.fixed:
        right = right - whole[free, 0]
    x, v = np.linalg.solve(system, right + precision @ mean), np.linalg.inv(system)
    return x, 1.0 / np.sqrt(np.diag(system)) if shape.spread else v
