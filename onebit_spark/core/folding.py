"""Fold-in: the posterior of new rows of one side from their ratings, given the other side (docs/MATH.md, §8.3)."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.fitted_features import Who
from onebit_spark.core.fixed_point import settled_rows
from onebit_spark.core.implicit_features import newcomer_means, prior_means
from onebit_spark.core.losses import Loss, RowPrior, Side
from onebit_spark.core.model_info import ModelInfo
from onebit_spark.core.posterior import FloatArray, RowPosterior
from onebit_spark.core.scales import Moments

log = logging.getLogger("onebit_spark")


@dataclass(frozen=True)
class FoldIn:
    """How a model computes new rows of one side.

    Parameters
    ----------
    loss : Loss
        Its row update is used.
    side : {"rows", "cols"}
        Side of the new rows.
    weight : float
        κ.
    prior : RowPrior
        Prior of the new rows, one line.
    moments : Moments, optional
        What implicit features say on average.
    """

    loss: Loss
    side: Side
    weight: float
    prior: RowPrior
    moments: Moments | None

    @classmethod
    def of(cls, info: ModelInfo, side: Side) -> FoldIn:
        config = info.config
        loss = replace(config, solver="mm").make_loss()  # the steps of "gradient" do not converge
        scales = info.scales
        return cls(loss, side, config.weight, scales.prior(side, config.intercepts), scales.moments)

    def settled(
        self, block: RatingBlock, partners: RowPosterior, known: NDArray[np.float64] | None = None
    ) -> RowPosterior:
        """The rows of a block, given the posterior of their partners. They tell the other side nothing.

        ``known`` are the means that side features explain (rows × D).
        """
        prior = self.priors(block, partners, known)
        rows = settled_rows(self.loss, block, partners, self.side, self.weight, prior)
        return rows if partners.implicit is None else rows.with_implicit()

    def priors(self, block: RatingBlock, partners: RowPosterior, known: NDArray[np.float64] | None = None) -> RowPrior:
        """The prior of each row of a block: what features say of it, side features (``known``) and implicit ones."""
        if known is None:
            known = np.zeros((block.n_rows, partners.dimension))
        if partners.implicit is None:
            return self.prior.knowing(known)
        return self.prior.knowing(known, self._told(block, partners.implicit))

    def _told(self, block: RatingBlock, implicit: FloatArray) -> NDArray[np.float64]:
        """What implicit features add to the prior means of the rows."""
        told = None if self.moments is None else self.moments.told(self.side)
        if self.moments is None or told is None:  # of an older model
            return prior_means(block, implicit)
        return newcomer_means(block, implicit, told[0], self.moments.typical(self.side))


def tell_left_out(who: Who, given: int, folded: int) -> None:
    """Warn if some of the users (or items) that were given rated only what the model does not know."""
    if folded < given:
        partner = "item" if who == "user" else "user"
        log.warning(
            f"{given - folded:,} of {given:,} {who}s are not folded in: all their ratings are with {partner}s that the "
            "model does not know"
        )
