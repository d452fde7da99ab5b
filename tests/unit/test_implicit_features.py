"""Implicit features: kernel, residuals and moments by hand; the step of the weights against
conjugate gradients.
"""

import warnings
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fitting import MONOTONE, simulated
from support.variants import config_of, half_of, name

from onebit_spark import NotConverged, Terms, fit_arrays
from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.features import (
    RIDGE,
    CoefStep,
    add_implicit_sums,
    coef_gram,
    gram_matrix,
    leave_residuals,
    newcomer_means,
    prior_means,
    sent_vectors,
)
from onebit_spark.core.loss import RowSums
from onebit_spark.core.losses import OTHER, SIDES, RowPrior
from onebit_spark.core.posterior import RowPosterior
from onebit_spark.core.priors import PRIORS
from onebit_spark.core.solver import solve
from onebit_spark.core.statistics import SideStatistics
from onebit_spark.engines.threads import local_state

SHAPE = (9, 7)


def cells(n=40, seed=0):
    """Some ratings; cells repeat, row 3 and column 2 have none."""
    rng = np.random.default_rng(seed)
    rows = rng.integers(SHAPE[0], size=n)
    cols = rng.integers(SHAPE[1], size=n)
    rows[rows == 3] = 4
    cols[cols == 2] = 5
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
    partners = rng.normal(size=(SHAPE[1], 6 * rank))
    own = rng.normal(size=(SHAPE[0], 6 * rank))
    weights, residuals, gradients, steps = np.split(partners[:, : 4 * rank], 4, axis=1)
    old = own.copy()
    means = rng.normal(size=(SHAPE[0], rank))
    before = means.copy()
    f = features(rows, cols)
    rated = np.zeros(SHAPE)
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


@pytest.mark.parametrize(("prior", "intercepts"), half_of(PRIORS, [False, True]))
@pytest.mark.parametrize("loss", MONOTONE, ids=name)
def test_the_objective_never_rises(loss, prior, intercepts):
    data = simulated("B3", shape=(60, 40))
    config = config_of(
        loss, prior=prior, intercepts=intercepts, implicit_features=True, max_iter=40, tol=0
    )
    history = np.array(fit_arrays(*data, config).objective_history)
    assert np.all(np.diff(history) <= 1e-9 * np.abs(history[1:]))


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_a_fit_that_has_converged_stays_where_it_is(precision):
    """Gradients and steps of the weights are then rounding errors, which must not be taken for
    directions.
    """
    config = config_of(
        MONOTONE[0], implicit_features=True, max_iter=200, tol=0, precision=precision
    )
    history = np.array(fit_arrays(*simulated("B2", shape=(28, 18)), config).objective_history)
    least = 1e-7 if precision == "float32" else 1e-12
    np.testing.assert_allclose(history[100:], history[100], rtol=least)


@pytest.mark.parametrize("loss", MONOTONE, ids=name)
def test_the_second_moments_by_hand(loss):
    """S_k = Σ E(L_ik − p_ik)² + Σ E(R_jk − q_jk)² + ρ(‖W_k‖² + ‖V_k‖²) with the latest weights; and
    the residuals.
    """
    rows, cols, labels = simulated("B2", shape=(30, 20))
    block = RatingBlock.from_coordinates(rows, cols, labels > 0, (30, 20))
    config = config_of(loss, implicit_features=True, max_iter=6, tol=0, rank=3)
    state = local_state(block)
    outcome = solve(state, config, gauge=False)
    f = {"rows": features(rows, cols, (30, 20)), "cols": features(cols, rows, (20, 30))}
    second = np.zeros(3)
    for side in SIDES:
        posterior = state.posteriors[side]
        used = state.posteriors[OTHER[side]].implicit[:, :3]
        means = f[side] @ used
        counts = np.maximum(state.engine.ratings[side].distinct_counts, 1)[:, None]
        np.testing.assert_allclose(
            posterior.implicit[:, 3:6] * np.sqrt(counts), posterior.mean - means, atol=1e-5
        )
        variance = posterior.spread.astype(float) ** 2
        second += np.sum((posterior.mean - means) ** 2 + variance, axis=0) + RIDGE * np.sum(
            used**2, axis=0
        )
    np.testing.assert_allclose(outcome.hierarchy.moments.factor, second, rtol=1e-4)


