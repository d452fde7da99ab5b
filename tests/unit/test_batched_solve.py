"""The parts of the row kernels: systems of eight rows at once, the logistic bound, the table that a rating reads."""

import numpy as np
import pytest
from readable import tau

from onebit_spark.core.losses import LOSSES
from onebit_spark.core.losses.batched_solve import (
    LANES,
    cholesky,
    cholesky_solve,
    half_log_det_inverse,
    sweep_all,
    sweep_arrays,
)
from onebit_spark.core.losses.logistic import softplus_sum, tau_weights
from onebit_spark.core.posterior import RowPosterior


def systems(rng, size):
    root = rng.normal(size=(LANES, size, size))
    return root @ root.transpose(0, 2, 1) + 0.1 * np.eye(size)


def solved(matrices, right):
    """Solutions by Cholesky's method and by sweeps, packed inverses and ½ log det of the inverses, lane by lane."""
    size = matrices.shape[1]
    i, j = np.tril_indices(size)
    c, b = matrices[:, i, j].T.copy(), right.T.copy()
    cholesky(c, size)
    cholesky_solve(c, b, size)
    system, pivots, scratch = sweep_arrays(size)
    system[: len(i)], system[len(i) : -1] = matrices[:, i, j].T, right.T
    sweep_all(system, pivots, scratch, size)
    log_volume = np.array([half_log_det_inverse(pivots, lane) for lane in range(LANES)])
    return b.T, system[len(i) : -1].T, -system[: len(i)].T, log_volume


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 11, 33])
def test_eight_systems_at_once(size):
    rng = np.random.default_rng(size)
    matrices, right = systems(rng, size), rng.normal(size=(LANES, size))
    solution, swept, packed, log_volume = solved(matrices, right)
    i, j = np.tril_indices(size)
    expected = np.linalg.inv(matrices)
    for found in (solution, swept):
        np.testing.assert_allclose(found, np.einsum("bij,bj->bi", expected, right), rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(packed, expected[:, i, j], rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(log_volume, -0.5 * np.linalg.slogdet(matrices)[1], rtol=1e-10, atol=1e-12)


def test_a_row_does_not_see_its_neighbours():
    """The same system in every lane, beside others, even beside one that is not positive definite: the same bits."""
    rng = np.random.default_rng(1)
    matrices, right = systems(rng, 11), rng.normal(size=(LANES, 11))
    alone = solved(matrices, right)
    order = np.roll(np.arange(LANES), 3)
    beside = matrices[order]
    beside[0] = -np.eye(11)
    others = solved(beside, right[order])
    for lane in range(1, LANES):
        for new, old in zip(others, alone, strict=True):
            np.testing.assert_array_equal(new[lane], old[order[lane]])


def test_the_bound_of_the_logistic_loss():
    xi = np.concatenate([[0.0], np.logspace(-12, 3, 200)])
    weights = xi**2
    tau_weights(weights, len(weights), 2.0, None, 0)
    np.testing.assert_allclose(weights, 2.0 * tau(xi), rtol=1e-13, atol=0)
    for value in xi:
        expected = np.logaddexp(0.0, -value) + 0.5 * value
        assert softplus_sum(np.array([value**2]), 1, None, 0) == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("structure", ["full", "diagonal"])
@pytest.mark.parametrize("intercepts", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_rating_reads_one_line_that_begins_at_a_cache_line(loss, intercepts, structure):
    chosen = LOSSES[loss].from_options("mm", structure)
    posterior = RowPosterior.isotropic(np.ones((7, 10 + intercepts), np.float32), 0.5, chosen.kind, intercepts)
    table = chosen.other_lines(posterior)
    assert table.flags.c_contiguous
    assert table.ctypes.data % 64 == 0
