"""Scoring of a batch of pairs, each with its two lines of the factor tables. It runs on executors, without Spark."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from onebit_spark.core import prediction
from onebit_spark.core.calibration import Calibration
from onebit_spark.core.cold_start_draws import Newcomers
from onebit_spark.core.factor_tables import prior_row, read_certified, read_factors
from onebit_spark.core.losses import SIDES
from onebit_spark.core.posterior import Kind, RowPosterior
from onebit_spark.core.randomness import pair_streams


@dataclass(frozen=True)
class Scorer:
    """Computes score, std and probability of pairs of factor lines. A null line is an id that was never rated.

    Parameters
    ----------
    loss : str
        Name of the loss.
    user_prior, item_prior : RowPosterior
        One row each, for ids that were never rated.
    calibration : Calibration, optional
        Calibration of the probability.
    """

    loss: str
    user_prior: RowPosterior
    item_prior: RowPosterior
    calibration: Calibration | None = None

    def __call__(self, users: pa.StructArray, items: pa.StructArray) -> pa.StructArray:
        lines = max(1, prediction.SLICE // self.user_prior.dimension**2)
        score, variance = np.empty(len(users)), np.empty(len(users))
        for lo in range(0, len(users), lines):
            part = slice(lo, lo + lines)
            pairs = read_factors(users[part], self.user_prior), read_factors(items[part], self.item_prior)
            score[part], variance[part] = prediction.score(*pairs), prediction.variance(*pairs)
        probability = prediction.probability(self.loss, score, variance, self.calibration)
        return pa.StructArray.from_arrays(
            [pa.array(column) for column in (score, np.sqrt(variance), probability)], ["score", "std", "probability"]
        )


@dataclass(frozen=True)
class Sampler:
    """Draws the score of pairs of factor lines. A null line is an id that was never rated.

    Parameters
    ----------
    newcomers : Newcomers
        How ids without ratings are drawn.
    kind : {"spread", "covariance"}
        Form of the factor lines.
    intercepts : bool
        Whether they have intercepts.
    seed : int
        Seed of the draws.
    """

    newcomers: Newcomers
    kind: Kind
    intercepts: bool
    seed: int

    def __call__(self, users: pa.StructArray, items: pa.StructArray, pairs: pa.Int64Array) -> pa.Array:
        """``pairs`` are hashes of the ids. They determine the random numbers of each pair."""
        certified = self.newcomers.narrowing is not None
        kind: Kind = "spread" if certified else self.kind
        read = read_certified if certified else read_factors
        rows, cols = (
            read(lines, prior_row(self.newcomers.scales, side, kind, self.intercepts))
            for side, lines in ((SIDES[0], users), (SIDES[1], items))
        )
        new_rows, new_cols = (lines.is_null().to_numpy(zero_copy_only=False) for lines in (users, items))
        keys = pairs.to_numpy(zero_copy_only=False)
        states = pair_streams(self.seed, keys, np.zeros_like(keys))
        return pa.array(self.newcomers.sampled_scores(rows, cols, new_rows, new_cols, states))
