"""What the shuffle engine computes on one block, from its ratings, its own lines and the lines of its partners.

Each step returns the new lines (or None) and sums for the driver.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from onebit_spark.core.blocks import Sums as RowWeights
from onebit_spark.core.confidence import count_confidences
from onebit_spark.core.draws import Draws, count_errors
from onebit_spark.core.engine import with_prior
from onebit_spark.core.factor_tables import factor_table, plain_lists, read_factors
from onebit_spark.core.implicit_features import weight_gram
from onebit_spark.core.losses import HalfStep, Loss, PriorLines, RowPrior
from onebit_spark.core.posterior import FloatArray, Form, RowPosterior
from onebit_spark.core.row_map import Reading
from onebit_spark.core.spectral_rows import Rows, Table, distinct_keys, gram, scaled_product
from onebit_spark.core.split import Split
from onebit_spark.engines.block_frames import PlacedBlock
from onebit_spark.engines.map_step import left_out_loss, signed_sums, updated
from onebit_spark.engines.shuffle.routes import Sums

Own = list[FloatArray]
Made = tuple[FloatArray | None, Sums]


@dataclass(frozen=True)
class Update:
    """A half step. The sums are those of ``gram_sums``, then the statistics."""

    loss: Loss
    step: HalfStep[Reading]  # PriorLines hold how the prior is read; its lines are the second table
    own: Reading  # the partners were mapped before they were sent

    def __call__(self, block: PlacedBlock, own: Own, partners: FloatArray | None) -> Made:
        assert partners is not None
        step = self.step
        if isinstance(step.prior, PriorLines):
            step = step.under(RowPrior.at(step.prior.lines.unpacked(own[1])))
        rows, others = self.own.unpacked(own[0]), self.own.form.unpacked(partners)
        statistics = updated(self.loss, block.ratings, others, rows, step, block.ratings.over_ranges)
        return rows.packed(), np.concatenate([gram_sums(rows), statistics.to_vector()])


@dataclass(frozen=True)
class Draw:
    """Draws from the posteriors. The sums are errors and ratings."""

    draws: Draws
    own: Reading

    def __call__(self, block: PlacedBlock, own: Own, partners: FloatArray | None) -> Made:
        assert partners is not None
        rows, cols = self.own.unpacked(own[0]), self.own.form.unpacked(partners)
        counted = count_errors(block.ratings, 0, block.ratings.n_rows, block.rows, rows, cols, self.draws)
        return None, np.array(counted, np.float64)


@dataclass(frozen=True)
class Confidences:
    """The histogram of the ratings' confidences."""

    noise: float
    stride: int
    own: Reading
    other: Form

    def __call__(self, block: PlacedBlock, own: Own, partners: FloatArray | None) -> Made:
        assert partners is not None
        rows, cols, ratings = self.own.unpacked(own[0]), self.other.unpacked(partners), block.ratings
        counts = count_confidences(ratings, 0, ratings.n_rows, block.rows, rows, cols, self.noise, self.stride)
        return None, counts.astype(np.float64)


@dataclass(frozen=True)
class LeftOut:
    """The held-out loss of the ratings that a split does not choose. The sums are those of ``core.engine.LeftOut``."""

    loss: str
    split: Split
    own: Reading
    other: Form

    def __call__(self, block: PlacedBlock, own: Own, partners: FloatArray | None) -> Made:
        assert partners is not None
        rows, cols = self.own.unpacked(own[0]), self.other.unpacked(partners)
        return None, np.array(left_out_loss(self.loss, block.ratings, block.rows, rows, cols, self.split))


@dataclass(frozen=True)
class Combine:
    """A posterior from other posteriors of the side, row by row. The sums are those of ``gram_sums``."""

    make: Callable[..., RowPosterior]
    readings: tuple[Reading, ...]

    def __call__(self, block: PlacedBlock, own: Own, partners: FloatArray | None) -> Made:
        made = self.make(*(reading.unpacked(table) for reading, table in zip(self.readings, own, strict=True)))
        return made.packed(), gram_sums(made)


@dataclass(frozen=True)
class Begin:
    """The posterior at the start, from tables of the start. The sums are those of ``gram_sums``."""

    lines: Callable[..., Table]
    finish: Callable[[Table], RowPosterior]

    def __call__(self, block: PlacedBlock, own: Own, partners: FloatArray | None) -> Made:
        made = self.finish(self.lines(_rows(block), *own))
        return made.packed(), gram_sums(made)


@dataclass(frozen=True)
class Fill:
    """The posterior with the prior in rows without ratings."""

    own: Reading
    prior: RowPrior

    def __call__(self, block: PlacedBlock, own: Own, partners: FloatArray | None) -> Made:
        filled = with_prior(self.own.unpacked(own[0]), block.ratings.row_counts == 0, self.prior)
        return filled.packed(), gram_sums(filled)


