"""Special functions against 50-digit references.

log K_ν(z) is `mpmath.besselk` up to order 60. Above, where that is slow or fails, it is the Debye
expansion in 50 digits with 24 terms, built here from DLMF 10.41.9 (polynomials in t itself, terms
u_k(t)/ν^k), checked in its turn against `mpmath.besselk`.
"""

from fractions import Fraction
from functools import cache

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onebit_spark.certify.bounds import kl, kl_inverse
from onebit_spark.core.bessel import bessel_k_ratio, log_bessel_k

EPS = np.finfo(float).eps
ORDERS = [0.0, 0.25, 0.5, 1.0, 3.7, 10.0, 24.9, 25.1, 60.0, 1311.5, 1e5 + 0.5, 5e7, 1e9]
ZERO = 0.6627434193491816  # log K_ν(z) changes sign near z = ZERO·ν: √(1+x²) = asinh(1/x)
GRID = [
    (order, z)
    for order in ORDERS
    for z in sorted(
        {1e-8, 1e-3, 0.4, 3.0, 24.0, 26.0, 1e3, 1e10, order or 1.0, ZERO * order or 2.0}
    )
]


@pytest.fixture(autouse=True)
def fifty_digits():
    with mp.workdps(50):
        yield


@cache
def debye_polynomials(terms=24):
    """u_0 … u_{terms−1} as {power: coefficient}."""
    polynomials = [{0: Fraction(1)}]
    for _ in range(terms - 1):
        following = {}
        for e, c in polynomials[-1].items():
            for power, value in (
                (e + 1, Fraction(e, 2) + Fraction(1, 8 * (e + 1))),
                (e + 3, -Fraction(e, 2) - Fraction(5, 8 * (e + 3))),
            ):
                following[power] = following.get(power, 0) + c * value
        polynomials.append(following)
    return [{e: mp.mpf(c.numerator) / c.denominator for e, c in p.items()} for p in polynomials]


def log_k_debye(order, z):
    w = mp.hypot(order, z)
    t = order / w
    series = mp.fsum(
        (-1) ** k * mp.fsum(c * t**e for e, c in p.items()) / order**k
        for k, p in enumerate(debye_polynomials())
    )
    return mp.log(mp.pi / (2 * w)) / 2 - w + order * mp.asinh(order / z) + mp.log(series)


@cache
def log_k(order, z):
    """The reference, at orders given as mpf."""
    order = abs(order)
    z = mp.mpf(z)
    return log_k_debye(order, z) if order > 1000 else mp.log(mp.besselk(order, z))


@pytest.mark.parametrize(
    ("order", "z"), [(200.0, 1e-3), (200.0, 150.0), (400.0, 30.0), (1311.5, 1e5)]
)
def test_reference_agrees_with_mpmath(order, z):
    order = mp.mpf(order)
    z = mp.mpf(z)
    assert abs(log_k_debye(order, z) - mp.log(mp.besselk(order, z))) < mp.mpf("1e-25")


@pytest.mark.parametrize("sign", [1, -1])
def test_log_bessel_k(sign):
    for order, z in GRID:
        terms = np.hypot(order, z) + order * np.arcsinh(order / z)
        error = log_bessel_k(sign * order, z) - log_k(mp.mpf(order), z)
        assert abs(error) < 1e-14 + 4 * EPS * terms, (order, z)


@pytest.mark.parametrize("sign", [1, -1])
def test_bessel_k_ratio(sign):
    for order, z in GRID:
        nu = mp.mpf(sign * order)
        expected = mp.exp(log_k(nu - 1, z) - log_k(nu, z))
        assert abs(bessel_k_ratio(sign * order, z) / expected - 1) < 2e-14, (order, z)


def test_regimes_meet():
    """Both methods at w = 25, whatever the angle between order and argument."""
    for angle in np.linspace(0.0, np.pi / 2, 7):
        for w in (25 - 1e-9, 25 + 1e-9):
            order = w * np.sin(angle)
            z = max(w * np.cos(angle), 1e-8)
            nu = mp.mpf(order)
            assert abs(log_bessel_k(order, z) / log_k(nu, z) - 1) < 1e-13
            assert (
                abs(bessel_k_ratio(order, z) / mp.exp(log_k(nu - 1, z) - log_k(nu, z)) - 1) < 2e-14
            )


