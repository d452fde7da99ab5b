"""Held-out losses, temperature and the map of probabilities: against plain numpy and the law of the
labels.
"""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit
from support.fitting import simulated

from onebit_spark import FitConfig
from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.calibration import Calibration, TemperatureScaling
from onebit_spark.core.holdout import BINS, WIDEST, HoldoutLoss, margin_of_bins
from onebit_spark.core.losses import LOSSES, SIDES
from onebit_spark.core.randomness import Split
from onebit_spark.core.scores import (
    compute_probabilities,
    compute_scores,
    compute_variances,
    score_noise,
)
from onebit_spark.core.setup import loss_of
from onebit_spark.engines.threads import local_state
from onebit_spark.predict.metrics import reliability

SHAPE = (200, 150)


def engine_of(kind, weighted=False, **options):
    rows, cols, labels = simulated(kind, shape=SHAPE, fraction=0.3, **options)
    weights = (
        np.random.default_rng(0).gamma(1.0, 2.0, len(rows)).astype(np.float32) if weighted else None
    )
    return local_state(
        RatingBlock.from_coordinates(rows, cols, labels > 0, SHAPE, weights), threads=2
    )


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    "choices",
    [{}, {"covariance": "diagonal", "intercepts": False}, {"loss": "hinge"}],
    ids=["full", "diagonal", "hinge"],
)
def test_the_sums_are_those_of_the_ratings_that_were_not_chosen(choices, weighted):
    config = FitConfig(rank=3, **choices)
    state = engine_of("B2", weighted)
    split = Split(7, 0.9)
    state.start(config, loss_of(config))
    block = state.engine.ratings["rows"]
    posterior = {side: state.posterior(side) for side in SIDES}
    numbers = np.arange(block.n_rows)
    columns = np.arange(block.n_columns)
    kept, left = (split.part_of(block, numbers, columns, those) for those in (True, False))
    for i in numbers:  # each rating is in one of the two
        both = np.concatenate(
            [part.codes[part.row_pointers[i] : part.row_pointers[i + 1]] for part in (kept, left)]
        )
        np.testing.assert_array_equal(
            np.sort(both), block.codes[block.row_pointers[i] : block.row_pointers[i + 1]]
        )

    pairs = (
        posterior["rows"].take(np.repeat(numbers, left.row_counts)),
        posterior["cols"].take(left.codes >> 1),
    )
    scores = compute_scores(*pairs)
    variances = compute_variances(*pairs)
    signs = 2.0 * (left.codes & 1) - 1
    losses = LOSSES[config.loss].held_out(scores, variances, signs)
    weights = np.ones(len(losses)) if left.weights is None else left.weights.astype(float)
    mean = np.average(losses, weights=weights)
    found = state.holdout_loss(config.loss, posterior, split)
    assert found.loss == pytest.approx(mean, rel=1e-6)
    spread = math.sqrt(np.average((losses - mean) ** 2, weights=weights))
    assert found.standard_error == pytest.approx(spread / math.sqrt(len(losses)), rel=1e-5)
    assert (found.errors, found.n) == (np.count_nonzero(scores * signs <= 0), left.n_ratings)
    assert found.total_weight == pytest.approx(weights.sum())
    margins = signs * scores / np.sqrt(LOSSES[config.loss].score_noise + variances)
    edges = np.linspace(-WIDEST, WIDEST, BINS + 1)
    expected, _ = np.histogram(
        np.clip(margins, -WIDEST, np.nextafter(WIDEST, 0)), edges, weights=weights
    )
    # A margin at the edge of a bin may be rounded
    assert np.abs(found.margins - expected).sum() < 0.01 * weights.sum()
    assert found.margins.sum() == pytest.approx(weights.sum())


def test_sums_of_several_parts_are_added():
    rng = np.random.default_rng(1)
    parts = [
        HoldoutLoss(*rng.gamma(2.0, 1.0, 3), *map(int, rng.integers(1, 9, 2)), rng.random(BINS))
        for _ in range(3)
    ]
    total = HoldoutLoss.of_sums(np.sum([part.to_vector() for part in parts], axis=0))
    for name in ("total", "squares", "total_weight", "errors", "n"):
        assert getattr(total, name) == pytest.approx(sum(getattr(part, name) for part in parts))
    np.testing.assert_allclose(total.margins, np.sum([part.margins for part in parts], axis=0))


def test_bins_are_as_wide_as_they_are_far_apart():
    """A margin is counted in the bin whose middle is nearest, symmetrically around 0."""
    middle = margin_of_bins()
    np.testing.assert_allclose(middle, -middle[::-1], atol=1e-12)
    np.testing.assert_allclose(np.diff(middle), 2 * WIDEST / BINS)


NOISE = LOSSES["logistic"].score_noise  # 8/π


def holdout(noise, temperature, n=40_000, weight=1.0, seed=0):
    """Ratings with P(y) = ε/2 + (1 − ε) σ(τ y z), z ~ N(0, 2²), each of the same weight, as a
    histogram of margins.
    """
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
    held_out = holdout(0.2, 1.3)
    found = held_out.temperature_scaling(NOISE)
    z = margin_of_bins() * math.sqrt(NOISE)

    def loss(noise, temperature):
        return (
            -held_out.margins
            @ np.log(0.5 * noise + (1 - noise) * expit(temperature * z))
            / held_out.n
        )

    least = loss(found.noise, found.temperature)
    for step in (0.01, -0.01):
        assert loss(found.noise + step, found.temperature) > least
        assert loss(found.noise, found.temperature * (1 + step)) > least


