"""BroadcastEngine: the map steps as Spark jobs over cached blocks of ratings, with the factors on the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark import Broadcast, StorageLevel
from pyspark.sql import DataFrame, SparkSession

from onebit_spark.core.blocks import Sums
from onebit_spark.core.confidence import Histogram, every_so_many
from onebit_spark.core.config import FitConfig
from onebit_spark.core.draws import Draws, GibbsErrors
from onebit_spark.core.engine import LeftOut, with_prior
from onebit_spark.core.implicit_features import weight_gram
from onebit_spark.core.losses import SIDES, HalfStep, Loss, RowPrior, Side
from onebit_spark.core.posterior import RowPosterior
from onebit_spark.core.row_map import RowMap
from onebit_spark.core.side_features import rated_gram
from onebit_spark.core.side_tables import SideTables, recoded
from onebit_spark.core.spectral_rows import StartTable, Table
from onebit_spark.core.split import Split
from onebit_spark.core.statistics import SideStatistics
from onebit_spark.engines.blocking import (
    COUNTS,
    REPEATS,
    Repeats,
    SideTable,
    check_count,
    check_weight,
    chosen_blocks,
    column_blocks,
    count_rows,
    row_blocks,
)
from onebit_spark.engines.broadcast.exchange import BlockedSide, BroadcastExchange
from onebit_spark.engines.factor_frames import ArrayFactors
from onebit_spark.engines.faults import worker_errors
from onebit_spark.engines.layout import SideLayout, default_blocks, multiple_of, side_layout
from onebit_spark.engines.start import start_posteriors
from onebit_spark.input.survey import Ids, RatedIds, RatingSurvey
from onebit_spark.platform.plans import cut_from_plan, expect_long_lines, working_session
from onebit_spark.platform.sessions import broadcast, described, parallelism


class Counts(NamedTuple):
    """Counts per row of a side.

    Parameters
    ----------
    ratings : array of int64
        Ratings of each row.
    weights : array
        Sum of their weights: their number without weights.
    positives : array
        The same of the positive ratings.
    """

    ratings: NDArray[np.int64]
    weights: Sums
    positives: Sums


class BroadcastEngine(ArrayFactors):
    """An ``Engine`` (``core.solver``). It caches both orientations of the ratings, and broadcasts the factors."""

    def __init__(
        self, spark: SparkSession, sides: dict[Side, BlockedSide], counted: dict[Side, Counts], ids: dict[Side, Ids],
        weighted: bool,
    ) -> None:  # fmt: skip
        self._spark = spark
        self.ids = ids
        self._sides = sides
        self._counted = counted
        self.features: SideTables = {}
        self._exchange = BroadcastExchange(spark, sides, self.features)
        self.n_ratings = int(counted["rows"].ratings.sum())
        self.weighted = weighted
        self.total_weight = float(counted["rows"].weights.sum())
        self.repeats = Repeats()

    @classmethod
    @contextmanager
    def over(
        cls, spark: SparkSession, census: RatingSurvey, blocks: tuple[int | None, int | None]
    ) -> Iterator[BroadcastEngine]:
        """An engine over packed ratings. All caches and broadcasts are released at the end, also after an error."""
        survey = census.rated_ids()
        with ExitStack() as release:
            blocking = release.enter_context(ExitStack())
            blocking.enter_context(described(spark, "blocking"))
            layouts = _layouts(parallelism(spark), survey, blocks)
            users, items = (
                _broadcast(spark, SideTable(ids.values, layout.block_of, ids.counts, ids.positives), release)
                for ids, layout in ((survey.users, layouts["rows"]), (survey.items, layouts["cols"]))
            )
            own = working_session(spark)
            expect_long_lines(own, 1)
            by_row = row_blocks(census.packed.bundles, users, items, layouts["rows"])
            by_row, row_lines = _cached(by_row, own, release)
            by_col, col_lines = _cached(column_blocks(by_row, layouts["cols"], items), own, release)
            for lines in (row_lines, col_lines):
                check_count(survey.tally.n, int(np.sum(lines["n"].to_numpy())) if lines.num_rows else 0)
            sides: dict[Side, BlockedSide] = {
                "rows": BlockedSide(by_row, layouts["rows"], _checksums(row_lines)),
                "cols": BlockedSide(by_col, layouts["cols"], _checksums(col_lines)),
            }
            if survey.weight is None:
                counted = {side: Counts(ids.counts, ids.counts, ids.positives) for side, ids in survey.ids.items()}
            else:
                counted = {side: _counts(sides[side]) for side in SIDES}
            engine = cls(spark, sides, counted, survey.ids, survey.weight is not None)
            check_weight(survey.weight, engine.total_weight)
            release.callback(engine._exchange.close)
            engine.repeats = Repeats(*(int(np.sum(row_lines[name].to_numpy())) for name in REPEATS))
            blocking.close()
            yield engine

    @contextmanager
    def restricted(self, split: Split) -> Iterator[BroadcastEngine]:
        """An engine over the chosen ratings. It caches two more tables, made from the cached row blocks."""
        with ExitStack() as release, described(self._spark, "prior split"):
            blocks, layout = self._sides["rows"].blocks, self._sides["cols"].layout
            own = blocks.sparkSession
            by_row, row_lines = _cached(chosen_blocks(blocks, split), own, release)
            by_col, col_lines = _cached(column_blocks(by_row, layout), own, release)
            sides: dict[Side, BlockedSide] = {
                "rows": BlockedSide(by_row, self._sides["rows"].layout, _checksums(row_lines)),
                "cols": BlockedSide(by_col, layout, _checksums(col_lines)),
            }
            counted = {side: _counts(sides[side]) for side in SIDES}
            engine = BroadcastEngine(self._spark, sides, counted, self.ids, self.weighted)
            engine.features.update(recoded(self.features, engine.counts))
            release.callback(engine._exchange.close)
            yield engine

    def count(self, side: Side) -> int:
        return int(np.count_nonzero(self.counts(side)))

    def start(self, config: FitConfig, loss: Loss) -> None:
        with described(self._spark, "start"):
            self._exchange.hold(start_posteriors(self, config, loss))

    def start_from(self, posteriors: dict[Side, RowPosterior]) -> None:
        self._exchange.hold(posteriors)

    def half_step(self, loss: Loss, step: HalfStep[RowPosterior]) -> SideStatistics:
        with described(self._spark, f"iteration {step.iteration + 1}, {step.side}"):
            return self._exchange.half_step(loss, step)

    def apply(self, maps: dict[Side, RowMap]) -> None:
        self._exchange.apply(maps)

    def weight_gram(self, side: Side) -> Table:
        return weight_gram(self._exchange.collect(side))

    def feature_gram(self, side: Side) -> Table | None:
        known = self.features.get(side)
        return None if known is None else rated_gram(known.coded, self.counts(side))

    def posterior(
        self, side: Side, unseen: RowPrior | None = None, feature_weights: Table | None = None
    ) -> RowPosterior:
        known = None if feature_weights is None else self.features[side].coded @ feature_weights
        return with_prior(self._exchange.collect(side), self.counts(side) == 0, unseen, known)

    def combined(self, side: Side, make: Callable[..., RowPosterior], *posteriors: RowPosterior) -> RowPosterior:
        return make(*posteriors)

    def gibbs_errors(self, draws: Draws) -> GibbsErrors:
        with described(self._spark, "certificate"):
            return self._exchange.gibbs_errors(draws)

    def confidences(self, posterior: dict[Side, RowPosterior], noise: float) -> Histogram:
        with described(self._spark, "confidences"):
            return self._exchange.confidences(posterior, noise, every_so_many(self.n_ratings))

    def left_out_loss(self, loss: str, posterior: dict[Side, RowPosterior], split: Split) -> LeftOut:
        with described(self._spark, "choosing the weight of a rating"):
            return self._exchange.left_out_loss(loss, posterior, split)

    def counts(self, side: Side) -> NDArray[np.int64]:
        """Number of ratings of every row of the side."""
        return self._counted[side].ratings

    # The sign matrix, for the start.

    def row_weights(self, side: Side) -> tuple[Sums, Sums]:
        return self._counted[side].weights, self._counted[side].positives

    def signed_sums(self, side: Side, table: StartTable) -> StartTable:
        return self._exchange.signed_sums(side, table)


def _layouts(cores: int, survey: RatedIds, blocks: tuple[int | None, int | None]) -> dict[Side, SideLayout]:
    layouts: dict[Side, SideLayout] = {}
    for (side, ids), wanted in zip(survey.ids.items(), blocks, strict=True):
        n_blocks = wanted or min(len(ids), multiple_of(cores, default_blocks(survey.tally.n, len(ids), cores)))
        layouts[side] = side_layout(ids.counts, n_blocks, cores)
    return layouts


def _broadcast(spark: SparkSession, table: SideTable, release: ExitStack) -> Broadcast[SideTable]:
    sent = broadcast(spark, table)
    release.callback(sent.destroy)
    return sent


def _counts(side: BlockedSide) -> Counts:
    """Count the ratings of each row in the blocks, for blocks with weights, or with only some of the ratings."""
    n = len(side.layout.block_of)
    counts = Counts(np.zeros(n, np.int64), np.zeros(n), np.zeros(n))
    for line in side.blocks.mapInArrow(count_rows, COUNTS).toArrow().to_pylist():
        rows = side.layout.rows_of[line["block"]]
        for name, total in counts._asdict().items():
            total[rows] = np.frombuffer(line[name], total.dtype)
    return counts


def _cached(blocks: DataFrame, own: SparkSession, release: ExitStack) -> tuple[DataFrame, pa.Table]:
    """Compute and cache the blocks in one job. Returns them with a short plan in our session, and numbers of each."""
    blocks.persist(StorageLevel.DISK_ONLY)
    release.callback(blocks.unpersist)
    with worker_errors():
        lines = blocks.select("block", "n", "checksum", *REPEATS).toArrow()
    return cut_from_plan(blocks, own), lines


def _checksums(lines: pa.Table) -> dict[int, tuple[int, int]]:
    return {
        block: (n, checksum)
        for block, n, checksum in zip(*(lines[name].to_pylist() for name in ("block", "n", "checksum")), strict=True)
    }
