"""The result of a fit on an engine, and the facts of it that a model keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Generic

import pyarrow as pa

from onebit_spark import model_info
from onebit_spark.certify.certificates import Certificate
from onebit_spark.core.confidences import Thresholds, thresholds_of
from onebit_spark.core.fit_state import FitState
from onebit_spark.core.hyper_posterior import HyperPosterior
from onebit_spark.core.losses import SIDES, Side
from onebit_spark.core.model_selection import SelectedModel
from onebit_spark.core.positions import Axes
from onebit_spark.core.posterior import MODEL_VECTORS, FloatArray, factors_in_use
from onebit_spark.core.setup import loss_of
from onebit_spark.core.solver import Iteration, Outcome
from onebit_spark.data.features import FeatureCoding, codings_of
from onebit_spark.data.ratings import Columns, RatingCounts
from onebit_spark.engines.base import T
from onebit_spark.model_info import SIDE_OF, FitFeatures, ModelInfo
from onebit_spark.records import Fields
from onebit_spark.settings import Who

UNFINISHED = "a checkpoint"


@dataclass(frozen=True)
class Fit(Generic[T]):
    """A fit on an engine, finished or at a checkpoint."""

    scales: HyperPosterior  # q(γ) and q(μ), and π^γ with the α and β that were used
    history: list[Iteration]
    converged: bool
    reason: str  # why the fit stopped
    posterior: dict[Side, T]
    choice: SelectedModel[T]  # rank, κ and features, and how they were chosen
    codings: dict[Side, FeatureCoding]  # of the side features
    certificates: list[Certificate] = field(default_factory=list)
    # of every call, from the fitted ratings; None at a checkpoint, and so are the next two
    thresholds: Thresholds | None = None
    axes: Axes | None = None  # of positions
    measured: dict[Side, FloatArray | T] | None = None  # the numbers of ``work.MeasureSpreads``


def finish(
    state: FitState[T],
    choice: SelectedModel[T],
    outcome: Outcome,
    certificates: list[Certificate],
) -> Fit[T]:
    """The posteriors of all rows, the thresholds of every call, and what the ratings leave open."""
    scales = outcome.hierarchy
    posterior = state.final_posteriors(scales)
    loss = loss_of(choice.config)
    thresholds = thresholds_of(state.confidences(posterior, loss.score_noise))
    if choice.config.implicit_features:  # the next step of the coefficients is of no use any more
        posterior = state.without_directions(posterior, MODEL_VECTORS)
        scales = scales.without_directions()
    priors = {side: scales.row_prior(side) for side in SIDES}
    axes, measured = state.measure(posterior, loss, priors)
    return Fit(
        scales=scales,
        history=outcome.history,
        converged=outcome.converged,
        reason=outcome.reason,
        posterior=posterior,
        choice=choice,
        codings=codings_of(state.features),
        certificates=certificates,
        thresholds=thresholds,
        axes=axes,
        measured=measured,
    )


def unfinished(
    state: FitState[T],
    choice: SelectedModel[T],
    scales: HyperPosterior,
    history: list[Iteration],
) -> Fit[T]:
    """The fit after some iterations with the chosen settings."""
    posterior = state.final_posteriors(scales)
    codings = codings_of(state.features)
    return Fit(scales, history, False, UNFINISHED, posterior, choice, codings)


def unfinished_choice(choice: SelectedModel[T]) -> Fit[T]:
    """The fit after a level of the choice of its settings."""
    start = choice.start
    assert start is not None
    return Fit(start.scales, [], False, UNFINISHED, start.posteriors, choice, {})


# ---- facts -------------------------------------------------------------------------------------


def info_of_fit(
    fit: Fit[T],
    state: FitState[T],
    counts: RatingCounts,
    columns: Columns,
    id_types: Mapping[Who, str],
    unrated: Mapping[Side, int],
    exchange: Mapping[str, str],
    seconds: Mapping[str, float],
) -> ModelInfo:
    """The content of ``metadata.json``; ``unrated`` counts the rows that have no ratings.

    Without the seconds of its phases the fit is unfinished, and lacks the ids without ratings.
    """
    engine = state.engine
    scales = fit.scales
    config = fit.choice.config
    rated = {side: engine.count(side) for side in SIDES}
    n_rows = dict(rated)
    for side in fit.codings if seconds else ():
        n_rows[side] += unrated[side]
    norms = [state.column_norms(side, fit.posterior[side]) for side in SIDES]
    used = factors_in_use(norms[0], norms[1], rated["rows"], rated["cols"])
    calibration = fit.choice.calibration
    losses = {f"{weight:g}": loss for weight, loss in fit.choice.losses.items()}
    return ModelInfo(
        parameters={**asdict(config), "alpha": scales.prior.alpha, "beta": scales.prior.beta},
        n_users=n_rows["rows"],
        n_items=n_rows["cols"],
        n_ratings=counts.n,
        n_positive=counts.positives,
        label_coding=counts.coding,
        threshold=columns.threshold,
        majority=counts.majority,
        columns=columns.roles,
        total_weight=engine.total_weight if columns.weight is not None else None,
        id_types={str(who): kind for who, kind in id_types.items()},
        fingerprint=counts.fingerprint,
        exchange=dict(exchange),
        objective_history=[step.objective for step in fit.history],
        iterations=len(fit.history),
        converged=fit.converged,
        reason=fit.reason,
        effective_rank=len(used),
        **model_info.scale_fields(scales),
        side_features=_side_features(fit, unrated) or None,
        confidences=_confidences(fit.thresholds),
        weight_losses=losses or None,
        choice=fit.choice.as_dict(),
        calibration=None if calibration is None else asdict(calibration),
        repeats=asdict(engine.repeats),
        axes=None if fit.axes is None else fit.axes.as_dict(),
        seconds=dict(seconds),
    )


def _side_features(fit: Fit[Any], unrated: Mapping[Side, int]) -> dict[str, Fields]:
    found: dict[str, Fields] = {}
    for who, side in SIDE_OF.items():
        if side in fit.codings:
            found[who] = {
                "coding": fit.codings[side].as_list(),
                "weights": fit.scales.features[side].tolist(),
                "newcomers": unrated[side],
            }
    return found


def _confidences(thresholds: Thresholds | None) -> Fields | None:
    if thresholds is None:
        return None
    kept: Fields = {str(call): each.as_dict() for call, each in thresholds.items()}
    answered: Fields = kept.pop("answered")
    return {**answered, **kept}


def unrated_tables(
    fit: Fit[Any],
    features: Mapping[Side, FitFeatures],
    info: ModelInfo,
) -> dict[Side, pa.Table]:
    """The factor tables of ids with side features and without ratings."""
    tables: dict[Side, pa.Table] = {}
    for side, given in features.items():
        if side not in fit.codings:
            continue
        prior = model_info.prior_row(fit.scales, side, *info.table_form)
        std = None if fit.axes is None else fit.axes.spreads(side, prior)
        weights = fit.scales.features[side]
        lines = given.unrated_lines(prior, fit.codings[side], weights, std)
        if lines is not None:
            tables[side] = lines
    return tables
