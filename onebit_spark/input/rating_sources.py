"""Where a fit takes its ratings from: a DataFrame, or a folder in which they were prepared."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from onebit_spark.input.collect import collect_ratings, estimate_size
from onebit_spark.input.gathering import CollectedRatings, SizeEstimate
from onebit_spark.input.prepared_ratings import PreparedRatings
from onebit_spark.input.rating_checks import Columns
from onebit_spark.input.survey import RatingSurvey, survey_ratings


@dataclass(frozen=True)
class RatingsFrame:
    """Ratings of a DataFrame. All of it is read, every time."""

    frame: DataFrame
    columns: Columns

    @property
    def spark(self) -> SparkSession:
        return self.frame.sparkSession

    def size(self) -> SizeEstimate:
        """The number of ratings, and their size on the way to the driver."""
        return estimate_size(self.frame, self.columns)

    def collected(self, size: SizeEstimate, most_bytes: int) -> CollectedRatings:
        """All ratings on the driver, checked. ``most_bytes`` bounds one collect."""
        return collect_ratings(self.frame, self.columns, size, most_bytes)

    def surveyed(self, collect_ids: bool = True) -> AbstractContextManager[RatingSurvey]:
        """The ratings packed, checked and counted by their ids, on the executors.

        ``collect_ids``: a few ids may come to the driver. An exchange that shuffles has no use for them there.
        """
        return survey_ratings(self.frame, self.columns, collect_ids)


RatingsSource = RatingsFrame | PreparedRatings