def test_numbering_and_threads_are_irrelevant():
    rows, cols, labels = simulated("B2", shape=(50, 30))
    config = config_of(MONOTONE[0], implicit_features=True, max_iter=8, tol=0)
    fit = fit_arrays(rows, cols, labels, config, threads=1)
    order = np.random.default_rng(0).permutation(len(rows))
    names = np.random.default_rng(1).permutation(50)
    other = fit_arrays(names[rows][order], cols[order], labels[order], config, threads=2)
    np.testing.assert_allclose(other.objective_history, fit.objective_history, rtol=1e-6)
    np.testing.assert_allclose(other.score(names[rows], cols), fit.score(rows, cols), atol=1e-4)


def test_a_newcomer_is_expected_to_go_on_like_others():
    rows, cols, positive = cells(40, 3)
    block = RatingBlock.from_coordinates(rows, cols, positive, SHAPE)
    rng = np.random.default_rng(1)
    partners = rng.normal(size=(SHAPE[1], 4))
    centre = rng.normal(size=2)
    typical = 4.0
    found = newcomer_means(block, with_implicit(partners, 2), centre, typical)
    rated = np.zeros(SHAPE)
    rated[rows, cols] = 1.0
    counts = rated.sum(axis=1)
    assert (counts < typical).any()
    assert (counts > typical).any()
    assert (counts == 0).any()
    for i, n in enumerate(counts):
        whole = rated[i] @ partners[:, :2]
        implicit_mean = (
            whole / np.sqrt(n)
            if n >= typical
            else whole / np.sqrt(typical) + (1 - n / typical) * centre
        )
        np.testing.assert_allclose(found[i], implicit_mean, atol=1e-12)


def test_where_the_ratings_are_is_learnt_from():
    """Two groups rate different columns, by coins.

    Ten more columns are rated by 300 of 400 rows, each by its group.

    Of the others nothing but coins is known, and yet what they say of these ten follows from which
    columns they rated.
    """
    rng = np.random.default_rng(0)
    group = np.arange(400) % 2
    rows = np.repeat(np.arange(400), 6)
    cols = 10 + 20 * np.repeat(group, 6) + rng.integers(20, size=len(rows))
    labels = rng.choice([-1, 1], size=len(rows))
    known = (index.ravel() for index in np.indices((300, 10)))
    fresh = np.repeat(np.arange(300, 400), 10)
    row, col = known
    rows = np.append(rows, row)
    cols = np.append(cols, col)
    labels = np.append(labels, _says(row, col, group))
    asked = np.tile(np.arange(10), 100)
    right = {}
    for on in (False, True):
        fit = fit_arrays(
            rows, cols, labels, config_of(MONOTONE[0], implicit_features=on, max_iter=60)
        )
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


@pytest.mark.parametrize("n", [0, 1, 3, 4, 5, 130])
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_the_gram_matrix_is_the_product(n, precision):
    table = np.random.default_rng(n).normal(size=(n, 14)).astype(precision)
    part = table[:, 3:10]  # not contiguous
    np.testing.assert_allclose(
        gram_matrix(part), part.astype(np.float64).T @ part.astype(np.float64), atol=1e-12
    )


RANK = 3
W = slice(0, RANK)


def lines(rng, n):
    """A posterior without intercepts and with random vectors in ``implicit``."""
    location = rng.normal(size=(n, RANK))
    spread = rng.random((n, RANK))
    return RowPosterior(location, spread, "spread", False, rng.normal(size=(n, 6 * RANK)))


