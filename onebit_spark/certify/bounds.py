"""Upper limits on the error rate that hold with probability 1 − δ, as functions of a few numbers
(docs/MATH.md, §9.1).

The Gibbs risk ∫R dρ is how often a fresh draw from ρ errs on a new rating. ``holdout`` bounds
another predictor: the sign of the mean score, which is the prediction. An error is y·score ≤ 0.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betainccinv, kl_div

from onebit_spark.core.arrays import DoubleArray

# The values of λ/n that `catoni_over_grid` tries. They are fixed before any data; a union bound
# pays for the choice.
CATONI_GRID = tuple(2.0 ** (j / 2) for j in range(-14, 5))


def theorem1(avb: float, n: int, lam: float, delta: float) -> float:
    """Theorem 1 of the paper: AVB(ρ) + λ/(2n) + log(1/δ)/λ, for a λ = κn that was fixed in advance.
    Hinge loss only.

    ``avb`` is the objective divided by λ. It contains the hinge risk of ρ and KL(ρ‖π)/λ, so no
    draws are needed. At κ ≥ 2 the bound is above 1.
    """
    _check(n=n, delta=delta, lam=lam)
    return avb + lam / (2 * n) + math.log(1 / delta) / lam


def catoni(gibbs_risk: float, kl: float, n: int, lam: float, delta: float) -> float:
    """∫r_n dρ + KL/λ + λ/(8n) + log(1/δ)/λ (Catoni, 2007), for a λ that was fixed in advance.

    ``gibbs_risk`` is ∫r_n dρ on the ratings, or an upper limit of it.
    """
    _check(n=n, delta=delta, lam=lam, risk=gibbs_risk, kl=kl)
    return gibbs_risk + kl / lam + lam / (8 * n) + math.log(1 / delta) / lam


def catoni_over_grid(gibbs_risk: float, kl: float, n: int, delta: float) -> tuple[float, float]:
    """The smallest ``catoni`` over the λ of CATONI_GRID, each at δ/|grid|, and its λ."""
    share = delta / len(CATONI_GRID)
    return min((catoni(gibbs_risk, kl, n, ratio * n, share), ratio * n) for ratio in CATONI_GRID)


def seeger(gibbs_risk: float, kl: float, n: int, delta: float) -> float:
    """kl⁻¹(∫r_n dρ ; (KL + log(2√n/δ))/n) (Seeger, 2002; Maurer, 2004). It holds for all ρ
    at once.
    """
    _check(n=n, delta=delta, risk=gibbs_risk, kl=kl)
    return float(kl_inverse(gibbs_risk, (kl + math.log(2 * math.sqrt(n) / delta)) / n))


def holdout(errors: int, n: int, delta: float) -> float:
    """The exact binomial limit Beta⁻¹(1−δ; k+1, n−k) for k errors, or 1 if k = n (Clopper and
    Pearson, 1934).

    It bounds the error rate of the predictions of a model that never saw these n ratings.
    """
    _check(n=n, delta=delta)
    if not 0 <= errors <= n:
        raise ValueError(f"errors must lie in 0 … {n}, not {errors}")
    return 1.0 if errors == n else float(betainccinv(errors + 1, n - errors, delta))


def gibbs_limit(errors: int, draws: int, delta: float) -> float:
    """kl⁻¹(errors/draws ; log(1/δ)/draws), Chernoff's upper limit of the mean error probability of
    the draws (§9.3).
    """
    _check(n=draws, delta=delta)
    return float(kl_inverse(errors / draws, math.log(1 / delta) / draws))


def _check(*, n: int, delta: float, lam: float = 1.0, risk: float = 0.0, kl: float = 0.0) -> None:
    problems = []
    if not n >= 1:
        problems.append(f"a bound needs at least one rating, not n = {n}")
    if not 0 < delta < 1:
        problems.append(f"delta must lie strictly between 0 and 1, not {delta!r}")
    if not 0 < lam < math.inf:
        problems.append(f"λ must be a positive finite number, not {lam!r}")
    if not 0 <= risk <= 1:
        problems.append(f"a risk must lie in [0, 1], not {risk!r}")
    if not 0 <= kl < math.inf:
        problems.append(f"a divergence must be a finite number, 0 or above, not {kl!r}")
    if problems:
        raise ValueError("; ".join(problems))


# ---- the binary Kullback-Leibler divergence ----------------------------------------------------


def _relative_entropy(q: DoubleArray, p: DoubleArray, delta: DoubleArray) -> DoubleArray:
    """q log(q/p) + p − q = q φ(δ/q), δ = p − q, φ(x) = x − log(1+x).

    For |x| ≤ ½, with s = x/(2+x) and log(1+x) = 2 atanh s:  φ = x s − 2s³(⅓ + s²/5 + s⁴/7 + …).
    """
    near = np.abs(delta) <= 0.5 * q
    x = np.divide(delta, q, out=np.zeros_like(q), where=near & (q > 0.0))
    s = x / (2.0 + x)
    s2 = s * s
    tail = np.zeros_like(s)
    for odd in range(35, 1, -2):
        tail = tail * s2 + 1.0 / odd
    return np.where(near, q * (x * s - 2.0 * s * s2 * tail), kl_div(q, p))


def kl(q: ArrayLike, p: ArrayLike) -> DoubleArray:
    """Binary divergence kl(q‖p) = q log(q/p) + (1−q) log((1−q)/(1−p)), to relative precision as p →
    q.

    With δ = p − q it is q φ(δ/q) + (1−q) φ(−δ/(1−q)), φ(x) = x − log(1+x): two terms, neither
    negative.
    """
    a, b = np.broadcast_arrays(np.asarray(q, dtype=np.float64), np.asarray(p, dtype=np.float64))
    delta = b - a
    return (_relative_entropy(a, b, delta) + _relative_entropy(1.0 - a, 1.0 - b, -delta))[()]


def kl_inverse(q: ArrayLike, c: ArrayLike) -> DoubleArray:
    """sup{p ∈ [q, 1] : kl(q‖p) ≤ c}, rounded upwards; 1 − e^{−c} at q = 0.

    Bisection from [q, q + c + √(c² + 2qc)]: the upper end follows from kl(q‖p) ≥ (p−q)²/(2p), and
    is of the order of p − q for small c. The upper end of the last bracket is returned, so that a
    bound stays a bound.
    """
    a, b = np.broadcast_arrays(np.asarray(q, dtype=np.float64), np.asarray(c, dtype=np.float64))
    low = a
    high = np.minimum(1.0, a + b + np.sqrt(b * (b + 2.0 * a)))
    for _ in range(64):
        middle = 0.5 * (low + high)
        inside = kl(a, middle) <= b
        low = np.where(inside, middle, low)
        high = np.where(inside, high, middle)
    return np.where(a == 0.0, -np.expm1(-b), high)[()]
