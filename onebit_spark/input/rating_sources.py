"""Where a fit takes its ratings from: a DataFrame, or a folder in which they were prepared (``prepared_ratings``)."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession

from onebit_spark.input.collect import Gathered, Weighed, gathered, weighed
from onebit_spark.input.defects import Columns
from onebit_spark.input.survey import Census, census


class RatingsSource(Protocol):
    """Ratings that are weighed, and then gathered on the driver or counted on the executors."""

    @property
    def spark(self) -> SparkSession: ...

    def weighed(self) -> Weighed:
        """The number of ratings, and their size on the way to the driver."""

    def gathered(self, counted: Weighed, most_bytes: int) -> Gathered:
        """All ratings on the driver, checked. ``most_bytes`` bounds one collect."""

    def census(self, collect_ids: bool = True) -> AbstractContextManager[Census]:
        """The ratings packed, checked and counted by their ids, on the executors.

        ``collect_ids``: a few ids may come to the driver. An exchange that shuffles has no use for them there.
        """


@dataclass(frozen=True)
class RatingsFrame:
    """Ratings of a DataFrame. All of it is read, every time."""

    frame: DataFrame
    columns: Columns

    @property
    def spark(self) -> SparkSession:
        return self.frame.sparkSession

    def weighed(self) -> Weighed:
        return weighed(self.frame, self.columns)

    def gathered(self, counted: Weighed, most_bytes: int) -> Gathered:
        return gathered(self.frame, self.columns, counted, most_bytes)

    def census(self, collect_ids: bool = True) -> AbstractContextManager[Census]:
        return census(self.frame, self.columns, collect_ids)
