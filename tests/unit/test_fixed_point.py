"""Rows of a converged fit are the fixed points of their own updates."""

import warnings
from functools import cache

import numpy as np
import pytest

from onebit_spark import FitConfig, NotConverged, fit_arrays
from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.losses.base import other_location, other_std
from onebit_spark.predictor.new_ratings import converged_rows


def ratings(seed=8, n=600, shape=(25, 15)):
    rng = np.random.default_rng(seed)
    rows, cols = rng.integers(0, shape[0], n), rng.integers(0, shape[1], n)
    taste = rng.normal(size=shape[0])[rows] * rng.normal(size=shape[1])[cols] + 0.5 * rng.normal(size=n)
    return rows, cols, taste > -0.2


@cache
def fitted(**choices):
    """A fit, and its settings: both sides are looked at."""
    config = FitConfig(rank=2, alpha=5.0, beta=1.0, tol=1e-10, max_iter=300, implicit_features=False, **choices)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConverged)
        return fit_arrays(*ratings(), config, threads=1), config


def settled_and_fitted(side, **choices):
    """The fixed points, the fit's own rows, and what both were given."""
    fit, config = fitted(**choices)
    block = RatingBlock.from_coordinates(*ratings(), (25, 15))
    own, other = (fit.rows, fit.cols) if side == "rows" else (fit.cols, fit.rows)
    prior = fit.scales.row_prior(side)
    block = block if side == "rows" else block.transpose()
    settled = converged_rows(config.make_loss(), block, other, side, config.kappa, prior)
    return settled, own, other, block, prior, config


@pytest.mark.parametrize("side", ["rows", "cols"])
@pytest.mark.parametrize("intercepts", [True, False])
@pytest.mark.parametrize("covariance", ["full", "diagonal"])
def test_logistic_rows_of_a_converged_fit_are_reproduced(covariance, intercepts, side):
    settled, own, *_ = settled_and_fitted(side, covariance=covariance, intercepts=intercepts)
    np.testing.assert_allclose(settled.location, own.location, atol=1e-3)
    np.testing.assert_allclose(settled.std, own.std, atol=1e-3)


@pytest.mark.parametrize("side", ["rows", "cols"])
@pytest.mark.parametrize("intercepts", [True, False])
def test_hinge_rows_of_a_converged_fit_are_reproduced(intercepts, side):
    """Nearly: the update stops at the hinge's kinks, a few thousandths of a row's objective above its minimum."""
    settled, own, other, block, prior, config = settled_and_fitted(side, loss="hinge", intercepts=intercepts)
    z, s = other_location(other).astype(float), other_std(other).astype(float)
    row = np.repeat(np.arange(block.n_rows), block.row_counts)
    col, sign = block.codes >> 1, 2.0 * (block.codes & 1) - 1.0
    w = np.zeros((block.n_rows, z.shape[1]))
    np.add.at(w, row, config.kappa * np.sqrt(2 / np.pi) * s[col])

    def objective(location):
        x = np.insert(location, 0, 1.0, axis=1) if intercepts else location
        u = np.einsum("lk,lk->l", x[row], z[col])
        hinge = np.bincount(row, config.kappa * np.maximum(1 - sign * u, 0))
        penalty = w[:, int(intercepts) :] * np.abs(location) + 0.5 * prior.precision * (location - prior.mean) ** 2
        return hinge + penalty.sum(axis=1)

    np.testing.assert_allclose(objective(settled.location), objective(own.location), rtol=5e-3)
    np.testing.assert_allclose(settled.std, own.std, atol=1e-3)
