"""Priors of the scales γ_k and their mean-field posteriors: the driver's step of every iteration (docs/MATH.md, §5).

    L_i, R_j | γ ~ N(0, diag γ),  γ_k ~ π      ⇒      ρ(γ_k) ∝ π(γ_k) γ_k^{−m/2} e^{−S_k/(2γ_k)}

Here m is the number of rows and columns that share γ_k, and S_k = E[Σ_i L_ik² + Σ_j R_jk²]. A fit needs g = E[1/γ] and
log Z in every iteration. Draws for new ids need the quantiles.

A new prior is a subclass of ``ScalePrior`` and an entry of ``PRIORS``.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import gammainccinv, gammaln

from onebit_spark.core.posterior import DoubleArray
from onebit_spark.core.special import bessel_k_ratio, gig_quantile, log_bessel_k


@dataclass(frozen=True)
class ScalePrior(ABC):
    """π^γ, the prior of a scale. Its methods take S and m as arrays of one shape."""

    name: ClassVar[str]  # in ``PRIORS``, in flags and in Params
    alpha: float  # α, the shape
    beta: float  # β, a rate of the Gamma prior, a scale of the inverse-Gamma prior

    def __post_init__(self) -> None:
        wrong = [f"{name} = {value!r}" for name, value in vars(self).items() if not 0.0 < value < np.inf]
        if wrong:
            raise ValueError(f"the {self.name} prior needs positive finite parameters, not {' and '.join(wrong)}")

    def posterior(self, second_moment: ArrayLike, count: ArrayLike) -> "ScalePosterior":
        """ρ(γ) ∝ π(γ) γ^{−m/2} e^{−S/(2γ)}, from S_k ≥ 0 and m_k ≥ 0, the rows and columns that share γ_k."""
        s, m = np.broadcast_arrays(np.asarray(second_moment, np.float64), np.asarray(count, np.float64))
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
        """Quantiles of ρ at ``u``, whose last axis is that of s and m. A uniform u gives a random draw of γ."""


def _of_prior(name: str) -> cached_property[DoubleArray]:
    """A method of the prior, evaluated at S and m."""
    return cached_property(lambda posterior: getattr(posterior.prior, name)(posterior.second_moment, posterior.count))


@dataclass(frozen=True, eq=False)
class ScalePosterior:
    """q(γ_k), k = 1 … K. Each attribute is an array over k, computed at its first use."""

    prior: ScalePrior  # π^γ
    second_moment: DoubleArray  # s_k
    count: DoubleArray  # m_k

    inverse_mean = _of_prior("inverse_mean")
    log_normaliser = _of_prior("log_normaliser")  # −(½gS + KL + (m/2) E[log γ]): the scales' part of −objective (§2.2)

    def quantile(self, u: DoubleArray) -> DoubleArray:
        """Quantiles of γ_1 … γ_K at ``u`` (n × K). Uniform numbers give random draws."""
        return self.prior.quantile(self.second_moment, self.count, u)


@dataclass(frozen=True)
class Gamma(ScalePrior):
    """γ ~ Gamma(α, rate β):  ρ = GIG(a = 2β, b = S, η = α − m/2), density ∝ γ^{η−1} e^{−(aγ + b/γ)/2} (§5.2).

    The paper has b = S/2. For the density that it states, b must be S (§12, number 2).
    """

    name: ClassVar[str] = "gamma"

    @staticmethod
    def beta_for_scale(alpha: float, scale: float) -> float:
        return alpha / scale

    @property
    def smallest_second_moment(self) -> float:
        """The S with √(ab) = 1e−100. A fit never comes near it, and ``log_bessel_k`` is still accurate there.

        For η > 0 the result at S = 0 is then the limit Gamma(η, β), up to rounding (where E[1/γ] is finite). For η ≤ 0
        there is no limit: log Z grows without bound. The floor keeps it finite.
        """
        return 1e-200 / (2.0 * self.beta)

    def _parameters(self, s: DoubleArray, m: DoubleArray) -> tuple[DoubleArray, DoubleArray, DoubleArray]:
        """η, √(ab) and √(b/a): order, concentration and scale of the GIG."""
        a = 2.0 * self.beta
        return self.alpha - 0.5 * m, np.sqrt(a * s), np.sqrt(s / a)

    def log_normaliser(self, s: DoubleArray, m: DoubleArray) -> DoubleArray:
        """α log β − lnΓ(α) + log 2 + η log √(b/a) + log K_η(√(ab))."""
        order, z, scale = self._parameters(s, m)
        prior = self.alpha * np.log(self.beta) - gammaln(self.alpha)
        return prior + np.log(2.0) + order * np.log(scale) + log_bessel_k(order, z)

    def inverse_mean(self, s: DoubleArray, m: DoubleArray) -> DoubleArray:
        """√(a/b) K_{η−1}(√(ab)) / K_η(√(ab))."""
        order, z, scale = self._parameters(s, m)
        return bessel_k_ratio(order, z) / scale

    def quantile(self, s: DoubleArray, m: DoubleArray, u: DoubleArray) -> DoubleArray:
        order, z, scale = self._parameters(s, m)
        columns = [gig_quantile(*one, u[..., k]) for k, one in enumerate(zip(order, z, scale, strict=True))]
        return np.stack(columns, axis=-1)


@dataclass(frozen=True)
class InverseGamma(ScalePrior):
    """γ ~ inverse-Gamma(α, scale β):  ρ = inverse-Gamma(α + m/2, β + S/2) (§5.1)."""

    name: ClassVar[str] = "inverse-gamma"

    @staticmethod
    def beta_for_scale(alpha: float, scale: float) -> float:
        return alpha * scale

    def _parameters(self, s: DoubleArray, m: DoubleArray) -> tuple[DoubleArray, DoubleArray]:
        """The posterior's shape and scale."""
        return self.alpha + 0.5 * m, self.beta + 0.5 * s

    def log_normaliser(self, s: DoubleArray, m: DoubleArray) -> DoubleArray:
        """α log β − lnΓ(α) + lnΓ(α + m/2) − (α + m/2) log(β + S/2)."""
        shape, scale = self._parameters(s, m)
        prior = self.alpha * np.log(self.beta) - gammaln(self.alpha)
        return prior + gammaln(shape) - shape * np.log(scale)

    def inverse_mean(self, s: DoubleArray, m: DoubleArray) -> DoubleArray:
        """(α + m/2) / (β + S/2)."""
        shape, scale = self._parameters(s, m)
        return shape / scale

    def quantile(self, s: DoubleArray, m: DoubleArray, u: DoubleArray) -> DoubleArray:
        """1/γ is Gamma-distributed."""
        shape, scale = self._parameters(s, m)
        return scale / gammainccinv(shape, u)


PRIORS: dict[str, type[ScalePrior]] = {prior.name: prior for prior in (Gamma, InverseGamma)}
