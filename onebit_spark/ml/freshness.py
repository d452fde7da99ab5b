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

from onebit_spark.core.sketch import ENOUGH, HIGHEST, CellSketch, Comparison, limit_for
from onebit_spark.errors import RequestError
from onebit_spark.input.defects import Columns, RatingCounts, cell_hash
from onebit_spark.ml.fitted_model import FittedModel
from onebit_spark.platform.files import Location, explained
from onebit_spark.platform.sessions import described

CELLS = "hash bigint, ratings bigint"
KEPT_OUT = {"checked": True, "reason": "a coin for every cell kept these ratings out of this very fit"}


def sketch_of(ratings: DataFrame, columns: Columns, n: int, limit: int = HIGHEST) -> CellSketch:
    """The sketch of n ratings, in one job; up to ``limit``, or lower where they are many."""
    limit = min(limit, limit_for(n))
    hashes = ratings.select(cell_hash(ratings, columns).alias("hash"))
    if limit < HIGHEST:
        hashes = hashes.where(F.col("hash") <= F.lit(limit))
    with described(ratings.sparkSession, "sketch"):
        cells = hashes.groupBy("hash").agg(F.count(F.lit(1)).alias("ratings")).toArrow()
    return _sketch(cells, limit)


def check_fresh(model: FittedModel, ratings: DataFrame, columns: Columns, tally: RatingCounts) -> dict[str, Any]:
    """Refuse ratings that the model was fitted on, in whole or in part; else how they compare, for a certificate.

    ``checked`` is false, with a ``reason``, where it could not be seen.
    """
    known = model.fitted
    if known is None:
        return {"checked": False, "reason": "the model does not say which ratings it was fitted on"}
    found = known.compared(sketch_of(ratings, columns, tally.n, known.limit))
    if found.stale:
        raise RequestError(
            f"these ratings certify nothing: {found.share:.1%} of them are of cells that the model was fitted on, and "
            f"of fresh ratings about {found.expected:.1%} would be ({found.looked_at:,} were looked at). Give ratings "
            "that it has not seen, or hold some out of the fit"
        )
    told: dict[str, Any] = {"share": found.share, "expected": found.expected, "looked_at": found.looked_at}
    reason = _doubt(known, found)
    return {"checked": True, **told} if reason is None else {"checked": False, "reason": reason, **told}


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


def _doubt(known: CellSketch, found: Comparison) -> str | None:
    """Why it cannot be said that the ratings are fresh."""
    if not known.complete:
        return "the model does not say all that it was fitted on"
    if found.looked_at < ENOUGH:
        return f"only {found.looked_at} of the ratings can be compared with those of the fit"
    if not found.telling:
        return f"cells are rated so often that {found.expected:.1%} of fresh ratings are of cells of the fit"
    return None
