"""Small tables are scored on the driver: no Python worker has to start, and nothing is joined.

One job collects the pairs, two more the factors of a model that was loaded, when it is asked for the first time.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import DataFrame

from onebit_spark.core import prediction
from onebit_spark.core.factortables import factor_columns, one_array, prior_row, read_factors
from onebit_spark.core.losses import SIDES
from onebit_spark.core.machine import available_cores
from onebit_spark.core.modelinfo import ModelInfo
from onebit_spark.core.posterior import RowPosterior
from onebit_spark.engines.factorframes import collected_factors

MOST_PAIRS = 2_000_000
MOST_BYTES = 128 * 2**20  # of both factor tables

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class ResidentSide:
    """The ids of a side, and their posterior with the prior as one more, last row: that of an unknown id."""

    ids: pa.Array
    posterior: RowPosterior

    @classmethod
    def of(cls, factors: DataFrame, prior: RowPosterior, columns: dict[str, str]) -> ResidentSide:
        table = collected_factors(factors)
        lines = one_array(table.select(list(columns)).to_struct_array())
        return cls(one_array(table["id"]), read_factors(pa.concat_arrays([lines, pa.nulls(1, lines.type)]), prior))

    def positions(self, ids: pa.ChunkedArray) -> Numbers:
        """The row of every id, −1 for one that is not known."""
        found = pc.index_in(_comparable(ids), value_set=_comparable(self.ids))
        return pc.fill_null(found, -1).to_numpy().astype(np.int64)

    @property
    def known(self) -> RowPosterior:
        """The posterior without the prior's row."""
        return self.posterior.take(slice(len(self.ids)))


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
        ResidentSide.of(factors, prior_row(scales, side, *form), factor_columns(*form))
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
    score, variance = _scored(users.posterior, items.posterior, rows, cols)
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


def _scored(
    users: RowPosterior, items: RowPosterior, rows: Numbers, cols: Numbers
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Score and variance of every pair, in slices side by side."""
    score, variance = np.empty(len(rows)), np.empty(len(rows))

    def fill(part: slice) -> None:
        pair = users.take(rows[part]), items.take(cols[part])
        score[part], variance[part] = prediction.score(*pair), prediction.variance(*pair)

    with ThreadPoolExecutor(available_cores()) as pool:
        list(pool.map(fill, _slices(len(rows), max(1, prediction.SLICE // users.dimension**2))))
    return score, variance


def _slices(n: int, length: int) -> Iterator[slice]:
    for lo in range(0, n, length):
        yield slice(lo, lo + length)


def _comparable(ids: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    """Integral widths interchange as ids."""
    return ids.cast(pa.int64()) if pa.types.is_integer(ids.type) else ids
