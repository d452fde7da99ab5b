"""OneBitCompletion: the pyspark.ml estimator. One path from a DataFrame of ratings to a fitted model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Self, TypeVar

from pyspark.ml import Estimator
from pyspark.ml.util import MLReadable, MLWritable
from pyspark.sql import DataFrame

from onebit_spark.certificate.certified_fit import certified_fit
from onebit_spark.core.config import FitConfig, Labels, Terms
from onebit_spark.core.execution import Execution, device_problems
from onebit_spark.core.fitted_features import Who
from onebit_spark.core.settings import param_names
from onebit_spark.core.solver import Iteration, PhaseTimer
from onebit_spark.errors import refuse
from onebit_spark.input.batches import SizeEstimate
from onebit_spark.input.rating_checks import Columns
from onebit_spark.input.ratings import with_weight
from onebit_spark.ml.fit_params import FitParams
from onebit_spark.ml.fit_run import FitInput, checked_features, ready_to_fit
from onebit_spark.ml.params import refuse_removed
from onebit_spark.ml.persistence import EstimatorReader, EstimatorWriter
from onebit_spark.model import OneBitCompletionModel

S = TypeVar("S", Labels, FitConfig, Execution, Terms)


class OneBitCompletion(Estimator[OneBitCompletionModel], FitParams, MLWritable, MLReadable["OneBitCompletion"]):
    """Completes a binary matrix from some of its entries, by variational Bayes (Cottet and Alquier, 2018).

    The input has one line per rating: a user id, an item id (of any type that can be compared) and a label, ±1, 0/1,
    boolean, or a number with ``threshold``. A cell may be rated several times; every rating counts. The arguments of
    the constructor are the Params.

    Examples
    --------

    >>> ratings = spark.createDataFrame(
    ...     [("ann", "tea", 5), ("ann", "rum", 1), ("bob", "tea", 4), ("bob", "rum", 2), ("eve", "tea", 5)],
    ...     "user string, item string, rating int",
    ... )
    >>> model = OneBitCompletion(ratingCol="rating", threshold=3, rank=1, maxIter=5, tol=0).fit(ratings)
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
        """Start the fit from a model's posterior instead of the spectral start. Not a Param: it is not saved.

        Rank, loss, intercepts and covariance must be the model's; ids that it does not know start at its prior.
        """
        self._initial = model
        return self

    def setUserFeatures(self, features: DataFrame | None) -> Self:
        """Side features of the users: the column ``userCol``, and columns of any kind. Not a Param.

        Numbers and booleans, strings, arrays of them and pyspark.ml Vectors are used (docs/MATH.md, §15). One line per
        user. Users without a line have the prior of the others. Users without ratings are predicted from their line.
        They are saved with the estimator. One that was loaded reads them from its folder.
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
        return fit_counted(self, dataset)

    def _check_request(self) -> None:
        """Refuse what does not go together, all at once."""
        problems = self.problems()
        if self._initial is not None:
            problems += [f"{name} does not go with an initial model" for name in self.fromTheBeginning()]
        refuse(problems)

    # ---- the Params as settings --------------------------------------------------------------------------------------

    def setNumBlocks(self, value: int) -> Self:
        """Set both numUserBlocks and numItemBlocks, as in ALS."""
        return self._set(numUserBlocks=value, numItemBlocks=value)

    def setParams(self, **params: Any) -> Self:
        """Set Params by the names that the constructor knows; None leaves one as it is."""
        refuse_removed(params)
        unknown = [name for name in params if not self.hasParam(name)]
        if unknown:
            raise TypeError(f"OneBitCompletion has no Param {', '.join(unknown)}")
        return self._set_given(**params)

    def fitConfig(self) -> FitConfig:
        """What to fit, as a ``FitConfig``."""
        return self._chosen(FitConfig)

    def execution(self) -> Execution:
        """How the fit is run."""
        return self._chosen(Execution)

    def certificateTerms(self) -> Terms:
        """The terms of the certificates, which must be decided before the fit."""
        return self._chosen(Terms)

    def columns(self) -> Columns:
        """The input columns, and how a number becomes a label."""
        return Columns(
            self.getUserCol(),
            self.getItemCol(),
            self.getRatingCol() or self.getLabelCol(),
            self.getThreshold(),
            self.getWeightCol() or None,
        )

    def problems(self) -> list[str]:
        """All problems with the Params, in words; an empty list if there are none."""
        tables = (self._chosen(Labels), self.fitConfig(), self.execution(), self.certificateTerms())
        problems = [problem.in_words(param_names(type(table))) for table in tables for problem in table.problems()]
        if not problems:
            lacking = device_problems(self.fitConfig(), self.execution())
            problems = [problem.in_words(param_names(Execution)) for problem in lacking]
        if self.isSet(self.ratingCol) and self.isSet(self.labelCol):
            problems.append(
                f"ratingCol {self.getRatingCol()!r} and labelCol {self.getLabelCol()!r} name the same thing: set one"
            )
        names = self.columns()
        if len({names.user, names.item, names.label}) < 3:
            problems.append("userCol, itemCol and labelCol (or ratingCol) must name three different columns")
        return problems + self.coldStartProblems()

    def fromTheBeginning(self) -> list[str]:
        """The Params that are set and that need a fit from the beginning on all ratings."""
        chosen = {"certificatePriorSplit": self.getCertificatePriorSplit(), "checkpointDir": self.getCheckpointDir()}
        return [name for name, value in chosen.items() if value is not None]

    def _chosen(self, table: type[S]) -> S:
        """The values of the Params as the settings of a table."""
        values: dict[str, Any] = {
            name: self.getOrDefault(param) if self.isDefined(param) else None
            for name, param in param_names(table).items()
        }
        return table(**values)

    # ---- the folder --------------------------------------------------------------------------------------------------

    def write(self) -> EstimatorWriter:
        others = {"the initial model": self._initial, "the progress callback": self._progress}
        return EstimatorWriter(self, self._features, [name for name, other in others.items() if other is not None])

    @classmethod
    def read(cls) -> EstimatorReader:
        return EstimatorReader(cls)


def fit_counted(
    estimator: OneBitCompletion, dataset: DataFrame, counted: SizeEstimate | None = None
) -> OneBitCompletionModel:
    """``estimator.fit(dataset)``. ``counted``: by an earlier pass over these ratings. They are the same since."""
    estimator._check_request()
    timer, columns, execution = PhaseTimer(), estimator.columns(), estimator.execution()
    ratings = with_weight(dataset, columns)
    features = checked_features(estimator._features, ratings, columns)
    given = FitInput(estimator.fitConfig(), execution, estimator.certificateTerms(), columns, ratings, features)
    with ready_to_fit(given, OneBitCompletionModel, estimator._initial, counted, timer) as ready:
        fit = certified_fit(
            ready.engine,
            given.config,
            given.terms,
            ready.positives,
            estimator._progress,
            ready.start,
            ready.checkpointing,
        )
        model = ready.model(fit)
    return estimator._copyValues(model._resetUid(estimator.uid))
