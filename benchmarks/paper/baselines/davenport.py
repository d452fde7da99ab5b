"""1-bit matrix completion by maximum likelihood under a nuclear norm (Davenport, Plan, van den
Berg, Wootters, 2014).

    minimise  f(X) = Σ_l log(1 + exp(−y_l X_{i_l j_l}))   over   ‖X‖_* ≤ τ

This is the paper's "freq. Logit". f is convex, so a stationary point is a solution. X is dense, so
the code is meant for matrices of up to some thousand rows and columns.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import svd
from scipy.sparse import coo_array
from scipy.sparse.linalg import svds
from scipy.special import expit

from onebit_spark.core.posterior import DoubleArray

MEMORY = 10  # objective values that a step is compared with: the search is not monotone
SUFFICIENT = 1e-4  # share of the predicted decrease that a step must reach
SHORTEST = 1e-3
LONGEST = 1e6  # spectral steps are kept between these
DENSE_SIDE = 400  # below, a whole SVD is as fast as a truncated one


@dataclass(frozen=True, eq=False)
class DavenportFit:
    """The estimate X of the logits.

    Parameters
    ----------
    matrix : array
        X.
    objective : float
        f(X).
    stationarity : float
        Upper limit of ‖P(X − ∇f) − X‖_F / max(1, ‖X‖_F), where P is the projection onto the
        constraints. It is 0 at a solution.
    iterations : int
        Number of iterations.
    converged : bool
        Whether ``stationarity`` is at most the tolerance.
    """

    matrix: DoubleArray = field(repr=False)
    objective: float
    stationarity: float
    iterations: int
    converged: bool

    def score(self, rows: ArrayLike, cols: ArrayLike) -> DoubleArray:
        """X_ij; a cell outside the matrix has the logit 0."""
        i, j = np.broadcast_arrays(np.atleast_1d(rows), np.atleast_1d(cols))
        known = (i >= 0) & (i < self.matrix.shape[0]) & (j >= 0) & (j < self.matrix.shape[1])
        return np.where(known, self.matrix[np.where(known, i, 0), np.where(known, j, 0)], 0.0)


def fit_davenport(
    rows: ArrayLike,
    cols: ArrayLike,
    labels: ArrayLike,
    shape: tuple[int, int],
    radius: float,
    *,
    max_iter: int = 500,
    tol: float = 1e-3,
) -> DavenportFit:
    """Spectral projected gradient (Birgin, Martínez, Raydan, 2000) from 0.

    ``radius`` is τ; labels are ±1. Davenport's own choice for a matrix of rank r with entries below
    a is τ = a·√(r m1 m2). Stops where the stationarity is below ``tol``.
    """
    if not radius > 0:
        raise ValueError(f"radius must be positive, not {radius}")
    likelihood = _Likelihood(np.asarray(rows), np.asarray(cols), np.asarray(labels), shape)
    projection = _Projection(radius)
    x = np.zeros(shape)
    value, gradient = likelihood(x)
    recent = deque([value], MEMORY)
    step = 4.0
    stationarity = np.inf
    iterations = 0  # the curvature of the logistic loss is at most ¼
    while iterations < max_iter:
        iterations += 1
        direction = projection(x - step * gradient) - x
        # ‖P(x − t∇) − x‖ grows with t and ‖P(x − t∇) − x‖/t falls: so this is above its value at t
        # = 1.
        size = float(np.linalg.norm(direction))
        stationarity = size * max(1.0, 1.0 / step) / max(1.0, float(np.linalg.norm(x)))
        slope = float(np.vdot(gradient, direction))
        share = 1.0
        # The projection's rounding error is all that is left of a slope ≥ 0
        if stationarity <= tol or slope >= 0:
            break
        at_x = likelihood.observed(x)
        along = likelihood.observed(direction)
        while (trial := likelihood.value(at_x + share * along)) > max(
            recent
        ) + SUFFICIENT * share * slope:
            # Where the parabola is lowest
            quadratic = -0.5 * share**2 * slope / (trial - value - share * slope)
            share = quadratic if 0.1 * share <= quadratic <= 0.9 * share else 0.5 * share
        x = x + share * direction
        value, new_gradient = likelihood(x)
        recent.append(value)
        curvature = float(np.vdot(direction, new_gradient - gradient))
        step = (
            float(np.clip(share * size**2 / curvature, SHORTEST, LONGEST))
            if curvature > 0
            else LONGEST
        )
        gradient = new_gradient
    return DavenportFit(x, value, stationarity, iterations, stationarity <= tol)


class _Likelihood:
    """f and its gradient, a matrix that is 0 outside the observed cells."""

    def __init__(
        self, rows: NDArray, cols: NDArray, labels: NDArray, shape: tuple[int, int]
    ) -> None:
        self.cells = (rows, cols)
        self.labels = labels.astype(np.float64)
        self.shape = shape

    def __call__(self, x: DoubleArray) -> tuple[float, DoubleArray]:
        scores = self.observed(x)
        slopes = -self.labels * expit(-self.labels * scores)
        return self.value(scores), coo_array((slopes, self.cells), shape=self.shape).toarray()

    def observed(self, x: DoubleArray) -> DoubleArray:
        return x[self.cells]

    def value(self, scores: DoubleArray) -> float:
        return float(np.logaddexp(0.0, -self.labels * scores).sum())


class _Projection:
    """The projection onto the nuclear ball."""

    def __init__(self, radius: float) -> None:
        self.radius = radius
        self.rank = 10  # of the last projection: how many singular values the next one will need

    def __call__(self, x: DoubleArray) -> DoubleArray:
        """Singular values less θ, where those above θ then add up to the radius; the smaller ones
        are not computed.
        """
        smaller = min(x.shape)
        wanted = self.rank + 5
        while True:
            whole = smaller <= DENSE_SIDE or 4 * wanted > smaller
            # A fixed start, so that the same input gives exactly the same result.
            u, s, vt = (
                svd(x, full_matrices=False) if whole else svds(x, wanted, v0=np.ones(smaller))
            )
            if whole and s.sum() <= self.radius:
                return x
            kept = shrink_to_sum(s, self.radius)
            if whole or (kept.min() == 0 and s.sum() > self.radius):
                break
            wanted *= 2
        used = kept > 0
        self.rank = int(np.count_nonzero(used))
        return np.asarray((u[:, used] * kept[used]) @ vt[used])


def shrink_to_sum(values: DoubleArray, total: float) -> DoubleArray:
    """(v − θ)_+ with θ ≥ 0 such that they add up to ``total``: the projection of v ≥ 0 onto the
    simplex of that size.

    Unchanged if they add up to no more.

    >>> shrink_to_sum(np.array([3.0, 2.0, 0.5]), 3.0)
    array([2., 1., 0.])
    """
    if values.sum() <= total:
        return values
    descending = np.sort(values)[::-1]
    thresholds = (np.cumsum(descending) - total) / np.arange(1, len(values) + 1)
    threshold = thresholds[np.flatnonzero(descending > thresholds)[-1]]
    return np.maximum(values - threshold, 0.0)
