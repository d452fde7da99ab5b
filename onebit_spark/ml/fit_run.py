"""Around a fit on Spark: choose the exchange, make the engine, prepare its start; and build the model of the fit."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, Generic, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame

from onebit_spark.certificate.certificates import certificate_document
from onebit_spark.certificate.certified_fit import CertifiedFit
from onebit_spark.core.config import FitConfig, Terms
from onebit_spark.core.execution import Execution
from onebit_spark.core.factor_tables import prior_row
from onebit_spark.core.fitted_features import SIDE_OF, FitFeatures, Who, digest, give_features
from onebit_spark.core.losses import SIDES, Side
from onebit_spark.core.model_info import ModelInfo
from onebit_spark.core.posterior import MODEL_VECTORS
from onebit_spark.core.sketch import CellSketch, merged_sketch
from onebit_spark.core.solver import PhaseTimer, Start
from onebit_spark.engines.spark_engine import ChosenExchange, SparkEngine, choose_exchange, engine_over
from onebit_spark.engines.tables import factor_schema
from onebit_spark.input.collect import SizeEstimate
from onebit_spark.input.columns import type_of
from onebit_spark.input.features import collected_features
from onebit_spark.input.rating_checks import Columns
from onebit_spark.input.survey import RatingSurvey
from onebit_spark.ml.checkpoint import Checkpoint, CheckpointFolder, Checkpointing, resumed, subject_of, warm_start
from onebit_spark.ml.persistence import write_model
from onebit_spark.predictor.fit_info import info_of_fit

M = TypeVar("M", bound=Any)  # OneBitCompletionModel

log = logging.getLogger("onebit_spark")


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
        certificate = certificate_document(item.as_dict() for item in fit.certificates)
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
        columns, counts = self.columns, self.chosen.counts
        return info_of_fit(
            fit,
            self.engine,
            self.engine.repeats,
            {side: len(known.unrated_ids) for side, known in self.features.items()},
            n_ratings=counts.n,
            label_coding=counts.coding,
            threshold=columns.threshold,
            majority=counts.majority,
            columns=columns.roles,
            total_weight=self.engine.total_weight if columns.weight is not None else None,
            id_types={who: type_of(self.ratings, name).simpleString() for who, name in columns.ids.items()},
            n_positive=counts.positives,
            fingerprint=counts.fingerprint,
            exchange=asdict(self.chosen.choice),
        )


@dataclass(frozen=True)
class FitInput:
    """The settings and the ratings of a fit, checked."""

    config: FitConfig  # the settings
    execution: Execution
    terms: Terms
    columns: Columns
    ratings: DataFrame
    features: dict[Who, pa.Table]  # side features


@dataclass(frozen=True)
class ReadyFit(Generic[M]):
    """An engine that holds the ratings, and all that a fit of them needs."""

    engine: SparkEngine
    positives: int
    start: Start[Any] | None  # if not where the configuration says
    checkpointing: Checkpointing[Any] | None
    builder: ModelBuilder[M]
    timer: PhaseTimer

    def model(self, fit: CertifiedFit[Any]) -> M:
        """The model of the fit, which has just ended."""
        self.timer.end("fit")
        before = 0 if self.start is None else len(self.start.history)
        self.timer.divide_fit(fit.history[before:])
        return self.builder.model(fit, outlasting=True, seconds=self.timer.seconds)


@contextmanager
def ready_to_fit(
    given: FitInput, model_class: type[M], initial: M | None, counted: SizeEstimate | None, timer: PhaseTimer
) -> Iterator[ReadyFit[M]]:
    """Everything but the fit, from an ``initial`` model if there is one. All of it is released at the end.

    ``counted`` is what an earlier pass over all the ratings has counted.
    """
    config, execution = given.config, given.execution
    with ExitStack() as release:
        chosen = release.enter_context(_exchange(given, counted))
        timer.end("survey")
        checkpoints = _checkpoint_folder(given, chosen, model_class)
        earlier = checkpoints.newest(execution.resume) if checkpoints is not None else None
        survey = chosen.loaded if isinstance(chosen.loaded, RatingSurvey) else None
        sketch = None if survey is None else survey.sketch()  # before the heap is full of blocks
        spark, columns = given.ratings.sparkSession, given.columns
        engine = release.enter_context(engine_over(chosen, spark, config, execution))
        fitted = engine.fitted or sketch
        assert fitted is not None
        if initial is not None:
            fitted = merged_sketch(initial.fitted, fitted)
        ids = {SIDE_OF[who]: engine.ids[SIDE_OF[who]].values for who in given.features}
        features = give_features(engine.features, given.features, columns.ids, ids)
        builder = ModelBuilder(given.ratings, config, columns, chosen, engine, fitted, features, model_class)
        start = _start(initial, earlier, config, engine)
        checkpointing = None
        if checkpoints is not None:
            checkpointing = Checkpointing(checkpoints, execution.checkpoint_interval, builder.model)
        timer.end("blocking")
        yield ReadyFit(engine, chosen.counts.positives, start, checkpointing, builder, timer)


def checked_features(frames: Mapping[Who, DataFrame], ratings: DataFrame, columns: Columns) -> dict[Who, pa.Table]:
    """The tables of side features, collected and checked against the ids of the ratings."""
    return {
        who: collected_features(frame, columns.ids[who], type_of(ratings, columns.ids[who]).simpleString(), who)
        for who, frame in frames.items()
    }


def _exchange(given: FitInput, counted: SizeEstimate | None) -> AbstractContextManager[ChosenExchange]:
    """Where the ratings are fitted, chosen by their counts. ``counted`` is about ``given.ratings``."""
    execution, columns = given.execution, given.columns
    wanted = "driver" if execution.device == "cuda" else execution.exchange
    return choose_exchange(wanted, given.ratings, columns, given.config.form, execution.driver_ratings, counted)


def _checkpoint_folder(given: FitInput, chosen: ChosenExchange, model_class: type[M]) -> CheckpointFolder | None:
    """Where checkpoints of this fit are, if there are to be any."""
    folder = given.execution.checkpoint_dir
    if not folder:
        return None
    digests = {str(who): digest(table, getattr(given.columns, who)) for who, table in given.features.items()}
    subject = subject_of(given.config, chosen.counts, given.terms.prior_split, digests)
    return CheckpointFolder(given.ratings.sparkSession, folder, subject, model_class.load, write_model)


def _start(initial: Any, earlier: Checkpoint | None, config: FitConfig, engine: SparkEngine) -> Start[Any] | None:
    """Where the fit starts, if not where its configuration says: from a checkpoint, or from an initial model."""
    if earlier is not None:
        return resumed(earlier, config, engine)
    return warm_start(initial, config, engine) if initial is not None else None
