"""Which exchange a fit uses, and the engine of it; where the one that shuffles keeps its files."""

from __future__ import annotations

import atexit
import logging
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from onebit_spark.core.engine import Engine
from onebit_spark.core.execution import STORAGES
from onebit_spark.core.losses import Side
from onebit_spark.core.posterior import Form, RowPosterior
from onebit_spark.engines.blocking import Repeats
from onebit_spark.engines.broadcast.engine import BroadcastEngine
from onebit_spark.engines.driver import DriverEngine
from onebit_spark.engines.shuffle.engine import ShuffleEngine
from onebit_spark.errors import RequestError
from onebit_spark.input.collect import TABLE_BYTES, CollectedRatings, SizeEstimate
from onebit_spark.input.defects import Columns, RatingCounts
from onebit_spark.input.rating_sources import RatingsSource
from onebit_spark.input.survey import RatingSurvey
from onebit_spark.platform.files import Location
from onebit_spark.platform.sessions import (
    NOT_ON_CONNECT,
    DriverLimits,
    checkpoint_folder,
    described,
    driver_limits,
    is_connect,
    is_local,
    parallelism,
)
from onebit_spark.platform.temporary_folders import TemporaryFolders

BROADCAST_BYTES = 512 * 2**20  # of factors that the driver and every Python worker of a cluster hold a copy of
DRIVER_COPIES, WORKER_COPIES = 2, 2.5  # of the broadcast factors: held, updated; held, taken by a block
BYTES_PER_RATING = 24  # at the peak of a fit on the driver, beside the table that is on its way
BYTES_PER_WEIGHT = 12  # as it came, in the order of the columns and in that of the rows
TABLE_COPIES = 5  # of that table: as it came, as columns, as positions
ID_COPIES = 6  # of the different ids that are text, while their dictionaries are merged and sorted
FACTOR_COPIES = 4  # of the factor table then: posterior, partners, the start's, the model's
MOST_RATINGS = 100_000_000  # on the driver of a local session
MOST_RATINGS_BESIDE_CLUSTER = 20_000_000  # more are faster on the executors

log = logging.getLogger("onebit_spark")

P = TypeVar("P")  # a posterior of a side, in the engine's own form


class SparkEngine(Engine[P], Protocol[P]):
    """An engine whose posteriors go to models, and come from them."""

    repeats: Repeats

    def factors(
        self, side: Side, posterior: P, schema: StructType, drawn: P | None = None, outlasting: bool = False,
        newcomers: pa.Table | None = None,
    ) -> DataFrame:  # fmt: skip
        """The factor table of a side (see ``factor_tables``), which may have to outlast the engine.

        ``newcomers`` are lines of ids without ratings, which have side features.
        """

    def adopted(self, side: Side, factors: DataFrame, prior: RowPosterior, precision: str) -> P:
        """The posterior that a factor table holds of this engine's ids, ``prior``'s one row where it has none."""


@dataclass(frozen=True)
class Choice:
    """The exchange, with the reason for it."""

    exchange: str
    reason: str


@dataclass(frozen=True)
class Refusal:
    """Why ``auto`` does not fit on the driver."""

    reason: str


