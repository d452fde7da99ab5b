"""update: a fitted model with new ratings, of users and items that it knows or not (see ``core.streaming_update``)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.factor_tables import factor_columns, factor_table, prior_row
from onebit_spark.core.fitted_features import SIDE_OF, Who
from onebit_spark.core.id_index import one_array
from onebit_spark.core.losses import Side
from onebit_spark.core.posterior import RowPosterior
from onebit_spark.core.streaming_update import Before, updated_sides
from onebit_spark.engines.factor_frames import factor_frame, factor_schema
from onebit_spark.errors import RequestError
from onebit_spark.input.ratings import ITEM, LABEL, USER, WEIGHT, prepared
from onebit_spark.ml.driver_scoring import MOST_PAIRS, fits_here
from onebit_spark.ml.feature_fold_in import Explained
from onebit_spark.ml.fitted_model import FittedModel
from onebit_spark.ml.fold_in import NewRatings
from onebit_spark.serving.id_types import arrow_type
from onebit_spark.serving.side import ResidentSide

M = TypeVar("M", bound=FittedModel)

WHOSE: dict[Who, str] = {"user": USER, "item": ITEM}


def update(model: M, ratings: DataFrame, threshold: float | None, features: dict[Who, DataFrame]) -> M:
    """The model after these ratings. They come to the driver, with the factors of their users and items."""
    explained = {who: Explained.of(model, frame, who) for who, frame in features.items()}
    given = NewRatings.of(model, ratings, threshold)
    if not given.n:
        return model
    if given.n > MOST_PAIRS:
        raise RequestError(
            f"update takes at most {MOST_PAIRS:,} ratings, not {given.n:,}: give them in parts, or fit again with "
            "setInitialModel(model)"
        )
    here = fits_here(model, given.n)
    table = prepared(given.frame, given.columns).toArrow()
    touched: dict[Who, _Touched] = {who: _Touched.of(model, who, table, here) for who in WHOSE}
    rows, cols = touched["user"], touched["item"]
    weights = None if given.columns.weight is None else table[WEIGHT].to_numpy()
    block = RatingBlock.from_coordinates(
        rows.places, cols.places, table[LABEL].to_numpy(), (len(rows.ids), len(cols.ids)), weights
    )
    before: dict[Side, Before] = {
        SIDE_OF[who]: Before(side.posterior, side.new, explained[who].at(side.ids) if who in explained else None)
        for who, side in touched.items()
    }
    after = updated_sides(model.info, block, before)
    frames = {who: _united(model, who, side, after[SIDE_OF[who]], here) for who, side in touched.items()}
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
    def of(cls, model: FittedModel, who: Who, table: pa.Table, here: bool) -> _Touched:
        side = _side(model, who) if here else None
        kind = side.ids.type if side is not None else arrow_type(model.info.id_types[who])
        encoded = one_array(table[WHOSE[who]].cast(kind)).dictionary_encode()
        ids = encoded.dictionary
        known = side if side is not None else _lines_of(model, who, ids)
        positions = known.positions(ids)
        # Position −1 is the prior's row, which is the last one.
        return cls(ids, encoded.indices.to_numpy().astype(np.int64), known.posterior.take(positions), positions < 0)


def _side(model: FittedModel, who: Who) -> ResidentSide:
    users, items = model.resident()
    return users if who == "user" else items


def _frame(model: FittedModel, who: Who) -> DataFrame:
    return model.users if who == "user" else model.items


def _lines_of(model: FittedModel, who: Who, ids: pa.Array) -> ResidentSide:
    """The factors of some ids, collected."""
    config, scales = model.info.config, model.info.scales
    form = model.info.kind, config.intercepts, config.implicit_features
    asked = model.users.sparkSession.createDataFrame(pa.table({"id": ids}))
    lines = _frame(model, who).join(F.broadcast(asked), "id", "left_semi").toArrow()
    return ResidentSide.of(lines, prior_row(scales, SIDE_OF[who], *form), factor_columns(*form))


def _united(model: FittedModel, who: Who, side: _Touched, rows: RowPosterior, here: bool) -> DataFrame:
    """The factor table of a side with the updated lines in place of the old ones."""
    spark = model.users.sparkSession
    schema = factor_schema(replace(model.info, draw_narrowing=None), who)
    if here:
        whole = _side(model, who).with_rows(side.ids, rows)
        return factor_frame(spark, factor_table(whole.ids, whole.known), schema)
    lines = factor_frame(spark, factor_table(side.ids, rows), schema)
    old = _frame(model, who).select(*schema.names).join(F.broadcast(lines.select("id")), "id", "left_anti")
    return old.unionByName(lines)
