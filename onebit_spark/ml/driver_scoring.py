"""Small tables are scored on the driver: no Python worker has to start, and nothing is joined.

One job collects the pairs, two more the factors of a model that was loaded, when it is asked for the first time.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from onebit_spark.core import prediction
from onebit_spark.core.factor_tables import factor_columns, prior_row
from onebit_spark.core.losses import SIDES
from onebit_spark.core.model_info import ModelInfo
from onebit_spark.engines.factor_frames import collected_factors
from onebit_spark.serving.side import ResidentSide, scored_pairs

MOST_PAIRS = 2_000_000
MOST_BYTES = 128 * 2**20  # of both factor tables


class Scoring(Protocol):
    """What is asked here of a model."""

    info: ModelInfo
    users: DataFrame
    items: DataFrame

    @property
    def bytesPerRow(self) -> int: ...

    @property
    def negativeLabel(self) -> float: ...

    def getUserCol(self) -> str: ...

    def getItemCol(self) -> str: ...

    def checkIdType(self, dataset: DataFrame, side: str, column: str) -> None: ...

    def resident(self) -> tuple[ResidentSide, ResidentSide]: ...


def fits_here(model: Scoring, n_pairs: int) -> bool:
    """Whether the model and so many pairs are small enough."""
    return n_pairs <= MOST_PAIRS and (model.info.n_users + model.info.n_items) * model.bytesPerRow <= MOST_BYTES


def collected(model: Scoring) -> tuple[ResidentSide, ResidentSide]:
    """The factors of both sides, collected."""
    scales, config = model.info.scales, model.info.config
    form = model.info.kind, config.intercepts, config.implicit_features
    users, items = (
        ResidentSide.of(collected_factors(factors), prior_row(scales, side, *form), factor_columns(*form))
        for side, factors in zip(SIDES, (model.users, model.items), strict=True)
    )
    return users, items


def scored_here(model: Scoring, pairs: DataFrame) -> pa.Table:
    """The pairs with score, std, probability, prediction, unknown_user and unknown_item. Ids must not be null."""
    for side, column in (("user", model.getUserCol()), ("item", model.getItemCol())):
        model.checkIdType(pairs, side, column)
    users, items = model.resident()
    table = pairs.toArrow()
    rows, cols = users.positions(table[model.getUserCol()]), items.positions(table[model.getItemCol()])
    score, variance = scored_pairs(users, items, rows, cols)
    info = model.info
    signs = np.sign(score)
    columns = {
        "score": score,
        "std": np.sqrt(variance),
        "probability": prediction.probability(info.config.loss, score, variance, info.calibrated),
        "prediction": np.where(np.where(signs == 0, info.majority, signs) > 0, 1.0, model.negativeLabel),
        "unknown_user": rows < 0,
        "unknown_item": cols < 0,
    }
    for name, values in columns.items():
        table = table.append_column(name, pa.array(values))
    return table