def on_driver(
    wanted: str, counted: SizeEstimate, ids: int, form: Form, limits: DriverLimits, most_ratings: int | None
) -> Choice | Refusal:
    """Whether the ratings are fitted on the driver: as wanted, or by their number and the memory that is there.

    ``driver`` is refused where the memory is too small; ``most_ratings`` bounds ``auto`` alone. ``ids`` counts users
    and items, 0 if that is not known yet. The bytes of their text are known before, by an estimate of how many differ.
    """
    n = counted.n
    factors = FACTOR_COPIES * ids * form.row_bytes
    arriving = TABLE_COPIES * min(TABLE_BYTES, n * counted.bytes_per_rating)
    per_rating = BYTES_PER_RATING + (BYTES_PER_WEIGHT if counted.weighted else 0)
    ids_text = ID_COPIES * counted.id_bytes
    needed = per_rating * n + arriving + ids_text + factors
    told = f"{n:,} ratings and their factors take about {_size(needed)}"
    if wanted == "driver":
        if needed > limits.memory:
            raise RequestError(
                f"exchange=driver cannot work: {told}, and the driver's Python can take {_size(limits.memory)}: choose "
                "exchange=auto, or give the driver more memory"
            )
        return Choice("driver", f"as asked; {told} of the driver's memory")
    table, largest = ids * form.row_bytes, min(BROADCAST_BYTES, limits.heap // 4)
    if table > largest:
        large = f"the factors of {ids:,} ids take {_size(table)}"
        return Refusal(f"{large}, and the driver sends up to {_size(largest)}")
    if most_ratings is not None:
        limit, why = most_ratings, f"driverRatings = {most_ratings:,}"
    else:
        room = int(max(0, limits.memory // 2 - factors - arriving - ids_text) // per_rating)
        cap = MOST_RATINGS if limits.local else MOST_RATINGS_BESIDE_CLUSTER
        limit = min(room, cap)
        of_memory = f"half of the {_size(limits.memory)} that are free hold {room:,}"
        why = of_memory if room < cap else f"at most {cap:,} {'on one machine' if limits.local else 'beside a cluster'}"
    if n > limit:
        return Refusal(f"{n:,} ratings are more than the driver takes ({why})")
    return Choice("driver", f"{told} of the driver's memory; its limit is {limit:,} ratings: {why}")


def on_executors(wanted: str, census: RatingSurvey, form: Form, limits: DriverLimits, cores: int) -> Choice:
    """Broadcast, mixed or shuffle, as wanted or by the size of the factors. What cannot work is refused."""
    sizes = {"users": census.n_users * form.row_bytes, "items": census.n_items * form.row_bytes}
    told = f"the factors of {census.n_users:,} users and {census.n_items:,} items take {_size(sum(sizes.values()))}"
    fewer = "users" if held_side(census) == "rows" else "items"
    collected = {"broadcast": max(sizes.values()), "mixed": sizes[fewer], "shuffle": 0}
    if 1.1 * collected.get(wanted, 0) > limits.result:
        raise RequestError(
            f"exchange={wanted} collects the factors of one side, {_size(collected[wanted])}, more than "
            f"spark.driver.maxResultSize ({_size(limits.result)}): choose exchange=auto, or raise that setting "
            "(0 is no limit)"
        )
    if wanted != "auto":
        return Choice(wanted, f"as asked; {told}")
    limit = _most_sent(limits, cores)
    sent = {"broadcast": sum(sizes.values()), "mixed": sizes[fewer]}
    lacking = ""
    for exchange, size in sent.items():
        if size > limit:
            continue
        if 1.1 * collected[exchange] > limits.result:
            lacking = f"; {exchange} would need a spark.driver.maxResultSize of {_size(1.1 * collected[exchange])}"
            continue
        few = told if exchange == "broadcast" else f"{told}, those of the {fewer} {_size(size)}"
        return Choice(exchange, f"{few}, few enough to send to every worker (up to {_size(limit)}){lacking}")
    many = lacking or f", more than the {_size(limit)} that every worker may be sent"
    return Choice("shuffle", told + many)


def _most_sent(limits: DriverLimits, cores: int) -> int:
    """Bytes of factors that every Python worker may be sent.

    On one machine, as many as its memory holds for the driver and all workers. A shuffle would send each row once for
    each block that refers to it, through one disk.
    """
    whole = int(limits.memory / (DRIVER_COPIES + WORKER_COPIES * cores)) if limits.local else BROADCAST_BYTES
    return min(whole, limits.heap // 4)


def held_side(census: RatingSurvey) -> Side:
    """The side whose factors ``mixed`` keeps on the driver: the one with fewer ids."""
    return "rows" if census.n_users < census.n_items else "cols"


@dataclass(frozen=True)
class ChosenExchange:
    """The ratings counted, and the exchange that was chosen for them.

    Parameters
    ----------
    choice : Choice
        The exchange, with the reason for it.
    tally : RatingCounts
        The counts of the ratings.
    found : CollectedRatings or RatingSurvey
        What the engine of the exchange starts from: CollectedRatings for the driver's, RatingSurvey for the others.
    """

    choice: Choice
    tally: RatingCounts
    found: CollectedRatings | RatingSurvey


@contextmanager
def choose_exchange(
    wanted: str, ratings: RatingsSource, form: Form, most_ratings: int | None = None,
    counted: SizeEstimate | None = None, side_features: bool = False,
) -> Iterator[ChosenExchange]:  # fmt: skip
    """Validate and count the ratings, and choose the exchange.

    Their number decides whether they are gathered on the driver. If they are not, or if the factors of their ids turn
    out to be too large, an aggregation counts them by their ids. ``counted``: the result of ``weighed``, if the ratings
    were counted before. With ``side_features`` an exchange that they do not travel by is refused once it is chosen.
    """
    spark = ratings.spark
    if is_connect(spark) and wanted in ("broadcast", "mixed"):
        raise RequestError(f"exchange={wanted} {NOT_ON_CONNECT}: choose exchange=driver or exchange=shuffle")
    limits, before = driver_limits(spark), ""
    if wanted == "auto" and most_ratings == 0:
        before = "driverRatings = 0; "
    elif wanted in ("auto", "driver"):
        found = _on_driver(wanted, ratings, form, limits, most_ratings, counted)
        if isinstance(found, ChosenExchange):
            yield found
            return
        before = f"{found.reason}; "
    forced = None
    if is_connect(spark) and wanted == "auto":
        forced = _checked(Choice("shuffle", f"{before}nothing can be broadcast on Spark Connect"), side_features)
    shuffled = wanted in ("shuffle", "mixed") or is_connect(spark)
    with ratings.surveyed(collect_ids=not shuffled) as whole:
        choice = forced
        if choice is None:
            executors = on_executors(wanted, whole, form, limits, parallelism(spark))
            choice = _checked(Choice(executors.exchange, before + executors.reason), side_features)
        yield ChosenExchange(choice, whole.tally, whole)


def _checked(choice: Choice, side_features: bool) -> Choice:
    """The choice of ``auto``, unless side features do not travel by it."""
    if side_features and choice.exchange in ("shuffle", "mixed"):
        raise RequestError(
            f"side features do not travel by exchange={choice.exchange}, which exchange=auto has chosen "
            f"({choice.reason}): raise driverRatings, take exchange=driver or broadcast, or leave the features out"
        )
    return choice


def _on_driver(
    wanted: str, ratings: RatingsSource, form: Form, limits: DriverLimits, most_ratings: int | None,
    counted: SizeEstimate | None,
) -> ChosenExchange | Refusal:  # fmt: skip
    """The ratings gathered, unless they or their factors are too large."""
    spark = ratings.spark
    if counted is None:
        with described(spark, "survey"):
            counted = ratings.size()
    choice = on_driver(wanted, counted, 0, form, limits, most_ratings)
    if isinstance(choice, Refusal):
        return choice
    with described(spark, "gathering"):
        found = ratings.collected(counted, min(limits.result * 4 // 5, limits.heap // 4))
    choice = on_driver(wanted, counted, len(found.users) + len(found.items), form, limits, most_ratings)
    return choice if isinstance(choice, Refusal) else ChosenExchange(choice, found.tally, found)


@contextmanager
def engine_over(
    chosen: ChosenExchange, ratings: DataFrame, columns: Columns, blocks: tuple[int | None, int | None],
    form: Form, work: str | None, watched: DataFrame | None = None, storage: str = STORAGES[0],
) -> Iterator[SparkEngine[Any]]:  # fmt: skip
    """The engine of the chosen exchange on these ratings; the driver's gathers those to be watched, too.

    The one that shuffles keeps its tables in files of ``work``, or on the executors, as ``storage`` says.
    """
    log.info("exchange: %s (%s)", chosen.choice.exchange, chosen.choice.reason)
    spark, found = ratings.sparkSession, chosen.found
    if isinstance(found, CollectedRatings):
        with DriverEngine.over(spark, found, columns, watched) as here:
            yield here
    elif chosen.choice.exchange == "broadcast":
        with BroadcastEngine.over(spark, found, blocks) as collected:
            yield collected
    else:
        TemporaryFolders.of(spark).delete_unread()  # the files of models that are gone
        folder = None if storage == "executors" else work_folder(spark, work)
        held = held_side(found) if chosen.choice.exchange == "mixed" else None
        with ShuffleEngine.over(spark, found, blocks, form, folder, held) as engine:
            yield engine


def work_folder(spark: SparkSession, given: str | None) -> Location:
    """A new folder for files that all executors can reach.

    In ``given``, else in the application's checkpoint folder, else, on a single machine, in a temporary one.
    """
    name = f"onebit-{uuid.uuid4().hex[:12]}"
    base = given or checkpoint_folder(spark)
    if base:
        return Location(spark, base) / name
    if not is_local(spark):
        raise RequestError(
            "exchange=shuffle and mixed need a folder that all executors can reach: set workDir or checkpointDir, or "
            "sparkContext.setCheckpointDir; or shuffleStorage=executors, if a lost executor may end the fit"
        )
    temporary = tempfile.mkdtemp(prefix="onebit-")
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    return Location(spark, temporary) / name


def _size(n_bytes: float) -> str:
    """In MB, or in GB where there are many."""
    mb = n_bytes / 2**20
    return f"{mb:,.0f} MB" if mb < 10_000 else f"{mb / 1024:,.0f} GB"
