"""Engine: the interface between the solver and whatever holds the ratings; posteriors of rows without ratings."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core.blocks import Repeats
from onebit_spark.core.config import FitConfig
from onebit_spark.core.hyper_posterior import HyperPosterior
from onebit_spark.core.implicit_features import CoefStep
from onebit_spark.core.losses import SIDES, HalfStep, Loss, RowPrior, Side
from onebit_spark.core.posterior import RowMap, RowPosterior
from onebit_spark.core.prediction import HoldoutLoss
from onebit_spark.core.randomness import Draws, GibbsErrors, Split
from onebit_spark.core.side_features import SideTables
from onebit_spark.core.statistics import SideStatistics

P = TypeVar("P")  # a posterior of a side in the engine's own form: a RowPosterior, or a table in files


class Engine(Protocol[P]):
    """Holds the ratings and both sides' posteriors, and runs a map step over the rows of one side."""

    n_ratings: int
    weighted: bool  # whether the ratings have weights
    total_weight: float  # their sum: n without weights
    features: SideTables

    @property
    def repeats(self) -> Repeats:
        """Cells that were rated more than once."""

    def count(self, side: Side) -> int:
        """Rows of the side with at least one rating."""

    def start(self, config: FitConfig, loss: Loss) -> None:
        """Set both posteriors to the start."""

    def start_from(self, posteriors: dict[Side, P]) -> None:
        """Set both posteriors to results of ``posterior`` or ``combined``."""

    def shortage(self, config: FitConfig) -> str | None:
        """Why there is no room for a fit with these settings; None if there is."""

    def grown(self, config: FitConfig, loss: Loss) -> dict[Side, P]:
        """Both posteriors with more factors, as many as ``config`` says: the leading directions of the residuals."""

    def half_step(self, loss: Loss, step: HalfStep[P]) -> SideStatistics:
        """Update the posterior of ``step.side`` given the other side's."""

    def data_term(self) -> float:
        """The data term of the objective, after the last half step and the step of the implicit coefficients."""

    def apply(self, maps: dict[Side, RowMap]) -> None:
        """Map every row of both sides, now or when it is next read."""

    def move_coef(self, side: Side, step: CoefStep) -> None:
        """Move the other side's weights (``implicit``), of which the prior means of this side are made."""

    def coef_gram(self, side: Side) -> NDArray[np.float64]:
        """The Gram matrix of [w z d], the side's weights for the other side (``implicit``); 0 × 0 without."""

    def column_norms(self, side: Side, posterior: P) -> NDArray[np.float64]:
        """‖E L_k‖ for every factor of a posterior."""

    def feature_gram(self, side: Side) -> NDArray[np.float64] | None:
        """Σ_i f_i f_iᵀ of the side features of the rows with ratings, p × p; None if the side has no features."""

    def posterior(
        self, side: Side, unseen: RowPrior | None = None, feature_coef: NDArray[np.float64] | None = None
    ) -> P:
        """The side's posterior as it stands.

        Rows without ratings have the prior ``unseen``, if it is given, with the mean that their side features explain.
        """

    def combined(self, side: Side, make: Callable[..., RowPosterior], *posteriors: P) -> P:
        """The posterior that ``make`` gives for any rows, from their lines in other posteriors of the side."""

    def gibbs_errors(self, draws: Draws) -> GibbsErrors:
        """Errors of draws from the posteriors on the ratings: one map step over the rows."""

    def confidences(self, posterior: dict[Side, P], noise: float) -> NDArray[np.int64]:
        """The histogram of the ratings' confidences (``prediction``) under this posterior: one map step."""

    def holdout_loss(self, loss: str, posterior: dict[Side, P], split: Split) -> HoldoutLoss:
        """Held-out loss and errors of the ratings that the split does *not* choose, under a posterior: one map step."""

    def restricted(self, split: Split) -> AbstractContextManager[Engine[P]]:
        """An engine on the ratings that the split chooses; rows and columns keep their numbers.

        It depends on these ratings alone: side features are coded anew.
        """


def final_posteriors(engine: Engine[P], hierarchy: HyperPosterior) -> dict[Side, P]:
    """Both posteriors, with the prior in the rows without ratings."""
    return {side: engine.posterior(side, hierarchy.unseen(side), hierarchy.features.get(side)) for side in SIDES}


def with_prior(
    posterior: RowPosterior, empty: NDArray[np.bool_], prior: RowPrior | None,
    known: NDArray[np.float64] | None = None,
) -> RowPosterior:  # fmt: skip
    """The posterior with N(p, 1/g) in the rows that are marked as empty; ``known`` (rows × D) is added to p."""
    if prior is None or not empty.any():
        return posterior
    filled, lines = posterior.copy(), prior_rows(prior, int(empty.sum()), posterior)
    if known is not None:
        lines.location[:] += known[empty]
    filled.put(empty, lines)
    return filled


def prior_rows(prior: RowPrior, n: int, like: RowPosterior) -> RowPosterior:
    """One line of prior as a posterior of n rows, stored like another."""
    location = np.tile(prior.mean.astype(like.location.dtype), (n, 1))
    return RowPosterior.isotropic(location, 1.0 / np.sqrt(prior.precision[0]), like.kind, like.has_intercept)
