"""Davenport's estimator and the simple baselines against general-purpose optimisers and optimality conditions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paper.baselines import davenport
from paper.baselines.davenport import _Projection, fit_davenport, shrink_to_sum
from paper.baselines.simple import fit_logistic, fit_majority
from scipy.optimize import minimize
from scipy.special import expit


def nuclear(x):
    return np.linalg.svd(x, compute_uv=False).sum()


def ratings(seed=0, shape=(7, 5), n=60):
    """More ratings than cells: some cells are rated several times, with both labels."""
    rng = np.random.default_rng(seed)
    rows, cols = rng.integers(0, shape[0], n), rng.integers(0, shape[1], n)
    return rows, cols, rng.choice([-1, 1], n)


def gradient(x, rows, cols, labels):
    slopes = np.zeros_like(x)
    np.add.at(slopes, (rows, cols), -labels * expit(-labels * x[rows, cols]))
    return slopes


@given(st.lists(st.floats(0, 10), min_size=1, max_size=8), st.floats(0.01, 20))
def test_shrinking_is_the_projection_onto_the_simplex(values, total):
    """KKT: what remains adds up to the total, and every value lost the same θ or all that it had."""
    values = np.array(values)
    kept = shrink_to_sum(values, total)
    if values.sum() <= total:
        assert kept is values
        return
    assert kept.sum() == pytest.approx(total)
    lost = values - kept
    theta = lost.max() if np.all(kept == 0) else lost[kept > 0].max()
    np.testing.assert_allclose(lost[kept > 0], theta, atol=1e-9)
    assert np.all(values[kept == 0] <= theta + 1e-9)


def test_the_projection_onto_the_ball_is_the_nearest_point():
    """⟨x − p, z − p⟩ ≤ 0 for every z of the ball: its extreme points are radius·u vᵀ, the worst that of x − p."""
    x = np.random.default_rng(1).normal(size=(6, 4))
    p = _Projection(2.0, None)(x)
    assert nuclear(p) == pytest.approx(2.0)
    assert 2.0 * np.linalg.norm(x - p, 2) - np.vdot(x - p, p) <= 1e-9
    inside = 0.1 * x
    np.testing.assert_array_equal(_Projection(2.0, None)(inside), inside)


@pytest.mark.parametrize("radius", [0.05, 0.8, 1e9])
def test_the_truncated_svd_projects_like_the_whole_one(monkeypatch, radius):
    """From a rank that is far too small on to all singular values, with the radius a share of the nuclear norm."""
    x = np.random.default_rng(2).normal(size=(60, 50))
    radius *= nuclear(x)
    whole = _Projection(radius, None)(x)
    monkeypatch.setattr(davenport, "DENSE_SIDE", 0)
    truncated = _Projection(radius, None)
    truncated.rank = 1
    np.testing.assert_allclose(truncated(x), whole, atol=1e-8)


@pytest.mark.parametrize("radius", [1.0, 6.0])
def test_davenport_reaches_the_optimum(radius):
    """f is convex, so its linearisation bounds f(x) − min f by ⟨∇f, x⟩ + τ‖∇f‖₂ (the gap of Frank and Wolfe)."""
    rows, cols, labels = ratings()
    fit = fit_davenport(rows, cols, labels, (7, 5), radius, tol=1e-7)
    slopes = gradient(fit.matrix, rows, cols, labels)
    assert fit.converged
    assert fit.stationarity <= 1e-7
    assert nuclear(fit.matrix) <= radius * (1 + 1e-9)
    assert np.vdot(slopes, fit.matrix) + radius * np.linalg.norm(slopes, 2) <= 1e-5
    assert fit.objective == pytest.approx(np.logaddexp(0, -labels * fit.matrix[rows, cols]).sum())


def test_without_active_constraints_davenport_is_the_logit_of_the_shares():
    rows, cols, labels = ratings(n=400)
    fit = fit_davenport(rows, cols, labels, (7, 5), 1e6, tol=1e-9)
    positive, negative = np.zeros((7, 5)), np.zeros((7, 5))
    np.add.at(positive, (rows[labels > 0], cols[labels > 0]), 1)
    np.add.at(negative, (rows[labels < 0], cols[labels < 0]), 1)
    assert min(positive.min(), negative.min()) > 0  # else the logit is infinite
    np.testing.assert_allclose(fit.matrix, np.log(positive / negative), atol=1e-6)


def test_davenport_with_the_box_agrees_with_a_general_optimiser():
    """Factors of full rank express the ball: ‖L Rᵀ‖_* ≤ τ if ‖L‖² + ‖R‖² ≤ 2τ, with equality at the best ones."""
    rows, cols, labels = ratings(3, (3, 3), 25)
    radius, bound = 3.0, 0.8
    fit = fit_davenport(rows, cols, labels, (3, 3), radius, bound, tol=1e-6)

    def matrix(z):
        return z[:9].reshape(3, 3) @ z[9:].reshape(3, 3).T

    def loss(z):
        return np.logaddexp(0, -labels * matrix(z)[rows, cols]).sum()

    starts = [np.random.default_rng(seed).normal(size=18) * 0.5 for seed in range(4)]
    constraints = [
        {"type": "ineq", "fun": lambda z: 2 * radius - z @ z},
        {"type": "ineq", "fun": lambda z: bound**2 - matrix(z).ravel() ** 2},
    ]
    options = {"maxiter": 1000, "ftol": 1e-12}
    best = min(minimize(loss, z, constraints=constraints, method="SLSQP", options=options).fun for z in starts)
    assert np.abs(fit.matrix).max() <= bound
    assert fit.objective == pytest.approx(best, rel=1e-5)


def test_the_majority_is_the_share_of_positives():
    fit = fit_majority([1, 1, 1, -1], (2, 2))
    assert fit.score([0, 1], [1, 0]) == pytest.approx(np.log(3.5 / 1.5))
    assert fit_majority([1, -1], (1, 1)).score(0, 0) > 0


@pytest.mark.parametrize("rank", [0, 2])
def test_the_ridge_logistic_gradient_vanishes_where_it_stops(rank):
    """The gradient by differences of the objective written down anew."""
    rows, cols, labels = ratings(4)
    fit = fit_logistic(rows, cols, labels, (7, 5), rank=rank, ridge=0.5)
    assert fit.converged
    assert fit.row_factors.shape == (7, rank)

    def objective(z):
        c, b, d, left, right = np.split(z, np.cumsum([1, 7, 5, 7 * rank]))
        u = c + b[rows] + d[cols] + np.sum(left.reshape(7, rank)[rows] * right.reshape(5, rank)[cols], axis=1)
        return np.logaddexp(0, -labels * u).sum() + 0.25 * np.sum(z[1:] ** 2)

    parts = (fit.row_intercepts, fit.col_intercepts, fit.row_factors.ravel(), fit.col_factors.ravel())
    z = np.concatenate([[fit.offset], *parts])
    assert fit.objective == pytest.approx(objective(z))
    steps = 1e-5 * np.eye(len(z))
    slopes = [(objective(z + step) - objective(z - step)) / 2e-5 for step in steps]
    assert np.abs(slopes).max() < 1e-2
    u = fit.score(rows, cols)
    assert np.logaddexp(0, -labels * u).sum() + 0.25 * np.sum(z[1:] ** 2) == pytest.approx(fit.objective)
    if rank:
        assert fit.objective < fit_logistic(rows, cols, labels, (7, 5), ridge=0.5).objective
