"""The examples in docstrings that need no Spark session."""

import doctest
import importlib

import pytest


@pytest.mark.parametrize("name", ["in_process", "core.prediction"])
def test_examples(name):
    result = doctest.testmod(importlib.import_module(f"onebit_spark.{name}"), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.attempted > 0
    assert result.failed == 0
