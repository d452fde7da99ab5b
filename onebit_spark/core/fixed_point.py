"""New rows, given their partners: the row update, repeated from the prior until no mean moves (docs/MATH.md, §8.3)."""

from __future__ import annotations

import numpy as np

from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.losses import HalfStep, Loss, RowPrior, Side
from onebit_spark.core.posterior import RowPosterior

MAX_UPDATES = 500
SMALLEST_CHANGE = 1e-5  # of a coordinate's mean, relative to the larger of 1 and itself


def settled_rows(
    loss: Loss, block: RatingBlock, partners: RowPosterior, side: Side, weight: float, prior: RowPrior
) -> RowPosterior:
    """The posterior of every row of ``block``, given the posterior of its columns.

    Given the other side, the objective of a row has one minimum, so the start hardly matters. There is one exception:
    the hinge's update keeps a mean that it cannot improve. At a kink the objective may then be a few thousandths too
    high.

    Parameters
    ----------
    loss : Loss
        Its row update is used.
    block : RatingBlock
        Ratings of the new rows.
    partners : RowPosterior
        Posterior of the block's columns.
    side : {"rows", "cols"}
        Side of the new rows.
    weight : float
        κ.
    prior : RowPrior
        Prior of the new rows: one line, or one mean per row.
    """
    start = np.empty((block.n_rows, partners.dimension), partners.location.dtype)
    start[:] = prior.mean
    rows = RowPosterior.isotropic(start, 1.0 / np.sqrt(prior.precision[0]), partners.kind, partners.has_intercept)
    tables = loss.partners(partners)
    for t in range(MAX_UPDATES):
        before = rows.location.copy()
        step: HalfStep[RowPosterior] = HalfStep(side=side, iteration=t, weight=weight, prior=prior, ratings_per_row=1.0)
        loss.update_rows(block, 0, block.n_rows, tables, rows, step)
        change = np.abs(rows.location - before) / np.maximum(1.0, np.abs(before))
        if np.max(change, initial=0.0) <= SMALLEST_CHANGE:
            break
    return rows