def test_bessel_far_outside_the_needed_range():
    """K_ν(z) ~ ½Γ(ν)(2/z)^ν and K_0(z) ~ −log(z/2) − γ as z → 0, still at z = 1e−100, without
    overflow.
    """
    z = 1e-100
    order = np.array([2.0, 24.0, 30.0])
    limit = np.array([float(mp.loggamma(v) - mp.log(2) + v * mp.log(2 / mp.mpf(z))) for v in order])
    np.testing.assert_allclose(log_bessel_k(order, z), limit, rtol=1e-14)
    np.testing.assert_allclose(bessel_k_ratio(order, z), z / (2 * (order - 1)), rtol=1e-13)
    np.testing.assert_allclose(
        np.exp(log_bessel_k(0.0, z)), -np.log(z / 2) - np.euler_gamma, rtol=1e-14
    )
    assert np.isfinite(log_bessel_k([0.0, 1e9], 1e100)).all()


orders = st.one_of(st.floats(-40, 40), st.floats(-1e9, 1e9))
arguments = st.floats(-8, 10).map(lambda exponent: 10.0**exponent)


@settings(deadline=None)
@given(orders, arguments)
def test_recurrence(order, z):
    """K_{ν+1} = K_{ν−1} + (2ν/z) K_ν, every term over the largest, K_{|ν|+1}."""
    order = abs(order)
    up = bessel_k_ratio(-order, z)
    down = bessel_k_ratio(order, z)
    assert down / up + 2 * order / z / up == pytest.approx(1.0, rel=1e-13)


def kl_exact(q, p):
    q = mp.mpf(q)
    p = mp.mpf(p)
    return q * mp.log(q / p) + (1 - q) * (mp.log1p(-q) - mp.log1p(-p))


@pytest.mark.parametrize("q", [1e-200, 1e-12, 1e-3, 0.2, 0.5, 0.75, 1 - 2**-40])
def test_kl(q):
    near = [q * (1 + x) for x in (-0.6, -0.4, -1e-3, -1e-7, 1e-9, 1e-4, 0.3, 0.6, 10.0)]
    for p in [p for p in near if p < 1] + [1e-15, 0.01, 0.5, 0.9, 1 - 2**-50]:
        if p != q:
            assert abs(kl(q, p) / kl_exact(q, p) - 1) < 2e-14, p


def test_kl_edges():
    q = np.array([0, 0, 0, 0.3, 0.3, 0.3, 1, 1, 1])
    p = np.array([0, 0.4, 1, 0, 0.3, 1, 0, 0.4, 1])
    expected = [0, -np.log1p(-0.4), np.inf, np.inf, 0, np.inf, np.inf, -np.log(0.4), 0]
    np.testing.assert_allclose(kl(q, p), expected, rtol=4 * EPS)


def test_kl_inverse():
    """kl in 50 digits, a relative 1e−11 below and above the answer, encloses c."""
    for q in (1e-12, 1e-3, 0.2, 0.5, 0.9, 1 - 2**-40):
        for c in (1e-12, 1e-6, 1e-2, 1.0, 30.0, 1e3):
            p = mp.mpf(float(kl_inverse(q, c)))
            assert q <= p <= 1
            below = p * (1 - mp.mpf("1e-11"))
            above = p * (1 + mp.mpf("1e-11"))
            assert below <= q or kl_exact(q, below) <= c, (q, c)
            assert above >= 1 or kl_exact(q, above) >= c, (q, c)


def test_kl_inverse_edges():
    c = np.array([1e-12, 0.1, 1e3])
    np.testing.assert_array_equal(kl_inverse(0.0, c), -np.expm1(-c))
    np.testing.assert_array_equal(kl_inverse(1.0, c), 1.0)
    q = np.array([0.0, 1e-9, 0.3, 1.0])
    np.testing.assert_array_equal(kl_inverse(q, 0.0), q)
    np.testing.assert_array_equal(kl_inverse(q, np.inf), 1.0)
