"""The GPU's kernels themselves, run on the CPU thread by thread (``cudaoncpu``), against their twins."""

import cudaoncpu
import cudatwins as twins
import numpy as np
import pytest
from fitting import random_posterior

from onebit_spark.core.features import CoefStep
from onebit_spark.core.posterior import Form, RowMap
from onebit_spark.engines.cuda.runner import LINES, THREADS, jobs, numbers_of
from onebit_spark.engines.cuda.shapes import BLOCK, MODE_LOGISTIC, MODE_PRODUCT, LineShape, Shape

pytestmark = pytest.mark.skipif(cudaoncpu.COMPILER is None, reason="needs g++ to compile the kernels")

M, C, N, TASK, KAPPA = 9, 6, 70, 16, 0.8
SHAPES = {
    "one factor": Shape(1, 0, False),
    "four factors": Shape(5, 1, True),
    "no intercepts": Shape(3, 0, False),
    "groups of eight": Shape(14, 1, True),
    "spreads": Shape(4, 1, True, spread=True),
    "an edge": Shape(33, 1, False),
    "several warps": Shape(40, 1, True),
}
SMOKE = "four factors"
NAMES = [SMOKE, *(pytest.param(name, marks=pytest.mark.slow) for name in SHAPES if name != SMOKE)]
PACE, RIDGE = 1.2, 5.0  # of a step


def posterior(rng, shape, rows):
    kind = "spread" if shape.spread else "covariance"
    return random_posterior(rng, rows, Form(shape.size, kind, bool(shape.fixed), "float32", 6 * shape.implicit))


