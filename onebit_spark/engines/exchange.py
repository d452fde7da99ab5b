"""From ratings to the engine of the exchange that is decided for them."""

from __future__ import annotations

import atexit
import logging
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from onebit_spark.core.config import FitConfig
from onebit_spark.core.execution import Execution
from onebit_spark.core.losses import SIDES, Side
from onebit_spark.core.model_selection import at_start_rank
from onebit_spark.core.posterior import Form
from onebit_spark.engines.decide import Choice, ClusterLimits, decide, held_side
from onebit_spark.engines.spark_engine import SparkEngine, on_driver, on_executors
from onebit_spark.engines.tables import InFiles, OnExecutors, Storage
from onebit_spark.input.batches import CollectedRatings, SizeEstimate
from onebit_spark.input.collect import collect_ratings, estimate_size
from onebit_spark.input.rating_checks import Columns, RatingCounts
from onebit_spark.input.survey import RatingSurvey, survey_ratings
from onebit_spark.platform.files import Location
from onebit_spark.platform.sessions import (
    checkpoint_folder,
    described,
    driver_limits,
    is_connect,
    is_local,
    parallelism,
)
from onebit_spark.platform.temporary_folders import TemporaryFolders

log = logging.getLogger("onebit_spark")


@dataclass(frozen=True)
class ChosenExchange:
    """The ratings counted and loaded, and the exchange that was chosen for them."""

    choice: Choice  # the exchange, with the reason for it
    counts: RatingCounts  # the counts of the ratings
    # what the engine of the exchange starts from: CollectedRatings for the driver's, RatingSurvey for the others
    loaded: CollectedRatings | RatingSurvey


@contextmanager
def choose_exchange(
    wanted: str,
    ratings: DataFrame,
    columns: Columns,
    form: Form,
    most_ratings: int | None = None,
    counted: SizeEstimate | None = None,
) -> Iterator[ChosenExchange]:
    """Validate, count and load the ratings, as far as the decision needs it.

    Their number decides whether they are collected on the driver. If they are not, or if the factors of their ids turn
    out to be too large, an aggregation counts them by their ids. ``counted`` is their size, if they were
    counted before.
    """
    spark = ratings.sparkSession
    limits = ClusterLimits(driver_limits(spark), parallelism(spark), not is_connect(spark), most_ratings)
    if counted is None and (wanted == "driver" or (wanted == "auto" and most_ratings != 0)):
        with described(spark, "survey"):
            counted = estimate_size(ratings, columns)
    choice = decide(wanted, counted, None, form, limits)
    if choice.exchange == "driver":
        assert counted is not None
        with described(spark, "gathering"):
            most_bytes = min(limits.driver.result * 4 // 5, limits.driver.heap // 4)
            collected = collect_ratings(ratings, columns, counted, most_bytes)
        choice = decide(wanted, counted, collected, form, limits)
        if choice.exchange == "driver":
            yield ChosenExchange(choice, collected.counts, collected)
            return
        del collected  # or it would stay here until the fit ends
    with survey_ratings(ratings, columns, collect_ids=choice.exchange not in ("shuffle", "mixed")) as whole:
        yield ChosenExchange(decide(wanted, counted, whole, form, limits), whole.counts, whole)


def engine_over(
    chosen: ChosenExchange, spark: SparkSession, config: FitConfig, execution: Execution
) -> AbstractContextManager[SparkEngine]:
    """The engine of the chosen exchange."""
    exchange, loaded = chosen.choice.exchange, chosen.loaded
    log.info("exchange: %s (%s)", exchange, chosen.choice.reason)
    if isinstance(loaded, CollectedRatings):
        return on_driver(spark, loaded, at_start_rank(config).form, execution.device)
    held: dict[str, frozenset[Side]] = {"broadcast": frozenset(SIDES), "mixed": frozenset([held_side(loaded)])}
    place: Storage = OnExecutors()  # by broadcast nothing is stored
    if exchange != "broadcast":
        TemporaryFolders.of(spark).delete_unread()  # the files of models that are gone
        folder = work_folder(spark, execution.work_dir or execution.checkpoint_dir)
        if folder is not None:
            place = InFiles(folder)
        else:
            log.warning(
                "the factors are stored on the executors, and a lost executor ends the fit: set checkpointDir, or "
                "sparkContext.setCheckpointDir, to a folder that all executors can reach"
            )
    blocks = execution.row_blocks, execution.col_blocks
    return on_executors(spark, loaded, blocks, config.form, place, held.get(exchange, frozenset()))


def work_folder(spark: SparkSession, given: str | None) -> Location | None:
    """A new folder for files that all executors can reach, or None if no such folder is known.

    In ``given``, else in the application's checkpoint folder, else, on a single machine, in a temporary one.
    """
    name = f"onebit-{uuid.uuid4().hex[:12]}"
    base = given or checkpoint_folder(spark)
    if base:
        return Location(spark, base) / name
    if not is_local(spark):
        return None
    temporary = tempfile.mkdtemp(prefix="onebit-")
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    return Location(spark, temporary) / name
