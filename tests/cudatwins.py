"""Slow twins of the GPU's kernels, in numpy: the same lines, tasks, places and sums, one rating after the other.

``tests/unit/test_cuda_twins.py`` holds them against the kernels of the CPU. In ``test_cuda_kernels.py`` beside it the
GPU's kernels are held against them, and in ``tests/gpu`` a device against the CPU.
"""

from __future__ import annotations

import numpy as np

from onebit_spark.core.posterior import packed_size


def triangle(a, b):
    return a * (a + 1) // 2 + b


def _covariance(rows, i, a, b):
    if rows.kind == "spread":
        return rows.scale[i, a] ** 2 if a == b else 0.0
    return rows.scale[i, triangle(max(a, b), min(a, b))]


def partner_lines(shape, rows):
    """``fill_partners``: [E[R Rᵀ] packed, E[R], 1, 0 …, w, r, z, d, 0 …], and a line of zeros for nobody.

    For the hinge loss [R Rᵀ packed, R, 1, 0 …, w, r, z, d, 0 …, deviations, |R| with 1 in the place of |d|, 0 …].
    """
    out, line = np.zeros((rows.n_rows + 1, shape.line.width)), shape.line
    for j in range(rows.n_rows):
        x = np.append(rows.location[j], 1.0)
        for a in range(shape.size + 1):
            for b in range(a + 1):
                spread = _covariance(rows, j, a, b) if a < shape.size and not shape.hinge else 0.0
                out[j, triangle(a, b)] = x[a] * x[b] + spread
        if shape.implicit:
            begin = line.moments * line.group
            out[j, begin : begin + 4 * shape.rank] = rows.implicit[j, : 4 * shape.rank]
        if shape.hinge:
            begin, absolute = (line.moments + line.implicit) * line.group, np.abs(rows.location[j])
            out[j, begin : begin + shape.size] = rows.scale[j]
            absolute[: shape.fixed] = 1.0
            out[j, begin + shape.size : begin + 2 * shape.size] = absolute
    return out


def own_lines(shape, rows):
    """``fill_own``: E[x xᵀ] of [1, L, b] (or [L, 0]), off-diagonal entries doubled."""
    out, size = np.zeros((rows.n_rows, shape.own_width)), shape.size
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


def hinge_own_lines(shape, rows):
    """The rows beside the last moments of their partners: [1, L, b] beside [d, R, 1], or [L, 0] beside [R, 1]."""
    line, size = shape.line, shape.size
    out, begin = (
        np.zeros((rows.n_rows, line.signed * line.group)),
        shape.packed - (line.moments - line.signed) * line.group,
    )
    for i in range(rows.n_rows):
        out[i, begin : begin + size + 1] = beside_partner(shape, rows.location[i])
    return out


def beside_partner(shape, x, one=1.0):
    """[1, L, b], or [L, 0]."""
    return np.concatenate([[one], x[1:], x[:1]]) if shape.fixed else np.append(x, 0.0)


def first_rows(pointers, task):
    """``fill_first_rows``: the row of the first rating of each task."""
    rows = np.repeat(np.arange(len(pointers) - 1), np.diff(pointers))
    return rows[::task].astype(np.int32)


