"""The loss of held-out ratings, as sums over the batches of a task."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from onebit_spark.core.posterior import DoubleArray, FloatArray, RowPosterior
from onebit_spark.core.prediction import held_out_sums
from onebit_spark.platform.binary_cells import schema_of

MEASURED = schema_of("n long, weight double, loss double, wrong long")

Pairs = tuple[RowPosterior, RowPosterior, NDArray[np.integer], NDArray[np.integer], NDArray[np.bool_], FloatArray]


def measured(loss: str, parts: Iterable[Pairs]) -> pa.RecordBatch:
    """Sums over (rows, cols, row, col, positive, weight): of the held-out loss, the weights and the wrong signs."""
    n, weight, total, errors = 0, 0.0, 0.0, 0
    for rows, cols, row, col, positive, weights in parts:
        part, wrong = held_out_sums(loss, rows, cols, row, col, signs_of(positive), weights)
        n, total, errors = n + len(row), total + part, errors + wrong
        weight += float(np.sum(weights, dtype=np.float64))
    return pa.RecordBatch.from_pydict({"n": [n], "weight": [weight], "loss": [total], "wrong": [errors]})


def means_of(measured: pa.Table) -> tuple[float, float]:
    """The mean loss by weight, and the error rate."""
    n, weight, loss, wrong = (float(pc.sum(measured[name]).as_py() or 0) for name in measured.schema.names)
    return loss / weight, wrong / n


def signs_of(positive: NDArray[np.bool_]) -> DoubleArray:
    return np.where(positive, 1.0, -1.0)
