"""Warm start: a fit that starts from the posterior of an earlier model."""

from __future__ import annotations

from typing import Protocol, TypeVar

from pyspark.sql import DataFrame

from onebit_spark.core.config import FORM_SETTINGS, FitConfig
from onebit_spark.core.factor_tables import prior_row
from onebit_spark.core.losses import Side
from onebit_spark.core.posterior import RowPosterior
from onebit_spark.core.settings import param_names
from onebit_spark.core.solver import Start
from onebit_spark.errors import RequestError
from onebit_spark.ml.fitted_model import FittedModel

P = TypeVar("P")  # a posterior of a side, in the engine's own form
P_co = TypeVar("P_co", covariant=True)


class Adopts(Protocol[P_co]):
    """What a warm start needs from an engine."""

    def adopted(self, side: Side, factors: DataFrame, prior: RowPosterior, precision: str) -> P_co:
        """The posterior of the engine's ids from a factor table, in the engine's own form."""


def warm_start(model: FittedModel, config: FitConfig, engine: Adopts[P]) -> Start[P]:
    """The model's posterior of the engine's ids. Ids that the model does not know get its prior."""
    _check(model, config)
    info = model.info
    form = info.kind, config.intercepts, config.implicit_features
    frames: dict[Side, DataFrame] = {"rows": model.users, "cols": model.items}
    return Start(
        {
            side: engine.adopted(side, frame, prior_row(info.scales, side, *form), config.precision)
            for side, frame in frames.items()
        },
        info.scales.forgetting_weights(),
        weight=info.config.weight,
    )


def _check(model: FittedModel, config: FitConfig) -> None:
    there, names = model.info.config, param_names(FitConfig)
    differing = [
        f"{names[name]} is {getattr(there, name)} there and {getattr(config, name)} here"
        for name in FORM_SETTINGS
        if getattr(there, name) != getattr(config, name)
    ]
    if differing:
        raise RequestError(f"the initial model does not fit this estimator: {'; '.join(differing)}")
