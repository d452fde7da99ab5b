"""The work of one map step on one block. It is the same in every engine."""

from __future__ import annotations

from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.compiled import jit
from onebit_spark.core.losses import HalfStep, Loss
from onebit_spark.core.losses.base import Partners
from onebit_spark.core.losses.rowsums import add_signed_rows
from onebit_spark.core.posterior import RowPosterior
from onebit_spark.core.spectral import Table
from onebit_spark.core.statistics import SideStatistics

__all__ = ["Table", "signed_sums", "update_range"]


def update_range(
    loss: Loss, block: RatingBlock, lo: int, hi: int, partners: Partners, rows: RowPosterior, step: HalfStep
) -> SideStatistics:
    """Update the rows lo … hi−1 of the block in place. Returns the statistics that the driver needs."""
    old = rows.location[lo:hi].copy()
    sums = loss.update_rows(block, lo, hi, partners, rows, step)
    active = block.row_counts[lo:hi] > 0
    return SideStatistics.of_rows(old, rows.take(slice(lo, hi)), step.row_prior.rows(lo, hi), active, sums)


@jit
def signed_sums(pointers, codes, first, last, table, out):  # type: ignore[no-untyped-def]
    """out_i += Σ_{l∈Ω_i} y_l table_j for the rows first … last−1: their part of Y·table."""
    for i in range(first, last):
        add_signed_rows(table, codes, pointers[i], pointers[i + 1], out[i])