def objective(residuals, weights):
    return np.sum(residuals**2) + RIDGE * np.sum(weights**2)


@pytest.mark.parametrize("last", ["none", "some", "the gradient"])
def test_the_best_step_is_the_least_squares_solution_in_the_span(last):
    """min ‖R − YC‖² + ρ‖W + XC‖²; the last step may be 0, or lie in the span of the gradient."""
    rng = np.random.default_rng(0)
    f = rng.random((12, 8))
    mean = rng.normal(size=(12, RANK))
    w, z, d = rng.normal(size=(3, 8, RANK))
    d = {"none": 0 * d, "some": d, "the gradient": z @ rng.normal(size=(RANK, RANK))}[last]
    x = np.hstack([z, d])
    r = mean - f @ w
    y = f @ x
    whole = np.hstack([w, x])
    step = CoefStep.best(y.T @ y, y.T @ r, whole.T @ whole)
    stacked = np.vstack([y, np.sqrt(RIDGE) * x])
    exact = np.linalg.lstsq(stacked, np.vstack([r, -np.sqrt(RIDGE) * w]), rcond=1e-10)[0]
    np.testing.assert_allclose(x @ step.matrix, x @ exact, atol=1e-8)
    moved = np.hstack([w + x @ step.matrix, z, x @ step.matrix])
    np.testing.assert_allclose(step.moved(whole.T @ whole), moved.T @ moved, atol=1e-8)


def test_no_direction_gives_no_step():
    rng = np.random.default_rng(1)
    weights = np.zeros((3 * RANK, 3 * RANK))
    weights[:RANK, :RANK] = rng.random((RANK, RANK))
    nothing = np.zeros((2 * RANK, 2 * RANK))
    assert not CoefStep.best(nothing, nothing[:, :RANK], weights).matrix.any()
    # The objective will add_implicit_sums
    undefined = CoefStep.best(nothing * np.nan, nothing[:, :RANK], weights)
    assert not undefined.matrix.any()


@pytest.mark.parametrize("intercepts", [False, True])
def test_the_statistics_after_a_step_are_those_of_the_moved_prior_means(intercepts):
    rng = np.random.default_rng(4)
    n = 10
    size = RANK + intercepts
    counts = np.arange(10)
    rows = RowPosterior(
        rng.normal(size=(n, size)),
        rng.random((n, size)),
        "spread",
        intercepts,
        rng.normal(size=(n, 6 * RANK)),
    )
    line = RowPrior(np.zeros((1, size)), np.ones((1, size)))
    implicit_mean = rng.normal(size=(n, RANK))
    given = rng.random((n, 2))
    weights = coef_gram(lines(rng, 20))

    def found(implicit_mean):
        prior = line.shifted_by(np.zeros((n, size)), implicit_mean)
        return SideStatistics.of_rows(rows.location, rows, prior, counts, RowSums(0.0, 0.0), given)

    step = found(implicit_mean).best_step(weights)
    added = rows.implicit[:, 4 * RANK :] @ step.matrix * np.sqrt(counts)[:, None]
    before = found(implicit_mean)
    after = found(implicit_mean).after(step)
    expected = found(implicit_mean + added)
    assert np.abs(added).max() > 0.1
    np.testing.assert_allclose(after.distance_gram, expected.distance_gram, atol=1e-10)
    np.testing.assert_allclose(after.feature_cross, expected.feature_cross[:, :size], atol=1e-10)
    for field in fields(SideStatistics):
        if field.name not in ("distance_gram", "feature_cross"):
            np.testing.assert_array_equal(getattr(after, field.name), getattr(before, field.name))


