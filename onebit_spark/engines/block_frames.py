"""Blocks of ratings as lines of a DataFrame. The arrays are in binary cells, which are read without a copy."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core.blocks import RatingBlock
from onebit_spark.engines.steps import PlacedBlock
from onebit_spark.errors import FitFailed
from onebit_spark.input.packing import NO_WEIGHTS
from onebit_spark.platform.arrow_stream import Batches
from onebit_spark.platform.binary_cells import cell_array, schema_of
from onebit_spark.platform.plans import JOB_ERRORS, rows_are_lost

BLOCK_CELLS = (
    "block int, rows binary, columns binary, pointers binary, codes binary, weights binary, "
    "n long, checksum long, repeated_cells long, repeated long, conflicting long"
)
BLOCKS = schema_of(BLOCK_CELLS)
MANY_OBJECTS = 20_000  # that the garbage collector visits in a millisecond
SMALL = 2**26  # up to this number, an array indexed by row number is cheaper than a sort

Numbers = NDArray[np.integer]


def read_blocks(batches: Batches) -> Iterator[PlacedBlock]:
    """The blocks of a task, without copying their ratings."""
    for batch in batches:
        for i in range(batch.num_rows):
            yield read_block({name: batch.column(name)[i] for name in batch.schema.names})


def read_block(cell: dict[str, Any]) -> PlacedBlock:
    _spare_the_collector()
    rows, columns = read_ascending(cell["rows"]), read_ascending(cell["columns"])
    weights = cell_array(cell["weights"], np.float32)
    ratings = RatingBlock(
        cell_array(cell["pointers"], np.int64),
        cell_array(cell["codes"], np.int32),
        len(columns),
        weights if len(weights) else None,
    )
    return PlacedBlock(cell["block"].as_py(), rows, columns, ratings, cell["checksum"].as_py())


def _spare_the_collector() -> None:
    """Hide what this worker has loaded from the garbage collector, compiled kernels included.

    After each task, Spark's worker runs ``gc.collect()``. It would visit every object of every imported package, which
    takes longer than a small block. Objects that are hidden are still freed when nothing refers to them.
    """
    if len(gc.get_objects()) > MANY_OBJECTS:
        gc.freeze()


def ascending_cell(numbers: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Ascending numbers, stored as the first number and the gaps in the narrowest type: mostly one byte per number.

    A block refers to most rows of the other side. With eight bytes per number they would need as much memory as its
    ratings.
    """
    if len(numbers) == 0:
        return np.empty(0, np.uint8)
    gaps = np.diff(numbers)
    gaps = gaps.astype(np.min_scalar_type(int(gaps.max(initial=0))))
    head = np.array([numbers[0], gaps.itemsize], np.int64)
    return np.concatenate([head.view(np.uint8), gaps.view(np.uint8)])


def read_ascending(cell: Any) -> NDArray[np.int64]:
    """The numbers of an ``ascending_cell``."""
    data = cell_array(cell, np.uint8)
    if len(data) == 0:
        return np.empty(0, np.int64)
    first, width = data[:16].view(np.int64)
    gaps = data[16:].view(f"u{width}")
    numbers = np.empty(len(gaps) + 1, np.int64)
    numbers[0] = 0
    np.cumsum(gaps, dtype=np.int64, out=numbers[1:])
    numbers += first
    return numbers


def weight_cell(weights: NDArray[np.float32] | None) -> NDArray[np.float32]:
    """The weights of some ratings; nothing if there are none."""
    return NO_WEIGHTS if weights is None else weights


def distinct(numbers: Numbers) -> NDArray[np.int64]:
    """The different numbers, ascending."""
    if len(numbers) and numbers.max() >= SMALL:
        return np.unique(numbers).astype(np.int64)
    return np.flatnonzero(np.bincount(numbers))


def positions(ascending: NDArray[np.int64], numbers: Numbers) -> Numbers:
    """The position of each number in an ascending list that contains it."""
    if len(ascending) and ascending[-1] >= SMALL:
        return np.searchsorted(ascending, numbers)
    position = np.zeros(int(ascending[-1]) + 1 if len(ascending) else 0, np.int32)
    position[ascending] = np.arange(len(ascending), dtype=np.int32)
    return position[numbers]


# ---- faults ----------------------------------------------------------------------------------------------------------

_RAISED = re.compile(r"onebit_spark\.errors\.FitFailed: (.+)")


@contextmanager
def worker_errors() -> Iterator[None]:
    """Raise a FitFailed of a worker as a FitFailed here. Spark reports it only as a traceback in a message.

    Also if a table is lost that is kept on the executors only.
    """
    try:
        yield
    except JOB_ERRORS as error:
        if rows_are_lost(error):
            raise FitFailed(
                "an executor was lost, and factors with it: fit again, from a checkpoint if there is one, or set "
                "shuffleStorage=files"
            ) from None
        raised = _RAISED.search(str(error))
        if raised is None:
            raise
        raise FitFailed(raised.group(1)) from None
