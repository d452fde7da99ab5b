"""FitConfig: every choice of a fit, checked all at once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real

from onebit_spark.core.losses import LOSSES, Loss
from onebit_spark.core.posterior import Form
from onebit_spark.core.priors import PRIORS, ScalePrior
from onebit_spark.core.spectral import STARTS

SOLVERS = ("mm", "gradient")
COVARIANCES = ("full", "diagonal")
EXCHANGES = ("auto", "broadcast", "shuffle")  # how factors reach the blocks of a Spark fit; a fit does not depend on it
PRECISIONS = ("float32", "float64")

LARGEST_SEED = 2**63 - 1  # a signed 64-bit integer: what Spark and the kernels take

# The default prior weighs as much as this share of the rows and columns, and expects scales γ near this value:
# strong enough that hundreds of thin columns do not inflate γ. m is known before any label is.
PRIOR_SHARE = 0.1
PRIOR_SCALE = 0.3


@dataclass(frozen=True, kw_only=True)
class FitConfig:
    """What to fit. ``None`` takes the default that depends on the loss or on the number of rows and columns.

    ``likelihood_weight`` is κ = λ/n, the weight of one rating; ``alpha`` and ``beta`` are the prior's, β a rate for
    ``gamma`` and a scale for ``inverse-gamma``; ``precision`` is how factors are stored (sums over
    ratings are always float64).
    """

    loss: str = "logistic"
    prior: str = "inverse-gamma"
    rank: int = 10
    likelihood_weight: float | None = None
    alpha: float | None = None
    beta: float | None = None
    intercepts: bool = True
    solver: str = "mm"
    start: str = "spectral"
    covariance: str = "full"
    max_iter: int = 100
    tol: float = 1e-5
    seed: int = 0
    precision: str = "float32"

    def problems(self) -> list[str]:
        """Everything that is wrong with these choices, in words; empty if nothing is."""
        found = []
        for field, allowed in (
            ("loss", LOSSES),
            ("prior", PRIORS),
            ("solver", SOLVERS),
            ("start", STARTS),
            ("covariance", COVARIANCES),
            ("precision", PRECISIONS),
        ):
            value = getattr(self, field)
            if not isinstance(value, str) or value not in allowed:
                found.append(f"{field} must be one of {', '.join(allowed)}, not {value!r}")
        for field, lowest in (("rank", 1), ("max_iter", 1)):
            value = getattr(self, field)
            if not isinstance(value, Integral) or isinstance(value, bool) or value < lowest:
                found.append(f"{field} must be an integer of at least {lowest}, not {value!r}")
        found += seed_problems(self.seed)
        for field in ("likelihood_weight", "alpha", "beta"):
            value = getattr(self, field)
            if value is not None and not (_is_number(value) and 0 < value < math.inf):
                found.append(f"{field} must be a positive finite number, not {value!r}")
        if not (_is_number(self.tol) and 0 <= self.tol < math.inf):
            found.append(f"tol must be a finite number, 0 or above, not {self.tol!r}")
        if not isinstance(self.intercepts, bool):
            found.append(f"intercepts must be True or False, not {self.intercepts!r}")
        if not found:
            try:
                self.make_loss()
            except ValueError as refusal:
                found.append(str(refusal))
        return found

    @property
    def dimension(self) -> int:
        """D, the free coordinates of a row: K factors and, with intercepts, one more."""
        return self.rank + int(self.intercepts)

    @property
    def weight(self) -> float:
        """κ, resolved."""
        return self.likelihood_weight or LOSSES[self.loss].default_weight

    def make_loss(self) -> Loss:
        return LOSSES[self.loss].from_options(self.solver, self.covariance)

    @property
    def form(self) -> Form:
        """How the row of a posterior is laid out."""
        return Form(self.dimension, self.make_loss().kind, self.intercepts, self.precision)

    def make_prior(self, n_lines: int) -> ScalePrior:
        """π^γ for m = ``n_lines`` rows and columns with ratings; α = m/10 by default, and β so that γ ≈ 0.3."""
        prior = PRIORS[self.prior]
        alpha = self.alpha if self.alpha is not None else PRIOR_SHARE * n_lines
        beta = self.beta if self.beta is not None else prior.beta_for_scale(alpha, PRIOR_SCALE)
        return prior(alpha, beta)


def seed_problems(seed: object) -> list[str]:
    """What is wrong with a seed, in words; empty if nothing is."""
    if isinstance(seed, Integral) and not isinstance(seed, bool) and 0 <= int(seed) <= LARGEST_SEED:
        return []
    return [f"seed must be an integer from 0 to 2^63 − 1, not {seed!r}"]


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
