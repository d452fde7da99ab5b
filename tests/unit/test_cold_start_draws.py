"""Draws for any pair: the law of known rows, and of unknown ones."""

import mpmath as mp
import numpy as np
import pytest
from scipy.stats import geninvgauss, invgamma, norm

import onebit_spark
from onebit_spark import FitConfig, fit_arrays
from onebit_spark.core.bessel import gig_quantile
from onebit_spark.core.priors import PRIORS
from onebit_spark.core.setup import intercept_prior
from onebit_spark.simulate import simulate

N = 40_000
KNOWN = 3
UNRATED = 28  # of a shape of 30 × 20 of which the last two rows and columns have no rating
BEYOND = 500 + np.arange(4000)  # ids that are all alike: nothing is known of them


@pytest.fixture(scope="module")
def data():
    made = simulate("B2", rank=2, shape=(28, 18), fraction=0.6, seed=1)
    return made.rows, made.cols, made.labels


def fitted(data, **choices):
    return fit_arrays(*data, FitConfig(rank=2, max_iter=6, tol=0, **choices), (30, 20), threads=1)


def drawn(fit, row, col, seeds=1500):
    """Many draws of one cell, a seed each; or one of each pair."""
    if np.ndim(row) or np.ndim(col):
        return fit.sample(row, col)
    return np.array([fit.sample(row, col, seed=seed)[0] for seed in range(seeds)])


def scale_draws(fit, rng, n):
    """γ (n × K), γ_b and γ_d (n), by scipy."""
    moments = fit.scales.moments
    prior = fit.info.scale_prior
    own = intercept_prior(fit.config)
    pairs = [(prior, s, moments.rows + moments.cols) for s in moments.factor]
    if fit.config.intercepts:
        pairs += [
            (own, moments.row_intercept, moments.rows),
            (own, moments.col_intercept, moments.cols),
        ]
    columns = []
    for prior, s, m in pairs:
        if prior.name == "inverse-gamma":
            law = invgamma(prior.alpha + m / 2, scale=prior.beta + s / 2)
        else:
            a = 2 * prior.beta
            law = geninvgauss(prior.alpha - m / 2, np.sqrt(a * s), scale=np.sqrt(s / a))
        columns.append(law.rvs(n, random_state=rng))
    rank = len(moments.factor)
    return np.stack(columns[:rank], axis=1), *(columns[rank:] or (None, None))


def expected(fit, row_known, col_known, rng):
    """Draws of the score of cell (KNOWN, KNOWN), either side of it unknown or not, in plain
    numpy.
    """
    gamma, gamma_b, gamma_d = scale_draws(fit, rng, N)
    scales = fit.scales
    intercepts = fit.config.intercepts
    sides = []
    for name, known, own in (("rows", row_known, gamma_b), ("cols", col_known, gamma_d)):
        side = getattr(fit, name)
        if known:
            sides.append(rng.multivariate_normal(side.location[KNOWN], side.covariance[KNOWN], N))
            continue
        # By implicit features
        implicit_mean, implicit_variance = scales.moments.implicit_moments(name)
        x = implicit_mean + rng.normal(size=gamma.shape) * np.sqrt(gamma + implicit_variance)
        if intercepts:
            mu = (
                rng.normal(scales.mean, np.sqrt(scales.mean_variance), N)
                if side is fit.rows
                else 0.0
            )
            x = np.column_stack([mu + rng.normal(size=N) * np.sqrt(own), x])
        sides.append(x)
    left, right = sides
    if not intercepts:
        return np.sum(left * right, axis=1)
    return left[:, 0] + right[:, 0] + np.sum(left[:, 1:] * right[:, 1:], axis=1)


def assert_same_law(found, reference):
    """Mean, spread and the share above 0, within five standard errors."""
    error = 5 * np.std(reference) * np.sqrt(1 / len(found) + 1 / len(reference))
    assert np.mean(found) == pytest.approx(np.mean(reference), abs=error)
    assert np.std(found) == pytest.approx(np.std(reference), rel=0.12)
    assert np.mean(found > 0) == pytest.approx(
        np.mean(reference > 0), abs=5 * 0.5 / np.sqrt(len(found))
    )


