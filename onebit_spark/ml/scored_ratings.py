"""Ratings with what a model predicts for them: scored here if they are few, by Spark otherwise."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, StructField, StructType

from onebit_spark.core.fitted_features import SIDE_OF
from onebit_spark.input.columns import matching, quoted
from onebit_spark.input.defects import Columns, positive, with_weight
from onebit_spark.ml.fitted_model import FittedModel
from onebit_spark.ml.prediction_params import plainly_named
from onebit_spark.ml.selection import answers
from onebit_spark.predictor.predictor import OUTPUTS
from onebit_spark.predictor.scored import scored_table


def counting(model: FittedModel, ratings: DataFrame, threshold: float | None) -> tuple[DataFrame, Columns]:
    """The ratings that a model is judged by, and their columns: those of weight 0 do not count (docs/MATH.md, §16).

    The weight is looked for in the column of the fit. Ratings without this column all count.
    """
    weight = model.info.columns.get("weight")
    columns = Columns(
        model.getUserCol(),
        model.getItemCol(),
        model.info.columns["label"],
        threshold,
        weight if weight is not None and matching(ratings, weight) else None,
    )
    return with_weight(ratings, columns), columns


def scored_ratings(
    model: FittedModel, ratings: DataFrame, threshold: float | None, n: int, group: Column | None = None
) -> pa.Table:
    """One line for each of n checked ratings, on the driver: see ``predictor.scored``."""
    asked = _asked(model, ratings, threshold, group)
    table = _scored_here(model, asked) if model.fitsHere(n) else _by_spark(model, asked).toArrow()
    lines = table.select([*OUTPUTS, "unknown_user", "unknown_item", "__positive", "__group"])
    return scored_table(model.info, lines.rename_columns({"__positive": "positive", "__group": "group"}))


def predicted_pairs(model: FittedModel, pairs: DataFrame, n: int) -> DataFrame:
    """What ``transform`` appends to n checked pairs of ids, under its usual names."""
    if not model.fitsHere(n):
        return model.transform(pairs)
    table = _scored_here(model, pairs).drop_columns(["unknown_user", "unknown_item"])
    schema = StructType([*pairs.schema, *(StructField(name, DoubleType()) for name in OUTPUTS)])
    frame = pairs.sparkSession.createDataFrame(table, schema)
    if not (model.certifiedErrors and model.getAnsweredCol()):
        return frame
    return frame.withColumn(model.getAnsweredCol(), answers(model, F.col("score"), F.col("std")))


def scored_by_spark(
    model: FittedModel, ratings: DataFrame, threshold: float | None, group: Column | None = None
) -> DataFrame:
    """The same columns but confidence and rung, lazily, for any number of ratings."""
    scored = _by_spark(model, _asked(model, ratings, threshold, group))
    return scored.select(
        F.col("__positive").alias("positive"),
        ((F.col("prediction") > 0) == F.col("__positive")).alias("right"),
        "unknown_user",
        "unknown_item",
        "score",
        "std",
        "probability",
        F.col("__group").alias("group"),
    )


def _asked(model: FittedModel, ratings: DataFrame, threshold: float | None, group: Column | None) -> DataFrame:
    """The two ids, the label as a boolean and the group."""
    labelled = ratings.withColumn("__positive", positive(ratings, model.info.columns["label"], threshold))
    ids = (F.col(quoted(column)) for column in (model.getUserCol(), model.getItemCol()))
    group = F.lit(None).cast("string") if group is None else group
    return labelled.select(*ids, "__positive", group.alias("__group"))


def _scored_here(model: FittedModel, pairs: DataFrame) -> pa.Table:
    """The pairs with ``OUTPUTS``, unknown_user and unknown_item, on the driver. Ids must not be null.

    One job collects the pairs, two more the factors of a model that was loaded, when it is asked for the first time.
    """
    for who in SIDE_OF:
        model.checkIdType(pairs, who)
    served, table = model.served(), pairs.toArrow()
    rows, cols = served.users.positions(table[model.getUserCol()]), served.items.positions(table[model.getItemCol()])
    columns = {**served.predicted(rows, cols), "unknown_user": rows < 0, "unknown_item": cols < 0}
    for name, values in columns.items():
        table = table.append_column(name, pa.array(values))
    return table


def _by_spark(model: FittedModel, asked: DataFrame) -> DataFrame:
    scored = plainly_named(model).transform(asked)
    for who in SIDE_OF:
        ids = model.factorsOf(who).select(F.col("id").alias(f"__known_{who}"))
        scored = scored.join(ids, F.col(quoted(model.idCol(who))) == F.col(f"__known_{who}"), "left")
        scored = scored.withColumn(f"unknown_{who}", F.col(f"__known_{who}").isNull())
    return scored
