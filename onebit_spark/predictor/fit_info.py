"""From a finished fit to the ``ModelInfo`` of its model."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from onebit_spark.certificate.certified_fit import CertifiedFit
from onebit_spark.certificate.learnt_prior import NARROWING
from onebit_spark.core.engine import Engine
from onebit_spark.core.losses import SIDES, Side
from onebit_spark.core.model_info import SIDE_OF, ModelInfo, scale_fields
from onebit_spark.core.posterior import factors_in_use


def info_of_fit(fit: CertifiedFit[Any], engine: Engine[Any], unrated: dict[Side, int], **ratings: Any) -> ModelInfo:
    """The content of ``metadata.json``; ``ratings`` are the fields about the ratings and how they were read.

    ``unrated`` counts the ids without ratings of a side with side features.
    """
    scales = fit.scales
    n_users, n_items = (engine.count(side) for side in SIDES)
    row_norms, col_norms = (engine.column_norms(side, fit.posterior[side]) for side in SIDES)
    features: dict[str, dict[str, Any]] = {
        who: {
            "coding": fit.codings[side].as_list(),
            "weights": scales.features[side].tolist(),
            "newcomers": unrated[side],
        }
        for who, side in SIDE_OF.items()
        if side in fit.codings
    }
    return ModelInfo(
        parameters={
            **asdict(fit.choice.config),
            "alpha": fit.scales.prior.alpha,
            "beta": fit.scales.prior.beta,
        },
        n_users=n_users,
        n_items=n_items,
        objective_history=[step.objective for step in fit.history],
        iterations=len(fit.history),
        converged=fit.converged,
        reason=fit.reason,
        effective_rank=len(factors_in_use(row_norms, col_norms, n_users, n_items)),
        **scale_fields(scales, fit.choice.config.intercepts),
        side_features=features or None,
        draw_narrowing=None if fit.drawn is None else NARROWING,
        confidences=None if fit.confidence_thresholds is None else fit.confidence_thresholds.as_dict(),
        weight_losses={f"{weight:g}": loss for weight, loss in fit.choice.losses.items()} or None,
        choice=fit.choice.as_dict(),
        calibration=None if fit.choice.calibration is None else asdict(fit.choice.calibration),
        repeats=asdict(engine.repeats),
        **ratings,
    )
