"""Ratings that certify a model must be fresh: compared with a sketch of the cells that it was fitted on.

MODEL/fitted/    Parquet, one line per cell of the sketch: hash, ratings; its limit stands in ``metadata.json``
"""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from onebit_spark.core.sketch import HIGHEST, CellSketch, limit_for
from onebit_spark.input.ratings import Columns, RatingCounts, cell_hash
from onebit_spark.ml.fitted_model import SparkModel
from onebit_spark.platform.files import Location, explained
from onebit_spark.platform.sessions import described
from onebit_spark.predictor.certification import NOT_KNOWN, fresh_to

CELLS = "hash bigint, ratings bigint"


def sketch_of(ratings: DataFrame, columns: Columns, n: int, limit: int = HIGHEST) -> CellSketch:
    """The sketch of n ratings, in one job; up to ``limit``, or lower where they are many."""
    limit = min(limit, limit_for(n))
    hashes = ratings.select(cell_hash(ratings, columns).alias("hash"))
    if limit < HIGHEST:
        hashes = hashes.where(F.col("hash") <= F.lit(limit))
    with described(ratings.sparkSession, "sketch"):
        cells = hashes.groupBy("hash").agg(F.count(F.lit(1)).alias("ratings")).toArrow()
    return _sketch(cells, limit)


def check_fresh(model: SparkModel, ratings: DataFrame, columns: Columns, tally: RatingCounts) -> dict[str, Any]:
    """Refuse ratings that the model was fitted on, in whole or in part; else how they compare, for a certificate.

    ``checked`` is false, with a ``reason``, where it could not be seen.
    """
    known = model.fitted
    return NOT_KNOWN if known is None else fresh_to(known, sketch_of(ratings, columns, tally.n, known.limit))


def write_sketch(sketch: CellSketch, folder: Location) -> None:
    cells = io.BytesIO()
    pq.write_table(pa.table({"hash": sketch.hashes, "ratings": sketch.ratings}), cells)
    (folder / "cells.parquet").write_bytes(cells.getvalue())


def read_sketch(folder: Location, limit: int, complete: bool) -> CellSketch:
    with explained("damaged model folder: fitted/"):
        return _sketch(folder.spark.read.schema(CELLS).parquet(folder.uri).toArrow(), limit, complete)


def _sketch(cells: pa.Table, limit: int, complete: bool = True) -> CellSketch:
    ordered = cells.sort_by("hash")
    return CellSketch(limit, ordered["hash"].to_numpy(), ordered["ratings"].to_numpy(), complete)