def test_calibrated_labels_are_left_alone():
    """By chance the gain is above its standard error now and then; never by much."""
    found = [holdout(0.0, 1.0, 5000, seed=seed).temperature_scaling(NOISE) for seed in range(20)]
    assert sum(one is None for one in found) >= 14
    assert all(
        one.noise < 0.03 and 0.9 < one.temperature < 1.12 for one in found if one is not None
    )


def test_few_ratings_say_nothing():
    """Half of this gain is within the standard error of eight ratings."""
    empty = HoldoutLoss.of_sums(np.zeros(5 + BINS))
    assert (empty.loss, empty.standard_error, empty.temperature_scaling(NOISE)) == (0.0, 0.0, None)
    assert holdout(0.05, 1.0, n=8).temperature_scaling(NOISE) is None


def test_weights_are_no_ratings():
    """A hundred times the weight is as much evidence as before."""
    for seed in range(10):
        once, heavy = (
            holdout(0.0, 1.0, 5000, w, seed).temperature_scaling(NOISE) for w in (1.0, 100.0)
        )
        assert (once is None) == (heavy is None)


@pytest.mark.parametrize(
    "scaling",
    [TemperatureScaling(0.2, 1.3), TemperatureScaling(0.0, 0.7), TemperatureScaling(0.5, 3.0)],
)
def test_the_stored_calibration_is_the_formula(scaling):
    scores = np.concatenate([np.linspace(-30, 30, 1201), [0.0, 1e-6, -1e-6]])
    for same in (0.0, 0.8, 5.0):
        variances = np.full(len(scores), same)
        found = scaling.calibration(NOISE).probability(scores, variances)
        z = scores / np.sqrt(1 + math.pi * same / 8)
        np.testing.assert_allclose(
            found,
            0.5 * scaling.noise + (1 - scaling.noise) * expit(scaling.temperature * z),
            atol=2e-3,
        )
        assert found[1201] == 0.5
        assert np.array_equal(np.sign(found - 0.5), np.sign(scores))
        assert np.all(np.diff(found[:1201]) >= 0)


def sample(logit, noise, n=30_000):
    rng = np.random.default_rng(4)
    scores = rng.normal(scale=1.5, size=n)
    variances = rng.uniform(0.01, 1.0, n)
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
    assert reliability(np.where(positive, 1, -1), p).error < 0.01


def test_lines_may_stand_for_many_ratings():
    scores, variances, positive, _ = sample(lambda t: 1.3 * t, 0.6, 5_000)
    one = Calibration.fit(scores, variances, positive.astype(float), (~positive).astype(float))
    lines = np.repeat(scores, 2), np.repeat(variances, 2), np.repeat(positive, 2)
    twice = Calibration.fit(*lines[:2], lines[2] * 0.5, ~lines[2] * 0.5)
    np.testing.assert_allclose(
        one.probability(scores, variances), twice.probability(scores, variances), atol=0.01
    )


@settings(max_examples=30)
@given(
    centre=st.floats(-3, 3),
    shift=st.floats(-3, 3),
    slope=st.floats(-2, 4),
    n=st.integers(2, 3000),
    seed=st.integers(0, 2**32),
)
def test_a_probability_is_above_half_exactly_where_the_score_is_positive(
    centre, shift, slope, n, seed
):
    """Whatever the labels say: mostly one class, or the wrong way round."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(centre, 1.0, n)
    variances = rng.uniform(0.01, 1.0, n)
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
        found = Calibration.fit(
            scores, np.full(200, 0.1), positive.astype(float), (~positive).astype(float)
        )
        p = found.probability(scores, np.full(200, 0.1))
        assert np.isfinite(p).all()
        assert (np.diff(p) >= 0).all()


def test_a_calibration_replaces_the_losses_own_probability():
    scores = np.linspace(-3, 3, 7)
    variances = np.linspace(0.1, 2, 7)
    own = Calibration(8 / np.pi, [-9.0, 9.0], [-9.0 * np.sqrt(8 / np.pi), 9.0 * np.sqrt(8 / np.pi)])
    expected = compute_probabilities("logistic", scores, variances)
    np.testing.assert_allclose(own.probability(scores, variances), expected, rtol=1e-12)
    np.testing.assert_allclose(
        compute_probabilities("hinge", scores, variances, own), expected, rtol=1e-12
    )
    assert score_noise("logistic") == pytest.approx(own.noise)
    assert score_noise("hinge", own) == own.noise


def test_reliability_by_hand():
    curve = reliability([1, -1, 1, 1], [0.01, 0.02, 0.99, 1.0])
    np.testing.assert_allclose(curve.n, [2, 2])
    np.testing.assert_allclose(curve.probability, [0.015, 0.995])
    np.testing.assert_allclose(curve.frequency, [0.5, 1.0])
    assert curve.error == pytest.approx(0.5 * 0.485 + 0.5 * 0.005)
    rng = np.random.default_rng(0)
    p = expit(rng.normal(size=100_000))
    assert reliability(np.where(rng.random(100_000) < p, 1, -1), p).error < 0.01
