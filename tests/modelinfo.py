"""What a model tells about a fit that was made in this process."""

import dataclasses

from onebit_spark.core.model_info import ModelInfo


def info_of(fit, id_types):
    """As if the fit had been made by Spark from 400 ratings of 28 users on 18 items."""
    scales = fit.scales
    return ModelInfo(
        parameters={**dataclasses.asdict(fit.config), "likelihood_weight": fit.config.kappa},
        n_ratings=400,
        n_users=28,
        n_items=18,
        objective_history=fit.objective_history,
        iterations=len(fit.history),
        converged=fit.converged,
        reason=fit.reason,
        effective_rank=fit.effective_rank,
        inverse_gamma=fit.inverse_gamma.tolist(),
        intercept_prior={
            "mean": scales.mean,
            "mean_variance": scales.mean_variance,
            "user_inverse_gamma": scales.row_intercept,
            "item_inverse_gamma": scales.col_intercept,
        }
        if fit.config.intercepts
        else None,
        label_coding="signed",
        threshold=None,
        majority=fit.majority,
        columns={"user": "user", "item": "item", "label": "label"},
        id_types=id_types,
        seconds={"fit": 0.5},
        scale_moments=scales.moments.as_dict(),
    )
