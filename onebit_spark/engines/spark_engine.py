"""SparkEngine: the engine on the ratings of a DataFrame, with their ids, on the driver or on the executors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from onebit_spark.core.blocks import Repeats, repeats_of
from onebit_spark.core.execution import DEVICES
from onebit_spark.core.factor_tables import align_factors, factor_table
from onebit_spark.core.losses import OTHER, SIDES, Side
from onebit_spark.core.posterior import Form, RowPosterior
from onebit_spark.core.sketch import CellSketch
from onebit_spark.core.spectral import Rows
from onebit_spark.engines.block_frames import (
    RATINGS_PER_BLOCK,
    default_blocks,
    default_tasks,
    multiple_of,
    placement_by_counts,
)
from onebit_spark.engines.blocking import (
    Blocking,
    SidePlan,
    SideTable,
    check_count,
    check_weight,
    numbered_chunks,
)
from onebit_spark.engines.cuda.runner import CudaRunner
from onebit_spark.engines.engine import BlockEngine
from onebit_spark.engines.numbering import WIDE, NumberedIds, encoded, number_ids, placements
from onebit_spark.engines.runner import LineFormat
from onebit_spark.engines.spark_runner import SparkRunner
from onebit_spark.engines.tables import Broadcasts, PackLines, Storage, collected_factors, factor_frame, factor_lines
from onebit_spark.engines.threads import ThreadRunner
from onebit_spark.input.batches import CollectedRatings
from onebit_spark.input.survey import Ids, RatingSurvey
from onebit_spark.platform.plans import expect_long_lines, truncate_plan, working_session
from onebit_spark.platform.sessions import described, parallelism

PARTNER_BYTES = 256 * 2**20  # of the factor rows that one block may refer to
OWN_BYTES = 128 * 2**20  # of the factor rows that one block updates


class SparkEngine(BlockEngine[Any]):
    """The engine of a DataFrame of ratings. Its posteriors go to models, and come from them.

    Attributes
    ----------
    ids : dict of Side to Ids or NumberedIds
        The ids of both sides. ``values`` gives them on the driver, in the order of the rows.
    repeats : Repeats
        Cells that were rated more than once.
    fitted : CellSketch or None
        Sketch of the rated cells, if the ratings were collected.
    """

    fitted: CellSketch | None = None

    def __init__(self, spark: SparkSession, runner: Any, ids: dict[Side, Any], repeats: Repeats) -> None:
        super().__init__(runner)
        self._spark = spark
        self.ids: dict[Side, Ids | NumberedIds] = ids
        self.repeats = repeats

    def is_held(self, side: Side) -> bool:
        """Whether the tables of a side are on the driver."""
        return self.runner.held_rows(side) is not None

    def stored(self, side: Side) -> tuple[SparkRunner, DataFrame]:
        """The runner, and the numbered ids of a side whose tables are stored."""
        ids = self.ids[side]
        assert isinstance(self.runner, SparkRunner)
        assert isinstance(ids, NumberedIds)
        return self.runner, ids.frame

    def factors(
        self, side: Side, posterior: Any, schema: StructType, drawn: Any = None, outlasting: bool = False,
        newcomers: pa.Table | None = None,
    ) -> DataFrame:  # fmt: skip
        """The factor table of a side (see ``factor_tables``).

        ``drawn`` is the posterior of the certified draws. ``newcomers`` are lines of ids without ratings, which have
        side features. If ``outlasting``, the table can be read after the engine is closed.
        """
        parts = [posterior] if drawn is None else [posterior, drawn]
        if self.is_held(side):
            table = factor_table(self.ids[side].values, *map(self.runner.lines, parts))
            if newcomers is not None:
                table = pa.concat_tables([table, newcomers.cast(table.schema)])
            return factor_frame(self._spark, table, schema)
        runner, ids = self.stored(side)
        numbered = StructType([StructField("number", LongType()), *schema.fields[1:]])
        lines = truncate_plan(runner.frame(side, parts, factor_lines, numbered), ids.sparkSession)
        frame = ids.select("id", "number").join(lines, "number").select(*schema.names)
        if newcomers is not None:
            frame = frame.unionAll(factor_frame(ids.sparkSession, newcomers, schema))
        return runner.outlasting(frame, schema) if outlasting else frame

    def adopted(self, side: Side, factors: DataFrame, prior: RowPosterior, precision: str) -> Any:
        """The posterior of this engine's ids from a factor table. Ids that it lacks get the one row of ``prior``."""
        if self.is_held(side):
            rows = align_factors(collected_factors(factors), self.ids[side].values, prior, precision)
            return self.runner.table(side, rows)
        runner, ids = self.stored(side)
        lines = ids.select("id", "number").join(factors, "id")
        empty = prior.packed().astype(precision)
        format = LineFormat.of(prior.astype(precision).form)
        return runner.adopted(side, lines, PackLines(prior, precision), empty, format)


