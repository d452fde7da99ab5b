"""Which exchange a fit uses, and where the one that shuffles keeps its files."""

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

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from onebit_spark.core.losses import Side
from onebit_spark.core.posterior import Form, RowPosterior
from onebit_spark.core.solver import Engine
from onebit_spark.engines.blocking import Repeats
from onebit_spark.engines.broadcast.engine import BroadcastEngine
from onebit_spark.engines.shuffle.engine import ShuffleEngine
from onebit_spark.errors import RequestError
from onebit_spark.input.census import Census
from onebit_spark.input.defects import Columns
from onebit_spark.platform.files import Location
from onebit_spark.platform.lending import take_back

BROADCAST_BYTES = 512 * 2**20  # of factors that the driver and every Python worker hold a copy of

log = logging.getLogger("onebit_spark")

P = TypeVar("P")  # a posterior of a side, in the engine's own form


class SparkEngine(Engine[P], Protocol[P]):
    """An engine whose posteriors go to models, and come from them."""

    repeats: Repeats

    def factors(
        self, side: Side, posterior: P, schema: StructType, drawn: P | None = None, outlasting: bool = False
    ) -> DataFrame:
        """The factor table of a side (see ``factortables``), which may have to outlast the engine."""

    def adopted(self, side: Side, factors: DataFrame, prior: RowPosterior, precision: str) -> P:
        """The posterior that a factor table holds of this engine's ids, ``prior``'s one row where it has none."""


@dataclass(frozen=True)
class Choice:
    """The exchange, with the reason for it."""

    exchange: str
    reason: str


def choose(wanted: str, census: Census, form: Form, context: SparkContext) -> Choice:
    """As wanted, or by the size of the factors. ``broadcast`` is refused where it cannot work."""
    mb = 2**20
    table = (census.n_users + census.n_items) * form.row_bytes
    result = max(census.n_users, census.n_items) * form.row_bytes
    told = f"the factors of {census.n_users:,} users and {census.n_items:,} items take {table / mb:,.0f} MB"
    allowed = _bytes(context.getConf().get("spark.driver.maxResultSize", "1g"))
    heap = int(context._jvm.java.lang.Runtime.getRuntime().maxMemory())  # type: ignore[union-attr]
    too_large = 0 < allowed < 1.1 * result
    if wanted == "broadcast" and too_large:
        raise RequestError(
            f"exchange=broadcast collects the factors of one side, {result / mb:,.0f} MB, more than "
            f"spark.driver.maxResultSize ({allowed / mb:,.0f} MB): choose exchange=shuffle, or raise that setting "
            "(0 is no limit)"
        )
    if wanted != "auto":
        return Choice(wanted, f"as asked; {told}")
    if too_large:
        return Choice("shuffle", f"{told}, beyond spark.driver.maxResultSize ({allowed / mb:,.0f} MB)")
    limit = min(BROADCAST_BYTES, heap // 4)
    if table > limit:
        return Choice("shuffle", f"{told}, more than the {limit / mb:,.0f} MB that every worker may be sent")
    return Choice("broadcast", f"{told}, few enough to send to every worker (up to {limit / mb:,.0f} MB)")


@contextmanager
def engine_over(
    choice: Choice, ratings: DataFrame, columns: Columns, census: Census, blocks: tuple[int | None, int | None],
    form: Form, work: str | None,
) -> Iterator[SparkEngine[Any]]:  # fmt: skip
    """The engine of the chosen exchange on these ratings."""
    log.info("exchange: %s (%s)", choice.exchange, choice.reason)
    if choice.exchange == "broadcast":
        with BroadcastEngine.over(ratings, columns, census.survey(), blocks) as collected:
            yield collected
        return
    take_back()  # the files of models that are gone
    folder = work_folder(ratings.sparkSession, work)
    with ShuffleEngine.over(ratings, columns, census, blocks, form, folder) as engine:
        yield engine


def work_folder(spark: SparkSession, given: str | None) -> Location:
    """A new folder for files that all executors can reach.

    In ``given``, else in the application's checkpoint folder, else, on a single machine, in a temporary one.
    """
    name = f"onebit-{uuid.uuid4().hex[:12]}"
    base = given or spark.sparkContext.getCheckpointDir()
    if base:
        return Location(spark, base) / name
    if not str(spark.sparkContext.master).startswith("local"):
        raise RequestError(
            "exchange=shuffle needs a folder that all executors can reach: set workDir or checkpointDir, or "
            "sparkContext.setCheckpointDir"
        )
    temporary = tempfile.mkdtemp(prefix="onebit-")
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    return Location(spark, temporary) / name


def _bytes(setting: str) -> int:
    """Spark's way to write a size: 512m, 1g, 0; bare numbers are bytes."""
    units = {"k": 10, "m": 20, "g": 30, "t": 40}
    text = setting.strip().lower().removesuffix("b")
    return int(text[:-1]) << units[text[-1]] if text[-1] in units else int(text)
