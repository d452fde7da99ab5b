"""Weights of ratings in a DataFrame: 32-bit floats, positive; a rating of weight 0 is as if it were not there."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from pyspark.sql import Column
from pyspark.sql import functions as F

from onebit_spark.input.columns import quoted


def weight_number(name: str) -> Column:
    """The weight as a 32-bit float. Text that is no number becomes null, and 1e39 infinite."""
    return F.col(quoted(name)).try_cast("double").cast("float")


def bad_weight(name: str) -> Column:
    """Whether a weight is refused. NaN is greater than all numbers in Spark."""
    value = weight_number(name)
    return value.isNull() | (value < 0) | (value >= F.lit(float("inf")))


def not_zero(name: str) -> Column:
    """Whether a rating is there: its weight is not 0. A bad weight is there, to be refused."""
    return F.coalesce(weight_number(name) != 0, F.lit(True))


def bad_weights(weights: NDArray[np.float32]) -> int:
    """The number of weights that are refused; a null is NaN."""
    return int(np.count_nonzero(~((weights > 0) & (weights < np.inf))))


def weight_hashes(weights: NDArray[np.float32]) -> NDArray[np.int64]:
    """Spark's ``xxhash64`` of a column of floats (XXH64 of four bytes with the seed 42; Collet, 2012)."""
    first, second, third, fifth = (
        np.uint64(prime) for prime in (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x27D4EB2F165667C5)
    )
    with np.errstate(over="ignore"):
        x = np.uint64(42 + 4) + fifth ^ weights.view(np.uint32).astype(np.uint64) * first
        x = (x << np.uint64(23) | x >> np.uint64(41)) * second + third
        x = (x ^ x >> np.uint64(33)) * second
        x = (x ^ x >> np.uint64(29)) * third
    return (x ^ x >> np.uint64(32)).view(np.int64)