def row_sums(line, pointers, codes, weights, own, table, kappa, task, floor=None):
    """``sum_rows`` and the joins: the sums of every row, where the device has them, and the data term's first part.

    Every task adds up its ratings by groups of threads. Rows that several tasks share are joined from their parts. With
    a ``floor`` these are the sums of the hinge loss; 0 is for the gradient.
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
                loss = _add_rating(
                    line, values[(l - at) % line.groups], codes[l], 1.0 if weights is None else weights[l], own[row],
                    table, kappa, floor,
                )  # fmt: skip
                data += loss
            made = _kept(line, values)
            if pointers[row] >= begin and pointers[row + 1] <= end:
                sums[row] = made
            else:
                parts.setdefault(int(row), []).append(made)
            at = stop
    for row, some in parts.items():
        sums[row] = np.sum(some, axis=0)
    return sums, data


def _add_rating(line, values, code, weight, own, table, kappa, floor):
    repeated, column, sign = code >> 31, (code & 0x7FFFFFFF) >> 1, 1.0 if code & 1 else -1.0
    partner = table[column]
    if floor is None:
        xi = np.sqrt(max(own @ partner[: len(own)], 1e-20))
        bend, pull = kappa * weight * np.tanh(xi / 2) / (2 * xi), 0.5 * kappa * weight * sign
        loss = np.log1p(np.exp(-xi)) + xi / 2
    else:
        margin = 1.0 - sign * (own @ partner[line.moments * line.group - len(own) : line.moments * line.group])
        half = 0.5 / max(abs(margin), floor) if floor else 0.0
        push = 0.5 + half * margin if floor else float(margin > 0)
        bend, pull = kappa * weight * half, kappa * weight * sign * push
        loss = max(margin, 0.0)
    told = partner[line.moments * line.group :]
    weighed = told[line.implicit * line.group :]
    for t in range(line.group):
        moments = [partner[4 * (q // 4 * line.group + t) + q % 4] for q in range(line.moments)]
        for q, moment in enumerate(moments):
            values[t, q] += bend * moment
            if q >= line.moments - line.signed:
                values[t, q + line.signed] += pull * moment
        first = line.moments + line.signed
        for q in range(line.implicit):
            values[t, first + q] += (1 - repeated) * _read_apart(line, told, line.implicit, t, q)
        first += -(-line.implicit // 4) * 4
        for q in range(line.weighed):
            values[t, first + q] += kappa * weight * _read_apart(line, weighed, line.weighed, t, q)
    return kappa * weight * loss


def _read_apart(line, numbers, count, t, q):
    """Number q of thread t, of ``count`` that are read apart: fours first, then what is left."""
    whole, rest = count // 4 * 4, count % 4
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


def solved(shape, sums, mean, precision, old=None, floor=0.0):
    """``solve`` for one row: mean and covariance (or standard deviations), from its sums and its prior N(p, G⁻¹).

    With the hinge loss only the step from ``old`` to the minimum of the majoriser.
    """
    size, line = shape.size, shape.line
    moments = sums[: packed_size(size + 1)]
    whole = np.zeros((size + 1, size + 1))
    i, j = np.tril_indices(size + 1)
    whole[i, j] = whole[j, i] = moments
    signed = sums[line.signed_places(shape.packed + np.arange(size + 1))]
    free = [size, *range(1, size)] if shape.fixed else range(size)  # the partner is [d, R, 1], the row [1, L, b]
    system, right = whole[np.ix_(free, free)] + precision, signed[free]
    if shape.hinge:
        bend = hinge_slopes(shape, sums)[0] / np.maximum(np.abs(old), floor)
        return np.linalg.solve(system + np.diag(bend), right - bend * old + precision @ (mean - old)), None
    if shape.fixed:
        right = right - whole[free, 0]
    x, v = np.linalg.solve(system, right + precision @ mean), np.linalg.inv(system)
    return x, 1.0 / np.sqrt(np.diag(system)) if shape.spread else v


# ---- the moves of the hinge loss -------------------------------------------------------------------------------------


def hinge_slopes(shape, sums):
    """Of a row: the slopes of the objective in |x| and in the deviations; and the first for the row's fixed 1."""
    c, size = np.sqrt(2 / np.pi), shape.size
    deviation, absolute = np.split(sums[shape.line.weighed_places(np.arange(2 * size))], 2)
    fixed, mean = (c * deviation[0], np.append(0.0, c * deviation[1:])) if shape.fixed else (0.0, c * deviation)
    return mean, c * (absolute + mean), fixed


def search(shape, pointers, codes, weights, old, way, partners, kappa, fractions):
    """``SEARCH`` of ``sums.cu``: what the loss of every row gains by these fractions of its way."""
    out = np.zeros((len(pointers) - 1, len(fractions)))
    for i in range(len(out)):
        for l in range(pointers[i], pointers[i + 1]):
            z = np.append(partners.location[(codes[l] & 0x7FFFFFFF) >> 1], 1.0)
            sign, weight = 1.0 if codes[l] & 1 else -1.0, 1.0 if weights is None else weights[l]
            score, step = (beside_partner(shape, x, one) @ z for x, one in ((old[i], 1.0), (way[i], 0.0)))
            moved = np.maximum(1 - sign * (score + np.asarray(fractions) * step), 0.0)
            out[i] += kappa * weight * (moved - max(1 - sign * score, 0.0))
    return out


def moved(shape, sums, gains, mean, g, old, way, fractions):
    """``move`` for one row: its means, and what the loss gains."""
    slope, _, _ = hinge_slopes(shape, sums)

    def penalty(x):
        return np.sum(slope * np.abs(x) + 0.5 * g * (x - mean) ** 2)

    for fraction, gain in zip(fractions, gains, strict=True):
        x = old + fraction * way
        if gain + penalty(x) <= penalty(old):
            return x, gain
    return old, 0.0


def descended(shape, sums, mean, g, old, rate):
    """``move`` for one row without a way: a step down the slope."""
    slope, _, _ = hinge_slopes(shape, sums)
    signed = sums[shape.line.signed_places(shape.packed + np.arange(shape.size + 1))]
    pull = np.append(signed[-1], signed[1:-1]) if shape.fixed else signed[:-1]
    return old - rate * (slope * np.sign(old) + g * (old - mean) - pull)


def hinge_spread(shape, sums, g):
    """The standard deviations of a row: 2/(a + √(a² + 4g))."""
    _, slope, _ = hinge_slopes(shape, sums)
    return 2 / (slope + np.sqrt(slope**2 + 4 * g))


def hinge_data(shape, sums, x, spread):
    """What a row adds to the data term beside κ Σ_l w_l (1 − y_l u_l)_+."""
    mean, slope, fixed = hinge_slopes(shape, sums)
    return fixed + mean @ np.abs(x) + slope @ spread