def coef_by_half_steps(block, mean, steps):
    """The weights of the columns after so many steps, as half steps and the driver make them; the
    rows do not move.
    """
    m = block.n_rows
    n = block.n_columns
    rows, cols = (
        RowPosterior(np.zeros((k, RANK)), np.ones((k, RANK)), "spread", False) for k in (m, n)
    )
    rows = rows.with_implicit(6)
    cols = cols.with_implicit(6)
    turned = block.transpose()
    rows.location[:] = mean
    prior = RowPrior(np.zeros((1, RANK)), np.ones((1, RANK)))
    found = []
    for _ in range(steps + 1):  # the first half step knows no direction yet
        implicit_mean = np.zeros((m, RANK))
        add_implicit_sums(block, 0, m, sent_vectors(cols), rows.implicit, implicit_mean)
        leave_residuals(block, 0, m, rows, implicit_mean)
        known = prior.shifted_by(np.zeros((m, RANK)), implicit_mean)
        sums = SideStatistics.of_rows(mean, rows, known, block.distinct_counts, RowSums(0.0, 0.0))
        step = sums.best_step(coef_gram(cols))
        step.of_residuals.apply_to(rows, 0, m)
        step.of_coef.apply_to(cols, 0, n)
        found.append(cols.implicit[:, W].copy())
        sent = sent_vectors(rows)
        add_implicit_sums(turned, 0, n, sent, cols.implicit, np.zeros((n, RANK)))
    return found[1:]


def conjugate_gradients(f, mean, precondition, steps):
    """(FᵀF + ρI)W = FᵀM by preconditioned conjugate gradients for all K columns at once (O'Leary,
    1980).
    """
    system = f.T @ f + RIDGE * np.eye(f.shape[1])
    right = f.T @ mean
    found = []
    w = np.zeros_like(right)
    residual = right - system @ w
    z = residual / precondition
    d = z
    for _ in range(steps):
        w = w + d @ np.linalg.solve(d.T @ system @ d, d.T @ residual)
        new = right - system @ w
        z_new = new / precondition
        d = z_new + d @ np.linalg.solve(z.T @ residual, z_new.T @ new)
        residual = new
        z = z_new
        found.append(w)
    return found


def test_half_steps_with_fixed_means_are_conjugate_gradients():
    shape = (60, 40)
    rng = np.random.default_rng(5)
    rows = rng.integers(shape[0], size=500)
    cols = np.minimum(rng.exponential(8, size=500), 39).astype(int)
    block = RatingBlock.from_coordinates(rows, cols, rng.integers(2, size=500).astype(bool), shape)
    f = features(rows, cols, shape)
    mean = rng.normal(size=(shape[0], RANK)) * (f.sum(axis=1) > 0)[:, None]
    counts = block.transpose().distinct_counts[:, None]
    found = coef_by_half_steps(block, mean, 8)
    expected = conjugate_gradients(f, mean, counts + RIDGE, 8)
    for step, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        rated = counts[:, 0] > 0
        np.testing.assert_allclose(
            mine[rated], theirs[rated], atol=1e-7, err_msg=f"step {step + 1}"
        )
    exact = np.linalg.solve(f.T @ f + RIDGE * np.eye(shape[1]), f.T @ mean)
    errors = [np.abs(mine - exact).max() for mine in found]
    assert errors[-1] < 1e-3 * errors[0]


def test_the_steps_lead_to_the_ridge_regression():
    """Also where the directions soon fill the whole space: 18 numbers, and 6 more in every step."""
    rows, cols, positive = cells(60, 1)
    block = RatingBlock.from_coordinates(rows, cols, positive, SHAPE)
    f = features(rows, cols)
    mean = np.random.default_rng(6).normal(size=(SHAPE[0], RANK)) * (f.sum(axis=1) > 0)[:, None]
    found = coef_by_half_steps(block, mean, 12)
    values = [objective(mean - f @ w, w) for w in found]
    assert np.all(np.diff(values) <= 1e-12 * values[0])
    exact = np.linalg.solve(f.T @ f + RIDGE * np.eye(SHAPE[1]), f.T @ mean)
    np.testing.assert_allclose(found[-1], exact, atol=1e-6)
