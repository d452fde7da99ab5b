"""The objective by its long formula, term by term: what the solver's short one is tested against.

Nothing here shares code with the package: the scales γ are integrated numerically from the prior's
density, the ratings and the rows are visited one by one in plain Python.
"""

from typing import NamedTuple

import numpy as np
from scipy import stats

C = np.sqrt(2 / np.pi)

DENSITY = {  # π(γ) of the priors whose objective is compared with the long formula
    "gamma": lambda alpha, beta: stats.gamma(alpha, scale=1 / beta),
    "inverse-gamma": lambda alpha, beta: stats.invgamma(alpha, scale=beta),
}


class Scale(NamedTuple):
    """ρ(γ_k): E[1/γ], E[log γ], KL(ρ‖π), and how many rows and columns share γ_k."""

    inverse_mean: float
    mean_log: float
    kl: float
    count: int


def scale(prior, second_moment, count):
    """ρ(γ) ∝ π(γ) γ^{−m/2} e^{−S/(2γ)} by the trapezoidal rule in x = log γ.

    The integrand is analytic and about (α + m/2)^{−½} wide: 50 nodes and more across it for m ≤
    100.
    """
    x = np.linspace(-40, 40, 40_001)
    # The density of x
    log_prior = DENSITY[prior.name](prior.alpha, prior.beta).logpdf(np.exp(x)) + x
    log_rho = log_prior - 0.5 * count * x - 0.5 * second_moment * np.exp(-x)
    log_rho -= log_rho.max()
    log_rho -= np.log(np.sum(np.exp(log_rho)) * (x[1] - x[0]))
    rho = np.exp(log_rho) * (x[1] - x[0])
    inside = rho > 0
    kl = np.sum((rho * (log_rho - log_prior))[inside])
    return Scale(float(rho @ np.exp(-x)), float(rho @ x), float(kl), count)


class HyperPosterior(NamedTuple):
    """q(γ) of the K factors and of both intercepts, and q(μ) = N(m_μ, v_μ)."""

    factors: list[Scale]
    row_intercept: Scale | None = None
    col_intercept: Scale | None = None
    mean: float = 0.0
    mean_variance: float = 1.0

    def of(self, side, has_intercept):
        """The scale and E[μ], var μ of each free coordinate of a row of the side."""
        zero = [(s, 0.0, 0.0) for s in self.factors]
        if not has_intercept:
            return zero
        if side == "rows":
            return [(self.row_intercept, self.mean, self.mean_variance), *zero]
        return [(self.col_intercept, 0.0, 0.0), *zero]


def best_scales(prior, rows, cols, mean=0.0, mean_variance=1.0, intercept_prior=None):
    """The optimal q(γ) for two posteriors whose rows all have ratings, and q(μ).

    ``intercept_prior`` is π^γ of γ_b and γ_d, by default that of the factors.
    """
    first = int(rows.has_intercept)
    own = intercept_prior or prior

    def second_moment(posterior, k, centre=0.0):
        return np.sum((posterior.location[:, k] - centre) ** 2 + posterior.std[:, k] ** 2)

    m1 = rows.n_rows
    m2 = cols.n_rows
    factors = [
        scale(prior, second_moment(rows, k) + second_moment(cols, k), m1 + m2)
        for k in range(first, rows.dimension)
    ]
    if not first:
        return HyperPosterior(factors)
    return HyperPosterior(
        factors,
        scale(own, second_moment(rows, 0, mean) + m1 * mean_variance, m1),
        scale(own, second_moment(cols, 0), m2),
        mean,
        mean_variance,
    )


def objective(loss, ratings, weight, rows, cols, scales, xi=None):
    """λ·AVB (hinge) or −ELBO (logistic) of a state, minimised; every row and column has a
    rating.
    """
    return weight * data_term(loss, ratings, rows, cols, xi) + divergence(rows, cols, scales)


def augmented(row, other, i, j):
    """Means and covariances of [1, b_i, L_i] and [d_j, 1, R_j] (or L_i and R_j): u is their
    product.
    """
    x = row.location[i]
    z = other.location[j]
    v = row.covariance[i]
    vz = other.covariance[j]
    if row.has_intercept:
        x = np.insert(x, 0, 1.0)
        v = np.pad(v, ((1, 0), (1, 0)))
        z = np.insert(z, 1, 1.0)
        vz = np.insert(np.insert(vz, 1, 0.0, axis=0), 1, 0.0, axis=1)
    return x, v, z, vz


def expected_squares(ratings, rows, cols):
    """E[u_l²] = tr[(V_i + M_i M_iᵀ)(V_j + M_j M_jᵀ)] of every rating."""
    squares = []
    for i, j, _ in zip(*ratings, strict=True):
        x, v, z, vz = augmented(rows, cols, i, j)
        squares.append(np.trace((v + np.outer(x, x)) @ (vz + np.outer(z, z))))
    return np.array(squares)


def data_term(loss, ratings, rows, cols, xi=None):
    """Definition 1's sum over the ratings (hinge), or the quadratic bound of Section 5 (logistic)
    at ξ, by default the best one, ξ² = E[u²]."""
    total = 0.0
    squares = expected_squares(ratings, rows, cols)
    xi = np.sqrt(squares) if xi is None else xi
    for l, (i, j, y) in enumerate(zip(*ratings, strict=True)):
        x, v, z, vz = augmented(rows, cols, i, j)
        u = x @ z
        if loss == "hinge":
            total += max(1 - y * u, 0)
            for k in range(len(x)):
                s = np.sqrt(v[k, k])
                sz = np.sqrt(vz[k, k])
                total += C**2 * s * sz + C * abs(z[k]) * s + C * abs(x[k]) * sz
        elif loss == "logistic":
            tau = np.tanh(xi[l] / 2) / (4 * xi[l])
            total -= (
                -np.log1p(np.exp(-xi[l])) + (y * u - xi[l]) / 2 - tau * (squares[l] - xi[l] ** 2)
            )
        else:
            raise NotImplementedError(f"write the data term of the loss {loss!r} here")
    return total


def divergence(rows, cols, scales):
    """KL(ρ‖π): every row against N(p, γ), every γ against its prior, μ against N(0, 1).

    E[log ρ(x) − log N(x; p, γ)] = −½ log det V + Σ_k ½ [g_k E(x_k − p_k)² + E log γ_k − 1].
    """
    total = 0.0
    for side, posterior in (("rows", rows), ("cols", cols)):
        coordinates = scales.of(side, posterior.has_intercept)
        for i in range(posterior.n_rows):
            v = posterior.covariance[i]
            total -= 0.5 * np.linalg.slogdet(v)[1]
            for k, (gamma, centre, centre_variance) in enumerate(coordinates):
                square = (posterior.location[i, k] - centre) ** 2 + v[k, k] + centre_variance
                total += 0.5 * (gamma.inverse_mean * square + gamma.mean_log - 1)
    total += sum(gamma.kl for gamma in scales.factors)
    if rows.has_intercept:
        total += scales.row_intercept.kl + scales.col_intercept.kl
        total += 0.5 * (scales.mean_variance + scales.mean**2 - 1 - np.log(scales.mean_variance))
    return total
