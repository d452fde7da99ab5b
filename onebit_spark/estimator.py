"""OneBitCompletion: the pyspark.ml estimator. One path from a DataFrame of ratings to a fitted model."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from pyspark import keyword_only
from pyspark.ml import Estimator
from pyspark.ml.util import DefaultParamsWriter, MLReadable, MLWritable
from pyspark.sql import DataFrame

from onebit_spark.certificate.certified import CertifiedFit, Terms, certified_fit
from onebit_spark.checkpoint import Checkpoints, subject_of
from onebit_spark.config import FitConfig
from onebit_spark.engines.spark import SparkEngine, require_classic
from onebit_spark.engines.validation import Validation, divided
from onebit_spark.errors import RequestError
from onebit_spark.fitparams import FitParams
from onebit_spark.model import OneBitCompletionModel
from onebit_spark.persistence import EstimatorReader, ModelInfo
from onebit_spark.posterior import effective_rank
from onebit_spark.ratings import Columns, Survey, survey
from onebit_spark.scoring import factor_table
from onebit_spark.solver import Iteration
from onebit_spark.warmstart import warm_start

E = TypeVar("E", bound="OneBitCompletion")

_DEFAULT, _TERMS = FitConfig(), Terms()


class OneBitCompletion(Estimator[OneBitCompletionModel], FitParams, MLWritable, MLReadable["OneBitCompletion"]):
    """Completes a binary matrix from some of its entries, by variational Bayes (Cottet and Alquier, 2018).

    The input has one line a rating: a user id, an item id (of any type that can be compared) and a label, ±1, 0/1,
    boolean, or a number with ``threshold``. A cell may be rated several times; every rating counts.

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

    @keyword_only
    def __init__(
        self, *, userCol: str = "user", itemCol: str = "item", labelCol: str = "label", ratingCol: str | None = None,
        threshold: float | None = None, validationIndicatorCol: str | None = None, patience: int = 3,
        rank: int = _DEFAULT.rank, loss: str = _DEFAULT.loss, prior: str = _DEFAULT.prior,
        likelihoodWeight: float | None = None, alpha: float | None = None, beta: float | None = None,
        fitIntercept: bool = _DEFAULT.intercepts, solver: str = _DEFAULT.solver, covariance: str = _DEFAULT.covariance,
        start: str = _DEFAULT.start, maxIter: int = _DEFAULT.max_iter, tol: float = _DEFAULT.tol,
        seed: int = _DEFAULT.seed, numUserBlocks: int | None = None, numItemBlocks: int | None = None,
        checkpointDir: str | None = None, checkpointInterval: int = 10, resume: bool = False,
        coldStartStrategy: str = "prior",
        delta: float = _TERMS.delta, certificateGrid: int = _TERMS.grid, certificatePriorSplit: float | None = None,
        scoreCol: str = "score", stdCol: str = "std", probabilityCol: str = "probability",
        predictionCol: str = "prediction", rawPredictionCol: str = "rawPrediction",
    ) -> None:  # fmt: skip
        super().__init__()
        self._progress: Callable[[Iteration], None] | None = None
        self._initial: OneBitCompletionModel | None = None
        self.setParams(**self._input_kwargs)  # type: ignore[attr-defined]

    def setParams(self: E, **params: Any) -> E:
        """Set Params by the names that the constructor knows; None leaves one as it is."""
        unknown = [name for name in params if not self.hasParam(name)]
        if unknown:
            raise TypeError(f"OneBitCompletion has no Param {', '.join(unknown)}")
        return self._set(**{name: value for name, value in params.items() if value is not None})

    def setProgress(self: E, callback: Callable[[Iteration], None] | None) -> E:
        """Call ``callback`` after every iteration. Not a Param: it is not saved."""
        self._progress = callback
        return self

    def setInitialModel(self: E, model: OneBitCompletionModel | None) -> E:
        """Start the fit from a model's posterior instead of the spectral start. Not a Param: it is not saved.

        Rank, loss, intercepts and covariance must be the model's; ids that it does not know start at its prior.
        """
        self._initial = model
        return self

    def certificateTerms(self) -> Terms:
        """What is settled before the fit so that its certificate holds."""
        return Terms(
            delta=self.getOrDefault(self.delta),
            grid=self.getOrDefault(self.certificateGrid),
            prior_split=self._maybe(self.certificatePriorSplit),
        )

    def _fit(self, dataset: DataFrame) -> OneBitCompletionModel:
        require_classic(dataset.sparkSession)
        terms = self.certificateTerms()
        problems = self.problems() + terms.problems()
        if terms.prior_split is not None and (self._initial is not None or self.getValidationIndicatorCol()):
            problems.append("certificatePriorSplit goes neither with an initial model nor with validationIndicatorCol")
        if self.getCheckpointDir() and (self._initial is not None or self.getValidationIndicatorCol()):
            problems.append("checkpointDir goes neither with an initial model nor with validationIndicatorCol")
        if self.getResume() and not self.getCheckpointDir():
            problems.append("resume needs a checkpointDir to resume from")
        if problems:
            raise RequestError("; ".join(problems))
        config, columns = self.fitConfig(), self.columns()
        clock = _Clock()
        training, held_out = divided(dataset, self.getValidationIndicatorCol())
        surveyed = survey(training, columns)
        clock.lap("survey")
        model_of = partial(_model, dataset, config, columns, surveyed)
        start, watch = None, None
        if self._initial is not None:
            start = warm_start(self._initial, config, surveyed)
        if folder := self.getCheckpointDir():
            subject = subject_of(config, surveyed, terms.prior_split)
            watch = Checkpoints(dataset.sparkSession, folder, self.getCheckpointInterval(), subject, model_of)
            start = watch.start(config, surveyed, self.getResume())
        blocks = self.getNumUserBlocks(), self.getNumItemBlocks()
        with SparkEngine.over(training, columns, surveyed, blocks) as engine, ExitStack() as release:
            validation = None
            if held_out is not None:
                validation = release.enter_context(
                    Validation.over(held_out, columns, surveyed, engine, config, self.getPatience())
                )
            clock.lap("blocking")
            made = certified_fit(
                engine, config, terms, surveyed.tally.positives, self._progress, start, validation or watch
            )
            clock.lap("fit")
            repeats = asdict(engine.repeats)
        own = made.history[len(start.history) if start is not None else 0 :]
        clock.seconds["start"] = clock.seconds["fit"] - sum(step.seconds for step in own)
        if validation is not None:
            clock.move(validation.seconds, "start", "validation")
        held_out_curve = validation.history if validation is not None else []
        model = model_of(made, seconds=clock.seconds, repeats=repeats, validation=held_out_curve)
        return self._copyValues(model._resetUid(self.uid))

    def write(self) -> DefaultParamsWriter:
        return DefaultParamsWriter(self)

    @classmethod
    def read(cls) -> EstimatorReader:
        return EstimatorReader(cls)


