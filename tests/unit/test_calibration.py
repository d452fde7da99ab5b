"""A calibration finds the map that made the labels, and leaves the order of the scores alone."""

import numpy as np
import pytest
from scipy.special import expit

from onebit_spark import metrics, prediction
from onebit_spark.calibration import Calibration


def sample(truth, n=60_000):
    rng = np.random.default_rng(4)
    scores, variances = rng.normal(scale=1.5, size=n), rng.uniform(0.01, 1.0, n)
    positive = rng.random(n) < truth.probability(scores, variances)
    return scores, variances, positive


@pytest.mark.parametrize(
    "truth", [Calibration(0.4, 1.3, 0.6), Calibration(-1.0, 0.3, 0.05), Calibration(0.0, 3.0, 4.0)]
)
def test_the_map_that_made_the_labels_is_found(truth):
    scores, variances, positive = sample(truth)
    found = Calibration.fit(scores, variances, positive.astype(float), (~positive).astype(float))
    p = found.probability(scores, variances)
    np.testing.assert_allclose(p, truth.probability(scores, variances), atol=0.02)
    assert metrics.reliability(np.where(positive, 1, -1), p).error < 0.01


def test_lines_may_stand_for_many_ratings():
    scores, variances, positive = sample(Calibration(0.4, 1.3, 0.6), 5_000)
    one = Calibration.fit(scores, variances, positive.astype(float), (~positive).astype(float))
    twice = Calibration.fit(scores, variances, 2.0 * positive, 2.0 * ~positive)
    np.testing.assert_allclose(list(one.as_dict().values()), list(twice.as_dict().values()), rtol=0.02, atol=0.01)


def test_separated_classes_and_inverted_scores_stay_finite_and_monotone():
    scores = np.linspace(-2, 2, 200)
    for positive in (scores > 0, scores < 0):
        found = Calibration.fit(scores, np.full(200, 0.1), positive.astype(float), (~positive).astype(float))
        p = found.probability(scores, np.full(200, 0.1))
        assert np.isfinite(p).all()
        assert (np.diff(p) >= 0).all()


def test_the_logistic_probability_is_of_this_form():
    scores, variances = np.linspace(-3, 3, 7), np.linspace(0.1, 2, 7)
    own = Calibration(0.0, np.sqrt(8 / np.pi), 8 / np.pi)
    expected = prediction.probability("logistic", scores, variances)
    np.testing.assert_allclose(own.probability(scores, variances), expected, rtol=1e-12)
    np.testing.assert_allclose(prediction.probability("hinge", scores, variances, own), expected, rtol=1e-12)
    assert prediction.score_noise("logistic") == pytest.approx(own.noise)
    assert prediction.score_noise("hinge", own) == own.noise


def test_reliability_by_hand():
    curve = metrics.reliability([1, -1, 1, 1], [0.01, 0.02, 0.99, 1.0])
    np.testing.assert_allclose(curve.n, [2, 2])
    np.testing.assert_allclose(curve.probability, [0.015, 0.995])
    np.testing.assert_allclose(curve.frequency, [0.5, 1.0])
    assert curve.error == pytest.approx(0.5 * 0.485 + 0.5 * 0.005)
    rng = np.random.default_rng(0)
    p = expit(rng.normal(size=100_000))
    assert metrics.reliability(np.where(rng.random(100_000) < p, 1, -1), p).error < 0.01
