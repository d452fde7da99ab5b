"""The posteriors of a model in this process, and the predictions of pairs by their positions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from onebit_spark.core.positions import Axes
from onebit_spark.core.posterior import DoubleArray, RowPosterior
from onebit_spark.core.scores import compute_moments, compute_scores_of_means, in_slices
from onebit_spark.model_info import ModelInfo
from onebit_spark.predict.predictor import Predictor
from onebit_spark.predict.sides import ModelSide, lines_at
from onebit_spark.predict.top_n import Numbers
from onebit_spark.settings import Who, available_cores


@dataclass(frozen=True, eq=False)
class Factors:
    """A pair is the position of a user and that of an item; −1 is an unknown id."""

    info: ModelInfo
    users: ModelSide
    items: ModelSide

    def side(self, who: Who) -> ModelSide:
        return self.users if who == "user" else self.items

    def find(self, users: pa.Array, items: pa.Array) -> tuple[Numbers, Numbers]:
        return self.users.positions(users), self.items.positions(items)

    @cached_property
    def predictor(self) -> Predictor:
        return Predictor.of(self.info)

    @cached_property
    def axes(self) -> Axes:
        """The axes of the fit. A checkpoint has those of its rows."""
        known = self.info.position_axes
        if known is None:
            return Axes.of_posteriors(self.users.known, self.items.known)
        return known

    def score(self, rows: Numbers, cols: Numbers) -> DoubleArray:
        users = self.users
        items = self.items
        intercepts = users.prior.has_intercept
        scores = np.empty(len(rows))

        def fill(part: slice) -> None:
            left = lines_at(users.known.location, users.prior.location, rows[part])
            right = lines_at(items.known.location, items.prior.location, cols[part])
            scores[part] = compute_scores_of_means(left, right, intercepts)

        in_slices(fill, len(rows), users.prior.dimension, available_cores())
        return scores

    def predict(self, rows: Numbers, cols: Numbers) -> dict[str, DoubleArray]:
        """Score, std, probability and prediction of every pair."""

        def pairs(part: slice) -> tuple[RowPosterior, RowPosterior]:
            return self.users.at(rows[part]), self.items.at(cols[part])

        dimension = self.users.prior.dimension
        score, variance = compute_moments(pairs, len(rows), dimension, available_cores())
        return self.predictor.outputs(score, variance)

    def sample(self, rows: Numbers, cols: Numbers, keys: Numbers, seed: int) -> DoubleArray:
        """One draw of the score per pair; ``keys`` are hashes of the two ids."""
        left = self.users.at(rows)
        right = self.items.at(cols)
        return self.predictor.sampled_scores(left, right, (rows < 0, cols < 0), keys, seed)
