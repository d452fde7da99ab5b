"""New ratings of a fitted model without a refit: rows and columns, old and new, move together (docs/MATH.md, §8.6).

The posterior of yesterday is the prior of today (Broderick et al., Streaming Variational Bayes, 2013). For a row that
the model knows this is N(E x_i, diag var x_i). A new row has the prior that ``folding`` gives it. Then the two sides of
the new ratings are updated in turn, as in a fit, until no mean moves. The scales γ stay, and so does every row without
a new rating. So the cost depends on the new ratings only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.folding import FoldIn
from onebit_spark.core.losses import OTHER, SIDES, HalfStep, RowPrior, Side
from onebit_spark.core.model_info import ModelInfo
from onebit_spark.core.posterior import RowPosterior

MOST_ROUNDS = 30
SMALLEST_CHANGE = 1e-3  # of a coordinate's mean, relative to the larger of 1 and itself


@dataclass(frozen=True)
class Before:
    """What a model knows of the rows of one side that have new ratings.

    Parameters
    ----------
    posterior : RowPosterior
        Their posterior. The line of a row that the model does not know is not used, except for its ``implicit``.
    new : array of bool
        Which rows the model does not know.
    explained : array of shape (rows, D), optional
        The means of the new rows that their side features explain.
    """

    posterior: RowPosterior
    new: NDArray[np.bool_]
    explained: NDArray[np.float64] | None = None


def updated_sides(info: ModelInfo, block: RatingBlock, before: dict[Side, Before]) -> dict[Side, RowPosterior]:
    """The posterior of both sides of ``block``, which holds the new ratings alone.

    A new row has no implicit weights: it tells the other side nothing.

    Parameters
    ----------
    info : ModelInfo
        The model.
    block : RatingBlock
        The new ratings. Every row and every column has at least one.
    before : dict of side to Before
        Its rows and its columns, in the block's order.
    """
    blocks: dict[Side, RatingBlock] = {"rows": block, "cols": block.transpose()}
    folding = {side: FoldIn.of(info, side) for side in SIDES}
    priors = {side: _prior(folding[side], blocks[side], before[side], before[OTHER[side]]) for side in SIDES}
    now = {side: _start(before[side], priors[side]) for side in SIDES}
    for number in range(MOST_ROUNDS):
        largest = 0.0
        for side in SIDES:
            old = now[side].location.copy()
            _update(folding[side], blocks[side], priors[side], now, number)
            change = np.abs(now[side].location - old) / np.maximum(1.0, np.abs(old))
            largest = max(largest, float(np.max(change, initial=0.0)))
        if largest <= SMALLEST_CHANGE:
            break
    return now


def _update(folding: FoldIn, block: RatingBlock, prior: RowPrior, now: dict[Side, RowPosterior], number: int) -> None:
    """One update of every row of a side, in place, given the other side."""
    side, loss = folding.side, folding.loss
    step: HalfStep[RowPosterior] = HalfStep(side, number, folding.weight, prior, ratings_per_row=1.0)
    loss.update_rows(block, 0, block.n_rows, loss.partners(now[OTHER[side]]), now[side], step)


def _prior(folding: FoldIn, block: RatingBlock, own: Before, partners: Before) -> RowPrior:
    """One line per row: the old posterior, or the prior of a new row."""
    fresh, old = folding.priors(block, partners.posterior, own.explained), RowPrior.at(own.posterior)
    new = own.new[:, None]
    return RowPrior(np.where(new, fresh.mean, old.mean), np.where(new, fresh.precision, old.precision))


def _start(own: Before, prior: RowPrior) -> RowPosterior:
    """The old posterior; a new row begins at its prior."""
    rows, new = own.posterior.copy(), own.new
    mean, deviation = prior.mean[new].astype(rows.location.dtype), prior.precision[new] ** -0.5
    begun = RowPosterior.isotropic(mean, deviation, rows.kind, rows.has_intercept)
    rows.put(new, begun)
    return rows
