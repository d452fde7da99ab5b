"""The GPU's kernels themselves, run on the CPU thread by thread (``cudaoncpu``), against their twins."""

import cudaoncpu
import cudatwins as twins
import numpy as np
import pytest

from onebit_spark.core.posterior import RowPosterior
from onebit_spark.core.row_map import RowMap
from onebit_spark.engines.cuda.ratings import Cuts
from onebit_spark.engines.cuda.shapes import BLOCK, LineShape, Shape
from onebit_spark.engines.cuda.update import LINES

pytestmark = pytest.mark.skipif(cudaoncpu.COMPILER is None, reason="needs g++ to compile the kernels")

M, C, N, TASK, KAPPA = 9, 6, 70, 16, 0.8
SHAPES = {
    "four factors": Shape(5, 1, True),
    "no intercepts": Shape(3, 0, False),
    "groups of eight": Shape(14, 1, True),
    "spreads": Shape(4, 1, True, spread=True),
    "several warps": Shape(40, 1, True),
}


def posterior(rng, shape, rows):
    location = rng.normal(size=(rows, shape.size)).astype(np.float32)
    scale = rng.uniform(0.1, 0.9, (rows, shape.size))
    if not shape.spread:
        root = 0.9 / np.sqrt(shape.size) * rng.normal(size=(rows, shape.size, shape.size))
        whole = root @ root.transpose(0, 2, 1) + 0.05 * np.eye(shape.size)
        scale = whole[:, *np.tril_indices(shape.size)]
    implicit = rng.normal(size=(rows, 2 * shape.rank)).astype(np.float32) if shape.tells else None
    kind = "spread" if shape.spread else "covariance"
    return RowPosterior(location, np.ascontiguousarray(scale, np.float32), kind, bool(shape.fixed), implicit)


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
        self.cuts = Cuts.of(self.pointers, task=TASK)

    def summed(self, line, own, table, weights=None, mode=0):
        """``sum_rows`` and the joins."""
        macros, tasks = {**line.sum_macros(weights is not None, mode), "TASK": TASK}, len(self.cuts.first_rows)
        acc, data = np.full((M, line.sums), np.nan, np.float32), np.zeros(tasks)
        partial = np.full((2 * tasks, line.sums), np.nan, np.float32)
        cudaoncpu.run(
            "sums", "sum_rows", macros, -(-tasks // line.tasks_per_block), line.threads,
            self.codes.astype(np.uint32), weights, self.pointers, self.cuts.first_rows, own, table, acc, partial,
            data if mode == 0 else None, np.int64(N), np.int32(tasks), np.uint32(C), np.float32(KAPPA),
        )  # fmt: skip
        few = self.cuts.few
        assert len(few)
        assert not len(self.cuts.many)
        cudaoncpu.run("sums", "join_few", macros, len(few), 32, few, np.int32(len(few)), self.pointers, partial, acc)
        again = np.full_like(acc, np.nan)
        cudaoncpu.run("sums", "join_many", macros, len(few), 256, few, self.pointers, partial, again)
        np.testing.assert_allclose(again[few], acc[few], rtol=1e-6)
        return acc, data.sum()


@pytest.mark.parametrize("name", SHAPES)
def test_half_step(name):
    """Lines, sums and solutions; for few coordinates by both kernels that solve."""
    shape, rng = SHAPES[name], np.random.default_rng(1)
    own, partners, ratings, line = posterior(rng, shape, M), posterior(rng, shape, C), Ratings(rng), SHAPES[name].line
    table, mine = twins.partner_lines(shape, partners), twins.own_lines(shape, own)
    made = np.full((C + 1, line.width), np.nan, np.float32), np.full((M, shape.own_width), np.nan, np.float32)
    macros = shape.row_macros
    blocks = -(-(C + 1) // LINES)
    cudaoncpu.run("rows", "fill_partners", macros, blocks, BLOCK, *_arrays(partners), made[0], np.int64(C))
    cudaoncpu.run("rows", "fill_own", macros, blocks, BLOCK, own.location, own.scale, made[1], np.int64(M))
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
    launches = {
        ("solve", shape.rows_per_block, shape.rows_per_block * shape.lanes, shape.solve_bytes),
        shape.solve_launch,
    }
    for kernel, per_block, threads, shared in launches:
        location, scale = np.full_like(own.location, np.nan), own.scale.copy()
        implicit, told = (
            (None, None) if own.implicit is None else (own.implicit.copy(), np.zeros((M, shape.rank), np.float32))
        )
        scalars = np.full((3, -(-M // per_block)), np.nan)
        cudaoncpu.run(
            "rows", kernel, macros, scalars.shape[1], threads, acc, ratings.pointers,
            ratings.distinct if shape.tells else None, mean, precision, None, None, None, own.location, location,
            scale, implicit, told, scalars, np.int64(M), np.float64(1.2), np.float64(5.0), np.float64(0.8),
            shared=shared,
        )  # fmt: skip
        _check_solution(
            shape, ratings, own, sums, mean, precision, (location, scale, implicit, told, scalars.sum(axis=1))
        )


def _arrays(rows):
    return rows.location, rows.scale, rows.implicit


def _check_solution(shape, ratings, own, sums, mean, precision, made):
    location, scale, implicit, told, scalars = made
    line, volume, distance, linear = shape.line, 0.0, 0.0, 0.0
    for i in range(M):
        if not ratings.rated[i]:
            assert np.array_equal(location[i], own.location[i])
            assert np.array_equal(scale[i], own.scale[i])
            continue
        centre, root = mean.copy(), np.sqrt(ratings.distinct[i])
        if shape.tells:
            mine, residuals = np.split(sums[i, line.told_places(np.arange(2 * shape.rank))], 2)
            centre[shape.fixed :] += mine / root
            np.testing.assert_allclose(told[i], mine / root, rtol=1e-4, atol=1e-5)
            weight = own.implicit[i, : shape.rank]
            moved = weight + 1.2 * (residuals - 5.0 * weight) / (ratings.distinct[i] / 0.8 + 5.0)
            np.testing.assert_allclose(implicit[i, : shape.rank], moved, rtol=1e-4, atol=1e-5)
        x, spread = twins.solved(shape, sums[i], centre, precision)
        x = own.location[i] + 1.2 * (x - own.location[i])
        np.testing.assert_allclose(location[i], x, rtol=1e-4, atol=2e-5)
        expected = spread if shape.spread else spread[np.tril_indices(shape.size)]
        np.testing.assert_allclose(scale[i], expected, rtol=1e-4, atol=1e-5)
        if shape.tells:
            np.testing.assert_allclose(
                implicit[i, shape.rank :], (x - centre)[shape.fixed :] / root, rtol=1e-3, atol=1e-4
            )
        variance, g = (spread**2 if shape.spread else np.diag(spread)), np.diag(precision)
        volume += np.log(spread).sum() if shape.spread else 0.5 * np.linalg.slogdet(spread)[1]
        distance += np.sum(g * ((x - centre) ** 2 + variance) - 1 - np.log(g))
        signed = sums[i, line.signed_places(shape.packed + np.arange(shape.size + 1))]
        linear += signed @ (np.append(np.append(1.0, x[1:]), x[0]) if shape.fixed else np.append(x, 0.0))
    np.testing.assert_allclose(scalars, [volume, distance, linear], rtol=1e-4)


@pytest.mark.parametrize("columns", [5, 17])
def test_products_with_the_sign_matrix(columns):
    rng, line = np.random.default_rng(2), LineShape.of_columns(columns)
    ratings, table = Ratings(rng), np.zeros((C + 1, line.width), np.float32)
    table[:C, :columns] = rng.normal(size=(C, columns))
    acc, _ = ratings.summed(line, None, table, mode=1)
    rows = np.repeat(np.arange(M), np.diff(ratings.pointers))
    signs, cols = np.where(ratings.codes & 1, 1.0, -1.0), (ratings.codes & 0x7FFFFFFF) >> 1
    expected = np.zeros((M, columns))
    np.add.at(expected, rows, signs[:, None] * table[cols, :columns])
    found = acc[:, line.moment_places(np.arange(columns))]
    np.testing.assert_allclose(found[ratings.rated], expected[ratings.rated], atol=1e-5)


@pytest.mark.parametrize("name", SHAPES)
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
        "rows", "map_rows", shape.row_macros, 2, shape.map_rows * shape.map_lanes, *_arrays(mapped),
        np.ascontiguousarray(by.matrix), by.shift, np.ascontiguousarray(matrices[1]), np.int64(M),
        shared=shape.map_bytes,
    )  # fmt: skip
    t = by.matrix
    np.testing.assert_allclose(mapped.location, rows.location @ t + by.shift, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(mapped.covariance, t.T @ rows.covariance @ t, rtol=1e-3, atol=1e-5)
    if shape.tells:
        first = shape.fixed
        weights, residuals = np.split(rows.implicit, 2, axis=1)
        expected = np.hstack([weights @ matrices[1][first:, first:], residuals @ t[first:, first:]])
        np.testing.assert_allclose(mapped.implicit, expected, rtol=1e-4, atol=1e-5)


def test_totals():
    rng, width, n = np.random.default_rng(4), 5, 200
    x, y = (rng.normal(size=(n, width)).astype(np.float32) for _ in range(2))
    pointers = np.append(0, np.cumsum(rng.integers(0, 3, n))).astype(np.int64)
    counts, rated = rng.integers(1, 9, n).astype(np.int32), np.diff(pointers) > 0
    macros, blocks = Shape(width, 1, True).total_macros, 3
    out = np.full((blocks, (width + 1) ** 2), np.nan)
    cudaoncpu.run(
        "totals", "gram", macros, blocks, 256, pointers, counts, x, y, np.int32(width), np.float64(1.0), y, None,
        np.int32(width), np.float64(0.0), np.int32(width + 1), out, np.int32((width + 1) ** 2), np.int64(n),
        shared=8 * 2 * 32 * (width + 1),
    )  # fmt: skip
    left, right = np.insert(x.astype(float) - y, 0, 1.0, axis=1), np.insert(y.astype(float), 0, 0.0, axis=1)
    expected = (left * counts[:, None])[rated].T @ right[rated]
    np.testing.assert_allclose(out.sum(axis=0).reshape(width + 1, -1), expected, rtol=1e-9, atol=1e-9)
    sums = np.full((blocks, width), np.nan)
    for squared in (0, 1):
        cudaoncpu.run(
            "totals", "column_sums", macros, blocks, 256, pointers, x, np.int32(width), np.int32(width),
            np.int32(squared), sums, np.int32(width), np.int64(n),
        )  # fmt: skip
        expected = (x[rated].astype(float) ** (1 + squared)).sum(axis=0)
        np.testing.assert_allclose(sums.sum(axis=0), expected, rtol=1e-9, atol=1e-9)
