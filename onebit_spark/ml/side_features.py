"""Side features of a fit on Spark: collected and checked, and given to the engine."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from pyspark.sql import DataFrame

from onebit_spark.core.fit_features import FitFeatures, given_to
from onebit_spark.core.fitted_features import SIDE_OF, Who
from onebit_spark.core.losses import Side
from onebit_spark.engines.spark_engine import SparkEngine
from onebit_spark.input.columns import type_of
from onebit_spark.input.defects import Columns
from onebit_spark.input.features import collected_features


def checked_features(frames: Mapping[Who, DataFrame], dataset: DataFrame, columns: Columns) -> dict[Who, pa.Table]:
    """The tables of side features, collected and checked against the ids of the ratings."""
    names = {"user": columns.user, "item": columns.item}
    return {
        who: collected_features(frame, names[who], type_of(dataset, names[who]).simpleString(), who)
        for who, frame in frames.items()
    }


def give_features(engine: SparkEngine, features: dict[Who, pa.Table], columns: Columns) -> dict[Side, FitFeatures]:
    """Give the engine the side features of its ids."""
    names: dict[Who, str] = {"user": columns.user, "item": columns.item}
    ids = {SIDE_OF[who]: engine.ids[SIDE_OF[who]].values for who in features}
    return given_to(engine.features, features, names, ids)
