"""How factors reach the blocks by broadcast, and how they come back.

The driver holds both posteriors and broadcasts them. Each block takes the rows that it refers to, and returns its
updated rows. A map step is one Spark job. The driver and every Python worker hold the factor table, so this is for
tables that all of them have room for. For larger ones, ``shuffle.ShuffleEngine`` sends each block only the rows that
it refers to.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark import Broadcast
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from onebit_spark.core.confidence import HISTOGRAM_BINS, Histogram
from onebit_spark.core.draws import Draws, GibbsErrors
from onebit_spark.core.engine import LeftOut
from onebit_spark.core.losses import OTHER, SIDES, HalfStep, Loss, PriorLines, RowPrior, Side
from onebit_spark.core.posterior import FloatArray, RowPosterior
from onebit_spark.core.row_map import RowMap
from onebit_spark.core.side_tables import SideTables
from onebit_spark.core.spectral_rows import StartTable
from onebit_spark.core.split import Split
from onebit_spark.core.statistics import SideStatistics
from onebit_spark.engines.broadcast.block_work import (
    CONFIDENCE_LINES,
    ERROR_LINES,
    SUM_LINES,
    UPDATED_LINES,
    CountBlocks,
    DrawBlocks,
    LeftOutBlocks,
    SentRows,
    SumBlocks,
    UpdateBlocks,
)
from onebit_spark.engines.faults import check_checksums, worker_errors
from onebit_spark.engines.layout import SideLayout
from onebit_spark.platform.arrow_stream import arrow_batches
from onebit_spark.platform.sessions import broadcast

Part = TypeVar("Part")


@dataclass(frozen=True)
class BlockedSide:
    """One orientation of the ratings.

    Parameters
    ----------
    blocks : DataFrame
        The cached blocks.
    layout : SideLayout
        The block of each row.
    checksums : dict
        Block ─► (ratings, checksum).
    """

    blocks: DataFrame
    layout: SideLayout
    checksums: dict[int, tuple[int, int]]


class BroadcastExchange:
    """Sends factors by broadcast, and collects the updated ones."""

    def __init__(self, spark: SparkSession, sides: dict[Side, BlockedSide], features: SideTables) -> None:
        self._spark = spark
        self._sides = sides
        self._features = features
        self._sent_tables: dict[Side, Broadcast[FloatArray]] = {}
        self._posteriors: dict[Side, RowPosterior] = {}
        self._maps: dict[Side, RowMap] = {}  # of rows that are still to be mapped, where they are read
        self._sent: dict[Side, Broadcast[RowPosterior]] = {}
        self._sent_priors: dict[Side, tuple[RowPosterior, Broadcast[RowPosterior]]] = {}

    def hold(self, posteriors: dict[Side, RowPosterior]) -> None:
        """Both sides' posteriors from now on; a side is broadcast when a job first needs it."""
        for side, posterior in posteriors.items():
            if side in self._sent:
                self._sent.pop(side).destroy()
            self._maps.pop(side, None)
            self._posteriors[side] = posterior

    def apply(self, maps: dict[Side, RowMap]) -> None:
        """The tasks of the next half steps map the rows that they take: nothing is broadcast again."""
        for side, by in maps.items():
            self._maps[side] = self._maps[side].then(by) if side in self._maps else by

    def half_step(self, loss: Loss, step: HalfStep[RowPosterior]) -> SideStatistics:
        side, other = step.side, OTHER[step.side]
        own_rows, other_rows = (SentRows(self._sent_side(which), self._maps.get(which)) for which in (side, other))
        features = None if step.feature_weights is None else self._sent_features(side)
        work = UpdateBlocks(loss, step.under(self._sent_prior(step)), own_rows, other_rows, features)
        # New arrays: the workers of a local session may still read the arrays that were broadcast.
        posterior = self._posteriors[side].copy()
        form = posterior.form
        rows_of = self._sides[side].layout.rows_of
        parts: dict[int, SideStatistics] = {}
        for line in self._run(side, work, UPDATED_LINES):
            rows = rows_of[line["block"]]
            packed = np.frombuffer(line["rows"], form.precision).reshape(len(rows), form.width)
            posterior.put(rows, form.unpacked(packed))
            vector = np.frombuffer(line["statistics"], np.float64).copy()  # a view would keep the rows as well
            parts[line["block"]] = SideStatistics.from_vector(vector, posterior.dimension, posterior.has_intercept)
        self.hold({side: posterior})
        return reduce(SideStatistics.__add__, _in_order(parts))

    def signed_sums(self, side: Side, table: StartTable) -> StartTable:
        layout = self._sides[side].layout
        sums = np.zeros((len(layout.block_of), table.shape[1]), np.float32)
        sent = broadcast(self._spark, table)
        try:
            for line in self._run(side, SumBlocks(sent), SUM_LINES):
                rows = layout.rows_of[line["block"]]
                sums[rows] = _matrix(line["sums"], sums, len(rows))
        finally:
            sent.destroy()
        return sums

    def gibbs_errors(self, draws: Draws) -> GibbsErrors:
        for side in SIDES:
            self.collect(side)
        work = DrawBlocks(draws, self._sent_side("rows"), self._sent_side("cols"))
        lines = [(line["errors"], line["ratings"]) for line in self._run("rows", work, ERROR_LINES)]
        return GibbsErrors(*map(sum, zip(*lines, strict=True)))

    def confidences(self, posterior: dict[Side, RowPosterior], noise: float, stride: int) -> Histogram:
        counts = np.zeros(HISTOGRAM_BINS, np.int64)
        with ExitStack() as release:
            work = CountBlocks(noise, stride, *(self._sent_now(side, posterior[side], release) for side in SIDES))
            for line in self._run("rows", work, CONFIDENCE_LINES):
                counts += np.frombuffer(line["counts"], np.int64)
        return counts

    def left_out_loss(self, loss: str, posterior: dict[Side, RowPosterior], split: Split) -> LeftOut:
        with ExitStack() as release:
            sent = (self._sent_now(side, posterior[side], release) for side in SIDES)
            lines = self._run("rows", LeftOutBlocks(loss, split, *sent), SUM_LINES)
            parts = {line["block"]: np.frombuffer(line["sums"], np.float64) for line in lines}
        return LeftOut.summed(_in_order(parts))

    def collect(self, side: Side) -> RowPosterior:
        if side in self._maps:
            self.hold({side: self._maps[side].applied(self._posteriors[side])})
        return self._posteriors[side]

    def close(self) -> None:
        for sent in self._sent.values():
            sent.destroy()
        for _, sent_prior in self._sent_priors.values():
            sent_prior.destroy()
        for sent_table in self._sent_tables.values():
            sent_table.destroy()
        self._sent.clear()
        self._sent_priors.clear()
        self._sent_tables.clear()

    def _sent_prior(self, step: HalfStep[RowPosterior]) -> RowPrior | PriorLines[Broadcast[RowPosterior]]:
        """The prior in the form that a task gets. A prior with one line per row is broadcast once."""
        if not isinstance(step.prior, PriorLines):
            return step.prior
        lines = step.prior.lines
        if step.side not in self._sent_priors or self._sent_priors[step.side][0] is not lines:
            self._sent_priors[step.side] = lines, broadcast(self._spark, lines)
        return PriorLines(self._sent_priors[step.side][1])

    def _sent_features(self, side: Side) -> Broadcast[FloatArray]:
        """The side features, broadcast once."""
        if side not in self._sent_tables:
            self._sent_tables[side] = broadcast(self._spark, self._features[side].coded)
        return self._sent_tables[side]

    def _sent_side(self, side: Side) -> Broadcast[RowPosterior]:
        if side not in self._sent:
            self._sent[side] = broadcast(self._spark, self._posteriors[side])
        return self._sent[side]

    def _sent_now(self, side: Side, posterior: RowPosterior, release: ExitStack) -> Broadcast[RowPosterior]:
        """The broadcast of a posterior: the current one, or a new one that ``release`` destroys."""
        if posterior is self._posteriors.get(side):
            return self._sent_side(side)
        sent = broadcast(self._spark, posterior)
        release.callback(sent.destroy)
        return sent

    def _run(self, side: Side, work: Any, schema: StructType) -> Iterator[dict[str, Any]]:
        """Run one job over the blocks of a side. Yields its lines as its tasks end; checks that these are all.

        All lines together are as large as the factors, so the driver holds one at a time.
        """
        blocked = self._sides[side]
        found = {}
        with worker_errors():
            for batch in arrow_batches(blocked.blocks.mapInArrow(work, schema)):
                for cells in zip(*batch.columns, strict=True):
                    line = {name: _value(cell) for name, cell in zip(batch.schema.names, cells, strict=True)}
                    found[line["block"]] = (line["n"], line["checksum"])
                    yield line
        check_checksums(found, blocked.checksums)


def _in_order(parts: dict[int, Part]) -> list[Part]:
    """What came from the blocks, by their numbers: sums of floats do not depend on which task ended first."""
    return [parts[block] for block in sorted(parts)]


def _value(cell: pa.Scalar) -> Any:
    """A number, or the bytes of a binary cell where they are."""
    return cell.as_buffer() if pa.types.is_binary(cell.type) else cell.as_py()


def _matrix(buffer: pa.Buffer, like: NDArray[Any], n_rows: int) -> NDArray[Any]:
    return np.frombuffer(buffer, like.dtype).reshape(n_rows, like.shape[1])
