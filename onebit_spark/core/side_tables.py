"""The side features of the rows of an engine: the tables, and the numbers that ``feature_coding`` makes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from onebit_spark.core.feature_coding import FeatureCoding, Table32, learn_coding
from onebit_spark.core.losses.base import Side


@dataclass(frozen=True)
class SideFeatures:
    """The side features of all rows of a side, coded by those of the rows with ratings.

    Parameters
    ----------
    table : pyarrow.Table
        One line per row.
    coding : FeatureCoding
        How columns become numbers.
    coded : array of float32
        One line of numbers per row.
    """

    table: pa.Table
    coding: FeatureCoding
    coded: Table32

    @classmethod
    def over(cls, table: pa.Table, rated: NDArray[np.bool_]) -> SideFeatures:
        """The coding is learnt from the rated rows alone."""
        coding, _ = learn_coding(table.filter(pa.array(rated)), "")
        return cls(table, coding, coding.coded(table))

    @classmethod
    def of_rows(cls, given: ArrayLike | pa.Table, rated: NDArray[np.bool_], name: str) -> SideFeatures:
        """Those of an array or a table with one line per row."""
        table = given if isinstance(given, pa.Table) else _as_table(given, name)
        if table.num_rows != len(rated):
            raise ValueError(f"{name} must have {len(rated):,} lines, one per row or column, not {table.num_rows:,}")
        return cls.over(table, rated)


SideTables = dict[Side, SideFeatures]  # of the sides that have any


def codings_of(features: SideTables) -> dict[Side, FeatureCoding]:
    return {side: known.coding for side, known in features.items()}


def recoded(features: SideTables, counts: Callable[[Side], NDArray[np.int64]]) -> SideTables:
    """The same features, coded by the rows with ratings among these: what is fitted to a part depends on it alone."""
    found = {side: SideFeatures.over(known.table, counts(side) > 0) for side, known in features.items()}
    return {side: known for side, known in found.items() if known.coding.features}


def _as_table(given: ArrayLike, name: str) -> pa.Table:
    numbers = np.asarray(given, np.float64)
    if numbers.ndim != 2:
        raise ValueError(f"{name} must have lines and columns, not the shape {numbers.shape}")
    return pa.table({str(place): column for place, column in enumerate(numbers.T)})
