"""The step of the implicit weights: against least squares in its span, and against conjugate gradients."""

from dataclasses import fields

import numpy as np
import pytest
from test_implicit_features import SHAPE, cells, features

from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.features import RIDGE, CoefStep, add_implicit_sums, coef_gram, leave_residuals, sent_vectors
from onebit_spark.core.losses import RowPrior
from onebit_spark.core.losses.base import RowSums
from onebit_spark.core.posterior import RowMap, RowPosterior
from onebit_spark.core.statistics import SideStatistics

RANK = 3
W, R, Z, D, S, Q = (slice(n * RANK, (n + 1) * RANK) for n in range(6))


def lines(rng, n):
    """A posterior without intercepts and with random vectors in ``implicit``."""
    location, spread = rng.normal(size=(n, RANK)), rng.random((n, RANK))
    return RowPosterior(location, spread, "spread", False, rng.normal(size=(n, 6 * RANK)))


def objective(residuals, weights):
    return np.sum(residuals**2) + RIDGE * np.sum(weights**2)


@pytest.mark.parametrize("last", ["none", "some", "the gradient"])
def test_the_best_step_is_the_least_squares_solution_in_the_span(last):
    """min ‖R − YC‖² + ρ‖W + XC‖²; the last step may be 0, or lie in the span of the gradient."""
    rng = np.random.default_rng(0)
    f, mean = rng.random((12, 8)), rng.normal(size=(12, RANK))
    w, z, d = rng.normal(size=(3, 8, RANK))
    d = {"none": 0 * d, "some": d, "the gradient": z @ rng.normal(size=(RANK, RANK))}[last]
    x, r = np.hstack([z, d]), mean - f @ w
    y, whole = f @ x, np.hstack([w, x])
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
    undefined = CoefStep.best(nothing * np.nan, nothing[:, :RANK], weights)  # the objective will add_implicit_sums
    assert not undefined.matrix.any()


def test_lines_move_by_themselves():
    rng = np.random.default_rng(2)
    step, rows = CoefStep(rng.normal(size=(2 * RANK, RANK))), lines(rng, 7)
    a, b = np.split(step.matrix, 2)
    old, moved = rows.implicit.copy(), rows.copy()
    step.of_coef.apply_to(moved, 2, 5)
    expected = old.copy()
    change = (old[:, Z] @ a + old[:, D] @ b)[2:5]
    expected[2:5, W] += change
    expected[2:5, D] = change
    np.testing.assert_allclose(moved.implicit, expected, atol=1e-12)
    moved = rows.copy()
    step.of_residuals.apply_to(moved, 2, 5)
    expected = old.copy()
    change = (old[:, S] @ a + old[:, Q] @ b)[2:5]
    expected[2:5, R] -= change
    np.testing.assert_allclose(moved.implicit[:, : Q.start], expected[:, : Q.start], atol=1e-12)  # Q is read no more


def test_a_step_before_a_map_is_the_step_after_it():
    rng = np.random.default_rng(3)
    step = CoefStep(rng.normal(size=(2 * RANK, RANK)))
    own, other = rng.normal(size=(2, RANK, RANK))
    targets, holders = RowMap(own, np.zeros(RANK), other), RowMap(other, np.zeros(RANK), own)
    for by, part in ((targets, "of_residuals"), (holders, "of_coef")):
        first = lines(rng, 5)
        second = first.copy()
        getattr(step.before(targets), part).apply_to(first, 0, 5)
        by.apply_to(first, 0, 5)
        by.apply_to(second, 0, 5)
        getattr(step, part).apply_to(second, 0, 5)
        np.testing.assert_allclose(first.implicit, second.implicit, atol=1e-9)


@pytest.mark.parametrize("intercepts", [False, True])
def test_the_statistics_after_a_step_are_those_of_the_moved_prior_means(intercepts):
    rng = np.random.default_rng(4)
    n, size, counts = 10, RANK + intercepts, np.arange(10)
    rows = RowPosterior(
        rng.normal(size=(n, size)), rng.random((n, size)), "spread", intercepts, rng.normal(size=(n, 6 * RANK))
    )  # fmt: skip
    line, told = RowPrior(np.zeros((1, size)), np.ones((1, size))), rng.normal(size=(n, RANK))
    given = rng.random((n, 2))
    weights = coef_gram(lines(rng, 20))

    def found(told):
        prior = line.shifted_by(np.zeros((n, size)), told)
        return SideStatistics.of_rows(rows.location, rows, prior, counts, RowSums(0.0, 0.0), given)

    step = found(told).best_step(weights)
    added = rows.implicit[:, 4 * RANK :] @ step.matrix * np.sqrt(counts)[:, None]
    before, after, expected = found(told), found(told).after(step), found(told + added)
    assert np.abs(added).max() > 0.1
    np.testing.assert_allclose(after.distance_gram, expected.distance_gram, atol=1e-10)
    np.testing.assert_allclose(after.feature_cross, expected.feature_cross[:, :size], atol=1e-10)
    for field in fields(SideStatistics):
        if field.name not in ("distance_gram", "feature_cross"):
            np.testing.assert_array_equal(getattr(after, field.name), getattr(before, field.name))