class Ratings:
    """Ratings by row: one row without any, cells that are rated twice, rows that several tasks share."""

    def __init__(self, rng):
        rows, cols = np.sort(rng.integers(0, M - 1, N)), rng.integers(0, C, N)
        rows[:40] = 0
        order = np.lexsort((cols, rows))
        rows, cols = rows[order], cols[order]
        again = np.append(False, (rows[1:] == rows[:-1]) & (cols[1:] == cols[:-1]))
        self.pointers = np.append(0, np.cumsum(np.bincount(rows, minlength=M))).astype(np.int64)
        self.codes = again.astype(np.int64) << 31 | cols << 1 | rng.integers(0, 2, N)
        self.distinct = np.bincount(rows[~again], minlength=M).astype(np.int32)
        self.rated = np.diff(self.pointers) > 0
        self.first_rows = twins.first_rows(self.pointers, TASK)

    def summed(self, line, own, table, weights=None, mode=MODE_LOGISTIC):
        """``sum_rows`` and the joins."""
        macros, tasks = {**line.sum_macros(weights is not None, mode), "TASK": TASK}, len(self.first_rows)
        acc, data = np.full((M, line.sums), np.nan, np.float32), np.zeros(tasks)
        partial = np.full((2 * tasks, line.sums), np.nan, np.float32)
        cudaoncpu.run(
            "sums", "sum_rows", macros, -(-tasks // line.tasks_per_block), line.threads,
            self.codes.astype(np.uint32), weights, self.pointers, self.first_rows, own, table, acc, partial,
            data if mode == MODE_LOGISTIC else None, np.int64(N), np.int32(tasks), np.uint32(C), np.float32(KAPPA),
        )  # fmt: skip
        alone = acc.copy()
        few = self.first_rows, np.int32(tasks), self.pointers, partial
        cudaoncpu.run("sums", "join_few", macros, tasks, 32, *few, acc)
        joined = np.flatnonzero(np.isnan(alone[:, 0]) & self.rated).astype(np.int32)
        assert len(joined) > 1
        cudaoncpu.run("sums", "join_many", macros, len(joined), 256, joined, self.pointers, partial, alone)
        np.testing.assert_allclose(alone[self.rated], acc[self.rated], rtol=1e-6)
        cudaoncpu.run(
            "sums", "join_few", {**macros, "MANY_TASKS": 2}, tasks, 32, *few, again := np.full_like(acc, np.nan)
        )
        assert np.isnan(again[0]).all()  # this row is left to join_many: it has more than two tasks of ratings
        return acc, data.sum()


@pytest.mark.parametrize("name", NAMES)
def test_half_step(name):
    """Lines, sums and solutions."""
    shape, rng = SHAPES[name], np.random.default_rng(1)
    own, partners, ratings, line = posterior(rng, shape, M), posterior(rng, shape, C), Ratings(rng), SHAPES[name].line
    table, mine = twins.other_lines(shape, partners), twins.row_lines(shape, own)
    made = np.full((C + 1, line.width), np.nan, np.float32), np.full((M, shape.row_width), np.nan, np.float32)
    macros = shape.row_macros
    blocks = -(-(C + 1) // LINES)
    cudaoncpu.run("lines", "fill_others", macros, blocks, BLOCK, *_arrays(partners), made[0], np.int64(C))
    cudaoncpu.run("lines", "fill_rows", macros, blocks, BLOCK, own.location, own.scale, made[1], np.int64(M))
    np.testing.assert_allclose(made[0], table, atol=1e-5)
    np.testing.assert_allclose(made[1], mine, atol=1e-5)

    weights = rng.uniform(0.2, 3, N).astype(np.float32) if name == "four factors" else None
    acc, data = ratings.summed(line, made[1], made[0], weights)
    sums, expected = twins.row_sums(line, ratings.pointers, ratings.codes, weights, mine, table, KAPPA, TASK)
    rated = ratings.rated
    np.testing.assert_allclose(acc[rated], sums[rated], rtol=1e-5, atol=1e-5 * np.abs(sums).max())
    assert data == pytest.approx(expected, rel=1e-6)

    size, root = shape.size, rng.normal(size=(shape.size, shape.size)) / np.sqrt(shape.size)
    mean, precision = rng.normal(size=size), np.diag(rng.uniform(0.5, 2, size))
    if not shape.spread:
        precision += root @ root.T  # what a map that waits for the rows makes of it
    _check_solution(shape, ratings, own, sums, mean, precision, _solved(shape, ratings, own, acc, mean, precision))


def _solved(shape, ratings, own, acc, mean, precision):
    """``solve``: location, scale, implicit, what is reported, and the scalars."""
    (blocks,), (threads,) = shape.row_blocks(M)
    location, scale, scalars = np.full_like(own.location, np.nan), own.scale.copy(), np.full((3, blocks), np.nan)
    implicit, implicit_means = None, None
    if shape.implicit:
        implicit, implicit_means = own.implicit.copy(), np.full((M, shape.rank), np.nan, np.float32)
    cudaoncpu.run(
        "solve", "solve", shape.row_macros, blocks, threads, acc, ratings.pointers,
        ratings.distinct if shape.implicit else None, mean, precision, None, None, None, own.location, location, scale,
        implicit, implicit_means, scalars, np.int64(M), np.float64(PACE), np.float64(RIDGE),
    )  # fmt: skip
    return location, scale, implicit, implicit_means, scalars.sum(axis=1)


def _arrays(rows):
    return rows.location, rows.scale, rows.implicit


def _check_solution(shape, ratings, own, sums, mean, precision, made):
    location, scale, implicit, implicit_means, scalars = made
    line, volume, distance, linear = shape.line, 0.0, 0.0, 0.0
    for i in range(M):
        if not ratings.rated[i]:
            assert np.array_equal(location[i], own.location[i])
            assert np.array_equal(scale[i], own.scale[i])
            continue
        centre, root = mean.copy(), np.sqrt(ratings.distinct[i])
        if shape.implicit:
            mine = sums[i, twins.implicit_places(line, np.arange(shape.rank))]
            centre[shape.fixed :] += mine / root
            np.testing.assert_allclose(implicit_means[i], mine / root, rtol=1e-4, atol=1e-5)
            _check_directions(shape, sums[i], ratings.distinct[i], own.implicit[i], implicit[i])
        x, spread = twins.solved(shape, sums[i], centre, precision)
        x = own.location[i] + PACE * (x - own.location[i])
        np.testing.assert_allclose(location[i], x, rtol=1e-4, atol=2e-5)
        expected = spread if shape.spread else spread[np.tril_indices(shape.size)]
        np.testing.assert_allclose(scale[i], expected, rtol=1e-4, atol=1e-5)
        if shape.implicit:
            residual = (x - centre)[shape.fixed :] / root
            np.testing.assert_allclose(implicit[i, shape.rank : 2 * shape.rank], residual, rtol=1e-3, atol=1e-4)
        variance, g = (spread**2 if shape.spread else np.diag(spread)), np.diag(precision)
        volume += np.log(spread).sum() if shape.spread else 0.5 * np.linalg.slogdet(spread)[1]
        distance += np.sum(g * ((x - centre) ** 2 + variance) - 1 - np.log(g))
        signed = sums[i, twins.signed_places(line, shape.packed + np.arange(shape.size + 1))]
        linear += signed @ (np.append(np.append(1.0, x[1:]), x[0]) if shape.fixed else np.append(x, 0.0))
    np.testing.assert_allclose(scalars, [volume, distance, linear], rtol=1e-4)


def _check_directions(shape, sums, count, old, new):
    """w and d stay; z, s and q are reported. (The residual r is another's to check.)"""
    w, _, z, d, s, q = np.split(new, 6)
    _, residuals, gradients, steps = np.split(sums[twins.implicit_places(shape.line, np.arange(4 * shape.rank))], 4)
    assert np.array_equal(w, old[: shape.rank])
    assert np.array_equal(d, old[3 * shape.rank : 4 * shape.rank])
    np.testing.assert_allclose(z, (residuals - RIDGE * w) / (count + RIDGE), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(s, gradients / count, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(q, steps / count, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("columns", [5, 17])
def test_products_with_the_sign_matrix(columns):
    rng, line = np.random.default_rng(2), LineShape.of_columns(columns)
    ratings, table = Ratings(rng), np.zeros((C + 1, line.width), np.float32)
    table[:C, :columns] = rng.normal(size=(C, columns))
    acc, _ = ratings.summed(line, None, table, mode=MODE_PRODUCT)
    rows = np.repeat(np.arange(M), np.diff(ratings.pointers))
    signs, cols = np.where(ratings.codes & 1, 1.0, -1.0), (ratings.codes & 0x7FFFFFFF) >> 1
    expected = np.zeros((M, columns))
    np.add.at(expected, rows, signs[:, None] * table[cols, :columns])
    found = acc[:, :columns]
    np.testing.assert_allclose(found[ratings.rated], expected[ratings.rated], atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_maps(name):
    shape, rng = SHAPES[name], np.random.default_rng(3)
    rows, size = posterior(rng, shape, M), shape.size
    matrices = np.eye(size) + 0.5 / np.sqrt(size) * rng.normal(size=(2, size, size))
    if shape.spread:
        matrices = np.stack([np.diag(rng.uniform(0.5, 1.5, size)) for _ in range(2)])
    if shape.fixed:
        matrices[:, 0, 1:] = matrices[:, 1:, 0] = 0.0
    by = RowMap(matrices[0], 0.1 * rng.normal(size=size), matrices[1])
    mapped = rows.copy()
    cudaoncpu.run(
        "maps", "map_rows", shape.map_macros, 2, shape.map_rows * shape.map_lanes, *_arrays(mapped),
        np.ascontiguousarray(by.matrix), by.shift, np.ascontiguousarray(matrices[1]), np.int64(M),
        shared=shape.map_bytes,
    )  # fmt: skip
    t = by.matrix
    np.testing.assert_allclose(mapped.location, rows.location @ t + by.shift, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(mapped.covariance, t.T @ rows.covariance @ t, rtol=1e-3, atol=1e-5)
    if shape.implicit:
        first = shape.fixed
        own, other = t[first:, first:], matrices[1][first:, first:]
        vectors = zip(np.split(rows.implicit, 6, axis=1), (other, own, other, other, own, own), strict=True)
        expected = np.hstack([vector @ matrix for vector, matrix in vectors])
        np.testing.assert_allclose(mapped.implicit, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in NAMES if SHAPES[getattr(name, "values", [name])[0]].implicit])
def test_steps_of_the_weights(name):
    shape, rng = SHAPES[name], np.random.default_rng(7)
    rows, step = posterior(rng, shape, M), CoefStep(rng.normal(size=(2 * shape.rank, shape.rank)))
    for by in (step.of_coef, step.of_residuals):
        expected, moved = rows.copy(), rows.copy()
        by.apply_to(expected, 0, M)
        cudaoncpu.run(
            "maps", "move_implicit", shape.map_macros, 2, shape.map_rows * shape.map_lanes, moved.implicit, by.matrix,
            np.int32(by.value), np.int32(by.directions), np.int64(M),
        )  # fmt: skip
        np.testing.assert_allclose(moved.implicit, expected.implicit, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_roots(name):
    shape = SHAPES[name]
    rows, out = posterior(np.random.default_rng(6), shape, M), np.full((M, _scale_width(shape)), np.nan)
    (blocks,), (threads,) = shape.row_blocks(M)
    cudaoncpu.run(
        "maps", "roots", shape.map_macros, blocks, threads, rows.scale, out, np.int64(M), shared=shape.root_bytes
    )
    if shape.spread:
        assert np.array_equal(out, rows.scale)
    else:
        whole = np.zeros((M, shape.size, shape.size))
        whole[:, *np.tril_indices(shape.size)] = out
        np.testing.assert_allclose(whole @ whole.transpose(0, 2, 1), rows.covariance, rtol=1e-6, atol=1e-9)


def _scale_width(shape):
    return shape.size if shape.spread else shape.packed


@pytest.mark.parametrize("name", NAMES)
def test_totals(name):
    """All sums over rows, by two blocks, each with more rows than it reads at once; ``fold`` adds up blocks."""
    shape, blocks, rng = SHAPES[name], 2, np.random.default_rng(4)
    n = 70 if shape.size > 36 else 270
    rows, old = posterior(rng, shape, n), rng.normal(size=(n, shape.size)).astype(np.float32)
    pointers = np.append(0, np.cumsum(rng.integers(0, 3, n))).astype(np.int64)
    distinct, rated = rng.integers(1, 9, n).astype(np.int32), np.diff(pointers) > 0
    explained = rng.normal(size=(n, shape.size)).astype(np.float32)
    implicit_means = rng.normal(size=(n, shape.rank)).astype(np.float32) if shape.implicit else None
    chosen = jobs(shape)
    numbers = [numbers_of(shape, job) for job in chosen]
    parts, out = np.full((sum(numbers), blocks), np.nan), np.full(min(20, sum(numbers)), np.nan)
    cudaoncpu.run(
        "totals", "statistics", shape.total_macros, (blocks, len(chosen)), THREADS, pointers, distinct, old,
        rows.location, rows.scale, explained, implicit_means, rows.implicit, np.int32(0), parts, np.int64(n),
    )  # fmt: skip
    cudaoncpu.run("fold", "fold", {}, len(out), THREADS, parts, np.int64(blocks), out)  # of all, it would take long
    np.testing.assert_allclose(out, parts[: len(out)].sum(axis=1), rtol=1e-12)

    new, before = rows.location.astype(float), old.astype(float)
    known = explained.astype(float)
    if shape.implicit:
        known[:, shape.fixed :] += implicit_means
    x, change, distance = (
        np.hstack([np.full((n, shape.fixed), one), lines])
        for one, lines in ((1.0, before), (0.0, new - before), (1.0, new - known))
    )
    scales = rows.scale.astype(float) ** (2 if shape.spread else 1)
    expected = [
        scales[rated].sum(axis=0), x[rated].T @ x[rated], change[rated].T @ change[rated],
        change[rated].T @ x[rated], distance[rated].T @ distance[rated],
    ]  # fmt: skip
    if shape.implicit:
        whole = np.insert(implicit_means.astype(float), 0, 1.0, axis=1)
        w, _, z, d, s, q = np.split(rows.implicit.astype(float), 6, axis=1)
        s, q = (
            np.hstack([np.zeros((n, 2 * shape.fixed)), np.sqrt(distinct)[:, None] * lines])[rated] for lines in (s, q)
        )
        e = distance[rated]
        expected += [
            (whole * distinct[:, None])[rated].T @ whole[rated], w.T @ w, w.T @ z, w.T @ d, z.T @ z, z.T @ d, d.T @ d,
            s.T @ e, q.T @ e, s.T @ s, s.T @ q, q.T @ q,
        ]  # fmt: skip
    for found, right in zip(np.split(parts.sum(axis=1), np.cumsum(numbers)[:-1]), expected, strict=True):
        np.testing.assert_allclose(found, right.ravel(), rtol=1e-9, atol=1e-9)
