"""Makers of Params, one per type of value. Each takes a name and a line for ``explainParams``."""

from __future__ import annotations

from pyspark.ml.param import Param, Params, TypeConverters


def text(name: str, meaning: str) -> Param[str]:
    return Param(Params._dummy(), name, meaning, typeConverter=TypeConverters.toString)


def number(name: str, meaning: str) -> Param[float]:
    return Param(Params._dummy(), name, meaning, typeConverter=TypeConverters.toFloat)


def integer(name: str, meaning: str) -> Param[int]:
    return Param(Params._dummy(), name, meaning, typeConverter=TypeConverters.toInt)


def flag(name: str, meaning: str) -> Param[bool]:
    return Param(Params._dummy(), name, meaning, typeConverter=TypeConverters.toBoolean)
