"""The ids of one side in this process, with their posterior."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onebit_spark.core.posterior import FIT_VECTORS, MODEL_VECTORS, FloatArray, RowPosterior
from onebit_spark.data.id_index import IdIndex
from onebit_spark.data.user_tables import SIMPLE, as_spark, column_of, in_spark_type, one_array
from onebit_spark.errors import RequestError
from onebit_spark.model_info import (
    DIRECTIONS,
    SIDE_OF,
    ModelInfo,
    factor_columns,
    factor_table,
    prior_row,
    read_factors,
    read_measured,
)
from onebit_spark.predict.top_n import Numbers
from onebit_spark.settings import Who

IdsLike = Any  # one id, or ids in a sequence, a numpy or an Arrow array, or a Series
Anchors = Mapping[Any, int]  # ids of users ─► the side of their first position, 1 or −1
TableLike = Any  # an Arrow table, a DataFrame of pandas or polars, or a dict of columns


@dataclass(frozen=True, eq=False)
class ModelSide:
    ids: pa.Array  # different ids
    known: RowPosterior  # one row per id
    prior: RowPosterior  # one row: that of an unknown id, whose position is −1
    # Number of ratings, and standard deviations of positions: ``core.work.MeasureSpreads``
    measured: FloatArray | None = None

    @classmethod
    def of(cls, table: pa.Table, info: ModelInfo, who: Who) -> ModelSide:
        prior = prior_row(info.scales, SIDE_OF[who], *info.table_form)
        columns = list(factor_columns(*info.table_form))
        if DIRECTIONS in table.column_names:  # of a checkpoint
            prior = prior.with_vectors(MODEL_VECTORS, FIT_VECTORS)
            columns = [*columns, DIRECTIONS]
        known = read_factors(one_array(table.select(columns).to_struct_array()), prior)
        return cls(one_array(table["id"]), known, prior, read_measured(table))

    @property
    def table(self) -> pa.Table:
        return factor_table(self.ids, self.known, self.measured)

    def positions(self, ids: pa.ChunkedArray | pa.Array) -> Numbers:
        """The row of every id, −1 for an unknown one."""
        return self._index.find(ids).astype(np.int64)

    @cached_property
    def _index(self) -> IdIndex:
        return IdIndex(self.ids)

    def at(self, positions: Numbers, implicit: bool = False) -> RowPosterior:
        """The posterior at these positions, the prior at −1; ``implicit``: with the vectors of
        implicit features.
        """
        return _at(self.known, self.prior, positions, implicit)

    def with_rows(
        self, ids: pa.Array, rows: RowPosterior, measured: FloatArray | None = None
    ) -> ModelSide:
        """This side with more rows.

        An id that is known is replaced. Unless all rows are ``measured``, none is.
        """
        kept = np.flatnonzero(IdIndex(ids).find(self.ids) < 0)
        all_ids = pa.concat_arrays([self.ids.take(pa.array(kept)), ids])
        old = self.known.take(kept)
        vectors = min(self.known.vectors, rows.vectors)
        location = np.concatenate([old.location, rows.location])
        scale = np.concatenate([old.scale, rows.scale])
        parts = [part.with_vectors(vectors, vectors).implicit for part in (old, rows)]
        implicit = [part for part in parts if part is not None]
        joined = np.concatenate(implicit) if vectors else None
        numbers = None
        if self.measured is not None and measured is not None:
            numbers = np.concatenate([self.measured[kept], measured])
        known = RowPosterior(location, scale, old.kind, old.has_intercept, joined)
        return ModelSide(all_ids, known, self.prior, numbers)


def _at(
    known: RowPosterior, prior: RowPosterior, positions: Numbers, implicit: bool = False
) -> RowPosterior:
    location = lines_at(known.location, prior.location, positions)
    scale = lines_at(known.scale, prior.scale, positions)
    vectors = None
    if implicit and known.implicit is not None and prior.implicit is not None:
        vectors = lines_at(known.implicit, prior.implicit, positions)
    return RowPosterior(location, scale, known.kind, known.has_intercept, vectors)


def lines_at(lines: FloatArray, unknown: FloatArray, positions: Numbers) -> FloatArray:
    """The lines at these positions; at −1 the one line of ``unknown``."""
    if not len(lines):
        return np.repeat(unknown, len(positions), axis=0)
    chosen = lines[positions]
    chosen[positions < 0] = unknown
    return chosen


def arrow_type(spark_type: str) -> pa.DataType:
    """The Arrow type of ids of a type of Spark.

    Raises a RequestError if such ids can be read by Spark only.
    """
    if decimal := re.fullmatch(r"decimal\((\d+),(-?\d+)\)", spark_type):
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    known = {name: kind for kind, name in SIMPLE.items() if kind != pa.null()}
    known |= {"timestamp": pa.timestamp("us", "UTC"), "timestamp_ntz": pa.timestamp("us")}
    if spark_type not in known:
        raise RequestError(
            f"ids of type {spark_type} can be read with Spark only: use OneBitCompletionModel.load"
        )
    return known[spark_type]


def asked_ids(values: IdsLike, expected: pa.DataType | None, what: str) -> pa.Array:
    """One id, or a sequence of ids, as an Arrow array that can be looked up among ids of type
    ``expected``.

    Integers of different widths are accepted, text in any of its encodings, and types that Spark
    has under another name. Any other cast could merge or split ids, so the caller must do it.
    ``what`` names the ids in messages.
    """
    if isinstance(values, np.ndarray):
        values = np.atleast_1d(values)
    elif isinstance(values, str | bytes) or not hasattr(values, "__len__"):
        values = [values]
    try:
        array = one_array(
            values if isinstance(values, pa.Array | pa.ChunkedArray) else column_of(values)
        )
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise RequestError(f"{what} cannot be read: {str(error).splitlines()[0]}") from None
    if pa.types.is_dictionary(array.type):
        array = in_spark_type(array, what)
    expected = as_spark(array.type) if expected is None else expected
    whole = (
        pa.types.is_integer(array.type) and pa.types.is_decimal(expected) and expected.scale == 0
    )
    if whole or _family(array.type) != _family(expected):
        array = in_spark_type(array, what, expected if whole else None)
    if len(array) == 0 or pa.types.is_null(array.type):
        array = array.cast(expected)
    elif _family(array.type) != _family(expected):
        raise RequestError(
            f"{what} are of type {array.type}, but the model's are of type {expected}: convert them"
        )
    else:
        try:
            array = array.cast(pa.int64() if pa.types.is_integer(expected) else expected)
        except pa.ArrowInvalid as error:
            raise RequestError(f"{what} cannot be of type {expected}: {error}") from None
    absent = (
        pc.is_null(array, nan_is_null=True)
        if pa.types.is_floating(array.type)
        else pc.is_null(array)
    )
    if n := pc.sum(absent).as_py():
        raise RequestError(f"{what} hold {n:,} null or NaN ids: drop or fill them")
    return array


def _family(kind: pa.DataType) -> tuple[object, bool]:
    """Types whose values are the same ids have the same family."""
    plain = as_spark(kind)
    named = next(
        (test for test in (pa.types.is_integer, pa.types.is_floating) if test(kind)), plain.id
    )
    return named, pa.types.is_timestamp(plain) and plain.tz is None
