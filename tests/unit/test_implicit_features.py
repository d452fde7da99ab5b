"""Implicit features: the kernel, the fit's residuals and moments by hand, and an objective that never rises."""

import warnings

import numpy as np
import pytest
from fitting import MONOTONE, simulated
from hypothesis import given, settings
from hypothesis import strategies as st
from test_kernels import name
from test_objective import config_of

from onebit_spark import NotConverged, Terms, fit_arrays
from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.features import RIDGE, add_implicit_sums, gram_matrix, newcomer_means, prior_means, sent_vectors
from onebit_spark.core.losses import OTHER, SIDES
from onebit_spark.core.posterior import RowPosterior
from onebit_spark.core.priors import PRIORS
from onebit_spark.core.solver import solve
from onebit_spark.engines.threads import local_engine

SHAPE = (9, 7)


def cells(n=40, seed=0):
    """Some ratings; cells repeat, row 3 and column 2 have none."""
    rng = np.random.default_rng(seed)
    rows, cols = rng.integers(SHAPE[0], size=n), rng.integers(SHAPE[1], size=n)
    rows[rows == 3], cols[cols == 2] = 4, 5
    return rows, cols, rng.integers(2, size=n).astype(bool)


def features(rows, cols, shape=SHAPE):
    """F_ij = |Ω_i|^{−½} where row i has rated column j."""
    rated = np.zeros(shape)
    rated[rows, cols] = 1.0
    return rated / np.sqrt(np.maximum(rated.sum(axis=1, keepdims=True), 1.0))


def with_implicit(implicit, rank):
    """A posterior whose ``implicit`` is given."""
    n = len(implicit)
    return RowPosterior(np.zeros((n, rank)), np.ones((n, rank)), "spread", False, implicit)


@given(st.integers(1, 80), st.integers(0, 2**31), st.integers(1, 4))
@settings(max_examples=30, deadline=None)
def test_means_and_directions_against_matrices(n, seed, rank):
    rows, cols, positive = cells(n, seed)
    rng = np.random.default_rng(seed)
    block = RatingBlock.from_coordinates(rows, cols, positive, SHAPE)
    partners, own = rng.normal(size=(SHAPE[1], 6 * rank)), rng.normal(size=(SHAPE[0], 6 * rank))
    weights, residuals, gradients, steps = np.split(partners[:, : 4 * rank], 4, axis=1)
    old, means = own.copy(), rng.normal(size=(SHAPE[0], rank))
    before = means.copy()
    f, rated = features(rows, cols), np.zeros(SHAPE)
    rated[rows, cols] = 1.0
    count = rated.sum(axis=1)[:, None]
    columns = with_implicit(partners, rank)
    add_implicit_sums(block, 0, SHAPE[0], sent_vectors(columns), own, means)
    np.testing.assert_allclose(means - before, f @ weights, atol=1e-12)
    np.testing.assert_allclose(prior_means(block, columns), f @ weights, atol=1e-12)
    expected = old.copy()  # w, r and d stay
    expected[:, 2 * rank : 3 * rank] = (rated @ residuals - RIDGE * old[:, :rank]) / (count + RIDGE)
    expected[:, 4 * rank :] = f @ np.hstack([gradients, steps]) / np.sqrt(np.maximum(count, 1))
    np.testing.assert_allclose(own, np.where(count > 0, expected, old), atol=1e-12)
    np.testing.assert_array_equal(block.distinct_counts, rated.sum(axis=1))


@pytest.mark.parametrize("intercepts", [True, False])
@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("loss", MONOTONE, ids=name)
def test_the_objective_never_rises(loss, prior, intercepts):
    data = simulated("B3", shape=(60, 40))
    config = config_of(loss, prior=prior, intercepts=intercepts, implicit_features=True, max_iter=60, tol=0)
    history = np.array(fit_arrays(*data, config).objective_history)
    assert np.all(np.diff(history) <= 1e-9 * np.abs(history[1:]))


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_a_fit_that_has_converged_stays_where_it_is(precision):
    """Gradients and steps of the weights are then rounding errors, which must not be taken for directions."""
    config = config_of(MONOTONE[0], implicit_features=True, max_iter=300, tol=0, precision=precision)
    history = np.array(fit_arrays(*simulated("B2", shape=(28, 18)), config).objective_history)
    least = 1e-7 if precision == "float32" else 1e-12
    np.testing.assert_allclose(history[100:], history[100], rtol=least)


@pytest.mark.parametrize("loss", MONOTONE, ids=name)
def test_the_second_moments_by_hand(loss):
    """S_k = Σ E(L_ik − p_ik)² + Σ E(R_jk − q_jk)² + ρ(‖W_k‖² + ‖V_k‖²) with the latest weights; and the residuals."""
    rows, cols, labels = simulated("B2", shape=(30, 20))
    block = RatingBlock.from_coordinates(rows, cols, labels > 0, (30, 20))
    config = config_of(loss, implicit_features=True, max_iter=6, tol=0, rank=3)
    engine = local_engine(block)
    outcome = solve(engine, config, gauge=False)
    f = {"rows": features(rows, cols, (30, 20)), "cols": features(cols, rows, (20, 30))}
    second = np.zeros(3)
    for side in SIDES:
        posterior, used = engine.posteriors[side], engine.posteriors[OTHER[side]].implicit[:, :3]
        means = f[side] @ used
        counts = np.maximum(engine.runner.ratings[side].distinct_counts, 1)[:, None]
        np.testing.assert_allclose(posterior.implicit[:, 3:6] * np.sqrt(counts), posterior.mean - means, atol=1e-5)
        variance = posterior.spread.astype(float) ** 2
        second += np.sum((posterior.mean - means) ** 2 + variance, axis=0) + RIDGE * np.sum(used**2, axis=0)
    np.testing.assert_allclose(outcome.hierarchy.moments.factor, second, rtol=1e-4)


