"""What the GPU computes, without a GPU: twins of its kernels against the kernels of the CPU, and where numbers are."""

import cudatwins as twins
import numpy as np
import pytest

from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.config import FitConfig
from onebit_spark.core.devices import MOST_RANK
from onebit_spark.core.losses import HalfStep, RowPrior
from onebit_spark.core.posterior import RowPosterior, packed_size
from onebit_spark.engines.cuda.ratings import MANY_TASKS, Cuts
from onebit_spark.engines.cuda.shapes import MOST_MOMENTS, LineShape, Shape

FORMS = [
    (rank, intercepts, implicit) for rank in (1, 4, 7, 10) for intercepts in (True, False) for implicit in (True, False)
]
EVERY_SHAPE = [
    Shape(rank + fixed, fixed, tells) for rank in range(1, MOST_RANK + 1) for fixed in (0, 1) for tells in (True, False)
]


@pytest.mark.parametrize("shape", EVERY_SHAPE, ids=str)
def test_every_sum_has_a_place_of_its_own(shape):
    line = shape.line
    places = [
        line.moment_places(np.arange(packed_size(shape.size + 1))),
        line.signed_places(shape.packed + np.arange(shape.size + 1)),
        line.told_places(np.arange(2 * shape.rank)) if shape.tells else np.empty(0, int),
    ]
    flat = np.concatenate(places)
    assert len(np.unique(flat)) == len(flat)
    assert flat.min() >= 0
    assert flat.max() < line.sums
    assert line.moments <= MOST_MOMENTS
    assert line.moments % 4 == 0
    assert line.told % 4 != 3
    assert line.width % 4 == 0  # lines begin at 16 bytes
    assert shape.size - 1 <= shape.lanes
    assert max(shape.solve_bytes, shape.map_bytes) <= 227 * 1024  # shared memory of a block


@pytest.mark.parametrize("columns", [1, 5, 16, 17, 38, 70])
def test_products_have_places_too(columns):
    line = LineShape.of_columns(columns)
    places = line.moment_places(np.arange(columns))
    assert len(np.unique(places)) == columns
    assert places.max() < line.sums
    assert line.width >= columns


@pytest.mark.parametrize("task", [3, 8, 512])
def test_cuts(task):
    lengths = np.array([0, 2, 0, 40, 1, 0, 7, 8, 9, 300, 0])
    pointers = np.concatenate([[0], np.cumsum(lengths)])
    cuts = Cuts.of(pointers, task=task)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    assert np.array_equal(cuts.first_rows, rows[::task])
    tasks = [len({l // task for l in range(pointers[i], pointers[i + 1])}) for i in range(len(lengths))]
    assert cuts.few.tolist() == [i for i, n in enumerate(tasks) if 1 < n <= MANY_TASKS]
    assert cuts.many.tolist() == [i for i, n in enumerate(tasks) if n > MANY_TASKS]


def _posterior(rng, rows, config):
    size, kind = config.dimension, config.make_loss().kind
    location = rng.normal(size=(rows, size)).astype(np.float32)
    if kind == "spread":
        scale = rng.uniform(0.1, 0.9, (rows, size))
    else:
        root = rng.normal(size=(rows, size, size)) * 0.3
        whole = root @ root.transpose(0, 2, 1) + 0.05 * np.eye(size)
        i, j = np.tril_indices(size)
        scale = whole[:, i, j]
    implicit = rng.normal(size=(rows, 2 * config.rank)) if config.implicit_features else None
    implicit = None if implicit is None else implicit.astype(np.float32)
    return RowPosterior(location, scale.astype(np.float32), kind, config.intercepts, implicit)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("covariance", ["full", "diagonal"])
@pytest.mark.parametrize(("rank", "intercepts", "implicit"), FORMS)
def test_twin_against_the_kernels_of_the_cpu(rank, intercepts, implicit, covariance, weighted):
    """Lines, sums by tasks of 8 ratings, and the solution of every row, against ``Loss.update_rows``."""
    rng, m, c, n = np.random.default_rng(rank), 9, 6, 60
    config = FitConfig(rank=rank, intercepts=intercepts, implicit_features=implicit, covariance=covariance)
    rows, cols = rng.integers(0, m - 1, n), rng.integers(0, c, n)
    weights = rng.uniform(0.2, 3, n).astype(np.float32) if weighted else None
    block = RatingBlock.from_coordinates(rows, cols, rng.random(n) < 0.5, (m, c), weights)
    own, partners, loss = _posterior(rng, m, config), _posterior(rng, c, config), config.make_loss()
    size, kappa = config.dimension, 0.8
    prior = RowPrior(rng.normal(size=(1, size)), rng.uniform(0.5, 2, (1, size)))
    step = HalfStep("rows", 0, kappa, prior, 1.0, want_data=True)

    shape = Shape.of(own.form)
    again = np.append(False, (block.codes[1:] >> 1) == (block.codes[:-1] >> 1))
    again[block.row_pointers[:-1][block.row_counts > 0]] = False
    codes = block.codes.astype(np.int64) | again.astype(np.int64) << 31
    arguments = shape.line, block.row_pointers, codes, block.weights
    table = twins.partner_lines(shape, partners)
    sums, _ = twins.row_sums(*arguments, twins.own_lines(shape, own), table, kappa, 8)
    precision = np.diag(prior.precision[0])
    expected = [twins.solved(shape, sums[i], prior.mean[0], precision) for i in range(m)]

    updated = own.copy()
    found = loss.update_rows(block, 0, m, loss.partners(partners), updated, step)
    for i in np.flatnonzero(block.row_counts):
        mean, spread = expected[i]
        np.testing.assert_allclose(updated.location[i], mean, rtol=2e-4, atol=2e-5)
        reached = updated.scale[i] if covariance == "diagonal" else updated.covariance[i]
        np.testing.assert_allclose(reached, spread, rtol=2e-4, atol=2e-5)
    if implicit:
        told = sums[:, shape.line.told_places(np.arange(2 * rank))]
        columns = [
            np.unique(block.codes[lo:hi] >> 1)
            for lo, hi in zip(block.row_pointers, block.row_pointers[1:], strict=False)
        ]
        np.testing.assert_allclose(told, [partners.implicit[some].sum(axis=0) for some in columns], atol=1e-5)

    _, data = twins.row_sums(*arguments, twins.own_lines(shape, updated), table, kappa, 8)
    linear = 0.0
    for l, (i, code) in enumerate(zip(np.repeat(np.arange(m), block.row_counts), block.codes, strict=True)):
        weight = 1.0 if block.weights is None else block.weights[l]
        linear += 0.5 * kappa * weight * (1.0 if code & 1 else -1.0) * _score(updated, partners, i, code >> 1)
    np.testing.assert_allclose(data - linear, found.data, rtol=1e-5)


def _score(rows, cols, i, j):
    score = rows.mean[i] @ cols.mean[j]
    return score + rows.intercept[i] + cols.intercept[j] if rows.has_intercept else score
