"""The Params of the estimator and of its model, with their getters and setters.

userCol, getUserCol, setUserCol = declared("userCol", str, "column of the user ids")   a Param
maxRank, getMaxRank, setMaxRank = declared("maxRank", int)    documented by its setting
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache, partial, wraps
from inspect import signature
from typing import Any, Self, TypeVar

from pyspark.ml.param import Param, Params, TypeConverters
from pyspark.ml.util import DefaultParamsReader

from onebit_spark.core.confidences import TOWARDS, Call
from onebit_spark.data.locations import Location, explained
from onebit_spark.errors import RequestError
from onebit_spark.model import COLD_START
from onebit_spark.settings import (
    Execution,
    FitConfig,
    Labels,
    Setting,
    Terms,
    documented_parameter,
    param_names,
)
from onebit_spark.settings import declared as settings_of

T = TypeVar("T")
S = TypeVar("S", bound=Params)
F = TypeVar("F", bound=Callable[..., Any])

TABLES = (Labels, FitConfig, Execution, Terms)  # where the settings of a fit are declared
CONVERTERS: dict[type, Callable[[Any], Any]] = {
    str: TypeConverters.toString,
    int: TypeConverters.toInt,
    float: TypeConverters.toFloat,
    bool: TypeConverters.toBoolean,
}
INT_OR_WORD: type[int | str] = int  # of a setting that also accepts words
FLOAT_OR_WORD: type[float | str] = float


def read_params(instance: Any, folder: Location, complaint: str) -> dict[str, Any]:
    """Set the uid and the Params that pyspark.ml saved in a folder. Returns all that it saved."""
    try:
        with explained(complaint):
            saved: dict[str, Any] = DefaultParamsReader.loadMetadata(folder.uri, folder.spark)
        instance._resetUid(saved["uid"])
        DefaultParamsReader.getAndSetParams(instance, saved)
    except (AssertionError, AttributeError, LookupError, TypeError, json.JSONDecodeError) as error:
        raise RequestError(f"{complaint}: {type(error).__name__} {error}") from None
    return saved


@cache
def settings_with_params() -> dict[str, Setting]:
    return {
        item.param: item
        for table in TABLES
        for item in settings_of(table).values()
        if item.param is not None
    }


@cache
def names_of_params() -> dict[str, str]:
    return {field: param for table in TABLES for field, param in param_names(table).items()}


def declared(
    name: str, kind: type[T], meaning: str | None = None
) -> tuple[Param[T], Callable[[Params], T], Callable[[S, T], S]]:
    """A Param that has a default, with its getter and setter.

    Without a ``meaning`` it is that of a setting.
    """
    return _methods(name, kind, meaning)


def optional(
    name: str, kind: type[T], meaning: str | None = None
) -> tuple[Param[T], Callable[[Params], T | None], Callable[[S, T], S]]:
    """As ``declared``, but without a default: it is None while it is unset."""
    return _methods(name, kind, meaning)


def _methods(
    name: str, kind: type, meaning: str | None
) -> tuple[Param[Any], Callable[..., Any], Callable[..., Any]]:
    """A Param with its getter and setter.

    ``explainParams`` prints its meaning, and what the value must be.
    """
    convert = CONVERTERS[kind]
    if meaning is None:
        item = settings_with_params()[name]
        meaning = item.described(names_of_params())
        convert = CONVERTERS[item.kind]
        if item.choices:
            meaning += f": {', '.join(item.choices)}"
        elif item.check is not None and item.kind is not bool:
            meaning += f"; must {item.demand}"
        if item.words:
            convert = partial(_word_or, item.words, convert)
    param: Param[Any] = Param(Params._dummy(), name, meaning, typeConverter=convert)

    def get(params: Params) -> Any:
        return params.getOrDefault(name) if params.isDefined(name) else None

    def set_value(params: S, value: Any) -> S:
        return params._set(**{name: value})

    return param, _named(get, "get", param), _named(set_value, "set", param)


def _word_or(words: tuple[str, ...], convert: Callable[[Any], Any], value: Any) -> Any:
    return value if value in words else convert(value)


def _named(function: F, verb: str, param: Param[Any]) -> F:
    function.__name__ = f"{verb}{param.name[0].upper()}{param.name[1:]}"
    function.__doc__ = f"{verb.capitalize()} ``{param.name}``: {param.doc}."
    return function


def keyword_only(constructor: F) -> F:
    """As pyspark's: the arguments are kept in ``_input_kwargs``."""

    @wraps(constructor)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> None:
        if args:
            raise TypeError(f"{type(self).__name__} takes keyword arguments only")
        self._input_kwargs = kwargs
        constructor(self, **kwargs)

    return wrapper  # type: ignore[return-value]


