"""ModelBuilder: from a fit to its model."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Generic, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame

from onebit_spark.certificate.certificates import document, kept_by_coin
from onebit_spark.certificate.certified_fit import CertifiedFit
from onebit_spark.certificate.learnt_prior import NARROWING
from onebit_spark.core.config import FitConfig
from onebit_spark.core.factor_tables import prior_row
from onebit_spark.core.fitted_features import SIDE_OF
from onebit_spark.core.losses import SIDES, Side
from onebit_spark.core.model_info import ModelInfo, scale_fields
from onebit_spark.core.posterior import effective_rank
from onebit_spark.core.sketch import CellSketch
from onebit_spark.engines.exchange import ChosenExchange
from onebit_spark.engines.factor_frames import factor_schema
from onebit_spark.engines.spark_engine import SparkEngine
from onebit_spark.input.columns import type_of
from onebit_spark.input.defects import Columns
from onebit_spark.ml.fitted_model import FittedModel
from onebit_spark.ml.side_features import FitFeatures

M = TypeVar("M", bound=FittedModel)


@dataclass(frozen=True)
class ModelBuilder(Generic[M]):
    """All that a fit's model is made of besides the fit itself.

    Parameters
    ----------
    ratings : DataFrame
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
    features : dict of side to FitFeatures
        Side features.
    model_class : type
        What ``model`` makes.
    """

    ratings: DataFrame
    config: FitConfig
    columns: Columns
    chosen: ChosenExchange
    engine: SparkEngine
    fitted: CellSketch
    features: dict[Side, FitFeatures]
    model_class: type[M]

    def model(self, fit: CertifiedFit[Any], outlasting: bool = False, **info: Any) -> M:
        """The model of a fit, finished or not; ``info`` are further fields of its ``info``."""
        fields = replace(self._info(fit), **info)
        unrated = self._unrated_lines(fit, fields) if outlasting else {}
        n_rows, n_cols = (unrated[side].num_rows if side in unrated else 0 for side in SIDES)
        fields = replace(fields, n_users=fields.n_users + n_rows, n_items=fields.n_items + n_cols)
        drawn = fit.drawn or dict.fromkeys(SIDES)
        users, items = (
            self.engine.factors(
                side, fit.posterior[side], factor_schema(fields, who), drawn[side], outlasting, unrated.get(side)
            )
            for who, side in SIDE_OF.items()
        )
        certificate = document(item.as_dict() for item in fit.certificates)
        return self.model_class(fields, users, items, certificate).fittedOn(self.fitted)

    def _unrated_lines(self, fit: CertifiedFit[Any], info: ModelInfo) -> dict[Side, pa.Table]:
        """The factors of the ids that have side features and no ratings."""
        form = info.kind, info.config.intercepts, info.config.implicit_features
        lines = {
            side: self.features[side].unrated_lines(
                prior_row(fit.scales, side, *form), coding, fit.scales.features[side], info.draw_narrowing
            )
            for side, coding in fit.codings.items()
        }
        return {side: table for side, table in lines.items() if table is not None}

    def _info(self, fit: CertifiedFit[Any]) -> ModelInfo:
        columns, tally, scales = self.columns, self.chosen.tally, fit.scales
        n_users, n_items = self.engine.count("rows"), self.engine.count("cols")
        row_norms, col_norms = (self.engine.column_norms(side, fit.posterior[side]) for side in SIDES)
        limit, used = fit.nine_tenths, {"alpha": fit.prior.alpha, "beta": fit.prior.beta}
        roles = {"user": columns.user, "item": columns.item, "label": columns.label}
        weight = {} if columns.weight is None else {"weight": columns.weight}
        learned: dict[str, Any] = {
            who: self.features[side].learned(fit.codings[side], scales.features[side])
            for who, side in SIDE_OF.items()
            if side in fit.codings
        }
        return ModelInfo(
            parameters={**asdict(self.config), "likelihood_weight": fit.choice.weight, **used},
            **scale_fields(scales, self.config.intercepts),
            side_features=learned or None,
            draw_narrowing=None if fit.drawn is None else NARROWING,
            n_ratings=tally.n,
            n_users=n_users,
            n_items=n_items,
            objective_history=[step.objective for step in fit.history],
            iterations=len(fit.history),
            converged=fit.converged,
            reason=fit.reason,
            effective_rank=effective_rank(row_norms, col_norms, n_users, n_items),
            label_coding=tally.coding,
            threshold=columns.threshold,
            majority=tally.majority,
            columns={**roles, **weight},
            total_weight=self.engine.total_weight if weight else None,
            id_types={who: type_of(self.ratings, roles[who]).simpleString() for who in SIDE_OF},
            n_positive=tally.positives,
            fingerprint=tally.fingerprint,
            repeats=asdict(self.engine.repeats),
            exchange=asdict(self.chosen.choice),
            confidences=fit.ladder.as_dict() if fit.ladder is not None else None,
            weight_losses={f"{weight:g}": loss for weight, loss in fit.choice.losses.items()} or None,
            nine_tenths=None if limit is None else kept_by_coin(limit, self.engine.repeats.repeated > 0).as_dict(),
        )
