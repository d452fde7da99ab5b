"""``exportVectors``: the vectors of ``serving.vectors``, written by Spark."""

from __future__ import annotations

import os

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from onebit_spark.core.losses import SIDES, Side
from onebit_spark.core.output_kinds import VECTORS
from onebit_spark.errors import RequestError
from onebit_spark.ml.fitted_model import FittedModel
from onebit_spark.platform.files import Location, replace_folder
from onebit_spark.platform.sessions import described
from onebit_spark.serving.vectors import SEAL


def export_vectors(model: FittedModel, path: str | os.PathLike[str], overwrite: bool) -> None:
    """Write ``users`` and ``items`` into a new folder ``path``. Nothing is collected."""
    spark = model.users.sparkSession
    if Location(spark, path).uri == model.source:
        raise RequestError(f"the model was loaded from {path} and still reads its factors there: export them elsewhere")
    with described(spark, "writing"), replace_folder(spark, path, VECTORS, overwrite) as folder:
        for name, side, factors in zip(("users", "items"), SIDES, (model.users, model.items), strict=True):
            _vectors(factors, side, model.info.config.intercepts).write.parquet((Location(spark, folder) / name).uri)
        (Location(spark, folder) / SEAL).write_text("")


def _vectors(factors: DataFrame, side: Side, intercepts: bool) -> DataFrame:
    """id, vector array<float>: [L, 1, b] of the rows, [R, d, 1] of the columns."""
    vector = F.col("mean")
    if intercepts:
        ends = [F.lit(1.0).cast("float"), F.col("intercept")]
        vector = F.concat(vector, F.array(*(ends if side == "rows" else reversed(ends))))
    return factors.select("id", vector.alias("vector"))
