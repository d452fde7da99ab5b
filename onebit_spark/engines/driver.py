"""DriverEngine: ratings that fit one machine, gathered on the driver and fitted there. No Spark job per iteration."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.losses import SIDES, Side
from onebit_spark.core.sketch import CellSketch
from onebit_spark.engines.blocking import repeats_of
from onebit_spark.engines.factor_frames import ArrayFactors
from onebit_spark.engines.local import LocalEngine
from onebit_spark.input.collect import CollectedPairs, CollectedRatings, collect_pairs
from onebit_spark.input.defects import Columns
from onebit_spark.input.survey import Ids
from onebit_spark.platform.sessions import described


class DriverEngine(ArrayFactors, LocalEngine):
    """The local engine on the ratings of a DataFrame, with their ids.

    Attributes
    ----------
    ids : dict of Side to Ids
        The ids of both sides with their counts.
    fitted : CellSketch
        Sketch of the rated cells, those that are watched included.
    watched : CollectedPairs or None
        Ratings that are measured after every iteration.
    repeats : Repeats
        Cells that were rated more than once.
    """

    def __init__(
        self, spark: SparkSession, ratings: RatingBlock, ids: tuple[pa.Array, pa.Array], fitted: CellSketch,
        watched: CollectedPairs | None = None,
    ) -> None:  # fmt: skip
        super().__init__(ratings)
        self._spark = spark
        self.ids: dict[Side, Ids] = {
            side: Ids(values, self.counts(side), self.blocks[side].row_positives)
            for side, values in zip(SIDES, ids, strict=True)
        }
        self.fitted = fitted
        self.watched = watched
        self.repeats = repeats_of(ratings)

    @classmethod
    @contextmanager
    def over(
        cls, spark: SparkSession, found: CollectedRatings, columns: Columns, watched: DataFrame | None = None
    ) -> Iterator[DriverEngine]:
        """The engine on ratings that were gathered. It gathers those to be watched, if there are any."""
        pairs = None
        if watched is not None:
            with described(spark, "gathering"):
                pairs = collect_pairs(watched, columns, found.users, found.items, found.limit)
        fitted = found.sketch() if pairs is None else found.sketch(pairs.cells, len(pairs.rows))
        with cls(spark, found.ratings, (found.users, found.items), fitted, pairs).running() as engine:
            yield engine