def test_numbering_and_threads_are_irrelevant():
    rows, cols, labels = simulated("B2", shape=(50, 30))
    config = config_of(MONOTONE[0], implicit_features=True, max_iter=8, tol=0)
    fit = fit_arrays(rows, cols, labels, config, threads=1)
    order, names = np.random.default_rng(0).permutation(len(rows)), np.random.default_rng(1).permutation(50)
    other = fit_arrays(names[rows][order], cols[order], labels[order], config, threads=2)
    np.testing.assert_allclose(other.objective_history, fit.objective_history, rtol=1e-6)
    np.testing.assert_allclose(other.score(names[rows], cols), fit.score(rows, cols), atol=1e-4)


def test_a_repeated_rating_does_not_change_what_was_rated():
    """Twice the same cell: the label counts twice, the feature once."""
    rows, cols, positive = cells(30, 2)
    once = RatingBlock.from_coordinates(rows, cols, positive, SHAPE)
    twice = RatingBlock.from_coordinates(np.tile(rows, 2), np.tile(cols, 2), np.tile(positive, 2), SHAPE)
    partners = with_implicit(np.random.default_rng(0).normal(size=(SHAPE[1], 4)), 2)
    means = [prior_means(block, partners) for block in (once, twice)]
    np.testing.assert_array_equal(*means)


def test_a_newcomer_is_expected_to_go_on_like_others():
    rows, cols, positive = cells(40, 3)
    block = RatingBlock.from_coordinates(rows, cols, positive, SHAPE)
    rng = np.random.default_rng(1)
    partners, centre, typical = rng.normal(size=(SHAPE[1], 4)), rng.normal(size=2), 4.0
    found = newcomer_means(block, with_implicit(partners, 2), centre, typical)
    rated = np.zeros(SHAPE)
    rated[rows, cols] = 1.0
    counts = rated.sum(axis=1)
    assert (counts < typical).any()
    assert (counts > typical).any()
    assert (counts == 0).any()
    for i, n in enumerate(counts):
        whole = rated[i] @ partners[:, :2]
        told = whole / np.sqrt(n) if n >= typical else whole / np.sqrt(typical) + (1 - n / typical) * centre
        np.testing.assert_allclose(found[i], told, atol=1e-12)


def test_where_the_ratings_are_is_learnt_from():
    """Two groups rate different columns, by coins. Ten more columns are rated by 300 of 400 rows, each by its group.

    Of the others nothing but coins is known, and yet what they say of these ten follows from which columns they rated.
    """
    rng = np.random.default_rng(0)
    group = np.arange(400) % 2
    rows = np.repeat(np.arange(400), 6)
    cols = 10 + 20 * np.repeat(group, 6) + rng.integers(20, size=len(rows))
    labels = rng.choice([-1, 1], size=len(rows))
    known, fresh = (index.ravel() for index in np.indices((300, 10))), np.repeat(np.arange(300, 400), 10)
    row, col = known
    rows, cols, labels = np.append(rows, row), np.append(cols, col), np.append(labels, _says(row, col, group))
    asked = np.tile(np.arange(10), 100)
    right = {}
    for on in (False, True):
        fit = fit_arrays(rows, cols, labels, config_of(MONOTONE[0], implicit_features=on, max_iter=60))
        right[on] = np.mean(fit.predict(fresh, asked) == _says(fresh, asked, group))
    assert right[False] < 0.65  # a coin: ½
    assert right[True] > 0.85


def _says(row, col, group):
    """Odd columns are liked by one group, even ones by the other."""
    return 1 - 2 * ((group[row] + col) % 2)


def test_certificates_that_need_a_prior_before_the_sample_are_not_given():
    rows, cols, labels = simulated("B2", shape=(40, 30))
    config = config_of(MONOTONE[0], implicit_features=True, max_iter=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConverged)
        assert fit_arrays(rows, cols, labels, config, certify=Terms()).certificates == []
        split = fit_arrays(rows, cols, labels, config, certify=Terms(prior_split=0.5)).certificates
    assert [item.name for item in split] == ["prior_split"]


@pytest.mark.parametrize("n", [0, 1, 3, 4, 5, 130])
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_the_gram_matrix_is_the_product(n, precision):
    table = np.random.default_rng(n).normal(size=(n, 14)).astype(precision)
    part = table[:, 3:10]  # not contiguous
    np.testing.assert_allclose(gram_matrix(part), part.astype(np.float64).T @ part.astype(np.float64), atol=1e-12)
