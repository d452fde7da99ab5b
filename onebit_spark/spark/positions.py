"""Positions, and what to ask next, on Spark, from the factor tables."""

from __future__ import annotations

import logging

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from onebit_spark import model_info
from onebit_spark.core.losses import SIDES
from onebit_spark.core.positions import Axes
from onebit_spark.core.posterior import RowPosterior
from onebit_spark.data.user_tables import one_array
from onebit_spark.engines.spark.columns import checked_ids, refuse_stream
from onebit_spark.engines.spark.frames import Batches
from onebit_spark.errors import RequestError, refuse
from onebit_spark.model_info import SIDE_OF, ModelInfo
from onebit_spark.predict.factors import Factors
from onebit_spark.predict.figures import Figures
from onebit_spark.predict.positions import (
    NOT_MEASURED,
    anchored_sign,
    locate,
    map_problems,
    position_problems,
    position_table,
    who_problems,
)
from onebit_spark.predict.positions import draw as draw_here
from onebit_spark.predict.questions import ask_next, question_problems
from onebit_spark.predict.sides import Anchors, ModelSide, arrow_type, asked_ids
from onebit_spark.report.map import MOST_POINTS, shown
from onebit_spark.report.map import drawing as map_drawing
from onebit_spark.settings import Who
from onebit_spark.spark.fold_in import side_of
from onebit_spark.spark.scoring import SparkFactors

log = logging.getLogger("onebit_spark")


def positions(
    factors: SparkFactors, who: Who, dimensions: int | None, anchors: Anchors | None
) -> DataFrame:
    """See ``FittedModel.positions``.

    The positions of a large model are computed by the executors.
    """
    refuse(who_problems(who))
    info = factors.info
    frame = factors.of(who)
    if factors.fit_driver(0):
        table = locate(factors.on_driver(), who, dimensions, anchors).replace_schema_metadata()
        return factors.spark.createDataFrame(table.rename_columns({who: factors.columns[who]}))
    axes = axes_of(info)
    if model_info.N_RATINGS not in frame.columns:
        log.warning(NOT_MEASURED)
    refuse(position_problems(axes, who, dimensions, anchors))
    sign = 1.0
    dimensions = axes.shown(dimensions)
    if anchors:
        ids = asked_ids(list(anchors), arrow_type(info.id_types["user"]), "the anchors")
        sign = anchored_sign(axes, side_of(factors, "user", ids), anchors)

    def rows_of(batches: Batches) -> Batches:
        for batch in batches:
            side = ModelSide.of(pa.Table.from_batches([batch]), info, who)
            yield from position_table(axes, side, who, dimensions, sign).to_batches()

    lines = frame.select("id", *model_info.plain_columns(info, frame.columns))
    first = ModelSide.of(lines.limit(1).toArrow(), info, who)
    names = position_table(axes, first, who, dimensions, sign).column_names
    schema = f"id {info.id_types[who]}, n_ratings bigint" + "".join(
        f", {name} double" for name in names[2:]
    )
    return lines.mapInArrow(rows_of, schema).withColumnRenamed("id", factors.columns[who])


def axes_of(info: ModelInfo) -> Axes:
    if info.position_axes is None:
        raise RequestError(
            "a checkpoint has no axes of positions: use the finished model, or load it without "
            "Spark"
        )
    return info.position_axes


def draw(factors: SparkFactors, anchors: Anchors, most: int = MOST_POINTS) -> Figures:
    """See ``FittedModel.map``. Of a large model the executors choose the users and the items."""
    if factors.fit_driver(0):
        return draw_here(factors.on_driver(), anchors, most)
    axes = axes_of(factors.info)
    refuse(map_problems(axes))
    n = factors.info.n_users
    items = positions(factors, "item", 2, anchors).orderBy(F.desc("n_ratings")).limit(most)

    def some(batches: Batches) -> Batches:
        for batch in filter(len, batches):
            table = pa.Table.from_batches([batch])
            yield from table.take(pa.array(shown(table, most * len(batch) // n)[1])).to_batches()

    users = positions(factors, "user", 2, anchors)
    return map_drawing(
        users.mapInArrow(some, users.schema).toArrow(), items.toArrow(), axes.shares, most, n
    )


def next_questions(
    factors: SparkFactors, asking: DataFrame, n: int, seen: DataFrame | None
) -> DataFrame:
    """See ``FittedModel.next_questions``. Every worker has the means of the items."""
    info = factors.info
    (own, other) = (factors.columns[who] for who in SIDE_OF)
    refuse(question_problems(info, n))
    for frame, who in [
        (asking, "user"),
        *([] if seen is None else [(seen, "user"), (seen, "item")]),
    ]:
        refuse_stream(frame, "the users or the pairs to leave out")
        factors.check_id_type(frame, who)  # type: ignore[arg-type]
    types = info.id_types
    (ids,) = checked_ids(asking, [own])
    users = asking.select(ids.cast(types["user"]).alias("id")).distinct()
    lines = F.struct(*model_info.factor_columns(info.kind, info.config.intercepts)).alias("lines")
    users = users.join(factors.users.select("id", lines), "id", "left")
    if seen is None:
        users = users.withColumn("seen", F.lit(None).cast(f"array<{types['item']}>"))
    else:
        keys = checked_ids(seen, [own, other])
        pairs = seen.select(
            keys[0].cast(types["user"]).alias("id"), keys[1].cast(types["item"]).alias("item")
        )
        users = users.join(
            pairs.groupBy("id").agg(F.collect_set("item").alias("seen")), "id", "left"
        )
    means = ["id", "mean", *(["intercept"] if info.config.intercepts else [])]
    items = factors.items.select(*means).toArrow()
    priors = [
        model_info.prior_row(info.scales, side, info.kind, info.config.intercepts) for side in SIDES
    ]
    location = np.stack(items["mean"].to_numpy()).astype(np.float32)
    if info.config.intercepts:
        location = np.insert(location, 0, items["intercept"].to_numpy(), axis=1)
    rows = RowPosterior(location, np.zeros_like(location), "spread", info.config.intercepts)
    columns = ModelSide(one_array(items["id"]), rows, priors[1])

    def rows_of(batches: Batches) -> Batches:
        for batch in filter(len, batches):
            side = ModelSide(
                batch["id"], model_info.read_factors(batch["lines"], priors[0]), priors[0]
            )
            lists = pa.array(batch["seen"])
            parents = batch["id"].take(pc.list_parent_indices(lists))
            here = Factors(info, side, columns)
            yield from ask_next(here, batch["id"], n, (parents, lists.flatten())).to_batches()

    schema = f"user {types['user']}, rank bigint, item {types['item']}, information double"
    asked = users.mapInArrow(rows_of, schema)
    return asked.withColumnsRenamed({"user": own, "item": other})
