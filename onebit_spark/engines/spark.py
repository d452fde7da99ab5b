"""SparkEngine: the map steps as Spark jobs over cached blocks of ratings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark import Broadcast, SparkContext, StorageLevel
from pyspark.sql import DataFrame, SparkSession

from onebit_spark.certificate.gibbs import Draws, GibbsErrors
from onebit_spark.certificate.split import Split
from onebit_spark.config import FitConfig
from onebit_spark.engines.blocking import COUNTS, SideTable, chosen_blocks, column_blocks, count_rows, row_blocks
from onebit_spark.engines.exchange import BlockedSide, BroadcastExchange, FactorExchange
from onebit_spark.engines.faults import worker_errors
from onebit_spark.engines.layout import SideLayout, default_blocks, side_layout
from onebit_spark.engines.mapstep import Table
from onebit_spark.engines.start import start_posteriors
from onebit_spark.errors import FitFailed, RequestError
from onebit_spark.losses import SIDES, HalfStep, Loss, Side
from onebit_spark.posterior import RowPosterior, packed_size
from onebit_spark.ratings import Columns, Survey, prepared
from onebit_spark.statistics import SideStatistics


@dataclass(frozen=True)
class Repeats:
    """Cells that were rated more than once: every rating counts."""

    repeated: int
    conflicting: int


class Counts(NamedTuple):
    """Ratings, and positive ratings, of every row of a side."""

    ratings: NDArray[np.int64]
    positives: NDArray[np.int64]


class SparkEngine:
    """Holds both orientations of the ratings as cached DataFrames; factors travel through an exchange."""

    def __init__(self, context: SparkContext, sides: dict[Side, BlockedSide], counted: dict[Side, Counts]) -> None:
        self._context = context
        self._sides = sides
        self._counted = counted
        self._exchange: FactorExchange = BroadcastExchange(context, sides)
        self.n_ratings = int(counted["rows"].ratings.sum())
        self.repeats = Repeats(0, 0)

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
                _broadcast(context, SideTable(ids.values, layout.block_of, ids.counts, ids.positives), release)
                for ids, layout in ((survey.users, layouts["rows"]), (survey.items, layouts["cols"]))
            )
            by_row = row_blocks(prepared(ratings, columns), users, items, layouts["rows"].n_blocks)
            by_row, row_lines = _cached(by_row, release)
            by_col, col_lines = _cached(column_blocks(by_row, items, layouts["cols"].n_blocks), release)
            _check_both(survey, row_lines, col_lines)
            engine = cls(
                context,
                {
                    "rows": BlockedSide(by_row, layouts["rows"], _checksums(row_lines)),
                    "cols": BlockedSide(by_col, layouts["cols"], _checksums(col_lines)),
                },
                {side: Counts(ids.counts, ids.positives) for side, ids in survey.ids.items()},
            )
            release.callback(engine._exchange.close)
            engine.repeats = Repeats(*(int(np.sum(row_lines[name].to_numpy())) for name in ("repeated", "conflicting")))
            yield engine

    @contextmanager
    def restricted(self, split: Split) -> Iterator[SparkEngine]:
        """The chosen ratings blocked like all of them: two more cached tables, from the row blocks in memory."""
        with ExitStack() as release, _described(self._context, "prior split"):
            by_row, row_lines = _cached(chosen_blocks(self._sides["rows"].blocks, split), release)
            layout = self._sides["cols"].layout
            items = _broadcast(self._context, SideTable(None, layout.block_of), release)
            by_col, col_lines = _cached(column_blocks(by_row, items, layout.n_blocks), release)
            sides: dict[Side, BlockedSide] = {
                "rows": BlockedSide(by_row, self._sides["rows"].layout, _checksums(row_lines)),
                "cols": BlockedSide(by_col, layout, _checksums(col_lines)),
            }
            engine = SparkEngine(self._context, sides, {side: _counts(sides[side]) for side in SIDES})
            release.callback(engine._exchange.close)
            yield engine

    def count(self, side: Side) -> int:
        return int(np.count_nonzero(self.counts(side)))

    def start(self, config: FitConfig, loss: Loss) -> None:
        _check_result_size(self._context, config, loss, max(len(self.counts(side)) for side in SIDES))
        with _described(self._context, "start"):
            self._exchange.publish(start_posteriors(self, config, loss))

    def start_from(self, posteriors: dict[Side, RowPosterior]) -> None:
        self._exchange.publish(posteriors)

    def half_step(self, loss: Loss, step: HalfStep) -> SideStatistics:
        with _described(self._context, f"iteration {step.iteration + 1}, {step.side}"):
            return self._exchange.half_step(loss, step)

    def posterior(self, side: Side) -> RowPosterior:
        return self._exchange.collect(side)

    def gibbs_errors(self, draws: Draws) -> GibbsErrors:
        with _described(self._context, "certificate"):
            return self._exchange.gibbs_errors(draws)

    # The sign matrix, for the start.

    def counts(self, side: Side) -> NDArray[np.int64]:
        return self._counted[side].ratings

    def positives(self, side: Side) -> NDArray[np.int64]:
        return self._counted[side].positives

    def signed_sums(self, side: Side, table: Table) -> Table:
        return self._exchange.signed_sums(side, table)


def require_classic(spark: SparkSession) -> None:
    """Spark Connect has no SparkContext: no broadcast, no job under our control."""
    if not hasattr(spark, "_jsparkSession"):
        raise RequestError("Spark Connect sessions are not supported: use a classic session (spark-submit, or master=)")


def _layouts(context: SparkContext, survey: Survey, blocks: tuple[int | None, int | None]) -> dict[Side, SideLayout]:
    cores = context.defaultParallelism
    layouts: dict[Side, SideLayout] = {}
    for (side, ids), wanted in zip(survey.ids.items(), blocks, strict=True):
        n_blocks = wanted or default_blocks(survey.tally.n, len(ids), cores)
        layouts[side] = side_layout(ids.counts, n_blocks)
    return layouts


def _broadcast(context: SparkContext, table: SideTable, release: ExitStack) -> Broadcast[SideTable]:
    sent = context.broadcast(table)
    release.callback(sent.destroy)
    return sent


def _counts(side: BlockedSide) -> Counts:
    """Counted in the blocks: where the survey saw more ratings than the blocks hold."""
    counts = Counts(*(np.zeros(len(side.layout.block_of), np.int64) for _ in Counts._fields))
    for line in side.blocks.mapInArrow(count_rows, COUNTS).toArrow().to_pylist():
        rows = side.layout.rows_of[line["block"]]
        for name, total in counts._asdict().items():
            total[rows] = np.frombuffer(line[name], np.int64)
    return counts


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
