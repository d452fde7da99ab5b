"""Score, variance and probability of a cell, against Monte Carlo."""

import numpy as np
import pytest
from scipy import stats
from test_kernels import make_posterior

from onebit_spark.core import prediction
from onebit_spark.core.losses import LOSSES
from onebit_spark.core.posterior import RowPosterior


def pairs(kind, intercepts, n=6, seed=0):
    rng = np.random.default_rng(seed)
    return [make_posterior(rng, n, kind, intercepts, np.float64) for _ in range(2)]


@pytest.mark.parametrize("intercepts", [False, True])
@pytest.mark.parametrize("kind", ["spread", "covariance"])
def test_moments_against_monte_carlo(kind, intercepts):
    """200,000 draws of each pair: standard error of the mean std/450, of the variance about 1% of it."""
    rows, cols = pairs(kind, intercepts)
    rng, draws = np.random.default_rng(1), 200_000
    mean, variance = prediction.score(rows, cols), prediction.variance(rows, cols)
    for i in range(rows.n_rows):
        x, z = (rng.multivariate_normal(s.location[i], s.covariance[i], draws) for s in (rows, cols))
        u = x[:, 0] + z[:, 0] + np.sum(x[:, 1:] * z[:, 1:], axis=1) if intercepts else np.sum(x * z, axis=1)
        assert mean[i] == pytest.approx(u.mean(), abs=5 * u.std() / np.sqrt(draws))
        assert variance[i] == pytest.approx(u.var(), rel=0.04)


@pytest.mark.parametrize("intercepts", [False, True])
def test_both_ways_of_keeping_independent_coordinates_agree(intercepts):
    """Spreads s and the covariance matrices diag(s²) are the same posterior."""
    spreads = pairs("spread", intercepts)
    i, j = np.tril_indices(spreads[0].dimension)
    covariances = [RowPosterior(p.location, p.covariance[:, i, j], "covariance", intercepts) for p in spreads]
    np.testing.assert_allclose(prediction.score(*covariances), prediction.score(*spreads), rtol=1e-14)
    np.testing.assert_allclose(prediction.variance(*covariances), prediction.variance(*spreads), rtol=1e-12)


def test_logistic_probability_against_quadrature():
    """∫ σ(u) N(u; m, v) du: MacKay's σ(m/√(1 + πv/8)) is within .02 of it, and right about its side."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    for mean in (-3.0, -0.4, 0.0, 1.0, 4.0):
        for variance in (0.0, 0.5, 4.0):
            exact = weights @ (1 / (1 + np.exp(-(mean + np.sqrt(variance) * nodes)))) / weights.sum()
            found = float(prediction.probability("logistic", np.array(mean), np.array(variance)))
            assert found == pytest.approx(exact, abs=0.02)
            assert found == pytest.approx(1 / (1 + np.exp(-mean / np.sqrt(1 + np.pi * variance / 8))), rel=1e-14)


def test_hinge_probability_is_that_of_a_positive_sign():
    scores, variances = np.array([-1.0, 0.0, 0.3, 2.0]), np.array([0.25, 1.0, 4.0, 0.01])
    expected = stats.norm.sf(0, loc=scores, scale=np.sqrt(variances))
    np.testing.assert_allclose(prediction.probability("hinge", scores, variances), expected, rtol=1e-12)


@pytest.mark.parametrize("loss", LOSSES)
def test_probabilities_are_probabilities(loss):
    """Also without spread, where the hinge's tends to a step, and far out, where nothing may overflow."""
    scores = np.array([-1e6, -1.0, 0.0, 1.0, 1e6])
    for variance in (0.0, 1e-12, 1.0, 1e12):
        found = prediction.probability(loss, scores, np.full(5, variance))
        assert np.all((found >= 0) & (found <= 1))
        assert np.all(np.diff(found) >= 0)
        assert found[2] == 0.5
        np.testing.assert_allclose(found + found[::-1], 1.0, rtol=1e-12)
