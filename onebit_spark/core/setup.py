"""What the settings of a fit mean: its loss, κ, priors, and the form of a row."""

from __future__ import annotations

from onebit_spark.core.losses import LOSSES, Loss
from onebit_spark.core.posterior import FIT_VECTORS, Form
from onebit_spark.core.prior import ScalePrior
from onebit_spark.core.priors import PRIORS
from onebit_spark.settings import AUTO, FitConfig

# The default prior weighs as much as this share of the rows and columns, and expects scales γ near
# this value. So hundreds of columns with few ratings do not inflate γ. m is known before any label.
PRIOR_SHARE = 0.1
PRIOR_SCALE = 0.3


def loss_of(config: FitConfig) -> Loss:
    return LOSSES[config.loss].from_options(config.solver, config.covariance)


def default_kappa(config: FitConfig) -> float:
    return LOSSES[config.loss].default_kappa


def kappa_of(config: FitConfig) -> float:
    """κ: ``likelihood_weight`` if it is a number, else the default of the loss."""
    given = config.likelihood_weight
    return default_kappa(config) if given is None or isinstance(given, str) else float(given)


def chooses_kappa(config: FitConfig) -> bool:
    if config.likelihood_weight is None:
        return LOSSES[config.loss].chooses_kappa
    return config.likelihood_weight == AUTO


def form_of(config: FitConfig) -> Form:
    """The form of a row of the posterior."""
    vectors = FIT_VECTORS if config.implicit_features else 0
    return Form(
        config.dimension, loss_of(config).kind, config.intercepts, config.precision, vectors
    )


def factor_prior(config: FitConfig, n_lines: int) -> ScalePrior:
    """π^γ for m = ``n_lines`` rows and columns with ratings, with the defaults of α and β
    (§7.5).
    """
    prior = PRIORS[config.prior]
    alpha = config.alpha if config.alpha is not None else PRIOR_SHARE * n_lines
    beta = config.beta if config.beta is not None else prior.beta_for_scale(alpha, PRIOR_SCALE)
    return prior(alpha, beta)


def intercept_prior(config: FitConfig) -> ScalePrior | None:
    """The prior of the scales of the intercepts, with the weight of two rows (§6.1), if there are
    any.
    """
    prior = PRIORS[config.prior]
    return prior(1.0, prior.beta_for_scale(1.0, 1.0)) if config.intercepts else None
