"""Makers of Params, one per type of value. Each takes a name and a line for ``explainParams``."""

from __future__ import annotations

from typing import Any

from pyspark.ml.param import Param, Params, TypeConverters

from onebit_spark.core.config import AUTO


def text(name: str, meaning: str) -> Param[str]:
    return Param(Params._dummy(), name, meaning, typeConverter=TypeConverters.toString)


def number(name: str, meaning: str) -> Param[float]:
    return Param(Params._dummy(), name, meaning, typeConverter=TypeConverters.toFloat)


def integer(name: str, meaning: str) -> Param[int]:
    return Param(Params._dummy(), name, meaning, typeConverter=TypeConverters.toInt)


def flag(name: str, meaning: str) -> Param[bool]:
    return Param(Params._dummy(), name, meaning, typeConverter=TypeConverters.toBoolean)


def number_or_auto(name: str, meaning: str) -> Param[float]:
    return Param(Params._dummy(), name, meaning, typeConverter=_number_or_auto)


def _number_or_auto(value: Any) -> Any:
    return value if value == AUTO else TypeConverters.toFloat(value)
