"""The confidences' histogram against the plain formulas, for any blocks; and the thresholds that are read off it."""

import numpy as np
import pytest
from test_draws import M1, M2, posterior, ratings

from onebit_spark import FitConfig, fit_arrays
from onebit_spark.core import prediction
from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.losses import LOSSES
from onebit_spark.core.posterior import RowPosterior
from onebit_spark.core.prediction import (
    EVERYTHING,
    HISTOGRAM_BINS,
    LEVEL_STEP,
    LOWEST_OCTAVE,
    PER_OCTAVE,
    ConfidenceThresholds,
    bin_of,
    confidence,
    count_confidences,
)


def histogram(z):
    inside = np.floor((np.log2(np.maximum(z, 1e-300)) - LOWEST_OCTAVE) * PER_OCTAVE)
    return np.bincount(np.clip(inside, 0, HISTOGRAM_BINS - 1).astype(int), minlength=HISTOGRAM_BINS)


@pytest.mark.parametrize("kind", ["spread", "covariance"])
@pytest.mark.parametrize("has_intercept", [False, True])
@pytest.mark.parametrize("noise", [0.0, 8 / np.pi])
def test_the_kernel_against_prediction(kind, has_intercept, noise):
    rng = np.random.default_rng(4)
    rows, cols = posterior(rng, M1, kind, has_intercept), posterior(rng, M2, kind, has_intercept)
    i, j, positive = ratings(rng, 500)
    block = RatingBlock.from_coordinates(i, j, positive, (M1, M2))
    pairs = rows.take(i), cols.take(j)
    z = np.abs(prediction.score(*pairs)) / np.sqrt(noise + prediction.variance(*pairs))
    np.testing.assert_array_equal(count_confidences(block, 0, M1, np.arange(M1), rows, cols, noise), histogram(z))
    np.testing.assert_allclose(
        confidence(prediction.score(*pairs), np.sqrt(prediction.variance(*pairs)), noise), z, rtol=1e-12
    )


@pytest.mark.parametrize("stride", [1, 3, 50])
def test_the_counts_do_not_depend_on_blocks_or_ranges(stride):
    rng = np.random.default_rng(0)
    rows, cols = posterior(rng, M1, "covariance", True), posterior(rng, M2, "covariance", True)
    i, j, positive = ratings(rng)
    whole = RatingBlock.from_coordinates(i, j, positive, (M1, M2))
    numbers = np.arange(M1)
    expected = count_confidences(whole, 0, M1, numbers, rows, cols, 1.0, stride)
    assert abs(expected.sum() - len(i) / stride) <= (0 if stride == 1 else M1)
    parts = [count_confidences(whole, lo, hi, numbers, rows, cols, 1.0, stride) for lo, hi in ((0, 5), (5, M1))]
    np.testing.assert_array_equal(sum(parts), expected)
    some = rng.permutation(M1)
    local = np.argsort(some)
    block = RatingBlock.from_coordinates(local[i], j, positive, (M1, M2))
    found = count_confidences(block, 0, M1, some, rows.take(some), cols, 1.0, stride)
    np.testing.assert_array_equal(found, expected)


def test_every_third_rating_of_a_row():
    """Row i begins at the position −i modulo 3."""
    rng = np.random.default_rng(5)
    rows, cols = posterior(rng, 4, "spread", True), posterior(rng, M2, "spread", True)
    i, j = np.repeat(np.arange(4), 8), np.tile(np.arange(8), 4)
    block = RatingBlock.from_coordinates(i, j, np.ones(32, bool), (4, M2))
    here = (i + j) % 3 == 0
    pairs = rows.take(i[here]), cols.take(j[here])
    z = np.abs(prediction.score(*pairs)) / np.sqrt(1.0 + prediction.variance(*pairs))
    np.testing.assert_array_equal(count_confidences(block, 0, 4, np.arange(4), rows, cols, 1.0, 3), histogram(z))


def test_without_spread_or_noise_a_score_is_certain_unless_it_is_zero():
    exact = [RowPosterior(np.array(x)[:, None], np.zeros((2, 1)), "spread", False) for x in ([1.0, 0.0], [3.0, -2.0])]
    block = RatingBlock.from_coordinates(np.array([0, 0, 1]), np.array([0, 1, 0]), np.ones(3, bool), (2, 2))
    counts = count_confidences(block, 0, 2, np.arange(2), *exact, 0.0)
    assert (counts[0], counts[-1]) == (1, 2)
    assert confidence(np.array([3.0, 0.0]), np.zeros(2), 0.0).tolist() == [np.inf, 0.0]


def test_bins_are_where_they_say():
    for z, expected in (
        (0.0, 0),
        (2.0**LOWEST_OCTAVE, 0),
        (1.0, -LOWEST_OCTAVE * PER_OCTAVE),
        (1e300, HISTOGRAM_BINS - 1),
        (np.inf, HISTOGRAM_BINS - 1),
    ):
        assert bin_of(z) == expected


def test_each_level_answers_two_percent_more():
    rng = np.random.default_rng(2)
    z = rng.gamma(1.5, size=200_000)
    thresholds = ConfidenceThresholds.of_histogram(histogram(z))
    answered = np.array([np.mean(z >= t) for t in thresholds.values])
    np.testing.assert_allclose(answered, thresholds.shares, atol=2e-5)
    assert thresholds.shares[0] == 1
    few = np.searchsorted(-answered, -0.001)  # above, single ratings count
    assert np.all(answered[:few] / answered[1 : few + 1] < LEVEL_STEP * 1.02)
    assert thresholds.shares[-1] < 2e-4
    levels = thresholds.level(z[:1000])
    for j in (0, 5, 100):
        np.testing.assert_array_equal(levels >= j, z[:1000] >= thresholds.values[j])
    assert ConfidenceThresholds.from_dict(thresholds.as_dict()) == thresholds


def test_ties_and_few_ratings_make_a_short_ladder():
    counts = np.zeros(HISTOGRAM_BINS, np.int64)
    counts[[100, 900]] = 70, 30
    assert ConfidenceThresholds.of_histogram(counts).shares == (1.0, 1.0, 0.3)
    assert EVERYTHING.level(np.array([0.0, 5.0])).tolist() == [0, 0]
    for shares, thresholds in (((0.9,), (0.0,)), ((1.0,), (0.1,)), ((1.0, 0.5), (0.0, 0.0)), ((1.0,), (0.0, 1.0))):
        with pytest.raises(ValueError, match="confidence threshold"):
            ConfidenceThresholds(shares, thresholds)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_fit_keeps_the_ladder_of_its_own_ratings(loss):
    rng = np.random.default_rng(1)
    i, j = rng.integers(30, size=900), rng.integers(20, size=900)
    labels = np.where(rng.normal(size=30)[i] * rng.normal(size=20)[j] + rng.normal(size=900) > 0, 1, -1)
    fit = fit_arrays(i, j, labels, FitConfig(loss=loss, rank=2, max_iter=5, tol=0), shape=(33, 21))
    z = fit.confidence(i, j)
    assert len(fit.confidence_thresholds.shares) > 50
    np.testing.assert_allclose(
        [np.mean(z >= t) for t in fit.confidence_thresholds.values], fit.confidence_thresholds.shares, atol=2 / 900
    )
