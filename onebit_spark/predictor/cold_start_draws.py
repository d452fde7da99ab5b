"""Random draws of the score for any pair of ids: the predictor that `sample` returns and the certificates are about.

A row or column with ratings is drawn from its posterior. One without ratings is drawn from the prior given the scales.
This adds nothing to the divergence (docs/MATH.md, §9.4)::

    γ ~ q(γ), then x_k ~ N(0, γ_k), with one γ for both sides of a pair
    an intercept: μ ~ q(μ), γ_b ~ q(γ_b), then b ~ N(μ, γ_b); γ_d ~ q(γ_d), then d ~ N(0, γ_d)

A draw from N(0, 1/E[1/γ]) would be narrower, and the bound does not account for its divergence. After a prior split the
prior is fixed: an id without ratings is drawn from N(p, diag(1/g)/t), see ``certificate.learnt_prior``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from onebit_spark.core.draws import drawn_scores
from onebit_spark.core.losses import SIDES, Side
from onebit_spark.core.posterior import DoubleArray, RowPosterior
from onebit_spark.core.priors import ScalePrior
from onebit_spark.core.randomness import uniforms
from onebit_spark.core.scales import Scales

SCALE_STREAM = np.uint64(0x5CA1E)  # keeps the draws of γ and μ apart from those of the factors

Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class ColdStartDraws:
    """How rows and columns without ratings are drawn."""

    scales: Scales  # q(γ) and q(μ) of the fit
    prior: ScalePrior  # π^γ
    narrowing: float | None = None  # after a prior split: t^{−½}, by which the spreads of the prior are multiplied

    def sampled_scores(
        self, rows: RowPosterior, cols: RowPosterior, unrated: tuple[Flags, Flags], states: NDArray[np.uint64]
    ) -> DoubleArray:
        """One draw of the score per pair, from its random stream; line l of both posteriors is pair l.

        ``unrated`` are the lines whose row, and those whose column, has no ratings.
        """
        touched = np.flatnonzero(unrated[0] | unrated[1])
        if len(touched):
            laws = self._laws(states[touched], rows.has_intercept)
            rows = _replaced(rows, touched, unrated[0][touched], *laws["rows"])
            cols = _replaced(cols, touched, unrated[1][touched], *laws["cols"])
        return drawn_scores(rows, cols, states)

    def _laws(self, states: NDArray[np.uint64], intercepts: bool) -> dict[Side, tuple[DoubleArray, DoubleArray]]:
        """Means and standard deviations of both sides, one line per pair, after γ and μ are drawn."""
        if self.narrowing is not None:
            return {side: self._narrow(side, intercepts, len(states), self.narrowing) for side in SIDES}
        moments, rank = self.scales.moments, len(self.scales.factor)
        assert moments is not None, "q(γ) is known once the first γ step is done"
        u = uniforms(states ^ SCALE_STREAM, rank + 3)
        shared = np.sqrt(self.prior.posterior(moments.factor, moments.rows + moments.cols).quantile(u[:, :rank]))
        if not intercepts:
            return {side: self._implicit(side, np.zeros_like(shared), shared) for side in SIDES}
        both = self.prior.posterior([moments.row_intercept, moments.col_intercept], [moments.rows, moments.cols])
        own = np.sqrt(both.quantile(u[:, rank : rank + 2]))
        location = np.zeros((len(u), rank + 1))
        row_location = location.copy()
        row_location[:, 0] = self.scales.mean + np.sqrt(self.scales.mean_variance) * ndtri(u[:, rank + 2])
        return {
            "rows": self._implicit("rows", row_location, np.hstack([own[:, :1], shared])),
            "cols": self._implicit("cols", location, np.hstack([own[:, 1:], shared])),
        }

    def _implicit(self, side: Side, location: DoubleArray, deviation: DoubleArray) -> tuple[DoubleArray, DoubleArray]:
        """With the mean and the variance of what implicit features add (``Scales.unseen``)."""
        implicit = None if self.scales.moments is None else self.scales.moments.told(side)
        if implicit is None:
            return location, deviation
        rank = implicit.shape[1]
        location, variance = location.copy(), deviation**2
        location[:, -rank:] += implicit[0]
        variance[:, -rank:] += implicit[1]
        return location, np.sqrt(variance)

    def _narrow(self, side: Side, intercepts: bool, n: int, narrowing: float) -> tuple[DoubleArray, DoubleArray]:
        prior = self.scales.unseen(side, intercepts)
        return np.repeat(prior.mean, n, axis=0), np.repeat(narrowing * prior.precision**-0.5, n, axis=0)


def _replaced(
    side: RowPosterior, lines: NDArray[np.int64], unrated: Flags, location: DoubleArray, deviation: DoubleArray
) -> RowPosterior:
    """The posterior with the given means and deviations in those of ``lines`` that are unrated."""
    law = RowPosterior.isotropic(
        location[unrated].astype(side.location.dtype), deviation[unrated], side.kind, side.has_intercept
    )
    replaced = side.copy()
    replaced.location[lines[unrated]], replaced.scale[lines[unrated]] = law.location, law.scale
    return replaced
