"""The logistic loss (Section 5 of the paper), by Jaakkola & Jordan's quadratic bound at ξ_l² = E[u_l²].

A row's update is exact, with x its free coordinates, z_j its partners and τ(ξ) = tanh(ξ/2)/(4ξ)::

    A = 2κ Σ_l τ(ξ_l) E[z_j z_jᵀ] + diag g,    x ~ N(A⁻¹ (κ/2 Σ_l y_l E[z_j] + g∘p), A⁻¹)

``covariance="diagonal"`` keeps only variances, V_kk = 1/A_kk, for large K. ξ is never stored: it is computed from both
sides' moments just before the row moves. Data term: κ Σ_l [log(1 + e^{−ξ}) + (ξ − y u)/2].

With weights, κ w_l stands in the place of κ in every sum over ratings (docs/MATH.md, §16).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.losses.base import (
    HalfStep,
    Loss,
    Partners,
    RowSums,
    kernel_arguments,
    partner_location,
    partner_std,
    partner_table,
    side_by_side,
)
from onebit_spark.core.losses.batched_solve import LANES
from onebit_spark.core.losses.logistic_kernels import fill_partner_moments, update_rows_diagonal, update_rows_full
from onebit_spark.core.posterior import FloatArray, Kind, RowPosterior, packed_size
from onebit_spark.core.settings import Problem, RefusedSetting


class LogisticNumbers(NamedTuple):
    """What a kernel of this loss needs of a step."""

    kappa: float
    relaxation: float
    want_data: bool


@dataclass(frozen=True)
class Logistic(Loss):
    """``covariance="full"`` keeps a D×D covariance per row, as the paper does; ``"diagonal"`` D variances."""

    structure: Literal["full", "diagonal"] = "full"

    name: ClassVar[str] = "logistic"
    # 1 is the paper's posterior. Share of correct signs at 1 and 1.2: Senate .9105, .9127; MovieLens-1M .7520, .7516;
    # MovieLens-100K .7354, .7317.
    default_kappa: ClassVar[float] = 1.0
    chooses_kappa: ClassVar[bool] = True
    start_std: ClassVar[float] = math.sqrt(0.1)
    start_shrinkage: ClassVar[float] = 0.5
    score_noise: ClassVar[float] = 8.0 / math.pi

    @classmethod
    def from_options(cls, solver: str, covariance: str) -> Logistic:
        if solver == "gradient":
            raise RefusedSetting(
                Problem("solver", "'gradient' belongs to the hinge loss; the logistic update is exact")
            )
        return cls(structure="diagonal" if covariance == "diagonal" else "full")

    @staticmethod
    def probability(scores: FloatArray, variances: FloatArray) -> NDArray[np.float64]:
        """The moderated sigmoid σ(score / √(1 + π·var/8)) (MacKay, 1992), the probability of a positive label."""
        return np.asarray(expit(scores / np.sqrt(1.0 + np.pi * variances / 8.0)))

    @staticmethod
    def held_out(scores: FloatArray, variances: FloatArray, signs: FloatArray) -> NDArray[np.float64]:
        """−log P(y), P the probability above."""
        return np.asarray(np.logaddexp(0.0, -signs * scores / np.sqrt(1.0 + np.pi * variances / 8.0)))

    @property
    def kind(self) -> Kind:
        return "covariance" if self.structure == "full" else "spread"

    def partners(self, posterior: RowPosterior) -> Partners:
        if self.structure == "diagonal":
            return side_by_side(partner_location(posterior), partner_std(posterior) ** 2)
        width = -(-packed_size(posterior.dimension + 1) // LANES) * LANES
        table = partner_table(posterior.n_rows, width, posterior.location.dtype)
        fill_partner_moments(posterior.location, posterior.scale, table)
        return table

    def update_rows(
        self, block: RatingBlock, lo: int, hi: int, partners: Partners, rows: RowPosterior, step: HalfStep
    ) -> RowSums:
        ratings, own, prior = kernel_arguments(block, rows, step)
        numbers = LogisticNumbers(step.kappa, step.relaxation, step.want_data)
        kernel = update_rows_full if self.structure == "full" else update_rows_diagonal
        return RowSums(*kernel(ratings, (lo, hi), partners, own, prior, numbers))
