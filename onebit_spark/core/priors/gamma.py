"""The Gamma prior of a scale. Its posterior is a generalised inverse Gaussian."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln

from onebit_spark.core.arrays import DoubleArray
from onebit_spark.core.bessel import bessel_k_ratio, gig_quantile, log_bessel_k
from onebit_spark.core.prior import ScalePrior


@dataclass(frozen=True)
class Gamma(ScalePrior):
    """γ ~ Gamma(α, rate β):  ρ = GIG(a = 2β, b = S, η = α − m/2) (§5.2),
    whose density is ∝ γ^{η−1} e^{−(aγ + b/γ)/2}.

    The paper has b = S/2. For the density that it states, b must be S (§12, number 2).
    """

    @staticmethod
    def beta_for_scale(alpha: float, scale: float) -> float:
        return alpha / scale

    @property
    def smallest_second_moment(self) -> float:
        """The S with √(ab) = 1e−100, where ``log_bessel_k`` is still accurate.

        At S = 0 and η ≤ 0 log Z is infinite.
        """
        return 1e-200 / (2.0 * self.beta)

    def _parameters(
        self, s: DoubleArray, m: DoubleArray
    ) -> tuple[DoubleArray, DoubleArray, DoubleArray]:
        """η, √(ab) and √(b/a): order, concentration and scale of the GIG."""
        a = 2.0 * self.beta
        return self.alpha - 0.5 * m, np.sqrt(a * s), np.sqrt(s / a)

    def log_normaliser(self, s: DoubleArray, m: DoubleArray) -> DoubleArray:
        order, z, scale = self._parameters(s, m)
        prior = self.alpha * np.log(self.beta) - gammaln(self.alpha)
        return prior + np.log(2.0) + order * np.log(scale) + log_bessel_k(order, z)

    def inverse_mean(self, s: DoubleArray, m: DoubleArray) -> DoubleArray:
        """√(a/b) K_{η−1}(√(ab)) / K_η(√(ab))."""
        order, z, scale = self._parameters(s, m)
        return bessel_k_ratio(order, z) / scale

    def quantile(self, s: DoubleArray, m: DoubleArray, u: DoubleArray) -> DoubleArray:
        order, z, scale = self._parameters(s, m)
        columns = [
            gig_quantile(*one, u[..., k]) for k, one in enumerate(zip(order, z, scale, strict=True))
        ]
        return np.stack(columns, axis=-1)
