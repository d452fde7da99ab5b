"""The inverse-Gamma prior of a scale. Its posterior is of the same family."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import gammainccinv, gammaln

from onebit_spark.core.arrays import DoubleArray
from onebit_spark.core.prior import ScalePrior


@dataclass(frozen=True)
class InverseGamma(ScalePrior):
    """γ ~ inverse-Gamma(α, scale β):  ρ = inverse-Gamma(α + m/2, β + S/2) (§5.1)."""

    @staticmethod
    def beta_for_scale(alpha: float, scale: float) -> float:
        return alpha * scale

    def _parameters(self, s: DoubleArray, m: DoubleArray) -> tuple[DoubleArray, DoubleArray]:
        """The posterior's shape and scale."""
        return self.alpha + 0.5 * m, self.beta + 0.5 * s

    def log_normaliser(self, s: DoubleArray, m: DoubleArray) -> DoubleArray:
        shape, scale = self._parameters(s, m)
        prior = self.alpha * np.log(self.beta) - gammaln(self.alpha)
        return prior + gammaln(shape) - shape * np.log(scale)

    def inverse_mean(self, s: DoubleArray, m: DoubleArray) -> DoubleArray:
        shape, scale = self._parameters(s, m)
        return shape / scale

    def quantile(self, s: DoubleArray, m: DoubleArray, u: DoubleArray) -> DoubleArray:
        """1/γ is Gamma-distributed."""
        shape, scale = self._parameters(s, m)
        return scale / gammainccinv(shape, u)
