"""TemperatureScaling finds what was put in, leaves calibrated labels alone, and keeps signs and order of scores."""

import math

import numpy as np
import pytest
from scipy.special import expit

from onebit_spark.core.losses import LOSSES
from onebit_spark.core.prediction import BINS, WIDEST, HoldoutLoss, TemperatureScaling, margin_of_bins

NOISE = LOSSES["logistic"].score_noise  # 8/π


def holdout(noise, temperature, n=40_000, weight=1.0, seed=0):
    """Ratings with P(y) = ε/2 + (1 − ε) σ(τ y z), z ~ N(0, 2²), each of the same weight, as a histogram of margins."""
    rng = np.random.default_rng(seed)
    z = 2.0 * rng.normal(size=n)
    signs = np.where(rng.random(n) < 0.5 * noise + (1 - noise) * expit(temperature * z), 1, -1)
    margins, _ = np.histogram(signs * z / math.sqrt(NOISE), np.linspace(-WIDEST, WIDEST, BINS + 1))
    return HoldoutLoss(0.0, 0.0, weight * n, 0, n, weight * margins.astype(float))


@pytest.mark.parametrize(("noise", "temperature"), [(0.2, 1.0), (0.1, 1.5), (0.0, 0.6), (0.3, 0.8)])
def test_what_was_put_in_is_found(noise, temperature):
    found = holdout(noise, temperature).temperature_scaling(NOISE)
    assert found.noise == pytest.approx(noise, abs=0.02)
    assert found.temperature == pytest.approx(temperature, rel=0.07)


def test_it_is_the_most_likely():
    """No neighbour has a lower loss, by the formula."""
    told = holdout(0.2, 1.3)
    found, z = told.temperature_scaling(NOISE), margin_of_bins() * math.sqrt(NOISE)

    def loss(noise, temperature):
        return -told.margins @ np.log(0.5 * noise + (1 - noise) * expit(temperature * z)) / told.n

    least = loss(found.noise, found.temperature)
    for step in (0.01, -0.01):
        assert loss(found.noise + step, found.temperature) > least
        assert loss(found.noise, found.temperature * (1 + step)) > least


def test_calibrated_labels_are_left_alone():
    """By chance the gain is above its standard error now and then; never by much."""
    found = [holdout(0.0, 1.0, 5000, seed=seed).temperature_scaling(NOISE) for seed in range(20)]
    assert sum(one is None for one in found) >= 14
    assert all(one.noise < 0.03 and 0.9 < one.temperature < 1.12 for one in found if one is not None)


def test_few_ratings_say_nothing():
    """Half of this gain is within the standard error of eight ratings."""
    assert HoldoutLoss.of_sums(np.zeros(5 + BINS)).temperature_scaling(NOISE) is None
    assert holdout(0.05, 1.0, n=8).temperature_scaling(NOISE) is None


def test_weights_are_no_ratings():
    """A hundred times the weight is as much evidence as before."""
    for seed in range(10):
        once, heavy = (holdout(0.0, 1.0, 5000, w, seed).temperature_scaling(NOISE) for w in (1.0, 100.0))
        assert (once is None) == (heavy is None)


@pytest.mark.parametrize(
    "told", [TemperatureScaling(0.2, 1.3), TemperatureScaling(0.0, 0.7), TemperatureScaling(0.5, 3.0)]
)
def test_the_stored_calibration_is_the_formula(told):
    scores = np.concatenate([np.linspace(-30, 30, 1201), [0.0, 1e-6, -1e-6]])
    for variance in (0.0, 0.8, 5.0):
        variances = np.full(len(scores), variance)
        found = told.calibration(NOISE).probability(scores, variances)
        z = scores / np.sqrt(1 + math.pi * variance / 8)
        np.testing.assert_allclose(found, 0.5 * told.noise + (1 - told.noise) * expit(told.temperature * z), atol=2e-3)
        assert found[1201] == 0.5
        assert np.array_equal(np.sign(found - 0.5), np.sign(scores))
        assert np.all(np.diff(found[:1201]) >= 0)
