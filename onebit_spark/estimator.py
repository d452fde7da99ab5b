"""OneBitCompletion: the pyspark.ml estimator. One path from a DataFrame of ratings to a fitted model."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, TypeVar

import numpy as np
from pyspark import keyword_only
from pyspark.ml import Estimator
from pyspark.ml.param import Param, Params, TypeConverters
from pyspark.ml.util import DefaultParamsReadable, DefaultParamsWritable
from pyspark.sql import DataFrame

from onebit_spark.certification import CertifiedFit, Terms, certified_fit
from onebit_spark.config import COVARIANCES, SOLVERS, FitConfig
from onebit_spark.engines.spark import SparkEngine, require_classic
from onebit_spark.errors import RequestError
from onebit_spark.losses import LOSSES
from onebit_spark.model import OneBitCompletionModel
from onebit_spark.params import PredictionParams
from onebit_spark.persistence import ModelInfo
from onebit_spark.posterior import effective_rank
from onebit_spark.priors import PRIORS
from onebit_spark.ratings import Columns, Survey, survey
from onebit_spark.scoring import factor_table
from onebit_spark.solver import Iteration
from onebit_spark.spectral import STARTS

E = TypeVar("E", bound="OneBitCompletion")

_DEFAULT, _TERMS = FitConfig(), Terms()


def _text(name: str, meaning: str) -> Param[str]:
    return Param(Params._dummy(), name, meaning, typeConverter=TypeConverters.toString)


def _number(name: str, meaning: str) -> Param[float]:
    return Param(Params._dummy(), name, meaning, typeConverter=TypeConverters.toFloat)


def _integer(name: str, meaning: str) -> Param[int]:
    return Param(Params._dummy(), name, meaning, typeConverter=TypeConverters.toInt)


def _flag(name: str, meaning: str) -> Param[bool]:
    return Param(Params._dummy(), name, meaning, typeConverter=TypeConverters.toBoolean)


class OneBitCompletion(
    Estimator[OneBitCompletionModel], PredictionParams, DefaultParamsWritable, DefaultParamsReadable["OneBitCompletion"]
):
    """Completes a binary matrix from some of its entries, by variational Bayes (Cottet and Alquier, 2018).

    The input has one line a rating: a user id, an item id (of any type that can be compared) and a label, ±1, 0/1,
    boolean, or a number with ``threshold``. A cell may be rated several times; every rating counts.
    """

    labelCol = _text("labelCol", "column of the labels: ±1, 0/1, boolean, or a number with threshold")
    threshold = _number("threshold", "a label is positive strictly above this number")
    rank = _integer("rank", "K, the most columns that the factors may have (≥ 1)")
    loss = _text("loss", f"loss: {', '.join(LOSSES)}")
    prior = _text("prior", f"prior of the scales γ: {', '.join(PRIORS)}")
    likelihoodWeight = _number("likelihoodWeight", "κ = λ/n, the weight of one rating (> 0); unset: the loss's own")
    alpha = _number("alpha", "shape α of the prior (> 0); unset: a tenth of the number of users and items")
    beta = _number("beta", "β of the prior (> 0): a rate for gamma, a scale for inverse-gamma; unset: from alpha")
    fitIntercept = _flag("fitIntercept", "whether users and items have intercepts")
    solver = _text("solver", f"solver of the hinge's means: {', '.join(SOLVERS)}")
    covariance = _text("covariance", f"covariance of a row under the logistic loss: {', '.join(COVARIANCES)}")
    start = _text("start", f"start: {', '.join(STARTS)}")
    maxIter = _integer("maxIter", "most iterations (≥ 1)")
    tol = _number("tol", "stop when objective and scores change relatively by no more (≥ 0; 0 runs maxIter)")
    seed = _integer("seed", "seed of the start (≥ 0)")
    numUserBlocks = _integer("numUserBlocks", "blocks of users (≥ 1); unset: by ratings and cores")
    numItemBlocks = _integer("numItemBlocks", "blocks of items (≥ 1); unset: by ratings and cores")
    delta = _number("delta", "δ: a certificate holds with probability 1 − δ (0 < δ < 1)")
    certificateGrid = _integer("certificateGrid", "settings compared on these ratings, each certified at δ/grid (≥ 1)")
    certificatePriorSplit = _number(
        "certificatePriorSplit", "share of the ratings that a prior is learnt from, to certify on the rest; unset: none"
    )

    @keyword_only
    def __init__(
        self, *, userCol: str = "user", itemCol: str = "item", labelCol: str = "label", threshold: float | None = None,
        rank: int = _DEFAULT.rank, loss: str = _DEFAULT.loss, prior: str = _DEFAULT.prior,
        likelihoodWeight: float | None = None, alpha: float | None = None, beta: float | None = None,
        fitIntercept: bool = _DEFAULT.intercepts, solver: str = _DEFAULT.solver, covariance: str = _DEFAULT.covariance,
        start: str = _DEFAULT.start, maxIter: int = _DEFAULT.max_iter, tol: float = _DEFAULT.tol,
        seed: int = _DEFAULT.seed, numUserBlocks: int | None = None, numItemBlocks: int | None = None,
        delta: float = _TERMS.delta, certificateGrid: int = _TERMS.grid, certificatePriorSplit: float | None = None,
        scoreCol: str = "score", stdCol: str = "std", probabilityCol: str = "probability",
        predictionCol: str = "prediction", rawPredictionCol: str = "rawPrediction",
    ) -> None:  # fmt: skip
        super().__init__()
        self._setDefault(
            labelCol="label", rank=_DEFAULT.rank, loss=_DEFAULT.loss, prior=_DEFAULT.prior,
            fitIntercept=_DEFAULT.intercepts, solver=_DEFAULT.solver, covariance=_DEFAULT.covariance,
            start=_DEFAULT.start, maxIter=_DEFAULT.max_iter, tol=_DEFAULT.tol, seed=_DEFAULT.seed,
            delta=_TERMS.delta, certificateGrid=_TERMS.grid,
        )  # fmt: skip
        self._progress: Callable[[Iteration], None] | None = None
        given: dict[str, Any] = self._input_kwargs  # type: ignore[attr-defined]
        self._set(**{name: value for name, value in given.items() if value is not None})

    def setProgress(self: E, callback: Callable[[Iteration], None] | None) -> E:
        """Call ``callback`` after every iteration. Not a Param: it is neither saved nor copied to other sessions."""
        self._progress = callback
        return self

    def _maybe(self, param: Param[Any]) -> Any:
        return self.getOrDefault(param) if self.isDefined(param) else None

    def fitConfig(self) -> FitConfig:
        """The fit's configuration as the in-process interface knows it."""
        return FitConfig(
            loss=self.getOrDefault(self.loss),
            prior=self.getOrDefault(self.prior),
            rank=self.getOrDefault(self.rank),
            likelihood_weight=self._maybe(self.likelihoodWeight),
            alpha=self._maybe(self.alpha),
            beta=self._maybe(self.beta),
            intercepts=self.getOrDefault(self.fitIntercept),
            solver=self.getOrDefault(self.solver),
            start=self.getOrDefault(self.start),
            covariance=self.getOrDefault(self.covariance),
            max_iter=self.getOrDefault(self.maxIter),
            tol=self.getOrDefault(self.tol),
            seed=self.getOrDefault(self.seed),
        )

    def certificateTerms(self) -> Terms:
        """What is settled before the fit so that its certificate holds."""
        return Terms(
            delta=self.getOrDefault(self.delta),
            grid=self.getOrDefault(self.certificateGrid),
            prior_split=self._maybe(self.certificatePriorSplit),
        )

    def _fit(self, dataset: DataFrame) -> OneBitCompletionModel:
        require_classic(dataset.sparkSession)
        config = self.fitConfig()
        blocks = self._maybe(self.numUserBlocks), self._maybe(self.numItemBlocks)
        problems = config.problems() + [
            f"{name} must be at least 1, not {number}"
            for name, number in zip(("numUserBlocks", "numItemBlocks"), blocks, strict=True)
            if number is not None and number < 1
        ]
        terms = self.certificateTerms()
        problems += terms.problems()
        if problems:
            raise RequestError("; ".join(problems))
        columns = Columns(
            self.getUserCol(), self.getItemCol(), self.getOrDefault(self.labelCol), self._maybe(self.threshold)
        )
        clock = _Clock()
        surveyed = survey(dataset, columns)
        clock.lap("survey")
        with SparkEngine.over(dataset, columns, surveyed, blocks) as engine:
            clock.lap("blocking")
            made = certified_fit(engine, config, terms, surveyed.tally.positives, self._progress)
            clock.lap("fit")
            repeats = asdict(engine.repeats)
        rows, cols = made.posterior["rows"], made.posterior["cols"]
        clock.seconds["start"] = clock.seconds["fit"] - sum(step.seconds for step in made.history)
        info = replace(
            _model_info(config, dataset, columns, surveyed, made),
            effective_rank=effective_rank(rows, cols),
            seconds=clock.seconds,
            repeats=repeats,
            n_positive=surveyed.tally.positives,
            fingerprint=surveyed.tally.fingerprint,
        )
        model = OneBitCompletionModel.from_tables(
            dataset.sparkSession,
            info,
            factor_table(surveyed.users.values, rows),
            factor_table(surveyed.items.values, cols),
            certificates=made.certificates,
        )
        return self._copyValues(model._resetUid(self.uid))


class _Clock:
    """Seconds of the phases of a fit."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, phase: str) -> None:
        now = time.perf_counter()
        self.seconds[phase], self._last = now - self._last, now


def _model_info(
    config: FitConfig, dataset: DataFrame, columns: Columns, surveyed: Survey, made: CertifiedFit
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
        effective_rank=0,
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
    )
