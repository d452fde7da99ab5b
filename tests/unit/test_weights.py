"""The weight of a rating: it counts as that many ratings, in every part of a fit in this process."""

from itertools import product

import numpy as np
import pytest
from fitting import MONOTONE, assert_same_bits, simulated
from test_kernels import VARIANTS, name
from test_objective import config_of

from onebit_spark import FitConfig, Terms, fit_arrays
from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.losses import LOSSES
from onebit_spark.core.prediction import score, variance
from onebit_spark.core.priors import PRIORS
from onebit_spark.core.randomness import Split
from onebit_spark.engines.threads import local_engine

SHAPE = (40, 30)
ITERATIONS = 12


def data():
    return simulated("A2", shape=SHAPE, fraction=0.4)


def whole_weights(n, seed=0):
    return np.random.default_rng(seed).integers(1, 4, n)


def random_weights(n, seed=0):
    return np.exp(np.random.default_rng(seed).normal(size=n))


def assert_equal_fits(fit, other, tolerance=1e-9):
    np.testing.assert_allclose(fit.objective_history, other.objective_history, rtol=tolerance)
    for side in ("rows", "cols"):
        mine, theirs = getattr(fit, side), getattr(other, side)
        np.testing.assert_allclose(mine.location, theirs.location, rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(mine.scale, theirs.scale, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(fit.inverse_gamma, other.inverse_gamma, rtol=tolerance)


def choices():
    """prior, intercepts, implicit features, start: every pair of values of two of them."""
    for number, combination in enumerate(product(PRIORS, [False, True], [False, True], ["spectral", "random"])):
        if number.bit_count() % 2 == 0:
            yield combination


@pytest.mark.parametrize(("prior", "intercepts", "implicit", "start"), list(choices()))
@pytest.mark.parametrize("loss", VARIANTS, ids=name)
def test_a_weight_of_two_equals_the_rating_twice(loss, prior, intercepts, implicit, start):
    """The start as well: its keys, D and the scale t are sums of weights."""
    rows, cols, labels = data()
    weights = whole_weights(len(rows))
    config = config_of(
        loss, prior=prior, intercepts=intercepts, implicit_features=implicit, start=start, max_iter=ITERATIONS,
        likelihood_weight=1.0,
    )  # fmt: skip
    weighted = fit_arrays(rows, cols, labels, config, SHAPE, weights=weights)
    again = np.repeat(np.arange(len(rows)), weights)
    assert_equal_fits(weighted, fit_arrays(rows[again], cols[again], labels[again], config, SHAPE))


@pytest.mark.parametrize("loss", VARIANTS, ids=name)
def test_halves_that_make_up_a_rating(loss):
    """Two ratings of weight ½ are one: sums of weights that are no whole numbers in between."""
    rows, cols, labels = data()
    config, twice = config_of(loss, max_iter=ITERATIONS, likelihood_weight=1.0), np.tile(np.arange(len(rows)), 2)
    halved = fit_arrays(rows[twice], cols[twice], labels[twice], config, SHAPE, weights=np.full(len(twice), 0.5))
    assert_equal_fits(halved, fit_arrays(rows, cols, labels, config, SHAPE))


@pytest.mark.parametrize("loss", VARIANTS, ids=name)
def test_weights_of_one_change_nothing(loss):
    config = config_of(loss, max_iter=ITERATIONS, intercepts=True, implicit_features=True)
    assert_equal_fits(fit_arrays(*data(), config, weights=np.ones(len(data()[0]))), fit_arrays(*data(), config))


def test_a_weight_of_zero_is_an_absent_rating():
    """It counts nowhere: neither a row of its own, nor a bad label, nor the numbers of a certificate."""
    rows, cols, labels = data()
    extra = (np.append(rows, [SHAPE[0] + 5, 0]), np.append(cols, [0, SHAPE[1] + 2]), np.append(labels, [1, -1]))
    config, weights = FitConfig(max_iter=5, tol=0, implicit_features=False), random_weights(len(rows))
    fit = fit_arrays(*extra, config, weights=np.append(weights, [0.0, 1e-60]), certify=Terms())
    other = fit_arrays(rows, cols, labels, config, weights=weights, certify=Terms())
    assert_same_bits(fit, other)
    assert fit.certificates == other.certificates
    assert fit.certificates[0].n == len(rows)
    assert fit.rows.n_rows == rows.max() + 1


def test_the_order_of_the_input_does_not_matter():
    """Cells are rated several times with the same label and different weights: they are summed in one order."""
    rows, cols, labels = (np.tile(part, 3) for part in data())
    order, weights = np.random.default_rng(1).permutation(len(rows)), random_weights(len(rows))
    config = FitConfig(max_iter=5, tol=0)
    fit = fit_arrays(rows, cols, labels, config, weights=weights)
    assert_same_bits(fit, fit_arrays(rows[order], cols[order], labels[order], config, weights=weights[order]))


@pytest.mark.parametrize("implicit", [False, True])
@pytest.mark.parametrize("loss", MONOTONE, ids=name)
def test_the_objective_falls_with_random_weights(loss, implicit):
    config = config_of(loss, implicit_features=implicit, max_iter=40)
    history = fit_arrays(*data(), config, weights=random_weights(len(data()[0]))).objective_history
    assert np.max(np.diff(history) / np.abs(history[1:])) <= 1e-9


@pytest.mark.parametrize("loss", LOSSES)
def test_theorem1_is_not_certified_with_weights(loss):
    """Its bound is about the objective; the others are about draws, and count every rating once."""
    config = FitConfig(loss=loss, max_iter=3, tol=0, implicit_features=False)
    plain = fit_arrays(*data(), config, certify=Terms())
    weighted = fit_arrays(*data(), config, weights=random_weights(len(data()[0])), certify=Terms())
    first = ["theorem1"] if loss == "hinge" else []
    assert [item.name for item in plain.certificates] == [*first, "catoni", "seeger"]
    assert [item.name for item in weighted.certificates] == ["catoni", "seeger"]
    assert {item.n for item in weighted.certificates} == {len(data()[0])}


def test_the_loss_that_chooses_kappa_is_a_weighted_mean():
    rows, cols, labels = data()
    block = RatingBlock.from_coordinates(rows, cols, labels > 0, SHAPE, random_weights(len(rows)).astype(np.float32))
    engine, config, split = local_engine(block), FitConfig(rank=2), Split(3, 0.7)
    engine.start(config, config.make_loss())
    found = engine.holdout_loss("logistic", engine.posteriors, split).loss
    left = split.part_of(block, np.arange(SHAPE[0]), those=False)
    pairs = (
        engine.posteriors["rows"].take(np.repeat(np.arange(SHAPE[0]), left.row_counts)),
        engine.posteriors["cols"].take(left.codes >> 1),
    )
    losses = LOSSES["logistic"].held_out(score(*pairs), variance(*pairs), 2.0 * (left.codes & 1) - 1)
    assert found == pytest.approx(np.average(losses, weights=left.weights), rel=1e-6)
    assert found != pytest.approx(np.mean(losses), rel=1e-3)


def test_bad_weights_are_refused_with_their_number():
    rows, cols, labels = data()
    weights = random_weights(len(rows))
    weights[:6] = np.nan, -1.0, np.inf, 1e39, -np.inf, 0.0
    with pytest.raises(ValueError, match="weights must be positive and finite, or 0: 5 found, such as"):
        fit_arrays(rows, cols, labels, weights=weights)
    with pytest.raises(ValueError, match=r"rows, cols, labels and weights differ in length: .*weights 3"):
        fit_arrays(rows, cols, labels, weights=[1, 2, 3])
    with pytest.raises(ValueError, match="weights must be numbers"):
        fit_arrays(rows, cols, labels, weights=["1"] * len(rows))
    with pytest.raises(ValueError, match="there is no rating of positive weight"):
        fit_arrays(rows, cols, labels, weights=np.zeros(len(rows)))
    with pytest.raises(ValueError, match="both classes are needed"):
        fit_arrays(rows, cols, labels, weights=labels > 0)