class _Clock:
    """Seconds of the phases of a fit."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, phase: str) -> None:
        now = time.perf_counter()
        self.seconds[phase], self._last = now - self._last, now

    def move(self, seconds: float, phase: str, into: str) -> None:
        """Count these seconds of a phase as another's."""
        self.seconds[phase] -= seconds
        self.seconds[into] = seconds


def _model(
    dataset: DataFrame, config: FitConfig, columns: Columns, surveyed: Survey, made: CertifiedFit, **facts: Any
) -> OneBitCompletionModel:
    """The model of a fit, finished or not; ``facts`` are further fields of its ``info``."""
    users, items = (factor_table(ids.values, made.posterior[side]) for side, ids in surveyed.ids.items())
    info = replace(_model_info(dataset, config, columns, surveyed, made), **facts)
    return OneBitCompletionModel.from_tables(dataset.sparkSession, info, users, items, certificates=made.certificates)


def _model_info(
    dataset: DataFrame, config: FitConfig, columns: Columns, surveyed: Survey, made: CertifiedFit
) -> ModelInfo:
    n_users, n_items = len(surveyed.users), len(surveyed.items)
    prior = config.make_prior(n_users + n_items)
    scales = made.scales
    return ModelInfo(
        parameters={**asdict(config), "likelihood_weight": config.weight, "alpha": prior.alpha, "beta": prior.beta},
        n_ratings=surveyed.tally.n,
        n_users=n_users,
        n_items=n_items,
        objective_history=[step.objective for step in made.history],
        iterations=len(made.history),
        converged=made.converged,
        reason=made.reason,
        effective_rank=effective_rank(made.posterior["rows"], made.posterior["cols"]),
        inverse_gamma=np.asarray(scales.factor).tolist(),
        intercept_prior={
            "mean": scales.mean,
            "mean_variance": scales.mean_variance,
            "user_inverse_gamma": scales.row_intercept,
            "item_inverse_gamma": scales.col_intercept,
        }
        if config.intercepts
        else None,
        label_coding=surveyed.tally.coding,
        threshold=columns.threshold,
        majority=surveyed.tally.majority,
        columns={"user": columns.user, "item": columns.item, "label": columns.label},
        id_types={
            "user": dataset.schema[columns.user].dataType.simpleString(),
            "item": dataset.schema[columns.item].dataType.simpleString(),
        },
        n_positive=surveyed.tally.positives,
        fingerprint=surveyed.tally.fingerprint,
    )