def documented_params(constructor: Callable[..., None]) -> str:
    """The section ``Parameters`` of the constructor, whose keyword arguments are Params."""
    lines = []
    for name in list(signature(constructor).parameters)[1:]:
        item = settings_with_params().get(name)
        meaning = getattr(FitParams, name).doc
        lines += (
            item.documented(name, names_of_params())
            if item
            else documented_parameter(name, "str", meaning)
        )
    return "\n".join(["Parameters", "----------", *lines])


class PredictionParams(Params):
    userCol, getUserCol, setUserCol = declared("userCol", str, "column of the user ids")
    itemCol, getItemCol, setItemCol = declared("itemCol", str, "column of the item ids")
    scoreCol, getScoreCol, setScoreCol = declared(
        "scoreCol", str, "output column of the score E[L]·E[R] (+ intercepts); empty: omitted"
    )
    stdCol, getStdCol, setStdCol = declared(
        "stdCol",
        str,
        "output column of the score's spread in an approximate posterior, no error bar; empty: "
        "omitted",
    )
    probabilityCol, getProbabilityCol, setProbabilityCol = declared(
        "probabilityCol",
        str,
        "output column of the probability of a positive label; empty: omitted",
    )
    predictionCol, getPredictionCol, setPredictionCol = declared(
        "predictionCol", str, "output column of the predicted label, as a double; empty: omitted"
    )
    rawPredictionCol, getRawPredictionCol, setRawPredictionCol = declared(
        "rawPredictionCol", str, "output column of the score, for evaluators; empty: omitted"
    )
    coldStartStrategy, getColdStartStrategy, setColdStartStrategy = declared(
        "coldStartStrategy",
        str,
        "pairs with an unknown id: prior (predict from the prior), drop (leave out), nan",
    )

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(
            userCol="user",
            itemCol="item",
            scoreCol="score",
            stdCol="std",
            probabilityCol="probability",
            predictionCol="prediction",
            rawPredictionCol="rawPrediction",
            coldStartStrategy="prior",
        )

    def _set_given(self, **params: Any) -> Self:
        return self._set(**{name: value for name, value in params.items() if value is not None})

    def coldStartProblems(self) -> list[str]:
        value = self.getColdStartStrategy()
        return (
            []
            if value in COLD_START
            else [f"coldStartStrategy must be one of {', '.join(COLD_START)}, not {value!r}"]
        )


