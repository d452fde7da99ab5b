"""FitConfig: every choice of a fit, checked all at once."""

from __future__ import annotations

from dataclasses import dataclass

from onebit_spark.core.losses import LOSSES, Loss
from onebit_spark.core.posterior import Form
from onebit_spark.core.priors import PRIORS, ScalePrior
from onebit_spark.core.settings import (
    NOT_NEGATIVE,
    POSITIVE,
    YES_OR_NO,
    Check,
    Problem,
    RefusedSetting,
    at_least,
    is_integer,
    problems_of,
    setting,
)
from onebit_spark.core.spectral import STARTS

SOLVERS = ("mm", "gradient")
COVARIANCES = ("full", "diagonal")
PRECISIONS = ("float32", "float64")
FORM_SETTINGS = ("loss", "rank", "intercepts", "covariance")  # they give a posterior its form

LARGEST_SEED = 2**63 - 1  # a signed 64-bit integer: what Spark and the kernels take
SEED = Check("be an integer from 0 to 2^63 − 1", lambda value: is_integer(value) and 0 <= value <= LARGEST_SEED)

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

    loss: str = setting("logistic", "loss", choices=LOSSES)
    prior: str = setting("inverse-gamma", "prior of the factors' scales", choices=PRIORS)
    rank: int = setting(10, "most factors; those not needed switch themselves off", check=at_least(1))
    likelihood_weight: float | None = setting(
        None, "κ, the weight of one rating (default: the loss's own)", check=POSITIVE
    )
    alpha: float | None = setting(
        None, "α of the prior (default: a tenth of the number of users and items)", check=POSITIVE
    )
    beta: float | None = setting(None, "β of the prior (default: follows from α)", check=POSITIVE)
    intercepts: bool = setting(
        True, "an intercept for every user and every item (default: with)", check=YES_OR_NO, param="fitIntercept"
    )
    solver: str = setting("mm", "solver; gradient for the hinge loss only", choices=SOLVERS)
    start: str = setting("spectral", "start", choices=STARTS, key=None)
    covariance: str = setting("full", "posterior covariance (logistic)", choices=COVARIANCES)
    max_iter: int = setting(100, "most iterations", check=at_least(1))
    tol: float = setting(1e-5, "stop once nothing changes by more than this share; 0: never", check=NOT_NEGATIVE)
    seed: int = setting(0, "seed of the start", check=SEED)
    precision: str = setting("float32", "how factors are stored", choices=PRECISIONS, key=None, param=None)

    def problems(self) -> list[Problem]:
        """Everything that is wrong with these choices; empty if nothing is."""
        found = problems_of(self)
        if not found:
            try:
                self.make_loss()
            except RefusedSetting as refusal:
                found.append(refusal.problem)
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
