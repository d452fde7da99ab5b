"""The row updates once more, slow and readable: plain numpy, one row at a time, straight from the
formulas.

The tests hold every compiled kernel against its twin here; nothing else uses this file. Every κ of
a formula is a κ w_l of its rating. Layouts are those of ``core/loss.py``: a row is [1, x] (or x),
its partners are z_j = [d_j, 1, R_j] (or R_j), and x is what moves.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

Array = np.ndarray
C = np.sqrt(2 / np.pi)  # E|Z| of a standard normal Z


class UpdatedRow(NamedTuple):
    """A row after its update, and what it adds to the objective."""

    mean: Array
    scale: Array  # standard deviations s (D), or the covariance V (D × D)
    log_volume: float  # Σ_k log s_k, or ½ log det V
    data: float  # the row's share of the data term


@dataclass(frozen=True)
class RowProblem:
    """What the update of one row sees: its n ratings, their partners z_j, and its prior N(p, (diag
    g + coupling)⁻¹).
    """

    labels: Array  # y_l = ±1 (n)
    partner_mean: Array  # E[z_j] of every rating (n × A)
    partner_covariance: Array  # Cov(z_j) of every rating (n × A × A), zero where z_j is fixed at 1
    prior_mean: Array  # p (D)
    precision: Array  # g (D)
    kappa: float  # κ
    rating_weights: Array | None = None  # w_l of every rating (n); None: all are 1
    coupling: Array | None = None  # the prior's precision off its diagonal (D × D); None: 0

    @property
    def weights(self):
        """κ w_l of every rating."""
        ones = np.ones(len(self.labels))
        return self.kappa * (
            ones if self.rating_weights is None else self.rating_weights.astype(np.float64)
        )

    @property
    def fixed(self):
        """How many coordinates of the row are held at 1: one with intercepts, none without."""
        return self.partner_mean.shape[1] - len(self.precision)

    @property
    def partner_spread(self):
        return np.sqrt(np.diagonal(self.partner_covariance, axis1=1, axis2=2))

    @property
    def partner_moments(self):
        """E[z zᵀ] = Cov(z) + E[z] E[z]ᵀ of every rating."""
        return self.partner_covariance + np.einsum(
            "la,lb->lab", self.partner_mean, self.partner_mean
        )

    def augmented(self, x):
        """[1, x], or x."""
        return np.concatenate([np.ones(self.fixed), x])

    def scores(self, x):
        """u_l = E[x]·E[z_j]."""
        return self.partner_mean @ self.augmented(x)


def hinge_row(row, mean, margin_floor, mean_floor, storage=np.float64, halvings=3, relaxation=1.0):
    """One step of ``mm``: ω times the way to the solution of a K×K system at the floors ε, ε′. A
    step that raises the row's own F, after rounding to the storage type, is halved, and in the end
    not taken. The spread moves anyway."""
    y = row.labels
    z = row.partner_mean
    f = row.fixed
    kappa = row.weights
    g = row.precision
    p = row.prior_mean
    w = _absolute_weights(row)[f:]

    def value(x):
        hinge = kappa @ np.maximum(1 - y * row.scores(x), 0)
        return float(hinge + w @ np.abs(x) + 0.5 * g @ (x - p) ** 2)

    omega = np.maximum(np.abs(1 - y * row.scores(mean)), margin_floor)
    xi = np.maximum(np.abs(mean), mean_floor)
    gram = z.T @ (z * (kappa / (2 * omega))[:, None])
    system = gram[f:, f:] + np.diag(g + w / xi)
    right = z[:, f:].T @ (kappa * y * (0.5 + 1 / (2 * omega))) + g * p
    if f:
        right -= gram[1:, 0]  # A_Ff: the partner's intercept, met by the 1 of this row
    target = np.linalg.solve(system, right)
    for halving in range(halvings + 1):
        candidate = (
            (mean + relaxation * (target - mean) / 2**halving).astype(storage).astype(np.float64)
        )
        if value(candidate) <= value(mean):
            return _hinge_result(row, candidate, hinge_spread(row))
    return _hinge_result(row, mean, hinge_spread(row))


def hinge_gradient_row(row, mean, spread, rate):
    """One gradient step of Algorithm 1 on the means; the spreads stay."""
    y = row.labels
    f = row.fixed
    inside = y * row.scores(mean) < 1
    slope = -row.partner_mean[:, f:].T @ (row.weights * y * inside)
    slope += _absolute_weights(row)[f:] * np.sign(mean) + row.precision * (mean - row.prior_mean)
    return _hinge_result(row, mean - rate * slope, spread)


def hinge_spread_row(row, mean):
    """The exact step of the spreads; the means stay."""
    return _hinge_result(row, mean, hinge_spread(row))


def hinge_spread(row):
    """argmin_s a s − log s + ½ g s² = 2 / (a + √(a² + 4g))."""
    a = _spread_weights(row)[row.fixed :]
    return 2 / (a + np.sqrt(a**2 + 4 * row.precision))


def _absolute_weights(row):
    """w_k = κ c Σ_l s_jk: what |x_k| costs."""
    return C * row.weights @ row.partner_spread


def _spread_weights(row):
    """a_k = κ c Σ_l (|R_jk| + c s_jk): what the row's own s_k costs."""
    return C * row.weights @ (np.abs(row.partner_mean) + C * row.partner_spread)


