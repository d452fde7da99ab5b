"""FitConfig: all settings of a fit that change its result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from onebit_spark.core.losses import LOSSES, Loss
from onebit_spark.core.posterior import FIT_VECTORS, Form
from onebit_spark.core.priors import PRIORS, ScalePrior
from onebit_spark.core.settings import (
    NOT_NEGATIVE,
    POSITIVE,
    YES_OR_NO,
    Check,
    Problem,
    RefusedSetting,
    at_least,
    documented,
    is_integer,
    problems_of,
    setting,
)
from onebit_spark.core.spectral import STARTS

AUTO = "auto"
SOLVERS = ("mm", "gradient")
COVARIANCES = ("full", "diagonal")
PRECISIONS = ("float32", "float64")
# They determine the form of a posterior.
FORM_SETTINGS = ("loss", "rank", "intercepts", "covariance", "implicit_features")

LARGEST_SEED = 2**63 - 1  # a signed 64-bit integer: what Spark and the kernels take
SEED = Check("be an integer from 0 to 2^63 − 1", lambda value: is_integer(value) and 0 <= value <= LARGEST_SEED)

# The default prior weighs as much as this share of the rows and columns, and expects scales γ near this value. So
# hundreds of columns with few ratings do not inflate γ. m is known before any label is.
PRIOR_SHARE = 0.1
PRIOR_SCALE = 0.3

PLANNED_RANK = 32  # what memory is planned for while the number of factors is still to be chosen


@documented
@dataclass(frozen=True, kw_only=True)
class FitConfig:
    """What to fit.

    Where None is allowed, it stands for a default that depends on the loss or on the data. The sections are those of
    docs/MATH.md.
    """

    loss: str = setting("logistic", "loss of a rating", choices=LOSSES, see="§3, §4")
    prior: str = setting("inverse-gamma", "prior of the factors' scales", choices=PRIORS, see="§5")
    rank: int | Literal["auto"] = setting(
        "auto",
        "K, the number of factors; auto: a tenth of the ratings chooses it. Those that are not needed are switched off",
        check=at_least(1),
        see="§14",
    )
    max_rank: int = setting(64, "largest {rank} that auto chooses", check=at_least(1), see="§14")
    likelihood_weight: float | Literal["auto"] | None = setting(
        None,
        "κ = λ/n, the weight of one rating; auto: a tenth of the ratings chooses it (default: auto for the logistic "
        "loss, 2 for the hinge)",
        check=POSITIVE,
        see="§1.3, §14",
    )
    alpha: float | None = setting(
        None,
        "α of the prior (default: a tenth of the number of users and items with ratings)",
        check=POSITIVE,
        see="§7.5",
    )
    beta: float | None = setting(
        None,
        "β of the prior, a rate for gamma, a scale for inverse-gamma (default: from α, so that γ is near 0.3)",
        check=POSITIVE,
        see="§7.5",
    )
    intercepts: bool = setting(
        True,
        "fit an intercept for each user and each item (default: yes)",
        check=YES_OR_NO,
        see="§6",
        param="fitIntercept",
    )
    implicit_features: bool = setting(
        True,
        "let the prior mean of a user depend on the items that the user rated, and that of an item on its users. Where "
        "a tenth of the ratings chooses, they are left out if it says that they do not pay (default: yes)",
        check=YES_OR_NO,
        see="§13",
    )
    solver: str = setting(
        "mm", "solver of the means; gradient is for the hinge loss only", choices=SOLVERS, see="§3.3, §3.4"
    )
    start: str = setting("spectral", "where the fit starts", choices=STARTS, see="§7.1", key=None)
    covariance: str = setting(
        "full",
        "what the logistic loss keeps of a row's posterior covariance, D×D numbers or D variances",
        choices=COVARIANCES,
        see="§4.2, §4.3",
    )
    max_iter: int = setting(100, "largest number of iterations", check=at_least(1))
    tol: float = setting(
        1e-5,
        "stop when objective and scores change by less than this share; 0: never",
        check=NOT_NEGATIVE,
        see="§7.4",
    )
    seed: int = setting(0, "seed of the start and of the certificates' draws", check=SEED)
    calibrate: bool = setting(
        True,
        "calibrate the probabilities on the tenth of the ratings that chooses, where that pays (default: yes)",
        check=YES_OR_NO,
        see="§14",
        key=None,
    )
    precision: str = setting(
        "float32", "how factors are stored; sums are always float64", choices=PRECISIONS, key=None, param=None
    )

    def problems(self) -> list[Problem]:
        """All problems with these settings; an empty list if there are none."""
        problems = problems_of(self)
        if not problems:
            try:
                self.make_loss()
            except RefusedSetting as refusal:
                problems.append(refusal.problem)
        return problems

    @property
    def factors(self) -> int:
        """K. While it is still to be chosen, a number to plan with."""
        return min(PLANNED_RANK, self.max_rank) if isinstance(self.rank, str) else self.rank

    @property
    def dimension(self) -> int:
        """D, the free coordinates of a row: K factors and, with intercepts, one more (§6.1)."""
        return self.factors + int(self.intercepts)

    @property
    def kappa(self) -> float:
        """κ: ``likelihood_weight`` if it is a number, else the default of the loss."""
        given = self.likelihood_weight
        return self.default_kappa if given is None or isinstance(given, str) else given

    @property
    def default_kappa(self) -> float:
        """The κ of the loss, where none is given or chosen."""
        return LOSSES[self.loss].default_kappa

    @property
    def chooses_kappa(self) -> bool:
        """Whether κ is to be chosen on a part of the ratings."""
        if self.likelihood_weight is None:
            return LOSSES[self.loss].chooses_kappa
        return self.likelihood_weight == AUTO

    def make_loss(self) -> Loss:
        """The loss with its options."""
        return LOSSES[self.loss].from_options(self.solver, self.covariance)

    @property
    def form(self) -> Form:
        """Layout of one row of a posterior."""
        vectors = FIT_VECTORS if self.implicit_features else 0
        return Form(self.dimension, self.make_loss().kind, self.intercepts, self.precision, vectors)

    def make_prior(self, n_lines: int) -> ScalePrior:
        """π^γ for m = ``n_lines`` rows and columns with ratings, with the defaults of α and β (§7.5)."""
        prior = PRIORS[self.prior]
        alpha = self.alpha if self.alpha is not None else PRIOR_SHARE * n_lines
        beta = self.beta if self.beta is not None else prior.beta_for_scale(alpha, PRIOR_SCALE)
        return prior(alpha, beta)
