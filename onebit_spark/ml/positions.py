"""Positions on Spark, from the factor tables (``core.positions``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from onebit_spark.core.model_info import N_RATINGS, Who, plain_columns
from onebit_spark.errors import RequestError, refuse
from onebit_spark.ml.fold_in import side_of
from onebit_spark.ml.scoring import SparkFactors
from onebit_spark.platform.frames import Batches
from onebit_spark.predictor.fitted_model import anchored_sign, position_problems, position_table, who_problems
from onebit_spark.predictor.predictor import ModelSide, arrow_type, asked_ids


def positions(factors: SparkFactors, who: Who, dimensions: int, anchors: Mapping[Any, int]) -> DataFrame:
    """See ``FittedModel.positions``. The positions of a large model are computed by the executors."""
    refuse(who_problems(who))
    info, frame = factors.info, factors.of(who)
    if factors.fit_driver(0):
        table = factors.on_driver().positions(who, dimensions, anchors).replace_schema_metadata()
        return factors.spark.createDataFrame(table.rename_columns({who: factors.columns[who]}))
    if (axes := info.position_axes) is None or N_RATINGS not in frame.columns:
        raise RequestError("positions of this model are not known: an earlier version saved it, or it was updated")
    refuse(position_problems(axes, dimensions, anchors))
    sign = 1.0
    if anchors:
        ids = asked_ids(list(anchors), arrow_type(info.id_types["user"]), "the anchors")
        sign = anchored_sign(axes, side_of(factors, "user", ids), anchors)

    def rows_of(batches: Batches) -> Batches:
        for batch in batches:
            side = ModelSide.of(pa.Table.from_batches([batch]), info, who)
            yield from position_table(axes, side, who, dimensions, sign).to_batches()

    lines = frame.select("id", *plain_columns(info, frame.columns))
    example = position_table(axes, ModelSide.of(lines.limit(1).toArrow(), info, who), who, dimensions, sign)
    schema = f"id {info.id_types[who]}, n_ratings bigint"
    schema += "".join(f", {name} double" for name in example.column_names[2:])
    return lines.mapInArrow(rows_of, schema).withColumnRenamed("id", factors.columns[who])
