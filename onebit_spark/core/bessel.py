"""Modified Bessel functions K_ν(z), in logarithms and in ratios, and quantiles of the distribution
with their form.

K_ν has two regimes, split by w = √(ν² + z²) (docs/MATH.md, §5.3): the uniform (Debye/Olver)
expansion where w ≥ 25, else the trapezoidal rule on K_ν(z) = ∫_0^∞ e^{−z cosh t} cosh(νt) dt, whose
integrand decays doubly exponentially. Both are accurate from z = 1e−100, where `scipy.special.kve`
overflows, to z = 1e100, and for |ν| ≤ 1e9.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
from numpy.polynomial.polynomial import polyval2d
from numpy.typing import ArrayLike

from onebit_spark.core.arrays import DoubleArray

Kernel = Callable[[DoubleArray, DoubleArray], DoubleArray]

_SPLIT = 25.0  # the w where the two regimes meet
_TERMS = 16  # of the expansion; the first omitted term is below 1e−15 at the split
# Of the trapezoidal rule: its error is about e^{w(1 − cos y) − 2πy/step}, any y < π/2, < 1e−16
_STEP = 0.125
_NEGLIGIBLE = 40.0  # the rule stops where the integrand is below e^{−40} of its peak


def _debye_coefficients(terms: int) -> tuple[DoubleArray, DoubleArray]:
    """Coefficients P, Q with u_k(t)/ν^k = w^{−k} Σ_j P_kj t^{2j} and v_k(t)/ν^k = w^{−k} Σ_j Q_kj
    t^{2j}.

    u_{k+1} = ½t²(1−t²) u_k' + ⅛∫_0^t (1−5s²) u_k ds,  v_k = u_k + t(t²−1)(½u_{k−1} + t u_{k−1}')
    (DLMF 10.41.9), applied exactly to each monomial c·t^e, e = k + 2j, of u_k = t^k p_k(t²).
    """
    u = [[Fraction(0)] * (terms + 1) for _ in range(terms)]
    v = [[Fraction(0)] * (terms + 1) for _ in range(terms)]
    u[0][0] = v[0][0] = Fraction(1)
    for k in range(terms - 1):
        for j in range(k + 1):
            c = u[k][j]
            e = k + 2 * j
            u[k + 1][j] += c * (Fraction(e, 2) + Fraction(1, 8 * (e + 1)))
            u[k + 1][j + 1] -= c * (Fraction(e, 2) + Fraction(5, 8 * (e + 3)))
            v[k + 1][j] -= c * Fraction(2 * e + 1, 2)
            v[k + 1][j + 1] += c * Fraction(2 * e + 1, 2)
        v[k + 1] = [a + b for a, b in zip(u[k + 1], v[k + 1], strict=True)]
    return np.array(u, dtype=np.float64), np.array(v, dtype=np.float64)


_U, _V = _debye_coefficients(_TERMS)
_U[0, 0] = _V[0, 0] = 0.0  # the leading 1 is added last, for log1p


def _piecewise(order: ArrayLike, z: ArrayLike, near: Kernel, far: Kernel) -> DoubleArray:
    """`near` where √(ν² + z²) < 25 and `far` elsewhere, on the broadcast arguments."""
    nu, x = np.broadcast_arrays(
        np.asarray(order, dtype=np.float64), np.asarray(z, dtype=np.float64)
    )
    small = np.hypot(nu, x) < _SPLIT
    result = np.empty(nu.shape)
    for mask, kernel in ((small, near), (~small, far)):
        if mask.any():
            result[mask] = kernel(nu[mask], x[mask])
    return result[()]


def _nodes(nu: DoubleArray, z: DoubleArray) -> tuple[DoubleArray, DoubleArray, DoubleArray]:
    """Nodes t ≥ 0, weights ∝ e^{νt − z cosh t} with peak 1 (half weight at t = 0), and the peak's
    logarithm.

    The last node serves order ν + 1 as well: from its peak asinh((ν+1)/z) the exponent has fallen
    by at least w(cosh δ − 1) at distance δ, with w = √((ν+1)² + z²).
    """
    reach = np.arcsinh((nu + 1.0) / z) + np.arccosh(1.0 + _NEGLIGIBLE / np.hypot(nu + 1.0, z))
    t = np.arange(0.0, reach.max() + _STEP, _STEP)
    exponent = nu[:, None] * t - z[:, None] * np.cosh(t)
    peak = exponent.max(axis=1)
    weights = np.exp(exponent - peak[:, None])
    weights[:, 0] *= 0.5
    return t, weights, peak


def _log_near(order: DoubleArray, z: DoubleArray) -> DoubleArray:
    nu = np.abs(order)
    t, weights, peak = _nodes(nu, z)
    total = np.sum(weights * (1.0 + np.exp(-2.0 * nu[:, None] * t)), axis=1)
    return peak + np.log(0.5 * _STEP * total)


def _log_far(order: DoubleArray, z: DoubleArray) -> DoubleArray:
    nu = np.abs(order)
    w = np.hypot(nu, z)
    series = polyval2d(-1.0 / w, (nu / w) ** 2, _U)
    return 0.5 * np.log(np.pi / (2.0 * w)) - w + nu * np.arcsinh(nu / z) + np.log1p(series)


def _ratio_near(order: DoubleArray, z: DoubleArray) -> DoubleArray:
    nu = np.abs(order)[:, None]
    above = np.abs(order + 1.0)[:, None]
    t, weights, _ = _nodes(nu[:, 0], z)
    upper = np.sum(weights * np.exp((above - nu) * t) * (1.0 + np.exp(-2.0 * above * t)), axis=1)
    return upper / np.sum(weights * (1.0 + np.exp(-2.0 * nu * t)), axis=1)


def _ratio_far(order: DoubleArray, z: DoubleArray) -> DoubleArray:
    w = np.hypot(order, z)
    s = -1.0 / w
    t2 = (order / w) ** 2
    return (order + w * (1.0 + polyval2d(s, t2, _V)) / (1.0 + polyval2d(s, t2, _U))) / z


def log_bessel_k(order: ArrayLike, z: ArrayLike) -> DoubleArray:
    """log K_ν(z), any real order ν and z > 0.

    w = √(ν²+z²) ≥ 25:  ½ log(π/2w) − w + ν asinh(ν/z) + log Σ_k (−1)^k p_k(ν²/w²)/w^k.
    The error is a few units in the last place of the larger of w and ν asinh(ν/z): they cancel near
    z = .6627 ν, where log K_ν changes sign, so at ν = 1e9 the absolute error there is about 1e−7.
    """
    return _piecewise(order, z, _log_near, _log_far)


def bessel_k_ratio(order: ArrayLike, z: ArrayLike) -> DoubleArray:
    """K_{ν−1}(z) / K_ν(z), to full relative precision at every order, by the upward ratio
    K_{μ+1}/K_μ (§5.3).

    μ is −ν by symmetry where ν ≤ 1, and ν − 1 elsewhere, where the ratio is inverted: free of
    cancellation for μ ≥ −1.
    """
    nu, x = np.broadcast_arrays(
        np.asarray(order, dtype=np.float64), np.asarray(z, dtype=np.float64)
    )
    inverted = nu > 1.0
    upward = _piecewise(np.where(inverted, nu - 1.0, -nu), x, _ratio_near, _ratio_far)
    return np.where(inverted, 1.0 / upward, upward)[()]


_QUANTILE_POINTS = (
    8193  # of the table behind `gig_quantile`: the relative error of a quantile is below 1e−8
)


def gig_quantile(order: float, z: float, scale: float, u: ArrayLike) -> DoubleArray:
    """Quantiles of the generalised inverse Gaussian, density ∝ x^{η−1} e^{−z(x/s + s/x)/2}, s =
    ``scale``.

    In t = log(x/s) the log density is ηt − z cosh t: concave, with its peak at sinh t = η/z. At a
    distance d from the peak it has fallen by ½A(e^d − 1 − d) + ½B(e^{−d} − 1 + d), A, B = √(η² +
    z²) ± η, free of cancellation at any order. The distribution function is the trapezoidal sum
    with Euler and Maclaurin's first correction; its inverse is interpolated.
    """
    from scipy.interpolate import PchipInterpolator  # takes time to import, and few processes draw

    w = float(np.hypot(order, z))
    a = w + order if order > 0 else z * z / (w - order)
    b = w - order if order < 0 else z * z / (w + order)

    def fall(d: DoubleArray) -> DoubleArray:
        return 0.5 * (a * (np.expm1(d) - d) + b * (np.expm1(-d) + d))

    def edge(sign: float) -> float:
        step = 1.0 / np.sqrt(max(w, 1.0))
        while fall(np.asarray(sign * step)) < _NEGLIGIBLE:
            step *= 1.25
        return sign * step

    d = np.linspace(edge(-1.0), edge(1.0), _QUANTILE_POINTS)
    density = np.exp(-fall(d))
    slope = -0.5 * density * (a * np.expm1(d) - b * np.expm1(-d)) * (d[1] - d[0])
    mass = (
        np.concatenate([[0.0], np.cumsum(0.5 * (density[1:] + density[:-1]))])
        - (slope - slope[0]) / 12.0
    )
    share = mass / mass[-1]
    grows = np.concatenate([[True], np.diff(share) > 0.0])
    inverse = PchipInterpolator(share[grows], d[grows])
    peak = float(np.arcsinh(order / z))
    return np.asarray(scale * np.exp(peak + inverse(np.asarray(u, np.float64))))
