"""The settings of a fit: ``FitConfig`` (the model), ``Labels`` (the input) and ``Terms`` (the certificates).

``Execution``, the settings that do not change the result, is in execution.py. This module imports neither numpy nor
numba, so that the command line answers at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from onebit_spark.core.settings import (
    FINITE,
    NOT_NEGATIVE,
    POSITIVE,
    SHARE,
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

if TYPE_CHECKING:
    from onebit_spark.core.losses import Loss
    from onebit_spark.core.posterior import Form
    from onebit_spark.core.priors import ScalePrior

AUTO = "auto"
LOSS_NAMES = ("hinge", "logistic")  # the keys of losses.LOSSES
PRIOR_NAMES = ("gamma", "inverse-gamma")  # the keys of priors.PRIORS
START_NAMES = ("spectral", "random")  # the keys of spectral.STARTS
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

    loss: str = setting("logistic", "loss of a rating", choices=LOSS_NAMES, see="§3, §4")
    prior: str = setting("inverse-gamma", "prior of the factors' scales", choices=PRIOR_NAMES, see="§5")
    rank: int | Literal["auto"] = setting(
        "auto",
        "number of factors, K; auto: chosen by the loss of a tenth of the ratings. Unneeded factors shrink to 0",
        check=at_least(1),
        see="§14",
    )
    max_rank: int = setting(64, "largest {rank} that auto chooses", check=at_least(1), see="§14")
    likelihood_weight: float | Literal["auto"] | None = setting(
        None,
        "κ = λ/n, the weight of one rating; auto: chosen by the loss of a tenth of the ratings (default: auto for the "
        "logistic loss, 2 for the hinge)",
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
        "let the prior mean of a user depend on which items the user rated, and that of an item on its users; left out "
        "where they do not lower the loss of a tenth of the ratings (default: yes)",
        check=YES_OR_NO,
        see="§13",
    )
    solver: str = setting(
        "mm", "solver of the means; gradient is for the hinge loss only", choices=SOLVERS, see="§3.3, §3.4"
    )
    start: str = setting(
        "spectral", "where the fit starts; random is for tests", choices=START_NAMES, see="§7.1", key=None, param=None
    )
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
    precision: str = setting(
        "float32", "how factors are stored; sums are always float64", choices=PRECISIONS, key=None, param=None
    )

    def problems(self) -> list[Problem]:
        """All problems with these settings; an empty list if there are none."""
        problems = problems_of(self)
        if not problems and (self.solver, self.covariance) != (SOLVERS[0], COVARIANCES[0]):  # these go with every loss
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
        from onebit_spark.core.losses import LOSSES

        return LOSSES[self.loss].default_kappa

    @property
    def chooses_kappa(self) -> bool:
        """Whether κ is to be chosen on a part of the ratings."""
        if self.likelihood_weight is None:
            from onebit_spark.core.losses import LOSSES

            return LOSSES[self.loss].chooses_kappa
        return self.likelihood_weight == AUTO

    def make_loss(self) -> Loss:
        """The loss with its options."""
        from onebit_spark.core.losses import LOSSES

        return LOSSES[self.loss].from_options(self.solver, self.covariance)

    @property
    def form(self) -> Form:
        """Layout of one row of a posterior."""
        from onebit_spark.core.posterior import FIT_VECTORS, Form

        vectors = FIT_VECTORS if self.implicit_features else 0
        return Form(self.dimension, self.make_loss().kind, self.intercepts, self.precision, vectors)

    def make_prior(self, n_lines: int) -> ScalePrior:
        """π^γ for m = ``n_lines`` rows and columns with ratings, with the defaults of α and β (§7.5)."""
        from onebit_spark.core.priors import PRIORS

        prior = PRIORS[self.prior]
        alpha = self.alpha if self.alpha is not None else PRIOR_SHARE * n_lines
        beta = self.beta if self.beta is not None else prior.beta_for_scale(alpha, PRIOR_SCALE)
        return prior(alpha, beta)


@documented
@dataclass(frozen=True, kw_only=True)
class Labels:
    """Where the labels are, and what they mean."""

    label_col: str = setting("label", "column of the labels: −1/1, 0/1, boolean, or a number with {threshold}")
    rating_col: str | None = setting(None, "ALS's name for {label_col}; set only one of the two", key=None)
    threshold: float | None = setting(None, "labels strictly greater are positive, the others negative", check=FINITE)
    weight_col: str | None = setting(
        None,
        "column of weights: a rating of weight 2 counts like two, one of weight 0 is left out (default: all weigh 1)",
        see="§16",
    )

    def problems(self) -> list[Problem]:
        """All problems with these settings; an empty list if there are none."""
        return problems_of(self)


@documented
@dataclass(frozen=True, kw_only=True)
class Terms:
    """What must be decided before the fit, so that its certificates hold (docs/MATH.md, §9.6)."""

    delta: float = setting(0.05, "a certificate holds with probability 1 − δ", check=SHARE, see="§9")
    prior_split: float | None = setting(
        None,
        "certify random draws with a prior that is learnt from this share of the ratings; the saved model then has "
        "learnt almost only from that share",
        check=SHARE,
        see="§9.5",
        key="certificate_prior_split",
        param="certificatePriorSplit",
    )
    grid: int = setting(
        1,
        "number of settings that are compared on these ratings; each is certified at δ/grid",
        check=at_least(1),
        see="§9.6",
        key="certificate_grid",
        param="certificateGrid",
    )

    def problems(self) -> list[Problem]:
        """All problems with these terms; an empty list if there are none."""
        return problems_of(self)
