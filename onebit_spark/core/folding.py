"""Fold-in: the posterior of new rows of one side from their ratings, given the other side (docs/MATH.md, §8.3)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.fixedpoint import settled_rows
from onebit_spark.core.implicit import prior_means
from onebit_spark.core.losses import Loss, RowPrior, Side
from onebit_spark.core.modelinfo import ModelInfo
from onebit_spark.core.posterior import RowPosterior


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
    """

    loss: Loss
    side: Side
    weight: float
    prior: RowPrior

    @classmethod
    def of(cls, info: ModelInfo, side: Side) -> FoldIn:
        config = info.config
        loss = replace(config, solver="mm").make_loss()  # the steps of "gradient" do not converge
        return cls(loss, side, config.weight, info.scales.prior(side, config.intercepts))

    def settled(self, block: RatingBlock, partners: RowPosterior) -> RowPosterior:
        """The rows of a block, given the posterior of their partners. They tell the other side nothing."""
        if partners.implicit is None:
            return settled_rows(self.loss, block, partners, self.side, self.weight, self.prior)
        means = prior_means(block, partners.implicit, self.prior.mean)
        prior = RowPrior(means, self.prior.precision)
        return settled_rows(self.loss, block, partners, self.side, self.weight, prior).with_implicit()