@contextmanager
def on_driver(
    spark: SparkSession, collected: CollectedRatings, form: Form, device: str = DEVICES[0]
) -> Iterator[SparkEngine]:
    """The engine on ratings that were collected."""
    make: Any = ThreadRunner if device == "cpu" else partial(CudaRunner.of_block, form=form)
    with make(collected.ratings).running() as runner:
        ids = {
            side: Ids(values, runner.counts(side), runner.positive_counts(side))
            for side, values in zip(SIDES, (collected.users, collected.items), strict=True)
        }
        engine = SparkEngine(spark, runner, ids, repeats_of(collected.ratings))
        engine.fitted = collected.sketch()
        yield engine


@contextmanager
def on_executors(
    spark: SparkSession, survey: RatingSurvey, blocks: tuple[int | None, int | None], form: Form, storage: Storage,
    held: frozenset[Side],
) -> Iterator[SparkEngine]:  # fmt: skip
    """The engine over packed ratings. All caches, broadcasts and files are released at the end, also after an error.

    ``held`` are the sides whose tables the driver holds. If it holds both, it also knows all ids.
    """
    with ExitStack() as release:
        release.callback(storage.clear)
        broadcasts = Broadcasts(spark)
        release.callback(broadcasts.close)
        own = working_session(spark)
        with described(spark, "blocking"):
            if held == frozenset(SIDES):
                numbered = _with_collected_ids(survey, blocks, parallelism(spark), broadcasts)
                expect_long_lines(own, 1)
            else:
                numbered = _with_sorted_ids(survey, blocks, parallelism(spark), form, held, release)
                expect_long_lines(own)
            blocking = Blocking(own, storage, release, numbered.plans, numbered.wide)
            sides = blocking.blocked(truncate_plan(numbered.chunks, own))
            for blocked in sides.values():
                check_count(survey.counts.n, blocked.n_ratings)
        runner = SparkRunner(blocking, sides, broadcasts, survey.weight is not None)
        check_weight(survey.weight, runner.total_weight)
        yield SparkEngine(spark, runner, numbered.ids, sides["rows"].repeats)


class _Numbered(NamedTuple):
    """The ids with their numbers, the division into blocks, and the ratings in chunks for the blocks of rows."""

    ids: dict[Side, Any]
    plans: dict[Side, SidePlan]
    chunks: DataFrame
    wide: bool = False


def _with_collected_ids(
    survey: RatingSurvey, blocks: tuple[int | None, int | None], cores: int, broadcasts: Broadcasts
) -> _Numbered:
    """The driver numbers all ids, and broadcasts them."""
    rated, plans = survey.rated_ids(), {}
    for (side, ids), given in zip(rated.ids.items(), blocks, strict=True):
        n = len(ids)
        n_blocks = given or min(n, multiple_of(cores, default_blocks(rated.counts.n, n, cores)))
        placement, rows = placement_by_counts(ids.counts, n_blocks), np.arange(n)
        table = SideTable(ids.values, placement.of(rows), ids.counts, ids.positives)
        counted = Rows(rows, ids.counts, ids.positives) if rated.weight is None else None
        sent = broadcasts.send(table)
        plans[side] = SidePlan(placement, n, default_tasks(n_blocks, cores), True, sent, counted)
    users, items = (plan.ids for plan in plans.values())
    assert users is not None
    assert items is not None
    return _Numbered(rated.ids, plans, numbered_chunks(survey.packed.bundles, users, items))


def _with_sorted_ids(
    survey: RatingSurvey, blocks: tuple[int | None, int | None], cores: int, form: Form, held: frozenset[Side],
    release: ExitStack,
) -> _Numbered:  # fmt: skip
    """A distributed sort numbers the ids. Nothing on the driver grows with them."""
    n, ids = survey.counts.n, number_ids(survey, release)
    n_blocks: dict[Side, int] = {}
    for side, given in zip(SIDES, blocks, strict=True):
        sent = 0 if OTHER[side] in held else ids[OTHER[side]].n_rows
        n_blocks[side] = given or blocks_by_size(n, ids[side].n_rows, sent, form, cores)
    placed = placements(ids, n, n_blocks)
    wide = max(side.n_rows for side in ids.values()) >= WIDE
    plans = {
        side: SidePlan(placed[side], ids[side].n_rows, tasks_by_size(n, n_blocks[side], cores), side in held)
        for side in SIDES
    }
    return _Numbered(ids, plans, encoded(survey.packed, ids, placed["rows"], wide), wide)


def blocks_by_size(n_ratings: int, n_rows: int, n_sent: int, form: Form, cores: int) -> int:
    """So many blocks that neither the partners of a block nor its own rows need much memory.

    ``n_sent`` is the number of partners that may be sent to a block.
    """
    few = n_sent * form.sent.row_bytes <= PARTNER_BYTES
    ratings = RATINGS_PER_BLOCK if few else min(RATINGS_PER_BLOCK, PARTNER_BYTES // form.sent.row_bytes)
    return default_blocks(n_ratings, n_rows, max(cores, -(-n_rows * form.row_bytes // OWN_BYTES)), ratings)


def tasks_by_size(n_ratings: int, n_blocks: int, cores: int) -> int:
    """A few blocks per task, as many as have the ratings of one large block: lines travel between fewer tasks."""
    return max(default_tasks(n_blocks, cores), min(n_blocks, -(-n_ratings // RATINGS_PER_BLOCK)))
