"""Params, and their getters and setters.

userCol = text("userCol", "column of the user ids")     a Param; the text is the line of ``explainParams``
rank: Param[int] = declared_param("rank")               the Param of a setting that is declared in ``TABLES``
getRank, setRank = accessors(rank)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from inspect import signature
from typing import Any, TypeVar

from pyspark.ml.param import Param, Params, TypeConverters

from onebit_spark.certificate.certificates import Terms
from onebit_spark.core.config import FitConfig
from onebit_spark.core.execution import Execution
from onebit_spark.core.settings import Setting, declared, param_names
from onebit_spark.input.labels import Labels

T = TypeVar("T")
S = TypeVar("S", bound=Params)

TABLES = (Labels, FitConfig, Execution, Terms)  # where the settings of a fit are declared
CONVERTERS: dict[type, Callable[[Any], Any]] = {
    str: TypeConverters.toString, int: TypeConverters.toInt, float: TypeConverters.toFloat,
    bool: TypeConverters.toBoolean,
}  # fmt: skip


def text(name: str, meaning: str) -> Param[str]:
    return Param(Params._dummy(), name, meaning, typeConverter=TypeConverters.toString)


def number(name: str, meaning: str) -> Param[float]:
    return Param(Params._dummy(), name, meaning, typeConverter=TypeConverters.toFloat)


@cache
def settings_with_params() -> dict[str, Setting]:
    """All settings that are Params, by the name of the Param."""
    return {item.param: item for table in TABLES for item in declared(table).values() if item.param is not None}


@cache
def names_of_params() -> dict[str, str]:
    """Field ─► name of its Param."""
    return {field: param for table in TABLES for field, param in param_names(table).items()}


def declared_param(name: str) -> Param[Any]:
    """The Param of a setting. ``explainParams`` tells its help, and what the value must be."""
    item = settings_with_params()[name]
    meaning, convert = item.described(names_of_params()), CONVERTERS[item.kind]
    if item.choices:
        meaning += f": {', '.join(item.choices)}"
    elif item.check is not None and item.kind is not bool:
        meaning += f"; must {item.demand}"
    return Param(
        Params._dummy(), name, meaning, typeConverter=partial(_word_or, item.words, convert) if item.words else convert
    )


def _word_or(words: tuple[str, ...], convert: Callable[[Any], Any], value: Any) -> Any:
    """A word that is allowed beside numbers, or a number."""
    return value if value in words else convert(value)


def accessors(param: Param[T]) -> tuple[Callable[[Params], T], Callable[[S, T], S]]:
    """Getter and setter of a Param that has a default."""

    def get(params: Params) -> T:
        value: T = params.getOrDefault(param.name)
        return value

    return _named(get, "get", param), _setter(param)


def optional_accessors(param: Param[T]) -> tuple[Callable[[Params], T | None], Callable[[S, T], S]]:
    """Getter and setter of a Param without a default: it is None while it is unset."""

    def get(params: Params) -> T | None:
        return params.getOrDefault(param.name) if params.isDefined(param.name) else None

    return _named(get, "get", param), _setter(param)


def _setter(param: Param[T]) -> Callable[[S, T], S]:
    def set_value(params: S, value: T) -> S:
        return params._set(**{param.name: value})

    return _named(set_value, "set", param)


def _named(function: T, verb: str, param: Param[Any]) -> T:
    """The function with the name and the documentation of a method."""
    function.__name__ = f"{verb}{param.name[0].upper()}{param.name[1:]}"  # type: ignore[attr-defined]
    function.__doc__ = f"{verb.capitalize()} ``{param.name}``: {param.doc}."
    return function


def keyword_defaults(function: Callable[..., None]) -> dict[str, Any]:
    """The defaults of a function's keyword arguments that are not None."""
    parameters = signature(function).parameters.values()
    return {one.name: one.default for one in parameters if one.default is not one.empty and one.default is not None}
