"""The draws: their law, their independence of blocks and ranges, and the split's coins."""

import numpy as np
import pytest

from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.posterior import RowPosterior, packed_size
from onebit_spark.core.randomness import Draws, Split, count_errors, fill_lanes, fill_normals, stream, uniform

M1, M2, D = 12, 9, 4


def posterior(rng, n, kind, has_intercept):
    location = rng.normal(size=(n, D))
    if kind == "spread":
        return RowPosterior(location, rng.uniform(0.1, 1.0, (n, D)), kind, has_intercept)
    scale = np.empty((n, packed_size(D)))
    for i in range(n):
        root = np.tril(rng.normal(size=(D, D)))
        scale[i] = (root @ root.T)[np.tril_indices(D)]
    return RowPosterior(location, scale, kind, has_intercept)


def ratings(rng, n=60):
    rows, cols = rng.integers(M1, size=n), rng.integers(M2, size=n)
    return rows, cols, rng.random(n) < 0.5


@pytest.mark.parametrize("kind", ["spread", "covariance"])
@pytest.mark.parametrize("has_intercept", [False, True])
def test_the_gibbs_risk_against_plain_monte_carlo(kind, has_intercept):
    """20,000 pairs (L_i, R_j) for each of 60 ratings, drawn by numpy from the full covariances."""
    rng = np.random.default_rng(3)
    rows, cols = posterior(rng, M1, kind, has_intercept), posterior(rng, M2, kind, has_intercept)
    i, j, positive = ratings(rng)
    expected = []
    for a, b, up in zip(i, j, positive, strict=True):
        x = rng.multivariate_normal(rows.location[a], rows.covariance[a], 20_000)
        z = rng.multivariate_normal(cols.location[b], cols.covariance[b], 20_000)
        u = x[:, 0] + z[:, 0] + np.sum(x[:, 1:] * z[:, 1:], axis=1) if has_intercept else np.sum(x * z, axis=1)
        expected.append(np.mean((u > 0) != up))
    block = RatingBlock.from_coordinates(i, j, positive, (M1, M2))
    counted = count_errors(block, 0, M1, np.arange(M1), rows, cols, Draws(5, 20_000))
    assert counted.ratings == 60
    assert counted.errors / (60 * 20_000) == pytest.approx(np.mean(expected), abs=5 * 0.5 / np.sqrt(60 * 20_000))


def test_draws_do_not_depend_on_blocks_or_ranges():
    rng = np.random.default_rng(0)
    rows, cols = posterior(rng, M1, "spread", True), posterior(rng, M2, "spread", True)
    i, j, positive = ratings(rng)
    whole = RatingBlock.from_coordinates(i, j, positive, (M1, M2))
    draws = Draws(1, 50, unseen_by=Split(2, 0.3))
    expected = count_errors(whole, 0, M1, np.arange(M1), rows, cols, draws)
    parts = [count_errors(whole, lo, hi, np.arange(M1), rows, cols, draws) for lo, hi in ((0, 5), (5, M1))]
    assert tuple(map(sum, zip(*parts, strict=True))) == expected
    members = rng.permutation(M1)[:7]  # a block of some rows in another order
    found = np.zeros(2, int)
    for some in (members, np.setdiff1d(np.arange(M1), members)):
        inside = np.isin(i, some)
        local = np.full(M1, -1)
        local[some] = np.arange(len(some))
        block = RatingBlock.from_coordinates(local[i[inside]], j[inside], positive[inside], (len(some), M2))
        found += count_errors(block, 0, len(some), some.astype(np.int64), rows.take(some), cols, draws)
    assert tuple(found) == expected
    assert count_errors(whole, 0, M1, np.arange(M1), rows, cols, Draws(2, 50, Split(2, 0.3))).errors != expected.errors


def test_the_split_is_a_fair_coin_that_no_label_moves():
    rng = np.random.default_rng(1)
    n, split = 20_000, Split(11, 0.3)
    i, j = rng.integers(M1, size=n), rng.integers(400, size=n)
    blocks = [
        RatingBlock.from_coordinates(i, j, labels, (M1, 400)) for labels in (rng.random(n) < 0.5, np.zeros(n) > 0)
    ]
    chosen = [split.part_of(block, np.arange(M1)) for block in blocks]
    np.testing.assert_array_equal(chosen[0].row_pointers, chosen[1].row_pointers)
    assert chosen[0].n_ratings / n == pytest.approx(0.3, abs=5 * np.sqrt(0.21 / n))
    rest = count_errors(
        blocks[0], 0, M1, np.arange(M1), posterior(rng, M1, "spread", False), posterior(rng, 400, "spread", False),
        Draws(0, 1, unseen_by=split),
    ).ratings  # fmt: skip
    assert chosen[0].n_ratings + rest == n
    with pytest.raises(ValueError, match="fraction"):
        Split(0, 1.0)


def first(row, position):
    """A stream's first state; compiled functions hand 64-bit integers back as Python's own."""
    return np.uint64(stream(7, row, position))


def test_normals_of_streams_side_by_side_are_those_of_each():
    states = np.array([first(row, 3) for row in range(32)])
    for size, n in ((12, 32), (11, 32), (5, 3), (1, 1)):
        before, out = states.copy(), np.empty((size, 32))
        for _ in range(50):
            fill_lanes(states, n, out, np.empty((4, 32)))
            for k in range(n):
                expected = np.empty(size)
                before[k] = fill_normals(before[k], expected)
                np.testing.assert_allclose(out[:, k], expected, rtol=0, atol=1e-14)
        np.testing.assert_array_equal(states, before)


def test_streams_are_uniform_normal_and_unrelated():
    firsts = np.array([[uniform(first(row, position)) for position in range(200)] for row in range(200)])
    n = firsts.size
    assert firsts.mean() == pytest.approx(0.5, abs=5 * np.sqrt(1 / 12 / n))
    assert firsts.var() == pytest.approx(1 / 12, rel=0.05)
    for a, b in ((firsts[1:], firsts[:-1]), (firsts[:, 1:], firsts[:, :-1]), (firsts, firsts.T)):
        keep = a != b
        assert abs(np.corrcoef(a[keep], b[keep])[0, 1]) < 5 / np.sqrt(n)
    normals = np.empty(100_001)
    fill_normals(first(0, 0), normals)
    assert normals.mean() == pytest.approx(0, abs=5 / np.sqrt(normals.size))
    assert normals.var() == pytest.approx(1, abs=5 * np.sqrt(2 / normals.size))
    assert np.mean(np.abs(normals) < 1.959964) == pytest.approx(0.95, abs=5 * np.sqrt(0.05 * 0.95 / normals.size))
    assert abs(np.corrcoef(normals[1:], normals[:-1])[0, 1]) < 5 / np.sqrt(normals.size)
