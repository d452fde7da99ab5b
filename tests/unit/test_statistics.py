"""SideStatistics, what the driver learns from a half step."""

from dataclasses import fields, replace

import numpy as np
import pytest
from support.fitting import image
from support.variants import make_posterior, statistics

from onebit_spark.core.losses import RowPrior, RowSums
from onebit_spark.core.posterior import RowMap
from onebit_spark.core.statistics import SideStatistics, relative_change


def moved(rng, rows, intercepts, kind="spread"):
    """A posterior, and the means that it had before its update."""
    posterior = make_posterior(rng, rows, kind, intercepts, np.float64)
    return posterior.location + rng.normal(scale=0.2, size=posterior.location.shape), posterior


def matrix(rows, cols, intercepts):
    """M = b + d + L Rᵀ, formed."""
    if not intercepts:
        return rows @ cols.T
    return rows[:, :1] + cols[:, 0] + rows[:, 1:] @ cols[:, 1:].T


@pytest.mark.parametrize("intercepts", [False, True])
@pytest.mark.parametrize("every", [True, False])
def test_relative_change_against_the_whole_matrix(intercepts, every):
    """Rows and columns without ratings are left out."""
    rng = np.random.default_rng(0)
    (old_rows, rows), (old_cols, cols) = moved(rng, 9, intercepts), moved(rng, 7, intercepts)
    seen = every | (np.arange(9) != 4)
    seen_too = every | (np.arange(7) > 1)
    new = matrix(rows.location, cols.location, intercepts)[np.ix_(seen, seen_too)]
    old = matrix(old_rows, old_cols, intercepts)[np.ix_(seen, seen_too)]
    parts = statistics(old_rows, rows, active=seen), statistics(old_cols, cols, active=seen_too)
    assert relative_change(*parts, intercepts) == pytest.approx(
        np.sum((new - old) ** 2) / np.sum(new**2), rel=1e-12
    )


def test_no_change_and_no_matrix():
    rng = np.random.default_rng(2)
    _, rows = moved(rng, 9, True)
    still = statistics(rows.location.copy(), rows)
    assert relative_change(still, still, True) == 0
    empty = statistics(rows.location * 0, rows.take(np.arange(9)), active=np.zeros(9, bool))
    assert relative_change(empty, empty, True) == 0


@pytest.mark.parametrize("kind", ["spread", "covariance"])
@pytest.mark.parametrize("features", [False, True])
def test_sums_over_the_rows_with_ratings(kind, features):
    rng = np.random.default_rng(3)
    old, posterior = moved(rng, 8, True, kind)
    line = rng.normal(size=(1, posterior.dimension))
    active = np.arange(8) % 3 > 0
    known = (
        rng.normal(size=posterior.location.shape)
        if features
        else np.zeros(posterior.location.shape)
    )
    prior = RowPrior(line, np.ones_like(line))
    found = statistics(old, posterior, prior.shifted_by(known) if features else prior, active)
    new = posterior.location[active]
    covariance = posterior.covariance[active]
    assert found.count == found.moments.count == 5
    np.testing.assert_allclose(found.covariance, covariance.sum(axis=0))
    np.testing.assert_allclose(found.moments.locations[1:, 1:], new.T @ new)
    unexplained = (posterior.location - known)[active]  # the mean of the intercepts is no feature's
    second = unexplained.T @ unexplained + covariance.sum(axis=0)
    np.testing.assert_allclose(found.moments.second[0, 1:], unexplained.sum(axis=0))
    np.testing.assert_allclose(found.moments.second[1:, 1:], second)
    np.testing.assert_allclose(found.moments.factors, second[1:, 1:])
    assert (found.log_volume, found.data) == (1.5, 2.5)


@pytest.mark.parametrize("intercepts", [False, True])
def test_the_sum_of_the_parts_is_the_whole(intercepts):
    rng = np.random.default_rng(4)
    old, posterior = moved(rng, 10, intercepts)
    prior = RowPrior(rng.normal(size=posterior.location.shape), np.ones(posterior.location.shape))
    active = np.arange(10) != 2
    parts = [
        statistics(
            old[lo:hi], posterior.take(np.arange(lo, hi)), prior.take(slice(lo, hi)), active[lo:hi]
        )
        for lo, hi in ((0, 1), (1, 4), (4, 10))
    ]
    total = parts[0] + parts[1] + parts[2]
    whole = statistics(old, posterior, prior, active)
    for field in fields(SideStatistics):
        # Of_rows was given the same sums three times
        times = 3 if field.name in ("log_volume", "data") else 1
        np.testing.assert_allclose(
            getattr(total, field.name), times * getattr(whole, field.name), atol=1e-13
        )


@pytest.mark.parametrize("intercepts", [False, True])
def test_the_statistics_of_mapped_rows(intercepts):
    """Prior means and weights are mapped with the rows; a map of the other side comes with it."""
    rng = np.random.default_rng(5)
    old, posterior = moved(rng, 9, intercepts, "covariance")
    size = posterior.dimension
    rank = posterior.rank
    first = int(intercepts)
    posterior = replace(posterior, implicit=rng.normal(size=(9, 6 * rank)))
    own, other = (np.eye(size) for _ in range(2))
    own[first:, first:], other[first:, first:] = rng.normal(size=(2, rank, rank))
    by = RowMap(own, np.eye(size)[0] * intercepts, other)
    explained = rng.normal(size=(9, size))
    implicit_mean = rng.normal(size=(9, rank))
    features = rng.normal(size=(9, 3))
    line = RowPrior(rng.normal(size=(1, size)), np.ones((1, size)))
    counts = np.arange(9)

    def found(old, posterior, line, explained, implicit_mean):
        return SideStatistics.of_rows(
            old,
            posterior,
            line.shifted_by(explained, implicit_mean),
            counts,
            RowSums(1.5, 2.5),
            features,
        )

    mapped = found(
        old @ own + by.shift,
        image(by, posterior),
        RowPrior(line.mean @ own + by.shift, line.precision),
        explained @ own,
        implicit_mean @ own[first:, first:],
    )
    predicted = found(old, posterior, line, explained, implicit_mean).mapped(by)
    for field in fields(SideStatistics):
        # The kernel adds it up
        difference = 8 * np.linalg.slogdet(own)[1] if field.name == "log_volume" else 0.0
        np.testing.assert_allclose(
            getattr(predicted, field.name) - difference,
            getattr(mapped, field.name),
            rtol=1e-10,
            atol=1e-10,
        )
