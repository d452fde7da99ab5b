"""Around a fit on Spark: choose the exchange, make the engine, prepare its start; and build the model of the fit."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, Generic, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame

from onebit_spark.certificate.certificates import Terms, certificate_document
from onebit_spark.certificate.certified_fit import CertifiedFit
from onebit_spark.core.config import FitConfig
from onebit_spark.core.execution import Execution
from onebit_spark.core.factor_tables import prior_row
from onebit_spark.core.fitted_features import SIDE_OF, FitFeatures, Who, digest, give_features
from onebit_spark.core.losses import SIDES, Side
from onebit_spark.core.model_info import ModelInfo
from onebit_spark.core.posterior import MODEL_VECTORS
from onebit_spark.core.sketch import CellSketch, merged_sketch
from onebit_spark.core.solver import PhaseTimer, Start
from onebit_spark.engines.exchange import ChosenExchange, choose_exchange, engine_over
from onebit_spark.engines.spark_engine import SparkEngine
from onebit_spark.engines.tables import factor_schema
from onebit_spark.engines.validation import Validation, check_validation, measure_for
from onebit_spark.input.collect import SizeEstimate
from onebit_spark.input.columns import type_of
from onebit_spark.input.features import collected_features
from onebit_spark.input.prepared_ratings import RatingsFrame, RatingsSource, prepared_for
from onebit_spark.input.rating_checks import Columns
from onebit_spark.input.survey import RatingSurvey
from onebit_spark.ml.checkpoint import Checkpoint, CheckpointFolder, Checkpointing, resumed, subject_of, warm_start
from onebit_spark.ml.fitted_model import SparkModel
from onebit_spark.ml.freshness import sketch_of
from onebit_spark.ml.persistence import write_model
from onebit_spark.predictor.fit_info import info_of_fit

M = TypeVar("M", bound=SparkModel)

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


@dataclass(frozen=True)
class FitInput:
    """The settings and the ratings of a fit, checked."""

    config: FitConfig  # the settings
    execution: Execution
    terms: Terms
    columns: Columns
    ratings: DataFrame  # all ratings: ``training``, and ``validation`` if there are such
    training: DataFrame  # those that are fitted, and those that choose when the fit ends
    validation: DataFrame | None
    features: dict[Who, pa.Table]  # side features


@dataclass(frozen=True)
class ReadyFit(Generic[M]):
    """An engine that holds the ratings, and all that a fit of them needs."""

    engine: SparkEngine
    positives: int
    start: Start[Any] | None  # if not where the configuration says
    validation: Validation | None
    checkpointing: Checkpointing[Any] | None
    builder: ModelBuilder[M]
    timer: PhaseTimer

    @property
    def watch(self) -> Validation | Checkpointing[Any] | None:
        return self.validation or self.checkpointing

    def model(self, fit: CertifiedFit[Any]) -> M:
        """The model of the fit, which has just ended."""
        timer, validation = self.timer, self.validation
        timer.end("fit")
        before = 0 if self.start is None else len(self.start.history)
        timer.divide_fit(fit.history[before:], validation.seconds if validation is not None else None)
        curve = validation.history if validation is not None else []
        return self.builder.model(fit, outlasting=True, seconds=timer.seconds, validation=curve)


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
        n_validation = 0 if given.validation is None else check_validation(given.validation, given.columns).n
        timer.end("survey")
        checkpoints = _checkpoint_folder(given, chosen, model_class)
        earlier = checkpoints.newest(execution.resume) if checkpoints is not None else None
        sketch = _sketch(given, chosen, n_validation)  # before the heap is full of blocks
        spark, columns = given.ratings.sparkSession, given.columns
        engine = release.enter_context(engine_over(chosen, spark, columns, config, execution, given.validation))
        fitted = engine.fitted or sketch
        assert fitted is not None
        if initial is not None:
            fitted = merged_sketch(initial.fitted, fitted)
        ids = {SIDE_OF[who]: engine.ids[SIDE_OF[who]].values for who in given.features}
        features = give_features(engine.features, given.features, columns.ids, ids)
        builder = ModelBuilder(given.ratings, config, columns, chosen, engine, fitted, features, model_class)
        start = _start(initial, earlier, config, engine)
        checkpointing, validation = None, None
        if checkpoints is not None:
            checkpointing = Checkpointing(checkpoints, execution.checkpoint_interval, builder.model)
        if given.validation is not None:
            unrated = {side: known.coded_unrated() for side, known in features.items()}
            measure = measure_for(given.validation, columns, engine, config.loss, unrated)
            validation = Validation(release.enter_context(measure), engine, execution.patience)
        timer.end("blocking")
        yield ReadyFit(engine, chosen.tally.positives, start, validation, checkpointing, builder, timer)


def checked_features(frames: Mapping[Who, DataFrame], ratings: DataFrame, columns: Columns) -> dict[Who, pa.Table]:
    """The tables of side features, collected and checked against the ids of the ratings."""
    return {
        who: collected_features(frame, columns.ids[who], type_of(ratings, columns.ids[who]).simpleString(), who)
        for who, frame in frames.items()
    }


def _exchange(given: FitInput, counted: SizeEstimate | None) -> AbstractContextManager[ChosenExchange]:
    """Where the ratings are fitted, chosen by their counts. ``counted`` is about ``given.ratings``."""
    execution, columns = given.execution, given.columns
    if given.validation is not None:
        counted = None
    source: RatingsSource = RatingsFrame(given.training, columns)
    if execution.blocks_dir is not None:
        source, counted = prepared_for(given.training, columns, execution.blocks_dir, counted), None
        log.info("ratings: %s", source)
    wanted = "driver" if execution.device == "cuda" else execution.exchange
    return choose_exchange(wanted, source, given.config.form, execution.driver_ratings, counted)


def _checkpoint_folder(given: FitInput, chosen: ChosenExchange, model_class: type[M]) -> CheckpointFolder | None:
    """Where checkpoints of this fit are, if there are to be any."""
    folder = given.execution.checkpoint_dir
    if not folder:
        return None
    digests = {str(who): digest(table, getattr(given.columns, who)) for who, table in given.features.items()}
    subject = subject_of(given.config, chosen.tally, given.terms.prior_split, digests)
    return CheckpointFolder(given.ratings.sparkSession, folder, subject, model_class.load, write_model)


def _sketch(given: FitInput, chosen: ChosenExchange, n_validation: int) -> CellSketch | None:
    """Which cells choose the model, those of the validation included. None: the driver's engine knows."""
    if not isinstance(chosen.loaded, RatingSurvey):
        return None
    whole = sketch_of(given.ratings, given.columns, chosen.tally.n + n_validation) if n_validation else None
    return whole or chosen.loaded.sketch()


def _start(
    initial: SparkModel | None, earlier: Checkpoint | None, config: FitConfig, engine: SparkEngine
) -> Start[Any] | None:
    """Where the fit starts, if not where its configuration says: from a checkpoint, or from an initial model."""
    if earlier is not None:
        return resumed(earlier, config, engine)
    return warm_start(initial, config, engine) if initial is not None else None
