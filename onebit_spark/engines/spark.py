"""SparkEngine: the map steps as Spark jobs over cached blocks of ratings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark import SparkContext, StorageLevel
from pyspark.sql import DataFrame, SparkSession

from onebit_spark.config import FitConfig
from onebit_spark.engines.blocking import SideTable, column_blocks, row_blocks
from onebit_spark.engines.exchange import BlockedSide, BroadcastExchange, FactorExchange
from onebit_spark.engines.faults import worker_errors
from onebit_spark.engines.layout import SideLayout, default_blocks, side_layout
from onebit_spark.engines.mapstep import Table
from onebit_spark.engines.start import start_posteriors
from onebit_spark.errors import FitFailed, RequestError
from onebit_spark.losses import HalfStep, Loss, Side
from onebit_spark.posterior import RowPosterior, packed_size
from onebit_spark.ratings import Columns, Ids, Survey, prepared
from onebit_spark.statistics import SideStatistics


@dataclass(frozen=True)
class Repeats:
    """Cells that were rated more than once: every rating counts."""

    repeated: int
    conflicting: int


class SparkEngine:
    """Holds both orientations of the ratings as cached DataFrames; factors travel through an exchange."""

    def __init__(
        self, context: SparkContext, survey: Survey, sides: dict[Side, BlockedSide], exchange: FactorExchange,
        repeats: Repeats,
    ) -> None:  # fmt: skip
        self._context = context
        self._ids: dict[Side, Ids] = {"rows": survey.users, "cols": survey.items}
        self._sides = sides
        self._exchange = exchange
        self.n_ratings = survey.tally.n
        self.repeats = repeats

    @classmethod
    @contextmanager
    def over(
        cls, ratings: DataFrame, columns: Columns, survey: Survey, blocks: tuple[int | None, int | None]
    ) -> Iterator[SparkEngine]:
        """Block the ratings, and release every cache and broadcast at the end, whatever happens."""
        context = ratings.sparkSession.sparkContext
        with ExitStack() as release:
            layouts = _layouts(context, survey, blocks)
            users, items = (
                context.broadcast(SideTable(ids.values, ids.counts, ids.positives, layout.block_of))
                for ids, layout in ((survey.users, layouts["rows"]), (survey.items, layouts["cols"]))
            )
            release.callback(users.destroy)
            release.callback(items.destroy)
            by_row = row_blocks(prepared(ratings, columns), users, items, layouts["rows"].n_blocks)
            by_row, row_lines = _cached(by_row, release)
            by_col = column_blocks(by_row, items, layouts["cols"].n_blocks)
            by_col, col_lines = _cached(by_col, release)
            _check_both(survey, row_lines, col_lines)
            sides: dict[Side, BlockedSide] = {
                "rows": BlockedSide(by_row, layouts["rows"], _checksums(row_lines)),
                "cols": BlockedSide(by_col, layouts["cols"], _checksums(col_lines)),
            }
            exchange = BroadcastExchange(context, sides)
            release.callback(exchange.close)
            repeats = Repeats(*(int(np.sum(row_lines[name].to_numpy())) for name in ("repeated", "conflicting")))
            yield cls(context, survey, sides, exchange, repeats)

    def count(self, side: Side) -> int:
        return len(self._ids[side])

    def start(self, config: FitConfig, loss: Loss) -> None:
        _check_result_size(self._context, config, loss, max(self.count("rows"), self.count("cols")))
        with _described(self._context, "start"):
            self._exchange.publish(start_posteriors(self, config, loss))

    def start_from(self, posteriors: dict[Side, RowPosterior]) -> None:
        self._exchange.publish(posteriors)

    def half_step(self, loss: Loss, step: HalfStep) -> SideStatistics:
        with _described(self._context, f"iteration {step.iteration + 1}, {step.side}"):
            return self._exchange.half_step(loss, step)

    def posterior(self, side: Side) -> RowPosterior:
        return self._exchange.collect(side)

    # The sign matrix, for the start.

    def counts(self, side: Side) -> NDArray[np.int64]:
        return self._ids[side].counts

    def positives(self, side: Side) -> NDArray[np.int64]:
        return self._ids[side].positives

    def signed_sums(self, side: Side, table: Table) -> Table:
        return self._exchange.signed_sums(side, table)


def require_classic(spark: SparkSession) -> None:
    """Spark Connect has no SparkContext: no broadcast, no job under our control."""
    if not hasattr(spark, "_jsparkSession"):
        raise RequestError("Spark Connect sessions are not supported: use a classic session (spark-submit, or master=)")


def _layouts(context: SparkContext, survey: Survey, blocks: tuple[int | None, int | None]) -> dict[Side, SideLayout]:
    cores = context.defaultParallelism
    layouts: dict[Side, SideLayout] = {}
    sides: list[tuple[Side, Ids, int | None]] = [("rows", survey.users, blocks[0]), ("cols", survey.items, blocks[1])]
    for side, ids, wanted in sides:
        n_blocks = wanted or default_blocks(survey.tally.n, len(ids), cores)
        layouts[side] = side_layout(ids.counts, n_blocks)
    return layouts


def _cached(blocks: DataFrame, release: ExitStack) -> tuple[DataFrame, pa.Table]:
    """The blocks, computed and cached in one job and cut from their plan, and a few numbers of each."""
    blocks.persist(StorageLevel.MEMORY_AND_DISK)
    release.callback(blocks.unpersist)
    with worker_errors():
        lines = blocks.select("block", "n", "checksum", "repeated", "conflicting").toArrow()
    return _cut_from_plan(blocks), lines


def _cut_from_plan(blocks: DataFrame) -> DataFrame:
    """The same rows behind a plan of a single node, over the same cache and with the same lineage.

    Otherwise every half step would analyse the plan of the user's source anew before it finds it in the cache: half of
    the time of a small step. A checkpoint would cut the lineage too, and with it the way back from a lost executor.
    """
    session = blocks.sparkSession
    jvm_session: Any = session._jsparkSession
    plan: Any = blocks._jdf
    rows = plan.queryExecution().toRdd()
    return DataFrame(jvm_session.internalCreateDataFrame(rows, plan.schema(), False), session)


def _checksums(lines: pa.Table) -> dict[int, tuple[int, int]]:
    return {
        block: (n, checksum)
        for block, n, checksum in zip(*(lines[name].to_pylist() for name in ("block", "n", "checksum")), strict=True)
    }


def _check_both(survey: Survey, row_lines: pa.Table, col_lines: pa.Table) -> None:
    """Both orientations hold every rating that was counted."""
    for lines in (row_lines, col_lines):
        n = int(np.sum(lines["n"].to_numpy())) if lines.num_rows else 0
        if n != survey.tally.n:
            raise FitFailed(
                f"{survey.tally.n:,} ratings were counted but {n:,} blocked: the source is not deterministic (a random "
                "split or sample, say). Write the ratings to disk first and fit from there"
            )


def _check_result_size(context: SparkContext, config: FitConfig, loss: Loss, n_rows: int) -> None:
    """The broadcast exchange collects one side's posterior in each job: it must fit ``spark.driver.maxResultSize``."""
    width = config.dimension + (packed_size(config.dimension) if loss.kind == "covariance" else config.dimension)
    needed = n_rows * width * np.dtype(config.precision).itemsize
    allowed = _bytes(context.getConf().get("spark.driver.maxResultSize", "1g"))
    if 0 < allowed < 1.1 * needed:
        smaller = "the diagonal covariance, or a smaller rank" if loss.kind == "covariance" else "a smaller rank"
        raise RequestError(
            f"the factors of {n_rows:,} rows take {needed / 2**20:,.0f} MB, more than spark.driver.maxResultSize "
            f"({allowed / 2**20:,.0f} MB): choose {smaller}, or raise that setting (0 is no limit)"
        )


def _bytes(setting: str) -> int:
    """Spark's way to write a size: 512m, 1g, 0; bare numbers are bytes."""
    units = {"k": 10, "m": 20, "g": 30, "t": 40}
    text = setting.strip().lower().removesuffix("b")
    return int(text[:-1]) << units[text[-1]] if text[-1] in units else int(text)


@contextmanager
def _described(context: SparkContext, what: str) -> Iterator[None]:
    """Name the jobs in Spark's UI, and give the user's own description back."""
    key = "spark.job.description"
    before = context.getLocalProperty(key)
    context.setLocalProperty(key, f"onebit_spark: {what}")
    try:
        yield
    finally:
        context.setLocalProperty(key, before)  # type: ignore[arg-type]