class FitParams(PredictionParams):
    """The Params of a fit, one per setting of ``TABLES``: written out, so that readers and type
    checkers see them.

    A getter of a Param that is unset and has no default returns None.
    """

    labelCol, getLabelCol, setLabelCol = declared("labelCol", str)
    ratingCol, getRatingCol, setRatingCol = optional("ratingCol", str)
    threshold, getThreshold, setThreshold = optional("threshold", float)
    weightCol, getWeightCol, setWeightCol = optional("weightCol", str)
    loss, getLoss, setLoss = declared("loss", str)
    prior, getPrior, setPrior = declared("prior", str)
    rank, getRank, setRank = declared("rank", INT_OR_WORD)
    maxRank, getMaxRank, setMaxRank = declared("maxRank", int)
    likelihoodWeight, getLikelihoodWeight, setLikelihoodWeight = optional(
        "likelihoodWeight", FLOAT_OR_WORD
    )
    alpha, getAlpha, setAlpha = optional("alpha", float)
    beta, getBeta, setBeta = optional("beta", float)
    fitIntercept, getFitIntercept, setFitIntercept = declared("fitIntercept", bool)
    implicitFeatures, getImplicitFeatures, setImplicitFeatures = declared("implicitFeatures", bool)
    solver, getSolver, setSolver = declared("solver", str)
    covariance, getCovariance, setCovariance = declared("covariance", str)
    maxIter, getMaxIter, setMaxIter = declared("maxIter", int)
    tol, getTol, setTol = declared("tol", float)
    seed, getSeed, setSeed = declared("seed", int)
    numUserBlocks, getNumUserBlocks, setNumUserBlocks = optional("numUserBlocks", int)
    numItemBlocks, getNumItemBlocks, setNumItemBlocks = optional("numItemBlocks", int)
    exchange, getExchange, setExchange = declared("exchange", str)
    device, getDevice, setDevice = declared("device", str)
    driverRatings, getDriverRatings, setDriverRatings = optional("driverRatings", int)
    checkpointDir, getCheckpointDir, setCheckpointDir = optional("checkpointDir", str)
    checkpointInterval, getCheckpointInterval, setCheckpointInterval = declared(
        "checkpointInterval", int
    )
    resume, getResume, setResume = declared("resume", bool)
    delta, getDelta, setDelta = declared("delta", float)
    certificateGrid, getCertificateGrid, setCertificateGrid = declared("certificateGrid", int)

    _input_kwargs: dict[str, Any]

    @keyword_only
    def __init__(
        self,
        *,
        userCol: str = "user",
        itemCol: str = "item",
        scoreCol: str = "score",
        stdCol: str = "std",
        probabilityCol: str = "probability",
        predictionCol: str = "prediction",
        rawPredictionCol: str = "rawPrediction",
        coldStartStrategy: str = "prior",
        labelCol: str = "label",
        ratingCol: str | None = None,
        threshold: float | None = None,
        weightCol: str | None = None,
        loss: str = "logistic",
        prior: str = "inverse-gamma",
        rank: int | str = "auto",
        maxRank: int = 64,
        likelihoodWeight: float | str | None = None,
        alpha: float | None = None,
        beta: float | None = None,
        fitIntercept: bool = True,
        implicitFeatures: bool = True,
        solver: str = "mm",
        covariance: str = "full",
        maxIter: int = 100,
        tol: float = 1e-05,
        seed: int = 0,
        numUserBlocks: int | None = None,
        numItemBlocks: int | None = None,
        exchange: str = "auto",
        device: str = "cpu",
        driverRatings: int | None = None,
        checkpointDir: str | None = None,
        checkpointInterval: int = 10,
        resume: bool = False,
        delta: float = 0.05,
        certificateGrid: int = 1,
    ) -> None:
        super().__init__()
        arguments = list(signature(FitParams.__init__).parameters.values())[1:]
        self._setDefault(**{one.name: one.default for one in arguments if one.default is not None})
        self._set_given(**self._input_kwargs)


FitParams.__init__.__doc__ = documented_params(FitParams.__init__)


class AnswerParams(PredictionParams):
    """Params of a model with selective certificates or certified precisions."""

    answeredCol, getAnsweredCol, setAnsweredCol = declared(
        "answeredCol",
        str,
        "output column: whether the model answers the pair, with a certified error rate; empty: "
        "omitted",
    )
    maxError, getMaxError, setMaxError = optional(
        "maxError",
        float,
        "the certified error rate of answeredCol; unset: the first that was requested",
    )
    positiveCol, getPositiveCol, setPositiveCol = declared(
        "positiveCol",
        str,
        "output column: whether the pair is called positive, with a certified precision",
    )
    negativeCol, getNegativeCol, setNegativeCol = declared(
        "negativeCol",
        str,
        "output column: whether the pair is called negative, with a certified precision",
    )
    minPrecision, getMinPrecision, setMinPrecision = optional(
        "minPrecision",
        str,
        "the certified precision of positiveCol, such as 0.8, or of negativeCol, such as "
        "negative:0.99; several: 0.8,negative:0.99; unset: the first that were requested",
    )

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(answeredCol="answered", positiveCol="positive", negativeCol="negative")

    def callColumns(self) -> dict[Call, str]:
        names = self.getAnsweredCol(), self.getPositiveCol(), self.getNegativeCol()
        return dict(zip(TOWARDS, names, strict=True))
