"""Params with their getters and setters, and those that the estimator and its model share.

userCol, getUserCol, setUserCol = text("userCol", "column of the user ids")      the line of ``explainParams``
rank, getRank, setRank = declared("rank", int)                                   a setting of ``TABLES``
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from inspect import signature
from typing import Any, Self, TypeVar

from pyspark.ml.param import Param, Params, TypeConverters

from onebit_spark.certificate.certificates import Terms
from onebit_spark.core.config import FitConfig
from onebit_spark.core.execution import Execution
from onebit_spark.core.settings import Setting, documented_parameter, param_names
from onebit_spark.core.settings import declared as settings_of
from onebit_spark.input.rating_checks import Labels
from onebit_spark.predictor.fitted_model import COLD_START

T = TypeVar("T")
S = TypeVar("S", bound=Params)
F = TypeVar("F", bound=Callable[..., Any])

TABLES = (Labels, FitConfig, Execution, Terms)  # where the settings of a fit are declared
CONVERTERS: dict[type, Callable[[Any], Any]] = {
    str: TypeConverters.toString, int: TypeConverters.toInt, float: TypeConverters.toFloat,
    bool: TypeConverters.toBoolean,
}  # fmt: skip


@cache
def settings_with_params() -> dict[str, Setting]:
    """All settings that are Params, by the name of the Param."""
    return {item.param: item for table in TABLES for item in settings_of(table).values() if item.param is not None}


@cache
def names_of_params() -> dict[str, str]:
    """Field ─► name of its Param."""
    return {field: param for table in TABLES for field, param in param_names(table).items()}


def text(name: str, meaning: str) -> tuple[Param[str], Callable[[Params], str], Callable[[S, str], S]]:
    """A text that has a default."""
    param: Param[str] = Param(Params._dummy(), name, meaning, typeConverter=TypeConverters.toString)
    return param, _getter(param), _setter(param)


def optional_number(
    name: str, meaning: str
) -> tuple[Param[float], Callable[[Params], float | None], Callable[[S, float], S]]:
    """A number without a default: it is None while it is unset."""
    param: Param[float] = Param(Params._dummy(), name, meaning, typeConverter=TypeConverters.toFloat)
    return param, _optional_getter(param), _setter(param)


def declared(name: str, kind: type[T]) -> tuple[Param[T], Callable[[Params], T], Callable[[S, T], S]]:
    """The Param of a setting that has a default."""
    param: Param[T] = _param(name)
    return param, _getter(param), _setter(param)


def optional(name: str, kind: type[T]) -> tuple[Param[T], Callable[[Params], T | None], Callable[[S, T], S]]:
    """The Param of a setting without a default: it is None while it is unset."""
    param: Param[T] = _param(name)
    return param, _optional_getter(param), _setter(param)


def optional_or_word(
    name: str,
) -> tuple[Param[float | str], Callable[[Params], float | str | None], Callable[[S, float | str], S]]:
    """As ``optional``, a number or one of the words of the setting."""
    param: Param[float | str] = _param(name)
    return param, _optional_getter(param), _setter(param)


def declared_or_word(
    name: str,
) -> tuple[Param[int | str], Callable[[Params], int | str], Callable[[S, int | str], S]]:
    """As ``declared``, a whole number or one of the words of the setting."""
    param: Param[int | str] = _param(name)
    return param, _getter(param), _setter(param)


def _param(name: str) -> Param[Any]:
    """The Param of a setting. ``explainParams`` tells its help, and what the value must be."""
    item = settings_with_params()[name]
    meaning, convert = item.described(names_of_params()), CONVERTERS[item.kind]
    if item.choices:
        meaning += f": {', '.join(item.choices)}"
    elif item.check is not None and item.kind is not bool:
        meaning += f"; must {item.demand}"
    converter = partial(_word_or, item.words, convert) if item.words else convert
    return Param(Params._dummy(), name, meaning, typeConverter=converter)


def _word_or(words: tuple[str, ...], convert: Callable[[Any], Any], value: Any) -> Any:
    return value if value in words else convert(value)


def _getter(param: Param[Any]) -> Callable[[Params], Any]:
    return _named(lambda params: params.getOrDefault(param.name), "get", param)


def _optional_getter(param: Param[Any]) -> Callable[[Params], Any]:
    def get(params: Params) -> Any:
        return params.getOrDefault(param.name) if params.isDefined(param.name) else None

    return _named(get, "get", param)


def _setter(param: Param[Any]) -> Callable[[S, Any], S]:
    def set_value(params: S, value: Any) -> S:
        return params._set(**{param.name: value})

    return _named(set_value, "set", param)


def _named(function: F, verb: str, param: Param[Any]) -> F:
    """The function with the name and the documentation of a method."""
    function.__name__ = f"{verb}{param.name[0].upper()}{param.name[1:]}"
    function.__doc__ = f"{verb.capitalize()} ``{param.name}``: {param.doc}."
    return function


def keyword_defaults(function: Callable[..., None]) -> dict[str, Any]:
    """The defaults of a function's keyword arguments that are not None."""
    parameters = signature(function).parameters.values()
    return {one.name: one.default for one in parameters if one.default is not one.empty and one.default is not None}


