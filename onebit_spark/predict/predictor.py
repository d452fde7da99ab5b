"""From the posteriors of a row and a column to the predictions of their pair (docs/MATH.md, §8).

Executors use it too.

Some certificates are about random draws. docs/MATH.md, §9.4, says how ids without ratings are
drawn.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy.special import ndtri

from onebit_spark.core.calibration import Calibration
from onebit_spark.core.confidences import TOWARDS, Call
from onebit_spark.core.hyper_posterior import HyperPosterior, Moments
from onebit_spark.core.losses import SIDES, Side
from onebit_spark.core.posterior import DoubleArray, Kind, RowPosterior
from onebit_spark.core.randomness import drawn_scores, pair_streams, uniforms
from onebit_spark.core.scores import (
    compute_confidences,
    compute_moments,
    compute_probabilities,
    score_noise,
)
from onebit_spark.model_info import (
    ModelInfo,
    prior_row,
    read_factors,
)
from onebit_spark.predict.top_n import Numbers, Ranking

SCALE_STREAM = np.uint64(0x5CA1E)  # keeps the draws of γ and μ apart from those of the factors

Flags = NDArray[np.bool_]
Pairs = tuple[RowPosterior, RowPosterior]  # line l of both is pair l
# The same as lines of factor tables; a null line is an unknown id
Lines = tuple[pa.StructArray, pa.StructArray]

OUTPUTS = ("score", "std", "probability", "prediction")


@dataclass(frozen=True)
class Predictor:
    loss: str  # name of the loss
    kind: Kind  # form of the posterior
    intercepts: bool  # whether it has intercepts
    scales: HyperPosterior  # q(γ) and q(μ): ids without ratings are predicted and drawn from them
    majority: int  # the more frequent label
    negative: float  # the negative label, −1 or 0; the positive one is 1
    calibration: Calibration | None  # of the probability

    @classmethod
    def of(cls, info: ModelInfo) -> Predictor:
        config = info.config
        return cls(
            loss=config.loss,
            kind=info.kind,
            intercepts=config.intercepts,
            scales=info.scales,
            majority=info.majority,
            negative=info.negative_label,
            calibration=info.calibrated,
        )

    # ---- from scores and variances --------------------------------------------------------------

    def label(self, scores: DoubleArray) -> DoubleArray:
        """The sign of the score as a label. A score of exactly 0 gets the majority label."""
        return np.where(np.where(scores == 0, self.majority, scores) > 0, 1.0, self.negative)

    def confidence(self, scores: DoubleArray, deviations: DoubleArray) -> DoubleArray:
        """z = score/√(c + variance).

        c is the noise of the loss, also in a calibrated model (§10.1).
        """
        return compute_confidences(scores, deviations, score_noise(self.loss))

    def calls(
        self, call: Call, threshold: float, scores: DoubleArray, deviations: DoubleArray
    ) -> Flags:
        """For which pairs the model makes a call: those that reach a threshold, which is ∞ if there
        are none.
        """
        return np.asarray(TOWARDS[call](self.confidence(scores, deviations)) >= threshold)

    def outputs(self, scores: DoubleArray, variances: DoubleArray) -> dict[str, DoubleArray]:
        probability = compute_probabilities(self.loss, scores, variances, self.calibration)
        return dict(
            zip(OUTPUTS, (scores, np.sqrt(variances), probability, self.label(scores)), strict=True)
        )

    def sampled_scores(
        self,
        rows: RowPosterior,
        cols: RowPosterior,
        unrated: tuple[Flags, Flags],
        keys: Numbers,
        seed: int,
    ) -> DoubleArray:
        """One draw of the score per pair; line l of both posteriors is pair l.

        ``keys`` are hashes of the two ids, and determine the draws with the seed. ``unrated`` are
        the lines whose row, and those whose column, has no ratings.
        """
        states = pair_streams(seed, keys, np.zeros_like(keys))
        touched = np.flatnonzero(unrated[0] | unrated[1])
        if len(touched):
            laws = self._laws(states[touched])
            rows = _replaced(rows, touched, unrated[0][touched], *laws["rows"])
            cols = _replaced(cols, touched, unrated[1][touched], *laws["cols"])
        return drawn_scores(rows, cols, states)

    def _laws(self, states: NDArray[np.uint64]) -> dict[Side, tuple[DoubleArray, DoubleArray]]:
        """Means and standard deviations of ids without ratings, one line per pair, after γ and μ
        are drawn::

        γ ~ q(γ), then x_k ~ N(0, γ_k)
        an intercept: μ ~ q(μ), γ_b ~ q(γ_b), then b ~ N(μ, γ_b); γ_d ~ q(γ_d), then d ~ N(0, γ_d)
        """
        scales = self.scales
        n = len(states)
        moments = scales.moments
        rank = len(scales.factor)
        assert moments is not None, "q(γ) is known once the first γ step is done"
        u = uniforms(states ^ SCALE_STREAM, rank + 3)
        shared = np.sqrt(
            scales.prior.posterior(moments.factor, moments.rows + moments.cols).quantile(
                u[:, :rank]
            )
        )
        if scales.intercept_prior is None:
            return {
                side: _with_implicit(moments, side, np.zeros_like(shared), shared) for side in SIDES
            }
        squares = [moments.row_intercept, moments.col_intercept]
        both = scales.intercept_prior.posterior(squares, [moments.rows, moments.cols])
        own = np.sqrt(both.quantile(u[:, rank : rank + 2]))
        location = np.zeros((n, rank + 1))
        row_location = location.copy()
        row_location[:, 0] = scales.mean + np.sqrt(scales.mean_variance) * ndtri(u[:, rank + 2])
        return {
            "rows": _with_implicit(moments, "rows", row_location, np.hstack([own[:, :1], shared])),
            "cols": _with_implicit(moments, "cols", location, np.hstack([own[:, 1:], shared])),
        }

    def ranking(self, z: float | None, floor: float | None) -> Ranking:
        """The order of pairs: by probability, or by score − z·std. ``floor`` is the least
        confidence.
        """
        noise = score_noise(self.loss, self.calibration)
        order = math.nan if z is None else float(z)
        return Ranking(noise, order, float(floor or 0.0), score_noise(self.loss))

    # ---- from lines of factor tables ------------------------------------------------------------

    def score_lines(self, lines: Lines) -> pa.StructArray:
        priors = [prior_row(self.scales, side, self.kind, self.intercepts) for side in SIDES]

        def pairs(part: slice) -> Pairs:
            users, items = (
                read_factors(each[part], prior) for each, prior in zip(lines, priors, strict=True)
            )
            return users, items

        outputs = self.outputs(*compute_moments(pairs, len(lines[0]), priors[0].dimension))
        return pa.StructArray.from_arrays(
            [pa.array(column) for column in outputs.values()], list(outputs)
        )

    def sample_lines(self, lines: Lines, keys: pa.Int64Array, seed: int) -> pa.Array:
        """One draw of the score per pair of factor lines.

        ``keys`` are hashes of the ids: they determine the draws.
        """
        rows, cols = (
            read_factors(each, prior_row(self.scales, side, self.kind, self.intercepts))
            for side, each in zip(SIDES, lines, strict=True)
        )
        unrated_rows, unrated_cols = (
            each.is_null().to_numpy(zero_copy_only=False) for each in lines
        )
        numbers = keys.to_numpy(zero_copy_only=False)
        return pa.array(
            self.sampled_scores(rows, cols, (unrated_rows, unrated_cols), numbers, seed)
        )


def _with_implicit(
    moments: Moments, side: Side, location: DoubleArray, deviation: DoubleArray
) -> tuple[DoubleArray, DoubleArray]:
    """With the mean and the variance of what implicit features add (``HyperPosterior.unseen``)."""
    implicit = moments.implicit_moments(side)
    if implicit is None:
        return location, deviation
    rank = implicit.shape[1]
    location = location.copy()
    variance = deviation**2
    location[:, -rank:] += implicit[0]
    variance[:, -rank:] += implicit[1]
    return location, np.sqrt(variance)


def _replaced(
    side: RowPosterior,
    lines: NDArray[np.int64],
    unrated: Flags,
    location: DoubleArray,
    deviation: DoubleArray,
) -> RowPosterior:
    """The posterior with the given means and deviations in those of ``lines`` that are unrated."""
    law = RowPosterior.isotropic(
        location[unrated].astype(side.location.dtype),
        deviation[unrated],
        side.kind,
        side.has_intercept,
    )
    replaced = side.copy()
    replaced.location[lines[unrated]] = law.location
    replaced.scale[lines[unrated]] = law.scale
    return replaced
