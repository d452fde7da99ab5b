"""update: a fitted model with new ratings, of users and items that it knows or not (``predictor.new_ratings``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.factor_tables import factor_columns, factor_table
from onebit_spark.core.fitted_features import SIDE_OF, Who
from onebit_spark.core.id_index import one_array
from onebit_spark.core.losses import Side
from onebit_spark.core.posterior import RowPosterior
from onebit_spark.errors import RequestError
from onebit_spark.input.ratings import LABEL, WEIGHT
from onebit_spark.ml.fitted_model import MOST_PAIRS, FittedModel
from onebit_spark.ml.fold_in import COLUMN_OF, NewRatings, explained_means, side_frame
from onebit_spark.predictor.new_ratings import Before, updated_sides
from onebit_spark.predictor.served_model import ServedModel
from onebit_spark.predictor.side import ModelSide, arrow_type

M = TypeVar("M", bound=FittedModel)


def update(model: M, ratings: DataFrame, threshold: float | None, features: dict[Who, DataFrame]) -> M:
    """The model after these ratings. They come to the driver, with the factors of their users and items."""
    means = {who: explained_means(model, frame, who) for who, frame in features.items()}
    given = NewRatings.of(model, ratings, threshold)
    if not given.n:
        return model
    if given.n > MOST_PAIRS:
        raise RequestError(
            f"update takes at most {MOST_PAIRS:,} ratings, not {given.n:,}: give them in parts, or fit again with "
            "setInitialModel(model)"
        )
    table, served = given.table(), model.served() if model.fitsHere(given.n) else None
    touched: dict[Who, _Touched] = {who: _Touched.of(model, who, table, served) for who in COLUMN_OF}
    rows, cols = touched["user"], touched["item"]
    weights = None if given.columns.weight is None else table[WEIGHT].to_numpy()
    block = RatingBlock.from_coordinates(
        rows.places, cols.places, table[LABEL].to_numpy(), (len(rows.ids), len(cols.ids)), weights
    )
    before: dict[Side, Before] = {
        SIDE_OF[who]: Before(side.posterior, side.new, means[who].at(side.ids) if who in means else None)
        for who, side in touched.items()
    }
    after = updated_sides(model.info, block, before)
    frames = {who: _united(model, who, side.ids, after[SIDE_OF[who]], served) for who, side in touched.items()}
    return given.seen_by(
        model.changed(
            users=frames["user"],
            items=frames["item"],
            n_users=model.info.n_users + int(rows.new.sum()),
            n_items=model.info.n_items + int(cols.new.sum()),
        )
    )


@dataclass(frozen=True)
class _Touched:
    """The users (or items) of some ratings: their ids, each rating's place among them, and what is known of them."""

    ids: pa.Array
    places: NDArray[np.int64]
    posterior: RowPosterior
    new: NDArray[np.bool_]

    @classmethod
    def of(cls, model: FittedModel, who: Who, table: pa.Table, served: ServedModel | None) -> _Touched:
        """``served``: the whole model, if it is on the driver. Else the factors of these ids are collected."""
        side = None if served is None else served.side(who)
        kind = arrow_type(model.info.id_types[who]) if side is None else side.ids.type
        encoded = one_array(table[COLUMN_OF[who]].cast(kind)).dictionary_encode()
        ids = encoded.dictionary
        if side is None:
            asked = F.broadcast(model.users.sparkSession.createDataFrame(pa.table({"id": ids})))
            lines = model.factorsOf(who).join(asked, "id", "left_semi").toArrow()
            side = ModelSide.of(lines, model.info, who)
        positions = side.positions(ids)
        return cls(ids, encoded.indices.to_numpy().astype(np.int64), side.posterior.take(positions), positions < 0)


def _united(model: FittedModel, who: Who, ids: pa.Array, rows: RowPosterior, served: ServedModel | None) -> DataFrame:
    """The factor table of a side with the updated lines in place of the old ones."""
    if served is not None:
        return side_frame(model, who, served.side(who).with_rows(ids, rows).table)
    lines, plain = side_frame(model, who, factor_table(ids, rows)), ["id", *factor_columns(*model.info.table_form)]
    old = model.factorsOf(who).select(*plain).join(F.broadcast(lines.select("id")), "id", "left_anti")
    return old.unionByName(lines)
