"""FitFacts: from a finished fit to its model."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Generic, TypeVar

from pyspark.sql import DataFrame

from onebit_spark.certificate.certificates import document
from onebit_spark.certificate.certified_fit import CertifiedFit
from onebit_spark.core.config import FitConfig
from onebit_spark.core.factor_tables import prior_row
from onebit_spark.core.losses import SIDES, Side
from onebit_spark.core.model_info import ModelInfo
from onebit_spark.core.posterior import HasColumnNorms
from onebit_spark.core.sketch import CellSketch
from onebit_spark.engines.exchange_choice import ChosenExchange, SparkEngine
from onebit_spark.engines.factor_frames import factor_schema
from onebit_spark.input.columns import type_of
from onebit_spark.input.defects import Columns
from onebit_spark.ml.fitted_model import FittedModel
from onebit_spark.ml.side_features import KnownSide
from onebit_spark.predictor.fit_info import info_of_fit

P = TypeVar("P", bound=HasColumnNorms)  # a posterior of a side, in the engine's own form
M = TypeVar("M", bound=FittedModel)


@dataclass(frozen=True)
class FitFacts(Generic[P, M]):
    """All that a fit's model is made of besides the fit itself.

    Parameters
    ----------
    dataset : DataFrame
        The ratings.
    config : FitConfig
        What was fitted.
    columns : Columns
        Which columns hold what.
    chosen : ChosenExchange
        The exchange, and the counts of the ratings.
    engine : SparkEngine
        Holds the ratings.
    fitted : CellSketch
        Which cells were fitted.
    known : dict of side to KnownSide
        Side features.
    model_class : type
        What ``model`` makes.
    """

    dataset: DataFrame
    config: FitConfig
    columns: Columns
    chosen: ChosenExchange
    engine: SparkEngine[P]
    fitted: CellSketch
    known: dict[Side, KnownSide]
    model_class: type[M]

    def model(self, made: CertifiedFit[P], outlasting: bool = False, **info: Any) -> M:
        """The model of a fit, finished or not; ``info`` are further fields of its ``info``."""
        told = replace(self._info(made), **info)
        drawn = made.drawn or dict.fromkeys(SIDES)
        newcomers = {
            side: self.known[side].lines(
                prior_row(made.scales, side, *told.table_form), coding, made.scales.features[side], told.draw_narrowing
            )
            for side, coding in made.codings.items()
            if outlasting
        }
        more = {side: lines.num_rows for side, lines in newcomers.items() if lines is not None}
        told = replace(told, n_users=told.n_users + more.get("rows", 0), n_items=told.n_items + more.get("cols", 0))
        users, items = (
            self.engine.factors(
                side, made.posterior[side], factor_schema(told, name), drawn[side], outlasting, newcomers.get(side)
            )
            for side, name in zip(SIDES, ("user", "item"), strict=True)
        )
        certificate = document(item.as_dict() for item in made.certificates)
        return self.model_class(told, users, items, certificate).fittedOn(self.fitted)

    def _info(self, made: CertifiedFit[P]) -> ModelInfo:
        columns, tally = self.columns, self.chosen.tally
        return info_of_fit(
            made,
            self.config,
            {side: self.engine.count(side) for side in SIDES},
            {side: len(known.newcomers) for side, known in self.known.items()},
            self.engine.repeats.repeated > 0,
            n_ratings=tally.n,
            label_coding=tally.coding,
            threshold=columns.threshold,
            majority=tally.majority,
            columns={
                role: name
                for role, name in asdict(columns).items()
                if role in ("user", "item", "label", "weight") and name is not None
            },
            total_weight=self.engine.total_weight if columns.weight is not None else None,
            id_types={
                "user": type_of(self.dataset, columns.user).simpleString(),
                "item": type_of(self.dataset, columns.item).simpleString(),
            },
            n_positive=tally.positives,
            fingerprint=tally.fingerprint,
            repeats=asdict(self.engine.repeats),
            exchange=asdict(self.chosen.choice),
        )
