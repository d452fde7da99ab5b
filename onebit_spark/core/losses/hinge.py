"""The hinge loss: Definition 1 of the paper and Algorithm 1, with a better solver of the means.

The objective is F = λ·AVB. Given the other side it separates over rows, and in a row into two convex problems:

- spread: s_k = 2 / (a_k + √(a_k² + 4 g_k)),  a_k = κ c Σ_l (|R_jk| + c sR_jk),  c = √(2/π);
- mean:   min_x κ Σ_l (1 − y_l x·R_j)_+ + Σ_k w_k |x_k| + ½ Σ_k g_k (x_k − p_k)²,  w_k = κ c Σ_l sR_jk.

With weights, κ w_l stands in the place of κ in every sum over ratings (docs/MATH.md, §16).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.losses.base import (
    HalfStep,
    Loss,
    Move,
    Partners,
    RowSums,
    Symmetry,
    kernel_arguments,
    partner_location,
    partner_std,
    side_by_side,
)
from onebit_spark.core.losses.hinge_kernels import update_rows_gradient, update_rows_mm
from onebit_spark.core.posterior import FloatArray, Kind, RowPosterior


class MajoriserNumbers(NamedTuple):
    """What the kernel of ``solver="mm"`` needs of a step."""

    kappa: float
    relaxation: float
    margin_floor: float
    mean_floor: float
    want_data: bool


class GradientNumbers(NamedTuple):
    """What the kernel of ``solver="gradient"`` needs of a step."""

    kappa: float
    rate: float
    move_means: bool
    move_covariances: bool
    want_data: bool


@dataclass(frozen=True)
class Hinge(Loss):
    """``solver="mm"`` majorises the means' problem (default); ``"gradient"`` is Algorithm 1 as printed."""

    solver: Literal["mm", "gradient"] = "mm"

    name: ClassVar[str] = "hinge"
    default_kappa: ClassVar[float] = 2.0
    chooses_kappa: ClassVar[bool] = False
    start_std: ClassVar[float] = 0.2  # much smaller, and columns of noise survive in a worse optimum
    start_shrinkage: ClassVar[float] = 0.7
    score_noise: ClassVar[float] = 0.0

    @classmethod
    def from_options(cls, solver: str, covariance: str) -> Hinge:
        return cls(solver="gradient" if solver == "gradient" else "mm")

    @staticmethod
    def probability(scores: FloatArray, variances: FloatArray) -> NDArray[np.float64]:
        """Φ(score/std), the posterior probability that the *sign* is positive, under a normal approximation.

        It says how sure the model is of its side, not how often the label is positive.
        """
        return np.asarray(ndtr(scores / np.sqrt(np.maximum(variances, 1e-300))))

    @staticmethod
    def held_out(scores: FloatArray, variances: FloatArray, signs: FloatArray) -> NDArray[np.float64]:
        """(1 − y·score)_+."""
        return np.asarray(np.maximum(1.0 - signs * scores, 0.0))

    @property
    def kind(self) -> Kind:
        return "spread"

    @property
    def symmetry(self) -> Symmetry | None:
        return "scaling" if self.solver == "mm" else None  # Algorithm 1 stays as it is printed

    def plan(self) -> list[Move]:
        if self.solver == "mm":
            return super().plan()
        # Algorithm 1's order: L mean, R mean, v^L, v^R (then γ).
        return [
            Move("rows", means=True, covariances=False),
            Move("cols", means=True, covariances=False),
            Move("rows", means=False, covariances=True),
            Move("cols", means=False, covariances=True),
        ]

    def partners(self, posterior: RowPosterior) -> Partners:
        return side_by_side(partner_location(posterior), partner_std(posterior))

    def update_rows(
        self, block: RatingBlock, lo: int, hi: int, partners: Partners, rows: RowPosterior, step: HalfStep
    ) -> RowSums:
        ratings, own, prior = kernel_arguments(block, rows, step)
        t, kappa = step.iteration, step.kappa
        if self.solver == "mm":
            majoriser = MajoriserNumbers(kappa, step.relaxation, *floors(t), step.want_data)
            return RowSums(*update_rows_mm(ratings, (lo, hi), partners, own, prior, majoriser))
        rate = learning_rate(t) / (kappa * step.ratings_per_row)
        gradient = GradientNumbers(kappa, rate, step.move_means, step.move_covariances, step.want_data)
        return RowSums(*update_rows_gradient(ratings, (lo, hi), partners, own, prior, gradient))


def floors(t: int) -> tuple[float, float]:
    """ε_t, the floor of |1 − yu|, and ε'_t, that of |x_k|, after t iterations: large at first, then shrinking."""
    return max(1e-2, 0.5 * 0.9**t), max(1e-3, 0.1 * 0.85**t)


def learning_rate(t: int) -> float:
    """Step sizes of Algorithm 1 after t iterations, in units of λ over the weight of an average row: 1/√(1+t)."""
    return 1.0 / math.sqrt(1.0 + t)
