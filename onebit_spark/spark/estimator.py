"""OneBitCompletion: the pyspark.ml estimator and its folder. One path from a DataFrame of ratings
to a fitted model.

ESTIMATOR/metadata/      pyspark.ml's own: class, uid, Params; whose side features there are
ESTIMATOR/userFeatures/  Parquet, the side features as they were given
ESTIMATOR/itemFeatures/
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Any, Self, TypeVar

from pyspark.ml import Estimator
from pyspark.ml.util import (
    DefaultParamsReader,
    DefaultParamsWriter,
    MLReadable,
    MLReader,
    MLWritable,
    MLWriter,
)
from pyspark.sql import DataFrame, SparkSession

from onebit_spark.core.fit_state import FitState
from onebit_spark.core.posterior import MODEL_VECTORS, RowPosterior
from onebit_spark.core.setup import form_of
from onebit_spark.core.solver import Iteration, PhaseTimer
from onebit_spark.data.locations import ESTIMATOR, Location, explained, replace_folder
from onebit_spark.data.ratings import CollectedRatings, Columns, SizeEstimate
from onebit_spark.engines.spark.columns import (
    check_columns,
    collected_features,
    type_of,
    with_weight,
)
from onebit_spark.engines.spark.engine import (
    adopt_factors,
    factor_schema,
    factors_of,
    load_ratings,
    open_state,
)
from onebit_spark.errors import RequestError, refuse
from onebit_spark.fit import fit_model
from onebit_spark.fitting.task import FitTask, ModelParts
from onebit_spark.in_process import driver_state
from onebit_spark.model_info import DIRECTIONS, MEASURED, METADATA, SIDE_OF, ModelInfo
from onebit_spark.records import Fields
from onebit_spark.settings import (
    Execution,
    FitConfig,
    Labels,
    Terms,
    Who,
    device_problems,
    param_names,
)
from onebit_spark.spark.model import OneBitCompletionModel, read_parquet, write_model
from onebit_spark.spark.params import FitParams, read_params

log = logging.getLogger("onebit_spark")

SIDE_FEATURES = "sideFeatures"  # in an estimator's metadata

S = TypeVar("S", Labels, FitConfig, Execution, Terms)


class OneBitCompletion(
    Estimator[OneBitCompletionModel], FitParams, MLWritable, MLReadable["OneBitCompletion"]
):
    """Completes a binary matrix from some of its entries, by variational Bayes (Cottet and Alquier,
    2018).

    The input has one line per rating: a user id, an item id (of most types: docs/local.md) and a
    label, ±1, 0/1, boolean, or a number with ``threshold``. A cell may be rated several times;
    every rating counts. The arguments of the constructor are the Params.

    Examples
    --------

    >>> ratings = spark.createDataFrame(
    ...     [("ann", "tea", 5), ("ann", "rum", 1), ("bob", "tea", 4), ("bob", "rum", 2)],
    ...     "user string, item string, rating int",
    ... )
    >>> completion = OneBitCompletion(ratingCol="rating", threshold=3, rank=1, maxIter=5, tol=0)
    >>> model = completion.fit(ratings)
    >>> model.transform(ratings.limit(0)).columns
    ['user', 'item', 'rating', 'score', 'std', 'probability', 'prediction', 'rawPrediction']
    >>> pair = spark.createDataFrame([("eve", "rum")], "user string, item string")
    >>> model.transform(pair).select("prediction").first()[0]
    0.0
    """

    _progress: Callable[[Iteration], None] | None = None
    _initial: OneBitCompletionModel | None = None
    _features: Mapping[Who, DataFrame] = MappingProxyType({})
    source: str | None = None  # folder of a loaded estimator

    def setProgress(self, callback: Callable[[Iteration], None] | None) -> Self:
        """Call ``callback`` after every iteration. Not a Param: it is not saved."""
        self._progress = callback
        return self

    def setInitialModel(self, model: OneBitCompletionModel | None) -> Self:
        """Start the fit from a model's posterior instead of the spectral start.

        Not a Param: it is not saved.

        Rank, loss, intercepts and covariance must be the model's; ids that it does not know start
        at its prior.
        """
        self._initial = model
        return self

    def setUserFeatures(self, features: DataFrame | None) -> Self:
        """Side features of the users: the column ``userCol``, and columns of any kind. Not a Param.

        Numbers and booleans, strings, arrays of them and pyspark.ml Vectors are used (docs/MATH.md,
        §15). One line per user. Users without a line have the prior of the others. Users without
        ratings are predicted from their line. They are saved with the estimator. One that was
        loaded reads them from its folder.
        """
        return self._set_features("user", features)

    def setItemFeatures(self, features: DataFrame | None) -> Self:
        """Side features of the items, as ``setUserFeatures``."""
        return self._set_features("item", features)

    def _set_features(self, who: Who, features: DataFrame | None) -> Self:
        others = {name: frame for name, frame in self._features.items() if name != who}
        self._features = others if features is None else {**others, who: features}
        return self

    def _fit(self, dataset: DataFrame) -> OneBitCompletionModel:
        problems = self.problems()
        if self._initial is not None and self.isDefined("checkpointDir"):
            problems.append("checkpointDir does not go with an initial model")
        refuse(problems)
        model = fit_ratings(
            dataset,
            self.columns(),
            self.fitConfig(),
            self.execution(),
            self.certificateTerms(),
            self._features,
            self._progress,
            self._initial,
        )
        return self._copyValues(model._resetUid(self.uid))

    # ---- the Params as settings -----------------------------------------------------------------

    def setNumBlocks(self, value: int) -> Self:
        """Set both numUserBlocks and numItemBlocks, as in ALS."""
        return self._set(numUserBlocks=value, numItemBlocks=value)

    def setParams(self, **params: Any) -> Self:
        """Set Params by the names that the constructor knows; None leaves one as it is."""
        unknown = [name for name in params if not self.hasParam(name)]
        if unknown:
            raise TypeError(f"OneBitCompletion has no Param {', '.join(unknown)}")
        return self._set_given(**params)

    def fitConfig(self) -> FitConfig:
        return self._chosen(FitConfig)

    def execution(self) -> Execution:
        return self._chosen(Execution)

    def certificateTerms(self) -> Terms:
        """The terms of the certificates, which must be decided before the fit."""
        return self._chosen(Terms)

    def columns(self) -> Columns:
        """The input columns, and how a number becomes a label."""
        label = self.getRatingCol() or self.getLabelCol()
        return Columns(
            self.getUserCol(),
            self.getItemCol(),
            label,
            self.getThreshold(),
            self.getWeightCol() or None,
        )

    def problems(self) -> list[str]:
        """All problems with the Params, in words; an empty list if there are none."""
        tables = (self._chosen(Labels), self.fitConfig(), self.execution(), self.certificateTerms())
        problems = [
            problem.in_words(param_names(type(table)))
            for table in tables
            for problem in table.problems()
        ]
        if not problems:
            lacking = device_problems(self.fitConfig(), self.execution())
            problems = [problem.in_words(param_names(Execution)) for problem in lacking]
        if self.isSet(self.ratingCol) and self.isSet(self.labelCol):
            problems.append(
                f"ratingCol {self.getRatingCol()!r} and labelCol {self.getLabelCol()!r} name the "
                "same thing: set one"
            )
        names = self.columns()
        if len({names.user, names.item, names.label}) < 3:
            problems.append(
                "userCol, itemCol and labelCol (or ratingCol) must name three different columns"
            )
        return problems + self.coldStartProblems()

    def _chosen(self, table: type[S]) -> S:
        """The values of the Params as the settings of a table."""
        values: Fields = {
            name: self.getOrDefault(param) if self.isDefined(param) else None
            for name, param in param_names(table).items()
        }
        return table(**values)

    # ---- the folder -----------------------------------------------------------------------------

    def write(self) -> EstimatorWriter:
        others = {"the initial model": self._initial, "the progress callback": self._progress}
        return EstimatorWriter(
            self, self._features, [name for name, other in others.items() if other is not None]
        )

    @classmethod
    def read(cls) -> EstimatorReader:
        return EstimatorReader(cls)


class EstimatorWriter(MLWriter):
    """``OneBitCompletion.write()``.

    The folder appears whole or not at all. A warning names what is ``unsaved``.
    """

    def __init__(
        self, estimator: Any, features: Mapping[Who, DataFrame], unsaved: Sequence[str]
    ) -> None:
        super().__init__()
        self._estimator = estimator
        self._features = features
        self._unsaved = unsaved

    def save(self, path: str | os.PathLike[str]) -> None:
        spark = self.sparkSession
        if self._features and Location(spark, path).uri == self._estimator.source:
            raise RequestError(
                f"the estimator was loaded from {path} and may still read its side features "
                "there: save it elsewhere"
            )
        with replace_folder(spark, path, ESTIMATOR, self.shouldOverwrite) as folder:
            for who, frame in self._features.items():
                with explained(f"cannot save the {who} features"):
                    frame.write.parquet((Location(spark, folder) / f"{who}Features").uri)
            DefaultParamsWriter.saveMetadata(
                self._estimator, folder, spark, {SIDE_FEATURES: list(self._features)}
            )
        if self._unsaved:
            log.warning(
                "not saved in %s: %s (set again after loading)", path, " and ".join(self._unsaved)
            )


class EstimatorReader(MLReader[Any]):
    """``OneBitCompletion.read()``. If the folder has something else, the error says what it is."""

    def __init__(self, estimator_class: type[Any]) -> None:
        super().__init__()
        self._class = estimator_class

    def load(self, path: str | os.PathLike[str]) -> Any:
        folder = Location(self.sparkSession, path)
        if (folder / METADATA).exists():
            raise RequestError(
                f"{path} holds a fitted model: load it with OneBitCompletionModel.load"
            )
        if not ESTIMATOR.is_own(folder):
            what = "nothing that pyspark.ml saved"
            if (folder / "metadata").is_folder():
                with explained(f"cannot load {folder.uri}: metadata/"):
                    found = DefaultParamsReader.loadMetadata(folder.uri, folder.spark)["class"]
                what = f"a {found.rpartition('.')[2]}"
            raise RequestError(f"cannot load {path}: it holds {what}, not an OneBitCompletion")
        estimator = self._class()
        saved = read_params(estimator, folder, f"cannot load {path}: metadata/")
        for who in saved[SIDE_FEATURES]:
            with explained(f"cannot load {path}: {who}Features/"):
                frame = read_parquet(folder / f"{who}Features")
            (estimator.setUserFeatures if who == "user" else estimator.setItemFeatures)(frame)
        estimator.source = folder.uri
        return estimator


# ---- the fit -----------------------------------------------------------------------------------


def fit_ratings(
    dataset: DataFrame,
    columns: Columns,
    config: FitConfig,
    execution: Execution,
    terms: Terms,
    features: Mapping[Who, DataFrame] = MappingProxyType({}),
    progress: Callable[[Iteration], None] | None = None,
    initial: OneBitCompletionModel | None = None,
    counted: SizeEstimate | None = None,
) -> OneBitCompletionModel:
    """The model of a DataFrame of ratings, under settings that were checked.

    The estimator and the jobs call it.

    ``counted`` is the size of the ratings, if an earlier pass over them has counted it. All caches,
    broadcasts and files are released at the end, also after an error.
    """
    timer = PhaseTimer()
    ratings = with_weight(dataset, columns)
    spark = ratings.sparkSession
    wanted = "driver" if execution.device == "cuda" else execution.exchange
    check_columns(ratings, columns)
    id_types = {who: type_of(ratings, name).simpleString() for who, name in columns.ids.items()}
    tables = {
        who: collected_features(frame, columns.ids[who], id_types[who], who)
        for who, frame in features.items()
    }
    with load_ratings(
        wanted, ratings, columns, form_of(config), execution.driver_ratings, counted
    ) as (
        exchange,
        loaded,
    ):
        timer.end("survey")
        log.info("exchange: %s (%s)", exchange.exchange, exchange.reason)
        task = FitTask[OneBitCompletionModel](
            config,
            terms,
            columns,
            id_types,
            tables,
            execution,
            asdict(exchange),
            initial,
        )
        models = SparkModels(spark)
        if isinstance(loaded, CollectedRatings):
            here = driver_state(loaded, config, execution.device)
            return fit_model(task, loaded, models, here, progress, timer)
        state = open_state(spark, exchange.exchange, loaded, config, execution)
        return fit_model(task, loaded, models, state, progress, timer)


class SparkModels:
    """Models on Spark: see ``fitting.task.ModelStore``. A finished model outlives the engine."""

    setting_names: Mapping[str, str] | None = None  # the Params

    def __init__(self, spark: SparkSession) -> None:
        self.spark: SparkSession | None = spark

    def make(self, parts: ModelParts[Any]) -> OneBitCompletionModel:
        users = self._factors(parts, "user")
        items = self._factors(parts, "item")
        model = OneBitCompletionModel(parts.info, users, items, parts.certificate)
        assert parts.sketch is not None
        return model.fittedOn(parts.sketch)

    def _factors(self, parts: ModelParts[Any], who: Who) -> DataFrame:
        fit = parts.fit
        side = SIDE_OF[who]
        rows = fit.posterior[side]
        measured = None if fit.measured is None else fit.measured[side]
        present = [DIRECTIONS] if rows.form.vectors > MODEL_VECTORS else []
        if measured is not None:
            present += MEASURED
        schema = factor_schema(parts.info, who, present)
        newcomers = parts.newcomers.get(side)
        finished = bool(parts.info.seconds)
        assert self.spark is not None
        tables = {"rows": rows} if measured is None else {"rows": rows, "measured": measured}
        return factors_of(self.spark, parts.state, side, tables, schema, newcomers, finished)

    def info(self, model: OneBitCompletionModel) -> ModelInfo:
        return model.info

    def load(self, path: str) -> OneBitCompletionModel:
        return OneBitCompletionModel.load(path)

    def save(self, model: OneBitCompletionModel, path: str) -> None:
        write_model(model, path)

    def adopt(
        self,
        state: FitState[Any],
        model: OneBitCompletionModel,
        who: Who,
        prior: RowPosterior,
        precision: str,
    ) -> Any:
        return adopt_factors(state, model.factors.of(who), SIDE_OF[who], prior, precision)
