"""What intrinsics do, in plain Python: for machines without numba, where kernels are plain functions."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

LANES = 8

Line = NDArray[np.float64]


def load(array: NDArray[np.float64], line: int) -> Line:
    return array[line].copy()


def store(array: NDArray[np.float64], line: int, value: Line) -> None:
    array[line] = value


def zeros() -> Line:
    return np.zeros(LANES)


def times(x: Line, y: Line) -> Line:
    return x * y


def minus_product(s: Line, x: Line, y: Line) -> Line:
    return s - x * y


def negative(x: Line) -> Line:
    return -x


def reciprocal(x: Line) -> Line:
    return np.asarray(1.0 / x)


def reciprocal_root(x: Line) -> Line:
    return np.asarray(1.0 / np.sqrt(x))


def prefetch(table: Any, row: int, byte: int) -> None:
    """Nothing is asked for ahead."""
