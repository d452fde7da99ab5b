"""The work of one map step on one block. It is the same in every engine."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core import implicit_features, prediction
from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.compiled import jit
from onebit_spark.core.engine import LeftOut
from onebit_spark.core.losses import HalfStep, Loss
from onebit_spark.core.losses.base import Partners
from onebit_spark.core.losses.row_sums import add_signed_rows
from onebit_spark.core.posterior import FloatArray, RowPosterior
from onebit_spark.core.spectral_rows import StartTable, Table
from onebit_spark.core.split import Split
from onebit_spark.core.statistics import SideStatistics

__all__ = ["StartTable", "Table", "left_out_loss", "signed_sums", "updated"]

Part = TypeVar("Part")
OverRows = Callable[[Callable[[int, int], Part]], list[Part]]


def updated(
    loss: Loss, block: RatingBlock, partners: RowPosterior, rows: RowPosterior, step: HalfStep, over: OverRows,
    features: FloatArray | None = None,
) -> SideStatistics:  # fmt: skip
    """Update all rows of a block in place. Returns the statistics that the driver needs.

    Parameters
    ----------
    loss : Loss
        Its row update is used.
    block : RatingBlock
        The ratings.
    partners, rows : RowPosterior
        Posterior of the block's columns and of its rows.
    step : HalfStep
        What moves. Its prior is that of the rows of the block.
    over : callable
        Runs ``work(lo, hi)`` on ranges of the rows, and returns the results in order.
    features : array of shape (rows, p), optional
        Side features of the rows. They matter if the step has weights for them.
    """
    if step.feature_weights is None:
        features = None
    step = _with_known_means(block, partners, rows, step, over, features)
    tables = loss.partners(partners)
    parts = over(lambda lo, hi: _update_range(loss, block, lo, hi, tables, rows, step, features))
    return reduce(SideStatistics.__add__, parts)


def _with_known_means(
    block: RatingBlock, partners: RowPosterior, rows: RowPosterior, step: HalfStep, over: OverRows,
    features: FloatArray | None,
) -> HalfStep:  # fmt: skip
    """The step under the prior means that follow from the features of the rows; their implicit weights move."""
    told, own, weights = partners.implicit, rows.implicit, step.feature_weights
    nothing = np.zeros((block.n_rows, rows.dimension))
    known = nothing if features is None or weights is None else np.asarray(features @ weights)
    if told is None or own is None:
        return step if features is None else step.under(step.row_prior.knowing(known))
    means = np.zeros((block.n_rows, rows.rank))
    over(lambda lo, hi: implicit_features.tell(block, lo, hi, told, own, step.relaxation, means, step.implicit_share))
    return step.under(step.row_prior.knowing(known, means))


def _update_range(
    loss: Loss, block: RatingBlock, lo: int, hi: int, partners: Partners, rows: RowPosterior, step: HalfStep,
    features: FloatArray | None,
) -> SideStatistics:  # fmt: skip
    """The same of the rows lo … hi−1."""
    old = rows.location[lo:hi].copy()
    sums = loss.update_rows(block, lo, hi, partners, rows, step)
    if rows.implicit is not None:
        implicit_features.leave_residuals(block, lo, hi, rows, step.row_prior.mean)
    counts = (block.row_counts if rows.implicit is None else block.distinct_counts)[lo:hi]
    own = None if features is None else features[lo:hi]
    return SideStatistics.of_rows(old, rows.take(slice(lo, hi)), step.row_prior.rows(lo, hi), counts, sums, own)


def left_out_loss(
    loss: str, block: RatingBlock, row_numbers: NDArray[np.int64], rows: RowPosterior, cols: RowPosterior, split: Split
) -> LeftOut:
    """The sums over the ratings of a block that the split does not choose."""
    left = split.left_of(block, row_numbers)
    row, col = np.repeat(np.arange(left.n_rows), left.row_counts), left.codes >> 1
    signs = np.where(left.codes & 1, 1.0, -1.0)
    total, errors = prediction.held_out_sums(loss, rows, cols, row, col, signs, left.weights)
    return LeftOut(total, float(left.row_weights.sum()), errors, left.n_ratings)


def signed_sums(block: RatingBlock, lo: int, hi: int, table: StartTable, out: StartTable) -> None:
    """out_i = Σ_{l∈Ω_i} w_l y_l table_j for the rows lo … hi−1: their part of Y·table, summed in double precision."""
    _signed_sums(block.row_pointers, block.codes, block.weights, lo, hi, table, out)


@jit
def _signed_sums(pointers, codes, weights, first, last, table, out):  # type: ignore[no-untyped-def]
    sums = np.empty(out.shape[1])
    for i in range(first, last):
        sums[:] = 0.0
        add_signed_rows(table, codes, weights, pointers[i], pointers[i + 1], sums, 0, True)
        for k in range(len(sums)):
            out[i, k] = sums[k]