@dataclass(frozen=True)
class WeightGram:
    """The sums are Σ_j w_j w_jᵀ of the weights for the other side."""

    own: Reading

    def __call__(self, block: PlacedBlock, own: Own, partners: FloatArray | None) -> Made:
        return None, weight_gram(self.own.unpacked(own[0])).ravel()


@dataclass(frozen=True)
class Lines:
    """A table of the start, row by row."""

    make: Callable[..., Table]

    def __call__(self, block: PlacedBlock, own: Own, partners: FloatArray | None) -> Made:
        return self.make(_rows(block), *own), np.empty(0)


@dataclass(frozen=True)
class Measure:
    """A sum over the rows of a table. It is sent as its shape and its numbers."""

    measure: Callable[[Rows, Table], Table]

    def __call__(self, block: PlacedBlock, own: Own, partners: FloatArray | None) -> Made:
        total = self.measure(_rows(block), own[0].astype(np.float64, copy=False))
        return None, np.concatenate([[total.ndim], total.shape, total.ravel()])


@dataclass(frozen=True)
class Keys:
    """The different (ratings, positives) of the block's rows, at most ``enough`` of them."""

    enough: int

    def __call__(self, block: PlacedBlock, own: Own, partners: FloatArray | None) -> Made:
        return None, distinct_keys(_rows(block))[: self.enough].astype(np.float64).ravel()


def total_weight(block: PlacedBlock, own: Own, partners: FloatArray | None) -> Made:
    """The sum of the weights."""
    return None, np.array([block.ratings.row_weights.sum()], np.float64)


@dataclass(frozen=True)
class Product:
    """D^{−½} Σ_l y_l partner_j, where the partners are D^{−½} table·right. The sums are their Gram matrix."""

    width: int  # numbers of a line

    def __call__(self, block: PlacedBlock, own: Own, partners: FloatArray | None) -> Made:
        assert partners is not None
        ratings = block.ratings
        sums = np.empty((ratings.n_rows, self.width), np.float32)
        signed_sums(ratings, 0, ratings.n_rows, partners.reshape(-1, self.width), sums)
        lines = (_rows(block).scale * sums).astype(np.float32)
        return lines, gram(_rows(block), lines.astype(np.float64)).ravel()


@dataclass(frozen=True)
class Mapped:
    """Packed rows, mapped before they are sent."""

    reading: Reading

    def __call__(self, table: FloatArray, counts: RowWeights) -> FloatArray:
        return self.reading.unpacked(table).packed()


@dataclass(frozen=True)
class Scaled:
    """D^{−½} table·right, before it is sent."""

    right: Table
    dtype: ClassVar = np.dtype(np.float32)

    def __call__(self, table: FloatArray, counts: RowWeights) -> FloatArray:
        return scaled_product(Rows(np.arange(len(counts)), counts, counts), table, self.right)


def _rows(block: PlacedBlock) -> Rows:
    return Rows(block.rows, block.ratings.row_weights, block.ratings.row_positive_weights)


def gram_sums(rows: RowPosterior) -> Sums:
    """Σ_i [1, E x_i][1, E x_i]ᵀ, then the Σ_j w_j w_jᵀ of the weights for the other side, in a row of numbers."""
    augmented = np.insert(rows.location.astype(np.float64), 0, 1.0, axis=1)
    return np.concatenate([(augmented.T @ augmented).ravel(), weight_gram(rows).ravel()])


def packed_gram(form: Form, table: FloatArray) -> Sums:
    """The same of packed rows."""
    return gram_sums(form.unpacked(table))


def factor_lines(readings: tuple[Reading, ...], numbers: NDArray[np.int64], tables: Own) -> pa.Table:
    """Lines of a factor table by row number, from a posterior and, after a prior split, that of the certified draws."""
    posteriors = (reading.unpacked(table) for reading, table in zip(readings, tables, strict=True))
    return plain_lists(factor_table(pa.array(numbers), *posteriors).rename_columns({"id": "number"}))


def packed_lines(reading: Reading, numbers: NDArray[np.int64], tables: Own) -> pa.Table:
    """Packed rows by row number."""
    packed = reading.unpacked(tables[0]).packed()
    cells = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(packed.shape[1] * packed.itemsize), len(packed), [None, pa.py_buffer(np.ascontiguousarray(packed))]
    )
    return pa.table({"number": numbers, "packed": cells.cast(pa.binary())})


@dataclass(frozen=True)
class PackLines:
    """Turns lines of a factor table into row numbers and packed rows."""

    prior: RowPosterior
    form: Form

    def __call__(self, batch: pa.RecordBatch) -> tuple[NDArray[np.int64], FloatArray]:
        rows = read_factors(batch.drop_columns(["id", "number"]).to_struct_array(), self.prior)
        return batch.column("number").to_numpy(), rows.packed().astype(self.form.precision)