def documented_params(params: type[Params], constructor: Callable[..., None]) -> str:
    """The section ``Parameters`` of a constructor whose keyword arguments are Params."""
    lines = []
    for name in list(signature(constructor).parameters)[1:]:
        item, meaning = settings_with_params().get(name), getattr(params, name).doc
        lines += item.documented(name, names_of_params()) if item else documented_parameter(name, "str", meaning)
    return "\n".join(["Parameters", "----------", *lines])


A = TypeVar("A", bound="AnswerParams")


class PredictionParams(Params):
    """The column names that the estimator and its model share."""

    userCol, getUserCol, setUserCol = text("userCol", "column of the user ids")
    itemCol, getItemCol, setItemCol = text("itemCol", "column of the item ids")
    scoreCol, getScoreCol, setScoreCol = text(
        "scoreCol", "output column of the score E[L]·E[R] (+ intercepts); empty: omitted"
    )
    stdCol, getStdCol, setStdCol = text(
        "stdCol", "output column of the score's spread in an approximate posterior, no error bar; empty: omitted"
    )
    probabilityCol, getProbabilityCol, setProbabilityCol = text(
        "probabilityCol", "output column of the probability of a positive label; empty: omitted"
    )
    predictionCol, getPredictionCol, setPredictionCol = text(
        "predictionCol", "output column of the predicted label, as a double; empty: omitted"
    )
    rawPredictionCol, getRawPredictionCol, setRawPredictionCol = text(
        "rawPredictionCol", "output column of the score, for evaluators; empty: omitted"
    )
    coldStartStrategy, getColdStartStrategy, setColdStartStrategy = text(
        "coldStartStrategy", "pairs with an unknown id: prior (predict from the prior), drop (leave out), nan"
    )

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(
            userCol="user", itemCol="item", scoreCol="score", stdCol="std", probabilityCol="probability",
            predictionCol="prediction", rawPredictionCol="rawPrediction", coldStartStrategy="prior",
        )  # fmt: skip

    def _set_given(self, **params: Any) -> Self:
        """Set Params by name; None leaves one as it is."""
        return self._set(**{name: value for name, value in params.items() if value is not None})

    def coldStartProblems(self) -> list[str]:
        """The problem with ``coldStartStrategy``, in words; an empty list if there is none."""
        value = self.getColdStartStrategy()
        return (
            [] if value in COLD_START else [f"coldStartStrategy must be one of {', '.join(COLD_START)}, not {value!r}"]
        )


class AnswerParams(PredictionParams):
    """Params of a model with selective certificates."""

    answeredCol, getAnsweredCol, setAnsweredCol = text(
        "answeredCol",
        "output column: whether the model answers the pair, with a certified error rate; empty: omitted",
    )
    maxError, getMaxError, setMaxError = optional_number(
        "maxError", "the certified error rate of answeredCol; unset: the first that was requested"
    )

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(answeredCol="answered")


PLAIN_NAMES = {
    "scoreCol": "score", "stdCol": "std", "probabilityCol": "probability", "predictionCol": "prediction",
    "rawPredictionCol": "", "answeredCol": "", "coldStartStrategy": "prior",
}  # fmt: skip


def plainly_named(model: A, **names: str) -> A:
    """A copy that predicts all pairs and has the default output columns, or ``names``, instead of its own Params."""
    return model.copy({model.getParam(name): value for name, value in {**PLAIN_NAMES, **names}.items()})
