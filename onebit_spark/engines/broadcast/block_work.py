"""What a task of the broadcast exchange does with its blocks, and the lines that it returns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pyspark import Broadcast
from pyspark.sql.types import StructType

from onebit_spark.core.confidence import count_confidences
from onebit_spark.core.draws import Draws, count_errors
from onebit_spark.core.losses import HalfStep, Loss, PriorLines, RowPrior
from onebit_spark.core.posterior import FloatArray, RowPosterior
from onebit_spark.core.row_map import RowMap
from onebit_spark.core.spectral_rows import StartTable
from onebit_spark.core.split import Split
from onebit_spark.engines.block_frames import Batches, read_blocks
from onebit_spark.engines.map_step import left_out_loss, signed_sums, updated
from onebit_spark.platform.binary_cells import binary_line


def _schema(**cells: str) -> StructType:
    """The schema of a result: the number of the block, the given cells, and the number of ratings with a checksum."""
    schema = StructType().add("block", "integer")
    for name, kind in {**cells, "n": "long", "checksum": "long"}.items():
        schema = schema.add(name, kind)
    return schema


UPDATED_LINES = _schema(rows="binary", statistics="binary")
SUM_LINES = _schema(sums="binary")
ERROR_LINES = _schema(errors="long", ratings="long")
CONFIDENCE_LINES = _schema(counts="binary")


@dataclass(frozen=True)
class SentRows:
    """A side that was broadcast, and the map that its rows still wait for."""

    sent: Broadcast[RowPosterior]
    by: RowMap | None

    def take(self, index: NDArray[np.integer]) -> RowPosterior:
        rows = self.sent.value.take(index)  # a copy
        if self.by is not None:
            self.by.apply_to(rows, 0, rows.n_rows)
        return rows


@dataclass(frozen=True)
class UpdateBlocks:
    """A half step on the blocks of a task."""

    loss: Loss
    step: HalfStep[Broadcast[RowPosterior]]
    own: SentRows
    other: SentRows
    features: Broadcast[FloatArray] | None

    def __call__(self, batches: Batches) -> Batches:
        for block in read_blocks(batches):
            rows = self.own.take(block.rows)
            step = self.step
            if isinstance(step.prior, PriorLines):
                step = step.under(RowPrior.at(step.prior.lines.value.take(block.rows)))
            partners, over = self.other.take(block.columns), block.ratings.over_ranges
            features = None if self.features is None else self.features.value[block.rows]
            statistics = updated(self.loss, block.ratings, partners, rows, step, over, features)
            yield binary_line(
                block=block.number,
                rows=rows.packed(),
                statistics=statistics.to_vector(),
                n=block.ratings.n_ratings,
                checksum=block.checksum,
            )


@dataclass(frozen=True)
class SumBlocks:
    """Y·table on the blocks of a task."""

    table: Broadcast[StartTable]

    def __call__(self, batches: Batches) -> Batches:
        for block in read_blocks(batches):
            table = self.table.value[block.columns]
            ratings = block.ratings
            sums = np.empty((ratings.n_rows, table.shape[1]), np.float32)
            signed_sums(ratings, 0, ratings.n_rows, table, sums)
            yield binary_line(block=block.number, sums=sums, n=ratings.n_ratings, checksum=block.checksum)


@dataclass(frozen=True)
class DrawBlocks:
    """Counts errors of draws from the posteriors on the blocks of a task."""

    draws: Draws
    rows: Broadcast[RowPosterior]
    cols: Broadcast[RowPosterior]

    def __call__(self, batches: Batches) -> Batches:
        for block in read_blocks(batches):
            ratings = block.ratings
            rows, cols = self.rows.value.take(block.rows), self.cols.value.take(block.columns)
            counted = count_errors(ratings, 0, ratings.n_rows, block.rows, rows, cols, self.draws)
            yield binary_line(block=block.number, **counted._asdict(), n=ratings.n_ratings, checksum=block.checksum)


@dataclass(frozen=True)
class CountBlocks:
    """The histogram of the confidences on the blocks of a task."""

    noise: float
    stride: int
    rows: Broadcast[RowPosterior]
    cols: Broadcast[RowPosterior]

    def __call__(self, batches: Batches) -> Batches:
        for block in read_blocks(batches):
            ratings = block.ratings
            rows, cols = self.rows.value.take(block.rows), self.cols.value.take(block.columns)
            counts = count_confidences(ratings, 0, ratings.n_rows, block.rows, rows, cols, self.noise, self.stride)
            yield binary_line(block=block.number, counts=counts, n=ratings.n_ratings, checksum=block.checksum)


@dataclass(frozen=True)
class LeftOutBlocks:
    """The held-out loss of the ratings that a split does not choose, on the blocks of a task."""

    loss: str
    split: Split
    rows: Broadcast[RowPosterior]
    cols: Broadcast[RowPosterior]

    def __call__(self, batches: Batches) -> Batches:
        for block in read_blocks(batches):
            rows, cols = self.rows.value.take(block.rows), self.cols.value.take(block.columns)
            sums = np.array(left_out_loss(self.loss, block.ratings, block.rows, rows, cols, self.split))
            yield binary_line(block=block.number, sums=sums, n=block.ratings.n_ratings, checksum=block.checksum)
