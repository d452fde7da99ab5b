"""Jaakkola & Jordan's bound of the logistic loss: log(1 + e^{−u}) ≤ log(1 + e^{−ξ}) + (ξ − u)/2 + τ(ξ)(u² − ξ²)."""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import math

from onebit_spark.core.compiled import inner, jit
from onebit_spark.core.losses.row_sums import chunk_of, weight_of

NO_MORE = 40.0  # beyond this ξ, e^{−ξ} is nothing beside 1


@inner
def _decay(xi):
    """e^{−ξ} − 1 to 1e−15 for ξ ≤ 40, by arithmetic alone: unlike ``math.expm1`` it compiles to vector instructions.

    The series of e^t − 1 at t = −ξ/128, and e^{2t} − 1 = (e^t − 1)(e^t − 1 + 2) seven times. Both keep the relative
    precision where ξ is small.
    """
    t = xi * (-1.0 / 128.0)
    q = 1.0 / 720.0 + t * (1.0 / 5040.0)
    q = 1.0 / 120.0 + t * q
    q = 1.0 / 24.0 + t * q
    q = 1.0 / 6.0 + t * q
    q = 0.5 + t * q
    q = t + t * t * q
    for _ in range(7):
        q = q * (q + 2.0)
    return q


@jit
def tau_weights(xi_squared, n, scale, weights, lo):
    """Overwrite ξ² with scale·w_l·τ(ξ), τ(ξ) = tanh(ξ/2)/(4ξ) = (1 − e^{−ξ}) / (4ξ (1 + e^{−ξ})).

    The n ratings begin with rating ``lo``.
    """
    weights = chunk_of(weights, lo, n)
    for l in range(n):
        xi = math.sqrt(max(xi_squared[l], 1e-30))  # τ is flat at 0
        q = _decay(min(xi, NO_MORE))
        xi_squared[l] = -0.25 * scale * weight_of(weights, l) * q / ((q + 2.0) * xi)


@jit
def softplus_sum(xi_squared, n, weights, lo):
    """Σ_l w_l [log(1 + e^{−ξ}) + ξ/2], of the n ratings from ``lo`` on.

    Without weights the logarithm of a product of at most CHUNK factors ≤ 2 is taken once.
    """
    if weights is not None:
        return _weighted_softplus_sum(xi_squared, n, chunk_of(weights, lo, n))
    total, product = 0.0, 1.0
    for l in range(n):
        xi = math.sqrt(max(xi_squared[l], 0.0))
        product *= 2.0 + _decay(min(xi, NO_MORE))
        total += xi
    return 0.5 * total + math.log(product)


@inner
def _weighted_softplus_sum(xi_squared, n, weights):
    total = 0.0
    for l in range(n):
        xi = math.sqrt(max(xi_squared[l], 0.0))
        total += weights[l] * (math.log(2.0 + _decay(min(xi, NO_MORE))) + 0.5 * xi)
    return total
