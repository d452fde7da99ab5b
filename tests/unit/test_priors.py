"""Priors of the scales against quadrature, and the contract of every registered prior.

Reference: every quantity of the posterior is a ratio of integrals ∫ h(γ) π(γ) γ^{−m/2} e^{−S/(2γ)}
dγ. In x = log γ the integrand is log-concave and analytic in a strip, so the trapezoidal rule,
centred on the mode, with a third of the curvature's width as step and cut at e^{−100} of the peak,
is good to 14 digits and more.
"""

from functools import cache

import mpmath as mp
import numpy as np
import pytest
from scipy.special import gammaln

from onebit_spark.core.priors import PRIORS
from onebit_spark.core.priors.gamma import Gamma

LOG_DENSITY = {  # of x = log γ under the prior, up to α log β − lnΓ(α)
    "gamma": lambda x, a, b: a * x - b * mp.exp(x),
    "inverse-gamma": lambda x, a, b: -a * x - b * mp.exp(-x),
}
GRID = [
    (0.3, 2.0, 0.7, 0),
    (2.5, 0.1, 5.0, 0),
    (1.0, 1.0, 3.0, 1),
    (1.0, 1.0, 3.0, 2),
    (1.5, 0.5, 1e-3, 3),
    (400.0, 10.0, 60.0, 50),
    (25.5, 3.0, 1e3, 50),
    (1.0, 0.01, 1e-12, 50),
    (1.0, 1.0, 1e12, 50),
    (1000.0, 300.0, 5000.0, 2625),
    (1312.5, 300.0, 5000.0, 2625),
    (1.0, 1.0, 40.0, 2625),
    (1.0, 1.0, 1.5e9, 2_000_000_000),
    (5e8, 1e8, 4e6, 2_000_000_000),
]


@cache
def reference(name, alpha, beta, s, m):
    """log Z, E[1/γ] and E[log γ]."""
    with mp.workdps(40):
        a = mp.mpf(alpha)
        b = mp.mpf(beta)
        s = mp.mpf(s)
        half = mp.mpf(m) / 2
        constant = a * mp.log(b) - mp.loggamma(a)

        def likelihood(x):
            return -half * x - s / 2 * mp.exp(-x)

        def log_density(x):
            return constant + LOG_DENSITY[name](x, a, b) + likelihood(x)

        low = mp.mpf(-100)
        high = mp.mpf(100)
        for _ in range(100):
            mode = (low + high) / 2
            low, high = (mode, high) if mp.diff(log_density, mode) > 0 else (low, mode)
        peak = log_density(mode)
        step = min(mp.mpf(1) / 16, 1 / (3 * mp.sqrt(-mp.diff(log_density, mode, 2))))
        nodes = []
        weights = []
        for direction, start in ((step, mode), (-step, mode - step)):
            x = start
            while (fall := log_density(x) - peak) > -100:
                nodes.append(x)
                weights.append(mp.exp(fall))
                x += direction

        def mean(h):
            return mp.fdot(weights, map(h, nodes)) / mp.fsum(weights)

        log_z = peak + mp.log(mp.fsum(weights) * step)
        return [float(v) for v in (log_z, mean(lambda x: mp.exp(-x)), mean(lambda x: x))]


@pytest.mark.parametrize(("alpha", "beta", "s", "m"), GRID)
@pytest.mark.parametrize("name", LOG_DENSITY)
def test_posterior_against_quadrature(name, alpha, beta, s, m):
    posterior = PRIORS[name](alpha, beta).posterior(s, m)
    log_z, inverse_mean, mean_log = reference(name, alpha, beta, s, m)
    # the terms that cancel in log Z have the size of α log α and m log m
    rounding = 1e-15 * (30 + (alpha + m) * (1 + np.log(alpha + m)) + m * abs(mean_log) + abs(log_z))
    assert posterior.log_normaliser == pytest.approx(log_z, abs=rounding)
    assert posterior.inverse_mean == pytest.approx(inverse_mean, rel=1e-13)


@pytest.fixture(params=PRIORS)
def prior(request):
    return PRIORS[request.param](3.0, 2.0)


S = np.array([1e-3, 0.4, 7.0, 90.0, 1e4])
COUNT = np.array([4.0, 3.0, 11.0, 60.0, 2625.0])


