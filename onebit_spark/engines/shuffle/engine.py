"""ShuffleEngine: map steps with factors that never come to the driver.

Ids are numbered by a distributed sort. Factors are in tall tables (see ``tables``), also during the start. The driver
gets sums of K×K numbers. So nothing on the driver grows with the rows, the columns or the ratings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
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
from onebit_spark.core.losses import OTHER, SIDES, HalfStep, Loss, PriorLines, RowPrior, Side
from onebit_spark.core.posterior import Form, RowPosterior
from onebit_spark.core.rowmap import Reading, RowMap
from onebit_spark.core.spectral import STARTS
from onebit_spark.core.split import Split
from onebit_spark.core.startlines import Rows, Table
from onebit_spark.core.statistics import SideStatistics
from onebit_spark.engines.blocking import CHUNKS, REPEATS, Build, Choose, Repeats, Turn, check_count, check_weight
from onebit_spark.engines.layout import default_blocks
from onebit_spark.engines.shuffle import steps as work
from onebit_spark.engines.shuffle.numbering import WIDE, NumberedIds, encoded, number_ids, placement_of
from onebit_spark.engines.shuffle.storage import InFiles, OnExecutors, Storage
from onebit_spark.engines.shuffle.tables import RoutedSide, Sums, Tables, TallTable, routed
from onebit_spark.engines.start import SpreadOut
from onebit_spark.input.census import Census
from onebit_spark.input.ratings import ITEM, USER
from onebit_spark.platform.files import Location
from onebit_spark.platform.plans import cut_from_plan, expect_long_lines, in_partitions, working_session
from onebit_spark.platform.sessions import described, parallelism

SHUFFLED_RATINGS_PER_BLOCK = 4_000_000  # fewer, larger blocks than with broadcast: each block is sent its partners
PARTNER_BYTES = 256 * 2**20  # of the factor rows that one block may refer to
OWN_BYTES = 128 * 2**20  # of the factor rows that one block updates


@dataclass(frozen=True)
class TablePosterior:
    """Posterior of a side in a tall table.

    Parameters
    ----------
    table : TallTable
        The packed rows.
    reading : Reading
        How the packed rows are read: their layout, and the map that they go through.
    gram : array
        Σ_i [1, E x_i][1, E x_i]ᵀ of the rows as they lie in the table. The driver knows no more of them.
    """

    table: TallTable
    reading: Reading
    gram: Sums

    @classmethod
    def made(cls, table: TallTable, form: Form, grams: list[Sums]) -> TablePosterior:
        """From a new table, with the parts of its Gram matrix."""
        size = form.dimension + 1
        return cls(table, Reading(form), np.sum(grams, axis=0).reshape(size, size))

    def mapped(self, by: RowMap) -> TablePosterior:
        return replace(self, reading=self.reading.then(by))

    @property
    def form(self) -> Form:
        return self.reading.form

    @property
    def column_norms(self) -> Sums:
        by = RowMap.identity(self.form.dimension) if self.reading.by is None else self.reading.by
        squares = np.diag(by.augmented.T @ self.gram @ by.augmented)
        return np.sqrt(squares[1 + int(self.form.has_intercept) :])

    @property
    def sending(self) -> work.Mapped | None:
        """What its lines go through before they are sent to the blocks of the other side."""
        return None if self.reading.by is None else work.Mapped(self.reading)


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
        self.total_weight = float(np.sum(tables.sums("rows", work.total_weight))) if weighted else float(n_ratings)
        self.repeats = Repeats()

    @classmethod
    @contextmanager
    def over(
        cls, spark: SparkSession, census: Census, blocks: tuple[int | None, int | None], form: Form,
        folder: Location | None,
    ) -> Iterator[ShuffleEngine]:  # fmt: skip
        """An engine over packed ratings. All caches and files are released at the end, also after an error.

        Its tables are in files of ``folder``, or on the executors if there is none.
        """
        storage: Storage = OnExecutors() if folder is None else InFiles(folder)
        with ExitStack() as release:
            release.callback(storage.clear)
            n = census.tally.n
            with described(spark, "blocking"):
                ids: dict[Side, NumberedIds] = {
                    "rows": number_ids(census, USER, release),
                    "cols": number_ids(census, ITEM, release),
                }
                rows, cols = (
                    placement_of(ids[side], n, given or _default_blocks(n, ids[side].n_rows, form, spark))
                    for side, given in zip(SIDES, blocks, strict=True)
                )
                wide, weighted = max(side.n_rows for side in ids.values()) >= WIDE, census.weight is not None
                build = Build(None, wide)
                chunks = cut_from_plan(encoded(census.packed, ids, rows, wide), working_session(spark))
                parts = in_partitions(chunks, rows.n_blocks, F.col("block"))
                by_row = routed(parts, build, rows, cols, storage, release)
                turned = by_row.blocks.mapInArrow(Turn(cols, wide), CHUNKS)
                parts = in_partitions(turned, cols.n_blocks, F.col("block"))
                by_col = routed(parts, build, cols, rows, storage, release)
                for side in (by_row, by_col):
                    check_count(n, side.n_ratings)
                doubles = by_row.blocks.agg(*map(F.sum, REPEATS)).first()
                expect_long_lines(chunks.sparkSession)
            engine = cls(Tables(chunks.sparkSession, storage, {"rows": by_row, "cols": by_col}), form, ids, n, weighted)
            check_weight(census.weight, engine.total_weight)
            assert doubles is not None
            engine.repeats = Repeats(*doubles)
            yield engine

    @contextmanager
    def restricted(self, split: Split) -> Iterator[ShuffleEngine]:
        """An engine over the chosen ratings. It caches two more tables, made from the cached row blocks."""
        rows, cols = (self._tables.sides[side] for side in SIDES)
        wide = max(side.n_rows for side in self._ids.values()) >= WIDE
        with ExitStack() as release, described(self._tables.spark, "prior split"):
            choose, storage = Choose(split, squeezed=True), self._tables.storage
            by_row = routed(rows.blocks, choose, rows.placement, cols.placement, storage, release)
            turned = rows.blocks.mapInArrow(Turn(cols.placement, wide, split), CHUNKS)
            parts = in_partitions(turned, cols.placement.n_blocks, F.col("block"))
            by_col = routed(parts, Build(None, wide), cols.placement, rows.placement, storage, release)
            sides: dict[Side, RoutedSide] = {"rows": by_row, "cols": by_col}
            yield ShuffleEngine(self._tables.over(sides), self._form, self._ids, by_row.n_ratings, self.weighted)

    def count(self, side: Side) -> int:
        return self._tables.sides[side].n_rated

    def start(self, config: FitConfig, loss: Loss) -> None:
        with described(self._tables.spark, "start"):
            rows, cols = STARTS[config.start](self, config.rank, config.seed)
            spread_out = work.Combine(SpreadOut(config, loss), ())
            self._posteriors = {
                "rows": self._posterior_made("rows", spread_out, (rows,), self._form),
                "cols": self._posterior_made("cols", spread_out, (cols,), self._form),
            }

    def start_from(self, posteriors: dict[Side, TablePosterior]) -> None:
        self._posteriors = dict(posteriors)

    def half_step(self, loss: Loss, step: HalfStep[TablePosterior]) -> SideStatistics:
        side = step.side
        own, partners = [self._posteriors[side]], self._posteriors[OTHER[side]]
        form, size = own[0].form, (own[0].form.dimension + 1) ** 2
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
        rank = posterior.form.dimension - int(posterior.form.has_intercept)
        if not posterior.form.has_implicit:
            return np.zeros((rank, rank))
        sums = self._tables.sums(side, work.WeightGram(posterior.reading), (posterior.table,))
        return np.sum(sums, axis=0).reshape(rank, rank)

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

    def left_out_loss(self, loss: str, posterior: dict[Side, TablePosterior], split: Split) -> float:
        rows, cols = posterior["rows"], posterior["cols"]
        with described(self._tables.spark, "choosing the weight of a rating"):
            measure = work.LeftOut(loss, split, rows.reading, cols.form)
            sums = self._tables.sums("rows", measure, (rows.table,), cols.table, cols.sending)
        total, weight = np.sum(sums, axis=0)
        return float(total / weight) if weight else 0.0

    def _posterior_made(self, side: Side, make: Any, own: tuple[TallTable, ...], form: Form) -> TablePosterior:
        table, grams = self._tables.make(side, make, own, dtype=form.precision)
        return TablePosterior.made(table, form, grams)

    # ---- to and from models ------------------------------------------------------------------------------------------

    def factors(
        self, side: Side, posterior: TablePosterior, schema: StructType, drawn: TablePosterior | None = None,
        outlasting: bool = False, newcomers: pa.Table | None = None,
    ) -> DataFrame:  # fmt: skip
        """The factor table of a side (see ``factortables``). If ``outlasting``, it outlives the engine."""
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

    # ---- the sign matrix, for the start ------------------------------------------------------------------------------

    def distinct_keys(self, side: Side, enough: int) -> int:
        parts = self._tables.sums(side, work.Keys(enough))
        return len(np.unique(np.concatenate([part.reshape(-1, 2) for part in parts]), axis=0))

    def tall(self, side: Side, make: Callable[..., Table], *tables: TallTable) -> TallTable:
        return self._tables.make(side, work.Lines(make), tables)[0]

    def product(self, side: Side, table: TallTable, right: Table) -> TallTable:
        return self._tables.make(side, work.product, partners=table, send=work.Scaled(right), dtype=np.float32)[0]

    def total(self, side: Side, measure: Callable[[Rows, Table], Table], table: TallTable) -> Table:
        parts = self._tables.sums(side, work.Measure(measure), (table,))
        shape = [int(size) for size in parts[0][1 : 1 + int(parts[0][0])]]
        return np.sum([part[1 + len(shape) :] for part in parts], axis=0).reshape(shape)


def _default_blocks(n_ratings: int, n_rows: int, form: Form, spark: SparkSession) -> int:
    """So many blocks that neither the partners of a block nor its own rows need much memory."""
    ratings = min(SHUFFLED_RATINGS_PER_BLOCK, PARTNER_BYTES // form.row_bytes)
    cores = max(parallelism(spark), -(-n_rows * form.row_bytes // OWN_BYTES))
    return default_blocks(n_ratings, n_rows, cores, ratings)
