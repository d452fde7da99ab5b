"""FitFacts: from a finished fit to its model."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np
from pyspark.sql import DataFrame

from onebit_spark.certificate.certificates import document, kept_by_coin
from onebit_spark.certificate.certified_fit import CertifiedFit
from onebit_spark.certificate.learnt_prior import NARROWING
from onebit_spark.core.config import FitConfig
from onebit_spark.core.factor_tables import prior_row
from onebit_spark.core.fitted_features import SIDE_OF
from onebit_spark.core.losses import SIDES, Side
from onebit_spark.core.model_info import ModelInfo
from onebit_spark.core.posterior import effective_rank
from onebit_spark.core.sketch import CellSketch
from onebit_spark.engines.exchange import ChosenExchange
from onebit_spark.engines.factor_frames import factor_schema
from onebit_spark.engines.spark_engine import SparkEngine
from onebit_spark.input.columns import type_of
from onebit_spark.input.defects import Columns
from onebit_spark.ml.fitted_model import FittedModel
from onebit_spark.ml.side_features import KnownSide, learnt_features

P = TypeVar("P")  # a posterior of a side, in the engine's own form
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
    engine: SparkEngine
    fitted: CellSketch
    known: dict[Side, KnownSide]
    model_class: type[M]

    def model(self, made: CertifiedFit[P], outlasting: bool = False, **info: Any) -> M:
        """The model of a fit, finished or not; ``info`` are further fields of its ``info``."""
        told = replace(self._info(made), **info)
        drawn = made.drawn or dict.fromkeys(SIDES)
        form = told.kind, told.config.intercepts, told.config.implicit_features
        newcomers = {
            side: self.known[side].lines(
                prior_row(made.scales, side, *form), coding, made.scales.features[side], told.draw_narrowing
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
        config, columns, tally, scales = self.config, self.columns, self.chosen.tally, made.scales
        n_users, n_items = self.engine.count("rows"), self.engine.count("cols")
        moments, limit = scales.moments, made.nine_tenths
        row_norms, col_norms = (self.engine.column_norms(side, made.posterior[side]) for side in SIDES)
        return ModelInfo(
            parameters={
                **asdict(config),
                "likelihood_weight": made.choice.weight,
                "alpha": made.prior.alpha,
                "beta": made.prior.beta,
            },
            scale_moments=None if moments is None else moments.as_dict(),
            side_features={
                who: learnt_features(self.known[side], made.codings[side], scales.features[side])
                for who, side in SIDE_OF.items()
                if side in made.codings
            }
            or None,
            draw_narrowing=None if made.drawn is None else NARROWING,
            n_ratings=tally.n,
            n_users=n_users,
            n_items=n_items,
            objective_history=[step.objective for step in made.history],
            iterations=len(made.history),
            converged=made.converged,
            reason=made.reason,
            effective_rank=effective_rank(row_norms, col_norms, n_users, n_items),
            inverse_gamma=np.asarray(scales.factor).tolist(),
            intercept_prior={
                "mean": scales.mean,
                "mean_variance": scales.mean_variance,
                "user_inverse_gamma": scales.row_intercept,
                "item_inverse_gamma": scales.col_intercept,
            }
            if config.intercepts
            else None,
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
            confidences=made.ladder.as_dict() if made.ladder is not None else None,
            weight_losses={f"{weight:g}": loss for weight, loss in made.choice.losses.items()} or None,
            nine_tenths=None if limit is None else kept_by_coin(limit, self.engine.repeats.repeated > 0).as_dict(),
        )
