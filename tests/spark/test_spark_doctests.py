"""The examples in docstrings that need a Spark session, as ``spark``."""

import doctest

import onebit_spark.estimator


def test_examples(spark):
    result = doctest.testmod(onebit_spark.estimator, extraglobs={"spark": spark})
    assert result.attempted >= 5
    assert result.failed == 0
