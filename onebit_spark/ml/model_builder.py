"""ModelBuilder: from a fit to its model."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Generic, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame

from onebit_spark.certificate.certificates import document
from onebit_spark.certificate.certified_fit import CertifiedFit
from onebit_spark.core.config import FitConfig
from onebit_spark.core.factor_tables import prior_row
from onebit_spark.core.fit_features import FitFeatures
from onebit_spark.core.fitted_features import SIDE_OF
from onebit_spark.core.losses import SIDES, Side
from onebit_spark.core.model_info import ModelInfo
from onebit_spark.core.posterior import MODEL_VECTORS
from onebit_spark.core.sketch import CellSketch
from onebit_spark.engines.exchange import ChosenExchange
from onebit_spark.engines.factor_frames import factor_schema
from onebit_spark.engines.spark_engine import SparkEngine
from onebit_spark.input.columns import type_of
from onebit_spark.input.defects import Columns
from onebit_spark.ml.fitted_model import FittedModel
from onebit_spark.predictor.fit_info import info_of_fit

M = TypeVar("M", bound=FittedModel)


@dataclass(frozen=True)
class ModelBuilder(Generic[M]):
    """All that a fit's model is made of besides the fit itself."""

    ratings: DataFrame  # the ratings
    config: FitConfig  # what was fitted
    columns: Columns  # which columns hold what
    chosen: ChosenExchange  # the exchange, and the counts of the ratings
    engine: SparkEngine  # holds the ratings
    fitted: CellSketch  # which cells were fitted
    features: dict[Side, FitFeatures]  # side features
    model_class: type[M]  # what ``model`` makes

    def model(self, fit: CertifiedFit[Any], outlasting: bool = False, **info: Any) -> M:
        """The model of a fit, finished or not; ``info`` are further fields of its ``info``."""
        fields = replace(self._info(fit), **info)
        unrated = self._unrated_lines(fit, fields) if outlasting else {}
        n_rows, n_cols = (unrated[side].num_rows if side in unrated else 0 for side in SIDES)
        fields = replace(fields, n_users=fields.n_users + n_rows, n_items=fields.n_items + n_cols)
        drawn = fit.drawn or dict.fromkeys(SIDES)
        users, items = (
            self.engine.factors(
                side,
                fit.posterior[side],
                factor_schema(fields, who, fit.posterior[side].form.vectors > MODEL_VECTORS),
                drawn[side],
                outlasting,
                unrated.get(side),
            )
            for who, side in SIDE_OF.items()
        )
        certificate = document(item.as_dict() for item in fit.certificates)
        return self.model_class(fields, users, items, certificate).fittedOn(self.fitted)

    def _unrated_lines(self, fit: CertifiedFit[Any], info: ModelInfo) -> dict[Side, pa.Table]:
        """The factors of the ids that have side features and no ratings."""
        lines = {
            side: self.features[side].unrated_lines(
                prior_row(fit.scales, side, *info.table_form), coding, fit.scales.features[side], info.draw_narrowing
            )
            for side, coding in fit.codings.items()
        }
        return {side: table for side, table in lines.items() if table is not None}

    def _info(self, fit: CertifiedFit[Any]) -> ModelInfo:
        columns, tally = self.columns, self.chosen.tally
        return info_of_fit(
            fit,
            self.engine,
            self.engine.repeats,
            {side: len(known.unrated_ids) for side, known in self.features.items()},
            n_ratings=tally.n,
            label_coding=tally.coding,
            threshold=columns.threshold,
            majority=tally.majority,
            columns=columns.roles,
            total_weight=self.engine.total_weight if columns.weight is not None else None,
            id_types={who: type_of(self.ratings, name).simpleString() for who, name in columns.ids.items()},
            n_positive=tally.positives,
            fingerprint=tally.fingerprint,
            exchange=asdict(self.chosen.choice),
        )
