"""Simple baselines: the majority class, row + column intercepts, and a logistic factorisation with
a ridge penalty.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize
from scipy.sparse import csr_array
from scipy.special import expit

from onebit_spark.core.posterior import DoubleArray


@dataclass(frozen=True, eq=False)
class LogisticFit:
    """The logits c + b_i + d_j + L_i·R_j.

    Parameters
    ----------
    offset : float
        c.
    row_intercepts, col_intercepts : arrays
        b and d.
    row_factors, col_factors : arrays
        L and R.
    objective : float
        The penalised objective that they minimise.
    converged : bool
        Whether the optimiser succeeded.
    """

    offset: float
    row_intercepts: DoubleArray
    col_intercepts: DoubleArray
    row_factors: DoubleArray
    col_factors: DoubleArray
    objective: float
    converged: bool

    def score(self, rows: ArrayLike, cols: ArrayLike) -> DoubleArray:
        """The logit; rows and columns must lie in the shape of the fit."""
        i, j = np.broadcast_arrays(np.atleast_1d(rows), np.atleast_1d(cols))
        product = np.einsum("lk,lk->l", self.row_factors[i], self.col_factors[j])
        return np.asarray(self.offset + self.row_intercepts[i] + self.col_intercepts[j] + product)


def fit_majority(labels: ArrayLike, shape: tuple[int, int]) -> LogisticFit:
    """One logit for all cells, that of the share of positives; in a tie, slightly above 0."""
    y = np.asarray(labels)
    positive = np.count_nonzero(y > 0) + 0.5
    negative = np.count_nonzero(y <= 0) + 0.5
    logit = float(np.log(positive / negative)) or np.finfo(float).tiny
    (m1, m2), loss = shape, _loss(y, np.full(len(y), logit))
    return LogisticFit(
        logit, np.zeros(m1), np.zeros(m2), np.zeros((m1, 0)), np.zeros((m2, 0)), loss, True
    )


def fit_logistic(
    rows: ArrayLike,
    cols: ArrayLike,
    labels: ArrayLike,
    shape: tuple[int, int],
    *,
    rank: int = 0,
    ridge: float = 1.0,
    max_iter: int = 500,
    seed: int = 0,
) -> LogisticFit:
    """Minimise Σ_l log(1 + exp(−y_l u_l)) + ½ ridge·(‖b‖² + ‖d‖² + ‖L‖² + ‖R‖²), u = c + b_i + d_j
    + L_i·R_j.

    By L-BFGS over all parameters at once, labels ±1. ``rank=0`` leaves the intercepts, and the
    problem is convex; otherwise the factors start at small noise.
    """
    i = np.asarray(rows)
    j = np.asarray(cols)
    y = np.asarray(labels, dtype=np.float64)
    m1, m2 = shape
    edges = np.cumsum([1, m1, m2, m1 * rank])

    def parts(
        theta: DoubleArray,
    ) -> tuple[DoubleArray, DoubleArray, DoubleArray, DoubleArray, DoubleArray]:
        c, b, d, left, right = np.split(theta, edges)
        return c, b, d, left.reshape(m1, rank), right.reshape(m2, rank)

    def objective(theta: DoubleArray) -> tuple[float, DoubleArray]:
        c, b, d, left, right = parts(theta)
        u = c[0] + b[i] + d[j] + np.einsum("lk,lk->l", left[i], right[j])
        slope = -y * expit(-y * u)
        slopes = csr_array((slope, (i, j)), shape=shape)
        gradient = ridge * theta
        gradient[0] = slope.sum()
        gradient[1:] += np.concatenate(
            [
                slopes.sum(axis=1),
                slopes.sum(axis=0),
                (slopes @ right).ravel(),
                (slopes.T @ left).ravel(),
            ]
        )
        return _loss(y, u) + 0.5 * ridge * float(theta[1:] @ theta[1:]), gradient

    start = np.zeros(edges[-1] + m2 * rank)
    start[edges[2] :] = 0.1 * np.random.default_rng(seed).standard_normal(len(start) - edges[2])
    found = minimize(
        objective, start, jac=True, method="L-BFGS-B", options={"maxiter": max_iter, "maxcor": 20}
    )
    c, b, d, left, right = parts(found.x)
    return LogisticFit(float(c[0]), b, d, left, right, float(found.fun), bool(found.success))


def _loss(y: DoubleArray, u: DoubleArray) -> float:
    return float(np.logaddexp(0.0, -y * u).sum())
