"""Jaakkola & Jordan's bound of the logistic loss: log(1 + e^{−u}) ≤ log(1 + e^{−ξ}) + (ξ − u)/2 + τ(ξ)(u² − ξ²)."""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import math

from onebit_spark.core.compiled import jit


@jit
def _tau(xi_squared):
    """τ(ξ) = tanh(ξ/2)/(4ξ) by one exponential; its series below ξ = 10⁻³."""
    if xi_squared < 1e-6:
        return 0.125 - max(xi_squared, 0.0) / 96.0
    xi = math.sqrt(xi_squared)
    e = math.exp(-xi)
    return (1.0 - e) / ((1.0 + e) * 4.0 * xi)


@jit
def tau_weights(xi_squared, n, scale):
    """Overwrite ξ² with scale·τ(ξ)."""
    for l in range(n):
        xi_squared[l] = scale * _tau(xi_squared[l])


@jit
def softplus_sum(xi_squared, n):
    """Σ_l [log(1 + e^{−ξ}) + ξ/2]; the logarithm of a product of at most CHUNK factors ≤ 2 is taken once."""
    total, product = 0.0, 1.0
    for l in range(n):
        xi = math.sqrt(max(xi_squared[l], 0.0))
        product *= 1.0 + math.exp(-xi)
        total += 0.5 * xi
    return total + math.log(product)
