"""ShuffleEngine: map steps with factors that never come to the driver.

Ids are numbered by a distributed sort. Factors are in tall tables (see ``tables``), also during the start. The driver
gets sums of K×K numbers. So nothing on the driver grows with the rows, the columns or the ratings.

If the driver holds the tables of one side, it grows with that side. The blocks of the other side then need nothing but
a broadcast, and half of the shuffles are gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial, reduce
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from onebit_spark.core.confidence import Histogram, every_so_many
from onebit_spark.core.config import FitConfig
from onebit_spark.core.draws import Draws, GibbsErrors
from onebit_spark.core.engine import LeftOut
from onebit_spark.core.losses import OTHER, SIDES, HalfStep, Loss, PriorLines, RowPrior, Side
from onebit_spark.core.posterior import Form, RowPosterior
from onebit_spark.core.row_map import Reading, RowMap
from onebit_spark.core.side_tables import SideTables
from onebit_spark.core.spectral import STARTS
from onebit_spark.core.spectral_rows import Table
from onebit_spark.core.split import Split
from onebit_spark.core.statistics import SideStatistics
from onebit_spark.engines.blocking import CHUNKS, Build, Choose, Repeats, Turn, check_count, check_weight
from onebit_spark.engines.layout import RATINGS_PER_BLOCK, default_blocks, default_tasks
from onebit_spark.engines.shuffle import steps as work
from onebit_spark.engines.shuffle.numbering import WIDE, NumberedIds, encoded, number_ids, placements
from onebit_spark.engines.shuffle.posteriors import TablePosterior
from onebit_spark.engines.shuffle.routes import Sums
from onebit_spark.engines.shuffle.sides import RoutedSide, Routing, in_tasks
from onebit_spark.engines.shuffle.sign_matrix import TableSignMatrix
from onebit_spark.engines.shuffle.storage import InFiles, OnExecutors, Storage
from onebit_spark.engines.shuffle.tables import AnyTable, Tables
from onebit_spark.engines.start import SpreadOut
from onebit_spark.input.survey import RatingSurvey
from onebit_spark.platform.binary_cells import schema_of
from onebit_spark.platform.files import Location
from onebit_spark.platform.plans import cut_from_plan, expect_long_lines, working_session
from onebit_spark.platform.sessions import described, parallelism

PARTNER_BYTES = 256 * 2**20  # of the factor rows that one block may refer to
OWN_BYTES = 128 * 2**20  # of the factor rows that one block updates
PACKED_ROWS = schema_of("number long, packed binary")


class ShuffleEngine:
    """An ``Engine`` (``core.solver``). It caches both orientations of the ratings, and keeps tall tables."""

    def __init__(
        self, tables: Tables, form: Form, ids: dict[Side, NumberedIds], n_ratings: int, weighted: bool
    ) -> None:
        self._tables = tables
        self._form = form
        self._ids = ids
        self._posteriors: dict[Side, TablePosterior] = {}
        self.n_ratings = n_ratings
        self.weighted = weighted
        self.features: SideTables = {}  # they do not travel by shuffle
        self.total_weight = float(np.sum(tables.sums("rows", work.total_weight))) if weighted else float(n_ratings)
        self.repeats = Repeats()

    @classmethod
    @contextmanager
    def over(
        cls, spark: SparkSession, census: RatingSurvey, blocks: tuple[int | None, int | None], form: Form,
        folder: Location | None, held: Side | None = None,
    ) -> Iterator[ShuffleEngine]:  # fmt: skip
        """An engine over packed ratings. All caches and files are released at the end, also after an error.

        Its tables are in files of ``folder``, or on the executors if there is none. ``held`` is the side whose tables
        the driver holds.
        """
        storage: Storage = OnExecutors() if folder is None else InFiles(folder)
        with ExitStack() as release:
            release.callback(storage.clear)
            n = census.tally.n
            with described(spark, "blocking"):
                ids = number_ids(census, release)
                n_blocks: dict[Side, int] = {}
                for side, given in zip(SIDES, blocks, strict=True):
                    sent = 0 if held == OTHER[side] else ids[OTHER[side]].n_rows
                    n_blocks[side] = given or blocks_by_size(n, ids[side].n_rows, sent, form, parallelism(spark))
                placed = placements(ids, n, n_blocks)
                rows, cols = (placed[side] for side in SIDES)
                wide, weighted = max(side.n_rows for side in ids.values()) >= WIDE, census.weight is not None
                build = Build(None, wide)
                own = working_session(spark)
                expect_long_lines(own)
                chunks = cut_from_plan(encoded(census.packed, ids, rows, wide), own)
                tasks = [tasks_by_size(n, side.n_blocks, parallelism(spark)) for side in (rows, cols)]
                routing, parts = Routing(storage, release), in_tasks(chunks, tasks[0])
                by_row = routing.routed(parts, build, rows, cols, tasks[0], held == "rows")
                turned = in_tasks(by_row.blocks.mapInArrow(Turn(cols, wide), CHUNKS), tasks[1])
                by_col = routing.routed(turned, build, cols, rows, tasks[1], held == "cols")
                for routed_side in (by_row, by_col):
                    check_count(n, routed_side.n_ratings)
            engine = cls(Tables(own, storage, {"rows": by_row, "cols": by_col}), form, ids, n, weighted)
            check_weight(census.weight, engine.total_weight)
            engine.repeats = by_row.repeats
            yield engine

    @contextmanager
    def restricted(self, split: Split) -> Iterator[ShuffleEngine]:
        """An engine over the chosen ratings. It caches two more tables, made from the cached row blocks."""
        rows, cols = (self._tables.sides[side] for side in SIDES)
        wide = max(side.n_rows for side in self._ids.values()) >= WIDE
        with ExitStack() as release, described(self._tables.spark, "prior split"):
            routing, choose = Routing(self._tables.storage, release), Choose(split, squeezed=True)
            by_row = routing.routed(
                rows.blocks, choose, rows.placement, cols.placement, rows.n_tasks, rows.held is not None
            )
            turned = in_tasks(rows.blocks.mapInArrow(Turn(cols.placement, wide, split), CHUNKS), cols.n_tasks)
            by_col = routing.routed(
                turned, Build(None, wide), cols.placement, rows.placement, cols.n_tasks, cols.held is not None
            )
            sides: dict[Side, RoutedSide] = {"rows": by_row, "cols": by_col}
            yield ShuffleEngine(self._tables.over(sides), self._form, self._ids, by_row.n_ratings, self.weighted)

    def count(self, side: Side) -> int:
        return self._tables.sides[side].n_rated

    def start(self, config: FitConfig, loss: Loss) -> None:
        with described(self._tables.spark, "start"):
            matrix, finish = TableSignMatrix(self._tables, self.total_weight), SpreadOut(config, loss)
            for side, lines in zip(SIDES, STARTS[config.start](matrix, config.rank, config.seed), strict=True):
                assert lines.make is not None  # the start ends with lines that are still to be made
                begin = work.Begin(lines.make, finish)
                self._posteriors[side] = self._posterior_made(side, begin, matrix.made_of(lines), self._form)

    def start_from(self, posteriors: dict[Side, TablePosterior]) -> None:
        self._posteriors = dict(posteriors)

    def half_step(self, loss: Loss, step: HalfStep[TablePosterior]) -> SideStatistics:
        side = step.side
        own, partners = [self._posteriors[side]], self._posteriors[OTHER[side]]
        form, size = own[0].form, TablePosterior.sums(own[0].form)
        prior: RowPrior | PriorLines[Reading]
        if isinstance(step.prior, PriorLines):
            own.append(step.prior.lines)
            prior = PriorLines(step.prior.lines.reading)
        else:
            prior = step.prior
        update = work.Update(loss, step.under(prior), own[0].reading)
        with described(self._tables.spark, f"iteration {step.iteration + 1}, {side}"):
            table, sums = self._tables.make(
                side, update, tuple(posterior.table for posterior in own), partners.table, partners.sending,
                form.precision,
            )  # fmt: skip
        self._posteriors[side] = TablePosterior.made(table, form, [part[:size] for part in sums])
        return reduce(
            SideStatistics.__add__,
            (SideStatistics.from_vector(part[size:], form.dimension, form.has_intercept) for part in sums),
        )

    def apply(self, maps: dict[Side, RowMap]) -> None:
        for side, by in maps.items():
            self._posteriors[side] = self._posteriors[side].mapped(by)

    def weight_gram(self, side: Side) -> Sums:
        posterior = self._posteriors[side]
        if posterior.reading.by is None:
            return posterior.weight_gram
        sums = self._tables.sums(side, work.WeightGram(posterior.reading), (posterior.table,))
        return np.sum(sums, axis=0).reshape(posterior.weight_gram.shape)

    def feature_gram(self, side: Side) -> None:
        """None: side features do not travel by shuffle."""

    def posterior(
        self, side: Side, unseen: RowPrior | None = None, feature_weights: Table | None = None
    ) -> TablePosterior:
        posterior = self._posteriors[side]
        if unseen is None or self.count(side) == self._ids[side].n_rows:
            return posterior
        return self._posterior_made(side, work.Fill(posterior.reading, unseen), (posterior.table,), posterior.form)

    def combined(self, side: Side, make: Callable[..., RowPosterior], *posteriors: TablePosterior) -> TablePosterior:
        readings, forms = tuple(p.reading for p in posteriors), [p.form for p in posteriors]
        form = make(*(form.unpacked(np.empty((0, form.width), form.precision)) for form in forms)).form
        return self._posterior_made(side, work.Combine(make, readings), tuple(p.table for p in posteriors), form)

    def gibbs_errors(self, draws: Draws) -> GibbsErrors:
        own, partners = self._posteriors["rows"], self._posteriors["cols"]
        with described(self._tables.spark, "certificate"):
            draw = work.Draw(draws, own.reading)
            sums = self._tables.sums("rows", draw, (own.table,), partners.table, partners.sending)
        return GibbsErrors(*(int(total) for total in np.sum(sums, axis=0)))

    def confidences(self, posterior: dict[Side, TablePosterior], noise: float) -> Histogram:
        rows, cols = posterior["rows"], posterior["cols"]
        with described(self._tables.spark, "confidences"):
            count = work.Confidences(noise, every_so_many(self.n_ratings), rows.reading, cols.form)
            sums = self._tables.sums("rows", count, (rows.table,), cols.table, cols.sending)
        return np.sum(sums, axis=0).astype(np.int64)

    def left_out_loss(self, loss: str, posterior: dict[Side, TablePosterior], split: Split) -> LeftOut:
        rows, cols = posterior["rows"], posterior["cols"]
        with described(self._tables.spark, "choosing the weight of a rating"):
            measure = work.LeftOut(loss, split, rows.reading, cols.form)
            sums = self._tables.sums("rows", measure, (rows.table,), cols.table, cols.sending)
        return LeftOut.summed(sums)

    def _posterior_made(self, side: Side, make: Any, own: tuple[AnyTable, ...], form: Form) -> TablePosterior:
        table, grams = self._tables.make(side, make, own, dtype=form.precision)
        return TablePosterior.made(table, form, grams)

    # ---- to and from models ------------------------------------------------------------------------------------------

    def factors(
        self, side: Side, posterior: TablePosterior, schema: StructType, drawn: TablePosterior | None = None,
        outlasting: bool = False, newcomers: pa.Table | None = None,
    ) -> DataFrame:  # fmt: skip
        """The factor table of a side (see ``factor_tables``). If ``outlasting``, it outlives the engine."""
        assert newcomers is None, "side features do not travel by shuffle"
        numbered = StructType([StructField("number", LongType()), *schema.fields[1:]])
        parts = [posterior] if drawn is None else [posterior, drawn]
        make = partial(work.factor_lines, tuple(part.reading for part in parts))
        lines = self._tables.rows(side, tuple(part.table for part in parts), make, numbered)
        ids = self._ids[side].frame
        joined = ids.select("id", "number").join(cut_from_plan(lines, ids.sparkSession), "number")
        frame = joined.select(*schema.names)
        return self._tables.outlasting(frame, schema) if outlasting else frame

    def adopted(self, side: Side, factors: DataFrame, prior: RowPosterior, precision: str) -> TablePosterior:
        """The posterior of this engine's ids from a factor table. Ids that it lacks get the one row of ``prior``."""
        lines = self._ids[side].frame.select("id", "number").join(factors, "id")
        empty = prior.packed().astype(self._form.precision)
        gram = partial(work.packed_gram, self._form)
        table, grams = self._tables.adopted(side, lines, work.PackLines(prior, self._form), empty, gram)
        return TablePosterior.made(table, self._form, grams)

    def numbered(self, pairs: DataFrame, side: Side, id_column: str, number_column: str) -> DataFrame:
        """The pairs with the number of an id; null where the id is not fitted."""
        ids = cut_from_plan(self._ids[side].frame.select("id", "number"), pairs.sparkSession)
        named = ids.select(F.col("id").alias(id_column), F.col("number").alias(number_column))
        return pairs.join(named, id_column, "left").drop(id_column)

    def packed_lines(self, side: Side, posterior: TablePosterior) -> DataFrame:
        """(number, packed): one line for each row of the posterior."""
        make = partial(work.packed_lines, posterior.reading)
        return self._tables.rows(side, (posterior.table,), make, PACKED_ROWS)


def blocks_by_size(n_ratings: int, n_rows: int, n_sent: int, form: Form, cores: int) -> int:
    """So many blocks that neither the partners of a block nor its own rows need much memory.

    ``n_sent`` is the number of partners that may be sent to a block.
    """
    few = n_sent * form.row_bytes <= PARTNER_BYTES
    ratings = RATINGS_PER_BLOCK if few else min(RATINGS_PER_BLOCK, PARTNER_BYTES // form.row_bytes)
    return default_blocks(n_ratings, n_rows, max(cores, -(-n_rows * form.row_bytes // OWN_BYTES)), ratings)


def tasks_by_size(n_ratings: int, n_blocks: int, cores: int) -> int:
    """A few blocks per task, as many as have the ratings of one large block: lines travel between fewer tasks."""
    return max(default_tasks(n_blocks, cores), min(n_blocks, -(-n_ratings // RATINGS_PER_BLOCK)))
