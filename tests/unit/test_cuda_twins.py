"""What the GPU computes, without a GPU: twins of its kernels against the kernels of the CPU, and where numbers are."""

import cudatwins as twins
import numpy as np
import pytest
from fitting import random_posterior

from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.config import CUDA_MOST_RANK, FitConfig
from onebit_spark.core.losses import HalfStep, RowPrior
from onebit_spark.core.posterior import packed_size
from onebit_spark.engines.cuda.shapes import MOST_MOMENTS, LineShape, Shape

FORMS = [
    (rank, intercepts, implicit) for rank in (1, 4, 7, 10) for intercepts in (True, False) for implicit in (True, False)
]


@pytest.mark.parametrize("fixed", [0, 1])
@pytest.mark.parametrize("implicit", [True, False])
def test_every_sum_has_a_place_of_its_own(fixed, implicit):
    for rank in range(1, CUDA_MOST_RANK + 1):
        check_places(Shape(rank + fixed, fixed, implicit))


def check_places(shape):
    line = shape.line
    places = [
        np.arange(packed_size(shape.size + 1)),
        twins.signed_places(line, shape.packed + np.arange(shape.size + 1)),
        twins.implicit_places(line, np.arange(4 * shape.rank)) if shape.implicit else np.empty(0, int),
    ]
    flat = np.concatenate(places)
    assert len(np.unique(flat)) == len(flat)
    assert flat.min() >= 0
    assert flat.max() < line.sums
    assert line.moments <= MOST_MOMENTS
    assert line.moments % 4 == 0
    assert line.implicit % 4 != 3
    assert line.width % 4 == 0  # lines begin at 16 bytes
    down, across = shape.grid
    assert down % across == 0  # a line of a system has its place in all columns of threads
    assert max(shape.root_bytes, shape.map_bytes) <= 227 * 1024  # shared memory of a block


@pytest.mark.parametrize("columns", [1, 5, 16, 17, 38, 70])
def test_products_have_places_too(columns):
    line = LineShape.of_columns(columns)
    assert columns <= line.width <= line.sums


class Case:
    """Ratings, posteriors and a step of the CPU; and the twins' lines and sums."""

    def __init__(self, config, weighted, kappa=0.8, relaxation=1.0):
        rng, self.m, c, n = np.random.default_rng(config.rank), 9, 6, 60
        self.config, self.loss, self.kappa, self.relaxation = config, config.make_loss(), kappa, relaxation
        rows, cols = rng.integers(0, self.m - 1, n), rng.integers(0, c, n)
        weights = rng.uniform(0.2, 3, n).astype(np.float32) if weighted else None
        self.block = block = RatingBlock.from_coordinates(rows, cols, rng.random(n) < 0.5, (self.m, c), weights)
        self.own, self.partners = (random_posterior(rng, rows, config.form) for rows in (self.m, c))
        size = config.dimension
        self.prior = RowPrior(rng.normal(size=(1, size)), rng.uniform(0.5, 2, (1, size)))
        self.mean, self.g = self.prior.mean[0], self.prior.precision[0]
        self.shape = Shape.of(self.own.form)
        again = np.append(False, (block.codes[1:] >> 1) == (block.codes[:-1] >> 1))
        again[block.row_pointers[:-1][block.row_counts > 0]] = False
        self.codes = block.codes.astype(np.int64) | again.astype(np.int64) << 31
        self.arguments = self.shape.line, block.row_pointers, self.codes, block.weights
        self.table = twins.other_lines(self.shape, self.partners)

    def updated(self, **how):
        """The rows and the sums of the CPU."""
        step = HalfStep("rows", 0, self.kappa, self.prior, 1.0, relaxation=self.relaxation, want_data=True, **how)
        rows = self.own.copy()
        return rows, self.loss.update_rows(self.block, 0, self.m, self.loss.other_lines(self.partners), rows, step)

    @property
    def rated(self):
        return np.flatnonzero(self.block.row_counts)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("covariance", ["full", "diagonal"])
@pytest.mark.parametrize(("rank", "intercepts", "implicit"), FORMS)
def test_twin_against_the_kernels_of_the_cpu(rank, intercepts, implicit, covariance, weighted):
    """Lines, sums by tasks of 8 ratings, and the solution of every row, against ``Loss.update_rows``."""
    config = FitConfig(rank=rank, intercepts=intercepts, implicit_features=implicit, covariance=covariance)
    case = Case(config, weighted)
    own, partners, block, shape, kappa, m = case.own, case.partners, case.block, case.shape, case.kappa, case.m
    sums, _ = twins.row_sums(*case.arguments, twins.row_lines(shape, own), case.table, kappa, 8)
    expected = [twins.solved(shape, sums[i], case.mean, np.diag(case.g)) for i in range(m)]

    updated, found = case.updated()
    for i in case.rated:
        mean, spread = expected[i]
        np.testing.assert_allclose(updated.location[i], mean, rtol=2e-4, atol=2e-5)
        reached = updated.scale[i] if covariance == "diagonal" else updated.covariance[i]
        np.testing.assert_allclose(reached, spread, rtol=2e-4, atol=2e-5)
    if implicit:
        implicit_sums = sums[:, twins.implicit_places(shape.line, np.arange(4 * rank))]
        columns = [
            np.unique(block.codes[lo:hi] >> 1)
            for lo, hi in zip(block.row_pointers, block.row_pointers[1:], strict=False)
        ]
        expected = [partners.implicit[some, : 4 * rank].sum(axis=0) for some in columns]
        np.testing.assert_allclose(implicit_sums, expected, atol=1e-5)

    _, data = twins.row_sums(*case.arguments, twins.row_lines(shape, updated), case.table, kappa, 8)
    linear = 0.0
    for l, (i, code) in enumerate(zip(np.repeat(np.arange(m), block.row_counts), block.codes, strict=True)):
        weight = 1.0 if block.weights is None else block.weights[l]
        linear += 0.5 * kappa * weight * (1.0 if code & 1 else -1.0) * _score(updated, partners, i, code >> 1)
    np.testing.assert_allclose(data - linear, found.data, rtol=1e-5)


def _score(rows, cols, i, j):
    score = rows.mean[i] @ cols.mean[j]
    return score + rows.intercept[i] + cols.intercept[j] if rows.has_intercept else score
