"""FitConfig: all settings of a fit that change its result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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


@dataclass(frozen=True, kw_only=True)
class FitConfig:
    """What to fit.

    Where None is allowed, it stands for a default that depends on the loss or on the data. The sections are those of
    docs/MATH.md.

    Parameters
    ----------
    loss : {"logistic", "hinge"}
        Loss of a rating (§3, §4).
    prior : {"inverse-gamma", "gamma"}
        π^γ, the prior of the factors' scales (§5).
    rank : int
        K, the largest number of factors. The prior switches off the factors that are not needed.
    likelihood_weight : float or "auto", optional
        κ = λ/n, the weight of one rating (§1.3). "auto": a tenth of the ratings chooses it (§14). Default: "auto" for
        the logistic loss, 2 for the hinge.
    alpha : float, optional
        α of the prior (§7.5). Default: m/10, where m users and items have ratings.
    beta : float, optional
        β of the prior: a rate for "gamma", a scale for "inverse-gamma". Default: γ concentrates near 0.3.
    intercepts : bool
        Whether each row and each column has an intercept (§6).
    implicit_features : bool
        Whether the prior mean of a row depends on which columns it has rated, and that of a column on its rows (§13).
    solver : {"mm", "gradient"}
        Solver of the means with the hinge loss (§3.3, §3.4). The logistic loss has no "gradient".
    start : {"spectral", "random"}
        Where the fit starts (§7.1).
    covariance : {"full", "diagonal"}
        What the logistic loss keeps per row: a D×D covariance or D variances (§4.2, §4.3).
    max_iter : int
        Largest number of iterations.
    tol : float
        The fit stops when neither the objective nor the scores change by more than this share (§7.4). 0: never.
    seed : int
        Seed of the start, and of the draws for certificates.
    precision : {"float32", "float64"}
        How factors are stored. Sums over ratings are always float64.
    """

    loss: str = setting("logistic", "loss", choices=LOSSES)
    prior: str = setting("inverse-gamma", "prior of the factors' scales", choices=PRIORS)
    rank: int = setting(10, "largest number of factors; those that are not needed are switched off", check=at_least(1))
    likelihood_weight: float | Literal["auto"] | None = setting(
        None,
        "κ, the weight of one rating; auto: a tenth of the ratings chooses it (default: auto for the logistic loss, 2 "
        "for the hinge)",
        check=POSITIVE,
    )
    alpha: float | None = setting(
        None, "α of the prior (default: a tenth of the number of users and items)", check=POSITIVE
    )
    beta: float | None = setting(None, "β of the prior (default: follows from α)", check=POSITIVE)
    intercepts: bool = setting(
        True, "fit an intercept for each user and each item (default: yes)", check=YES_OR_NO, param="fitIntercept"
    )
    implicit_features: bool = setting(
        True,
        "let the prior mean of a user depend on the items that the user rated, and that of an item on its users "
        "(default: yes)",
        check=YES_OR_NO,
    )
    solver: str = setting("mm", "solver of the means; gradient is for the hinge loss only", choices=SOLVERS)
    start: str = setting("spectral", "where the fit starts", choices=STARTS, key=None)
    covariance: str = setting(
        "full", "what the logistic loss keeps of the posterior covariance of a row", choices=COVARIANCES
    )
    max_iter: int = setting(100, "largest number of iterations", check=at_least(1))
    tol: float = setting(
        1e-5, "stop when objective and scores change by less than this share; 0: never", check=NOT_NEGATIVE
    )
    seed: int = setting(0, "seed of the start", check=SEED)
    precision: str = setting("float32", "how factors are stored", choices=PRECISIONS, key=None, param=None)

    def problems(self) -> list[Problem]:
        """All problems with these settings; an empty list if there are none."""
        found = problems_of(self)
        if not found:
            try:
                self.make_loss()
            except RefusedSetting as refusal:
                found.append(refusal.problem)
        return found

    @property
    def dimension(self) -> int:
        """D, the free coordinates of a row: K factors and, with intercepts, one more (§6.1)."""
        return self.rank + int(self.intercepts)

    @property
    def weight(self) -> float:
        """κ: ``likelihood_weight`` if it is a number, else the default of the loss."""
        given = self.likelihood_weight
        return self.default_weight if given is None or isinstance(given, str) else given

    @property
    def default_weight(self) -> float:
        """The κ of the loss, where none is given or chosen."""
        return LOSSES[self.loss].default_weight

    @property
    def chooses_weight(self) -> bool:
        """Whether κ is to be chosen on a part of the ratings."""
        if self.likelihood_weight is None:
            return LOSSES[self.loss].chooses_weight
        return self.likelihood_weight == AUTO

    def make_loss(self) -> Loss:
        """The loss with its options."""
        return LOSSES[self.loss].from_options(self.solver, self.covariance)

    @property
    def form(self) -> Form:
        """Layout of one row of a posterior."""
        return Form(self.dimension, self.make_loss().kind, self.intercepts, self.precision, self.implicit_features)

    def make_prior(self, n_lines: int) -> ScalePrior:
        """π^γ for m = ``n_lines`` rows and columns with ratings, with the defaults of α and β (§7.5)."""
        prior = PRIORS[self.prior]
        alpha = self.alpha if self.alpha is not None else PRIOR_SHARE * n_lines
        beta = self.beta if self.beta is not None else prior.beta_for_scale(alpha, PRIOR_SCALE)
        return prior(alpha, beta)
