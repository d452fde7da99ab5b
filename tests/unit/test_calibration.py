"""A calibration finds the map that made the labels, and leaves the order of the scores alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit

from onebit_spark.core import prediction
from onebit_spark.core.prediction import Calibration


def sample(logit, noise, n=30_000):
    rng = np.random.default_rng(4)
    scores, variances = rng.normal(scale=1.5, size=n), rng.uniform(0.01, 1.0, n)
    truth = expit(logit(scores / np.sqrt(noise + variances)))
    return scores, variances, rng.random(n) < truth, truth


@pytest.mark.parametrize(
    ("logit", "noise"),
    [
        (lambda t: 1.3 * t, 0.6),
        (lambda t: 0.3 * t, 0.05),
        (lambda t: 2 * np.tanh(3 * t) + 0.1 * t, 1.0),
        (lambda t: np.where(t > 0, 2.0, 0.5) * t, 0.4),
    ],
    ids=["steep", "flat", "bent", "broken at 0"],
)
def test_the_map_that_made_the_labels_is_found(logit, noise):
    scores, variances, positive, truth = sample(logit, noise)
    found = Calibration.fit(scores, variances, positive.astype(float), (~positive).astype(float))
    p = found.probability(scores, variances)
    assert np.mean(np.abs(p - truth)) < 0.015
    assert prediction.reliability(np.where(positive, 1, -1), p).error < 0.01


def test_lines_may_stand_for_many_ratings():
    scores, variances, positive, _ = sample(lambda t: 1.3 * t, 0.6, 5_000)
    one = Calibration.fit(scores, variances, positive.astype(float), (~positive).astype(float))
    lines = np.repeat(scores, 2), np.repeat(variances, 2), np.repeat(positive, 2)
    twice = Calibration.fit(*lines[:2], lines[2] * 0.5, ~lines[2] * 0.5)
    np.testing.assert_allclose(one.probability(scores, variances), twice.probability(scores, variances), atol=0.01)


@settings(max_examples=30)
@given(
    centre=st.floats(-3, 3),
    shift=st.floats(-3, 3),
    slope=st.floats(-2, 4),
    n=st.integers(2, 3000),
    seed=st.integers(0, 2**32),
)
def test_a_probability_is_above_half_exactly_where_the_score_is_positive(centre, shift, slope, n, seed):
    """Whatever the labels say: mostly one class, or the wrong way round."""
    rng = np.random.default_rng(seed)
    scores, variances = rng.normal(centre, 1.0, n), rng.uniform(0.01, 1.0, n)
    positive = rng.random(n) < expit(shift + slope * scores)
    found = Calibration.fit(scores, variances, positive.astype(float), (~positive).astype(float))
    asked = np.concatenate([scores, -scores, [1e-6, -1e-6, 50.0, -50.0]])
    p = found.probability(asked, np.resize(variances, len(asked)))
    assert np.array_equal(p > 0.5, asked > 0)
    assert found.probability(np.zeros(2), np.array([0.1, 2.0])).tolist() == [0.5, 0.5]
    ascending = found.probability(np.sort(scores), np.full(n, 0.3))
    assert (np.diff(ascending) >= 0).all()


def test_separated_classes_and_inverted_scores_stay_finite_and_monotone():
    scores = np.linspace(-2, 2, 200)
    for positive in (scores > 0, scores < 0):
        found = Calibration.fit(scores, np.full(200, 0.1), positive.astype(float), (~positive).astype(float))
        p = found.probability(scores, np.full(200, 0.1))
        assert np.isfinite(p).all()
        assert (np.diff(p) >= 0).all()


def test_a_calibration_replaces_the_losses_own_probability():
    scores, variances = np.linspace(-3, 3, 7), np.linspace(0.1, 2, 7)
    own = Calibration(8 / np.pi, [-9.0, 9.0], [-9.0 * np.sqrt(8 / np.pi), 9.0 * np.sqrt(8 / np.pi)])
    expected = prediction.probability("logistic", scores, variances)
    np.testing.assert_allclose(own.probability(scores, variances), expected, rtol=1e-12)
    np.testing.assert_allclose(prediction.probability("hinge", scores, variances, own), expected, rtol=1e-12)
    assert prediction.score_noise("logistic") == pytest.approx(own.noise)
    assert prediction.score_noise("hinge", own) == own.noise


def test_reliability_by_hand():
    curve = prediction.reliability([1, -1, 1, 1], [0.01, 0.02, 0.99, 1.0])
    np.testing.assert_allclose(curve.n, [2, 2])
    np.testing.assert_allclose(curve.probability, [0.015, 0.995])
    np.testing.assert_allclose(curve.frequency, [0.5, 1.0])
    assert curve.error == pytest.approx(0.5 * 0.485 + 0.5 * 0.005)
    rng = np.random.default_rng(0)
    p = expit(rng.normal(size=100_000))
    assert prediction.reliability(np.where(rng.random(100_000) < p, 1, -1), p).error < 0.01