def _hinge_result(row, mean, spread):
    """Data term: κ Σ_l {(1 − y u)_+ + Σ_k [c² s s_j + c |R_j| s + c |x| s_j]}."""
    hinge = row.weights @ np.maximum(1 - row.labels * row.scores(mean), 0)
    spreads = (
        _absolute_weights(row) @ np.abs(row.augmented(mean))
        + _spread_weights(row)[row.fixed :] @ spread
    )
    return UpdatedRow(mean, spread, float(np.log(spread).sum()), float(hinge + spreads))


def tau(xi):
    """tanh(ξ/2)/(4ξ), 1/8 at 0."""
    safe = np.where(xi > 0, xi, 1.0)
    return np.where(xi > 0, np.tanh(safe / 2) / (4 * safe), 0.125)


def logistic_row(row, mean, covariance, relaxation=1.0):
    """The exact update of Section 5 with a full covariance: V = A⁻¹; the mean goes ω times the way."""
    system, right = _logistic_system(row, mean, covariance)
    new_covariance = np.asarray(np.linalg.inv(system), np.float64)
    new_mean = mean + relaxation * (new_covariance @ right - mean)
    log_volume = 0.5 * np.linalg.slogdet(new_covariance)[1]
    return UpdatedRow(
        new_mean, new_covariance, float(log_volume), _logistic_data(row, new_mean, new_covariance)
    )


def logistic_row_diagonal(row, mean, spread, relaxation=1.0):
    """The same with variances only: V_kk = 1/A_kk, the mean from the full A."""
    system, right = _logistic_system(row, mean, np.diag(spread**2))
    new_spread = 1 / np.sqrt(np.diagonal(system))
    new_mean = mean + relaxation * (np.asarray(np.linalg.solve(system, right), np.float64) - mean)
    data = _logistic_data(row, new_mean, np.diag(new_spread**2))
    return UpdatedRow(new_mean, new_spread, float(np.log(new_spread).sum()), data)


def expected_squares(row, mean, covariance):
    """ξ_l² = E[u_l²] = tr(E[x xᵀ] E[z zᵀ])."""
    f = row.fixed
    x = row.augmented(mean)
    moments = np.outer(x, x)
    moments[f:, f:] += covariance
    return np.einsum("ab,lab->l", moments, row.partner_moments)


def _logistic_system(row, mean, covariance):
    """A = 2κ Σ τ(ξ) E[z zᵀ] + G on the free coordinates, and κ/2 Σ y E[z] − A_Ff + Gp, G the
    prior's precision.
    """
    f = row.fixed
    precision = np.diag(row.precision) + (0.0 if row.coupling is None else row.coupling)
    weights = 2 * row.weights * tau(np.sqrt(expected_squares(row, mean, covariance)))
    whole = np.einsum("l,lab->ab", weights, row.partner_moments)
    right = 0.5 * (row.weights * row.labels) @ row.partner_mean[:, f:] + precision @ row.prior_mean
    if f:
        right -= whole[1:, 0]  # 2κ Σ τ E[R_j d_j], Cov(R_j, d_j) included
    return whole[f:, f:] + precision, right


def _logistic_data(row, mean, covariance):
    """−κ Σ_l [log σ(ξ) + (y u − ξ)/2] at ξ² = E[u²]."""
    xi = np.sqrt(expected_squares(row, mean, covariance))
    log_sigmoid = -np.log1p(np.exp(-xi))
    return float(-row.weights @ (log_sigmoid + 0.5 * (row.labels * row.scores(mean) - xi)))


def mapped_row(mean, covariance, matrix, shift):
    """x ─► xT + t: the mean alike, and TᵀVT."""
    return mean @ matrix + shift, matrix.T @ covariance @ matrix


def stretch_height(prior, product, m1, m2):
    """−log Z(t² + Λ/t²) − (m1 − m2) log t as a function of log t."""

    def height(log_t):
        t2 = np.exp(2 * log_t)
        evidence = prior.posterior(np.array([t2 + product / t2]), m1 + m2).log_normaliser
        return float(-evidence[0] - (m1 - m2) * log_t)

    return height


def weighted_squares(rows, cols, scales):
    """½ Σ g E(x − p)² over both sides and all coordinates, row by row: what centring makes smaller."""
    total = 0.0
    for posterior, own, centre in (
        (rows, scales.row_intercept, scales.mean),
        (cols, scales.col_intercept, 0.0),
    ):
        g = np.insert(scales.factor, 0, own)
        for mean, covariance in zip(posterior.location, posterior.covariance, strict=True):
            away = mean - np.insert(np.zeros(len(g) - 1), 0, centre)
            total += 0.5 * float(g @ (away**2 + np.diag(covariance)))
    return total