def test_the_inverse_mean_is_the_ratio_of_two_normalisers(prior):
    """∫ π γ^{−m/2 − 1} e^{−S/(2γ)} over ∫ π γ^{−m/2} e^{−S/(2γ)}."""
    posterior = prior.posterior(S, COUNT)
    ratio = np.exp(prior.posterior(S, COUNT + 2).log_normaliser - posterior.log_normaliser)
    assert posterior.inverse_mean == pytest.approx(ratio, rel=1e-8)


def test_the_inverse_mean_is_the_slope_of_the_normaliser(prior):
    h = 1e-5 * S
    up, down = (prior.posterior(S + step, COUNT).log_normaliser for step in (h, -h))
    assert prior.posterior(S, COUNT).inverse_mean == pytest.approx(-(up - down) / h, rel=1e-5)


def test_the_quantiles_have_the_moments_of_the_posterior(prior):
    """E e^{−h/(2γ)} = Z(S + h)/Z(S), by the midpoint rule over the quantiles."""
    u = np.repeat((np.arange(20_000)[:, None] + 0.5) / 20_000, len(S), axis=1)
    posterior = prior.posterior(S, COUNT)
    draws = posterior.quantile(u)
    assert np.all(np.diff(draws, axis=0) >= 0)
    h = 0.5 / posterior.inverse_mean
    ratio = np.exp(prior.posterior(S + h, COUNT).log_normaliser - posterior.log_normaliser)
    assert np.mean(np.exp(-h / (2 * draws)), axis=0) == pytest.approx(ratio, rel=1e-3)


def test_no_data_gives_the_prior(prior):
    posterior = prior.posterior(0.0, 0)
    assert posterior.log_normaliser == pytest.approx(0.0, abs=1e-12)


def test_extremes_are_finite(prior):
    """Every S from 0 to 1e12 and every count to 2e9, without a warning."""
    posterior = prior.posterior(
        np.array([0.0, 1e-12, 1.0, 1e12])[:, None], np.array([0, 3, 1e5, 2e9])
    )
    for value in (posterior.inverse_mean, posterior.log_normaliser):
        assert value.shape == (4, 4)
        assert np.isfinite(value).all()
    assert (posterior.inverse_mean > 0).all()


def test_log_normaliser_is_smooth_at_a_huge_count(prior):
    """Second differences over steps of one count, about 1/m, are nothing but rounding of log Z ≈
    −1e9.
    """
    s = 1.7e9
    m = 2e9 + np.arange(-4.0, 5.0)
    log_z = prior.posterior(s, m).log_normaliser
    assert np.abs(np.diff(log_z, 2)).max() < 40 * np.spacing(1e10)


def test_each_scale_has_its_own_count(prior):
    together = prior.posterior(S, COUNT)
    for k, (s, m) in enumerate(zip(S, COUNT, strict=True)):
        alone = prior.posterior(s, m)
        for quantity in ("inverse_mean", "log_normaliser"):
            assert getattr(alone, quantity) == pytest.approx(
                getattr(together, quantity)[k], rel=1e-12
            )


def test_bad_input_is_refused(prior):
    for s, m in ((-1.0, 3), (np.nan, 3), (np.inf, 3), (1.0, -1)):
        with pytest.raises(ValueError, match="not negative"):
            prior.posterior(s, m)
    with pytest.raises(ValueError, match=r"alpha = 0\.0 and beta = nan"):
        type(prior)(0.0, float("nan"))


def test_beta_for_scale_concentrates_gamma_there(prior):
    family = type(prior)
    strong = family(1e6, family.beta_for_scale(1e6, 0.3)).posterior(0.5, 1)
    assert 1 / strong.inverse_mean == pytest.approx(0.3, rel=1e-4)


def test_gamma_limit_without_second_moment():
    """S = 0 and η = α − m/2 > 0: ρ = Gamma(η, β). η ≤ 0: all mass near 0, but finite."""
    alpha = 4.0
    beta = 2.0
    m = 3.0
    eta = alpha - m / 2
    posterior = Gamma(alpha, beta).posterior(0.0, m)
    assert posterior.inverse_mean == pytest.approx(beta / (eta - 1), rel=1e-13)
    log_z = gammaln(eta) - gammaln(alpha) + m / 2 * np.log(beta)
    assert posterior.log_normaliser == pytest.approx(log_z, abs=1e-12)
    improper = Gamma(1.0, beta).posterior([0.0, 0.0], [2, 500])
    assert (improper.inverse_mean > 1e100).all()
    assert np.isfinite(improper.log_normaliser).all()
