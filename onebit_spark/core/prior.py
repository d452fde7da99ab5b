"""The contract of a prior of the scales γ_k, and their mean-field posterior (docs/MATH.md, §5).

    L_i, R_j | γ ~ N(0, diag γ),  γ_k ~ π      ⇒      ρ(γ_k) ∝ π(γ_k) γ_k^{−m/2} e^{−S_k/(2γ_k)}

Here m is the number of rows and columns that share γ_k, and S_k = E[Σ_i L_ik² + Σ_j R_jk²]. A fit
needs g = E[1/γ] and log Z in every iteration. Draws for new ids need the quantiles.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from onebit_spark.core.arrays import DoubleArray
from onebit_spark.registry import name_of


@dataclass(frozen=True)
class ScalePrior(ABC):
    """π^γ, the prior of a scale. Its methods take S and m as arrays of one shape."""

    name: ClassVar[str]  # that of its module, in flags and in Params
    alpha: float  # α, the shape: how concentrated γ is
    beta: float  # β, the other parameter

    def __init_subclass__(cls) -> None:
        cls.name = name_of(cls.__module__)

    def __post_init__(self) -> None:
        wrong = [
            f"{name} = {value!r}" for name, value in vars(self).items() if not 0.0 < value < np.inf
        ]
        if wrong:
            needed = f"the {self.name} prior needs positive finite parameters"
            raise ValueError(f"{needed}, not {' and '.join(wrong)}")

    def posterior(self, second_moment: ArrayLike, count: ArrayLike) -> ScalePosterior:
        """ρ(γ) from S_k ≥ 0 and m_k ≥ 0, the rows and columns that share γ_k."""
        s, m = np.broadcast_arrays(
            np.asarray(second_moment, np.float64), np.asarray(count, np.float64)
        )
        if not (np.all((s >= 0.0) & np.isfinite(s)) and np.all((m >= 0.0) & np.isfinite(m))):
            raise ValueError("second moments and counts must be finite and not negative")
        return ScalePosterior(self, np.maximum(s, self.smallest_second_moment), m)

    @staticmethod
    @abstractmethod
    def beta_for_scale(alpha: float, scale: float) -> float:
        """The β for which γ concentrates at ``scale`` as α grows."""

    @property
    def smallest_second_moment(self) -> float:
        """A smaller S is replaced by this value."""
        return 0.0

    @abstractmethod
    def log_normaliser(self, s: DoubleArray, m: DoubleArray) -> DoubleArray:
        """log Z, Z = ∫ π(γ) γ^{−m/2} e^{−S/(2γ)} dγ."""

    @abstractmethod
    def inverse_mean(self, s: DoubleArray, m: DoubleArray) -> DoubleArray:
        """g = E[1/γ] = −2 ∂ log Z / ∂S."""

    @abstractmethod
    def quantile(self, s: DoubleArray, m: DoubleArray, u: DoubleArray) -> DoubleArray:
        """Quantiles of ρ at ``u``, whose last axis is that of s and m.

        A uniform u gives a draw of γ.
        """


@dataclass(frozen=True, eq=False)
class ScalePosterior:
    """q(γ_k), k = 1 … K. Each attribute is an array over k, computed when it is first read."""

    prior: ScalePrior  # π^γ
    second_moment: DoubleArray  # s_k
    count: DoubleArray  # m_k

    @cached_property
    def inverse_mean(self) -> DoubleArray:
        return self.prior.inverse_mean(self.second_moment, self.count)

    @cached_property
    def log_normaliser(self) -> DoubleArray:
        """−(½gS + KL + (m/2) E[log γ]): the scales' part of −objective (§2.2)."""
        return self.prior.log_normaliser(self.second_moment, self.count)

    def quantile(self, u: DoubleArray) -> DoubleArray:
        return self.prior.quantile(self.second_moment, self.count, u)
