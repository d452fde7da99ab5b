"""Predictor: from the posteriors of a row and a column to all that a model says about their pair (docs/MATH.md, §8).

``FittedModel`` and the executors both call it.

The draws are the predictor that the certificates are about. A row or column with ratings is drawn
from its posterior. One without ratings is drawn from the prior given the scales. This adds nothing to the divergence
(docs/MATH.md, §9.4)::

    γ ~ q(γ), then x_k ~ N(0, γ_k), with one γ for both sides of a pair
    an intercept: μ ~ q(μ), γ_b ~ q(γ_b), then b ~ N(μ, γ_b); γ_d ~ q(γ_d), then d ~ N(0, γ_d)

A draw from N(0, 1/E[1/γ]) would be narrower, and the bound does not account for its divergence. After a prior split the
prior is fixed: an id without ratings is drawn from N(p, diag(1/g)/t), see ``certificate.certified_fit``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy.special import ndtri

from onebit_spark.core import prediction
from onebit_spark.core.hyper_posterior import HyperPosterior, Moments
from onebit_spark.core.losses import SIDES, Side
from onebit_spark.core.model_info import ModelInfo, prior_row, read_certified, read_factors
from onebit_spark.core.posterior import DoubleArray, Kind, RowPosterior
from onebit_spark.core.prediction import Calibration, confidence
from onebit_spark.core.randomness import drawn_scores, pair_streams, uniforms
from onebit_spark.predictor.top_n import Numbers, Ranking

SCALE_STREAM = np.uint64(0x5CA1E)  # keeps the draws of γ and μ apart from those of the factors

Flags = NDArray[np.bool_]


Pairs = tuple[RowPosterior, RowPosterior]  # line l of both is pair l
Lines = tuple[pa.StructArray, pa.StructArray]  # the same as lines of factor tables; a null line is an unknown id

OUTPUTS = ("score", "std", "probability", "prediction")


@dataclass(frozen=True)
class Predictor:
    """What a fitted model says about pairs."""

    loss: str  # name of the loss
    kind: Kind  # form of the posterior
    intercepts: bool  # whether it has intercepts
    scales: HyperPosterior  # q(γ) and q(μ): ids without ratings are predicted and drawn from them
    narrowing: float | None  # after a prior split: t^{−½}, by which the spreads of the prior are multiplied in draws
    majority: int  # the more frequent label
    negative: float  # the negative label, −1 or 0; the positive one is 1
    calibration: Calibration | None  # of the probability

    @classmethod
    def of(cls, info: ModelInfo) -> Predictor:
        config, form = info.config, (info.scales, info.draw_narrowing)
        return cls(
            config.loss, info.kind, config.intercepts, *form, info.majority, info.negative_label, info.calibrated
        )

    # ---- from scores and variances -----------------------------------------------------------------------------------

    def label(self, scores: DoubleArray) -> DoubleArray:
        """The sign of the score as a label. A score of exactly 0 gets the majority label."""
        return np.where(np.where(scores == 0, self.majority, scores) > 0, 1.0, self.negative)

    def probability(self, scores: DoubleArray, variances: DoubleArray) -> DoubleArray:
        """P(+), calibrated if the model is."""
        return prediction.probability(self.loss, scores, variances, self.calibration)

    def confidence(self, scores: DoubleArray, deviations: DoubleArray) -> DoubleArray:
        """|score|/√(c + variance). c is the noise of the loss, also in a calibrated model (§10.1)."""
        return confidence(scores, deviations, prediction.score_noise(self.loss))

    def outputs(self, scores: DoubleArray, variances: DoubleArray) -> dict[str, DoubleArray]:
        """The columns ``OUTPUTS``."""
        columns = scores, np.sqrt(variances), self.probability(scores, variances), self.label(scores)
        return dict(zip(OUTPUTS, columns, strict=True))

    def sampled_scores(
        self, rows: RowPosterior, cols: RowPosterior, unrated: tuple[Flags, Flags], keys: Numbers, seed: int
    ) -> DoubleArray:
        """One draw of the score per pair; line l of both posteriors is pair l.

        ``keys`` are hashes of the two ids, and determine the draws with the seed. ``unrated`` are the lines whose row,
        and those whose column, has no ratings.
        """
        states = pair_streams(seed, keys, np.zeros_like(keys))
        touched = np.flatnonzero(unrated[0] | unrated[1])
        if len(touched):
            laws = self._laws(states[touched])
            rows = _replaced(rows, touched, unrated[0][touched], *laws["rows"])
            cols = _replaced(cols, touched, unrated[1][touched], *laws["cols"])
        return drawn_scores(rows, cols, states)

    def _laws(self, states: NDArray[np.uint64]) -> dict[Side, tuple[DoubleArray, DoubleArray]]:
        """Means and standard deviations of ids without ratings, one line per pair, after γ and μ are drawn."""
        scales, n = self.scales, len(states)
        if self.narrowing is not None:
            priors = {side: scales.unseen(side) for side in SIDES}
            return {
                side: (
                    np.repeat(prior.mean, n, axis=0),
                    np.repeat(self.narrowing * prior.precision**-0.5, n, axis=0),
                )
                for side, prior in priors.items()
            }
        moments, rank = scales.moments, len(scales.factor)
        assert moments is not None, "q(γ) is known once the first γ step is done"
        u = uniforms(states ^ SCALE_STREAM, rank + 3)
        shared = np.sqrt(scales.prior.posterior(moments.factor, moments.rows + moments.cols).quantile(u[:, :rank]))
        if not self.intercepts:
            return {side: _with_implicit(moments, side, np.zeros_like(shared), shared) for side in SIDES}
        both = scales.prior.posterior([moments.row_intercept, moments.col_intercept], [moments.rows, moments.cols])
        own = np.sqrt(both.quantile(u[:, rank : rank + 2]))
        location = np.zeros((n, rank + 1))
        row_location = location.copy()
        row_location[:, 0] = scales.mean + np.sqrt(scales.mean_variance) * ndtri(u[:, rank + 2])
        return {
            "rows": _with_implicit(moments, "rows", row_location, np.hstack([own[:, :1], shared])),
            "cols": _with_implicit(moments, "cols", location, np.hstack([own[:, 1:], shared])),
        }

    def ranking(self, z: float | None, floor: float | None) -> Ranking:
        """The order of pairs: by probability, or by score − z·std. ``floor`` is the least confidence."""
        noise, order = prediction.score_noise(self.loss, self.calibration), math.nan if z is None else float(z)
        return Ranking(noise, order, float(floor or 0.0), prediction.score_noise(self.loss))

    # ---- from lines of factor tables ---------------------------------------------------------------------------------

    def score_lines(self, lines: Lines) -> pa.StructArray:
        """The columns ``OUTPUTS`` of pairs of factor lines."""
        priors = [prior_row(self.scales, side, self.kind, self.intercepts) for side in SIDES]

        def pairs(part: slice) -> Pairs:
            users, items = (read_factors(each[part], prior) for each, prior in zip(lines, priors, strict=True))
            return users, items

        outputs = self.outputs(*moments(pairs, len(lines[0]), priors[0].dimension))
        return pa.StructArray.from_arrays([pa.array(column) for column in outputs.values()], list(outputs))

    def sample_lines(self, lines: Lines, keys: pa.Int64Array, seed: int) -> pa.Array:
        """One draw of the score per pair of factor lines. ``keys`` are hashes of the ids: they determine the draws."""
        certified = self.narrowing is not None
        kind: Kind = "spread" if certified else self.kind
        read = read_certified if certified else read_factors
        rows, cols = (
            read(each, prior_row(self.scales, side, kind, self.intercepts))
            for side, each in zip(SIDES, lines, strict=True)
        )
        unrated_rows, unrated_cols = (each.is_null().to_numpy(zero_copy_only=False) for each in lines)
        numbers = keys.to_numpy(zero_copy_only=False)
        return pa.array(self.sampled_scores(rows, cols, (unrated_rows, unrated_cols), numbers, seed))


def _with_implicit(
    moments: Moments, side: Side, location: DoubleArray, deviation: DoubleArray
) -> tuple[DoubleArray, DoubleArray]:
    """With the mean and the variance of what implicit features add (``HyperPosterior.unseen``)."""
    implicit = moments.implicit_moments(side)
    if implicit is None:
        return location, deviation
    rank = implicit.shape[1]
    location, variance = location.copy(), deviation**2
    location[:, -rank:] += implicit[0]
    variance[:, -rank:] += implicit[1]
    return location, np.sqrt(variance)


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


def moments(
    pairs: Callable[[slice], Pairs], n: int, dimension: int, threads: int = 1
) -> tuple[DoubleArray, DoubleArray]:
    """Score and variance of n pairs, in slices. ``pairs`` gives the posteriors of a slice."""
    score, variance = np.empty(n), np.empty(n)

    def fill(part: slice) -> None:
        both = pairs(part)
        score[part], variance[part] = prediction.score(*both), prediction.variance(*both)

    in_slices(fill, n, dimension**2, threads)
    return score, variance


def in_slices(fill: Callable[[slice], None], n: int, size: int, threads: int) -> None:
    """Call ``fill`` for slices of n pairs, each of which needs ``size`` numbers at a time."""
    length = max(1, prediction.SLICE // size)
    parts = [slice(lo, lo + length) for lo in range(0, n, length)]
    if threads == 1 or len(parts) <= 1:
        for part in parts:
            fill(part)
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(fill, parts))