@pytest.mark.parametrize(
    ("loss", "prior", "intercepts"),
    [
        ("logistic", "inverse-gamma", True),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (("hinge", "gamma", True), ("logistic", "gamma", False))
        ),
    ],
)
def test_draws_follow_the_posterior(data, loss, prior, intercepts):
    """A weak prior, so that γ is far from settled and N(0, 1/g) would be another law."""
    fit = fitted(data, loss=loss, prior=prior, intercepts=intercepts, alpha=1.0, beta=1.0)
    rng = np.random.default_rng(7)
    for row, col in ((KNOWN, KNOWN), (KNOWN, BEYOND), (BEYOND, KNOWN), (BEYOND, BEYOND)):
        assert_same_law(drawn(fit, row, col), expected(fit, row is KNOWN, col is KNOWN, rng))


def test_a_saved_model_keeps_the_prior_of_the_intercepts(data, tmp_path):
    fit = fitted(data, prior="gamma")
    fit.save(tmp_path / "model")
    loaded = onebit_spark.load(tmp_path / "model")
    assert loaded.scales.intercept_prior == fit.scales.intercept_prior == PRIORS["gamma"](1.0, 1.0)
    rows = np.array([KNOWN, 500])
    cols = np.array([2, 700])
    np.testing.assert_array_equal(loaded.sample(rows, cols), fit.sample(rows, cols))


def test_rows_without_ratings_are_drawn_from_the_prior(data):
    fit = fitted(data, alpha=1.0, beta=1.0)
    reference = expected(fit, False, True, np.random.default_rng(8))
    found = drawn(fit, UNRATED, KNOWN, seeds=1000)
    assert np.mean(found) == pytest.approx(
        np.mean(reference), abs=5 * np.std(reference) / np.sqrt(len(found))
    )
    assert np.std(found) == pytest.approx(np.std(reference), rel=0.3)


def test_draws_follow_from_seed_and_pair_alone(data):
    fit = fitted(data)
    rows = np.array([3, 500, 29, 4])
    cols = np.array([3, 2, 700, 3])
    together = fit.sample(rows, cols, seed=5)
    alone = [fit.sample(row, col, seed=5)[0] for row, col in zip(rows, cols, strict=True)]
    np.testing.assert_array_equal(together, alone)
    assert np.all(together != fit.sample(rows, cols, seed=6))


U = np.array([1e-6, 0.01, 0.3, 0.5, 0.9, 1 - 1e-6])


@pytest.mark.parametrize(
    ("order", "z", "scale"),
    [(-3.0, 2.0, 1.5), (5.0, 0.1, 2.0), (0.3, 0.5, 1.0), (-400.0, 30.0, 1.0), (-0.5, 1e-3, 1.0)],
)
def test_gig_quantiles_against_quadrature(order, z, scale):
    """The mass below each quantile by mpmath, turned into an error of log x."""
    peak = float(mp.asinh(order / z))
    width = 1 / mp.sqrt(mp.hypot(order, z) + 0.3)
    top = order * peak - z * mp.cosh(peak)
    edges = [peak + k * width for k in np.linspace(-45, 45, 46)]

    def density(t):
        return mp.exp(order * t - z * mp.cosh(t) - top)

    total = mp.quad(density, edges)
    for u, x in zip(U, gig_quantile(order, z, scale, U), strict=True):
        t = mp.log(x / scale)
        below = mp.quad(density, [edge for edge in edges if edge < t] + [t]) / total
        assert abs((below - u) * total / density(t)) < 1e-8


def test_gig_quantiles_of_a_huge_order_are_normal():
    q = gig_quantile(-5e7, 1e4, 1.0, U)
    np.testing.assert_allclose(
        (q / q[3] - 1)[[0, 1, 2, 4, 5]] * np.sqrt(5e7), norm.ppf(U)[[0, 1, 2, 4, 5]], rtol=1e-3
    )


@pytest.mark.parametrize("name", PRIORS)
def test_quantiles_have_the_moments_of_the_posterior(name):
    s = np.array([4.0, 40.0])
    m = np.array([5.0, 30.0])
    h = 1e-5
    prior = PRIORS[name](3.0, 2.0)
    posterior = prior.posterior(s, m)
    mean_log = (
        -(prior.posterior(s, m + h).log_normaliser - prior.posterior(s, m - h).log_normaliser) / h
    )
    u = (np.arange(200_000) + 0.5) / 200_000
    gamma = posterior.quantile(np.stack([u, u], axis=1))
    np.testing.assert_allclose(np.mean(1 / gamma, axis=0), posterior.inverse_mean, rtol=1e-4)
    np.testing.assert_allclose(np.mean(np.log(gamma), axis=0), mean_log, atol=1e-4)