def told_by_half_steps(block, mean, steps):
    """The weights of the columns after so many steps, as half steps and the driver make them; the rows do not move."""
    m, n = block.n_rows, block.n_columns
    rows, cols = (RowPosterior(np.zeros((k, RANK)), np.ones((k, RANK)), "spread", False) for k in (m, n))
    rows, cols, turned = rows.with_implicit(6), cols.with_implicit(6), block.transpose()
    rows.location[:] = mean
    prior, found = RowPrior(np.zeros((1, RANK)), np.ones((1, RANK))), []
    for _ in range(steps + 1):  # the first half step knows no direction yet
        told = np.zeros((m, RANK))
        add_implicit_sums(block, 0, m, sent_vectors(cols), rows.implicit, told)
        leave_residuals(block, 0, m, rows, told)
        known = prior.shifted_by(np.zeros((m, RANK)), told)
        sums = SideStatistics.of_rows(mean, rows, known, block.distinct_counts, RowSums(0.0, 0.0))
        step = sums.best_step(coef_gram(cols))
        step.of_residuals.apply_to(rows, 0, m)
        step.of_coef.apply_to(cols, 0, n)
        found.append(cols.implicit[:, W].copy())
        sent = sent_vectors(rows)
        add_implicit_sums(turned, 0, n, sent, cols.implicit, np.zeros((n, RANK)))
    return found[1:]


def conjugate_gradients(f, mean, precondition, steps):
    """(FᵀF + ρI)W = FᵀM by preconditioned conjugate gradients for all K columns at once (O'Leary, 1980)."""
    system, right, found = f.T @ f + RIDGE * np.eye(f.shape[1]), f.T @ mean, []
    w = np.zeros_like(right)
    residual = right - system @ w
    z = residual / precondition
    d = z
    for _ in range(steps):
        w = w + d @ np.linalg.solve(d.T @ system @ d, d.T @ residual)
        new = right - system @ w
        z_new = new / precondition
        d = z_new + d @ np.linalg.solve(z.T @ residual, z_new.T @ new)
        residual, z = new, z_new
        found.append(w)
    return found


def test_half_steps_with_fixed_means_are_conjugate_gradients():
    shape = (60, 40)
    rng = np.random.default_rng(5)
    rows, cols = rng.integers(shape[0], size=500), np.minimum(rng.exponential(8, size=500), 39).astype(int)
    block = RatingBlock.from_coordinates(rows, cols, rng.integers(2, size=500).astype(bool), shape)
    f = features(rows, cols, shape)
    mean = rng.normal(size=(shape[0], RANK)) * (f.sum(axis=1) > 0)[:, None]
    counts = block.transpose().distinct_counts[:, None]
    found = told_by_half_steps(block, mean, 8)
    expected = conjugate_gradients(f, mean, counts + RIDGE, 8)
    for step, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        rated = counts[:, 0] > 0
        np.testing.assert_allclose(mine[rated], theirs[rated], atol=1e-7, err_msg=f"step {step + 1}")
    exact = np.linalg.solve(f.T @ f + RIDGE * np.eye(shape[1]), f.T @ mean)
    errors = [np.abs(mine - exact).max() for mine in found]
    assert errors[-1] < 1e-3 * errors[0]


def test_the_steps_lead_to_the_ridge_regression():
    """Also where the directions soon fill the whole space: 18 numbers, and 6 more in every step."""
    rows, cols, positive = cells(60, 1)
    block, f = RatingBlock.from_coordinates(rows, cols, positive, SHAPE), features(rows, cols)
    mean = np.random.default_rng(6).normal(size=(SHAPE[0], RANK)) * (f.sum(axis=1) > 0)[:, None]
    found = told_by_half_steps(block, mean, 12)
    values = [objective(mean - f @ w, w) for w in found]
    assert np.all(np.diff(values) <= 1e-12 * values[0])
    exact = np.linalg.solve(f.T @ f + RIDGE * np.eye(SHAPE[1]), f.T @ mean)
    np.testing.assert_allclose(found[-1], exact, atol=1e-6)
