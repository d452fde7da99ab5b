"""Ratings on the driver: collected by Arrow, numbered by their ids, without a Python object per rating.

    weighed ─► n, what is wrong with them, about how many ids, bytes per rating      one aggregation
    gathered ─► int32 row and code (column << 1 | label) of every rating             one collect per ``PART_BYTES``

What is collected must have the count and the fingerprint of what was weighed, or the source changed in between.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, DataType, DoubleType, FloatType, StringType

from onebit_spark.core.sketch import CellSketch, limit_for
from onebit_spark.input.census import ITEM, LABEL, USER
from onebit_spark.input.columns import PART_BITS, quoted
from onebit_spark.input.defects import (
    Columns,
    Tally,
    cell_hash,
    count_ratings,
    fingerprint_of,
    not_deterministic,
    positive,
    verdict,
)

PART_BYTES = 64 * 2**20  # of Arrow data in one collect
HASH = "__onebit_hash"
SLICE = 1 << 16


@dataclass(frozen=True)
class Weighed:
    """Ratings counted before the exchange is chosen.

    Parameters
    ----------
    tally : Tally
        The exact counts.
    n_users, n_items : int
        Numbers of ids, to a few percent.
    bytes_per_rating : float
        Size of a rating on its way to the driver.
    """

    tally: Tally
    n_users: int
    n_items: int
    bytes_per_rating: float


@dataclass(frozen=True)
class Gathered:
    """All ratings on the driver.

    Parameters
    ----------
    users, items : pa.Array
        The ids of both sides in ascending order.
    rows : array of int32
        Position of each rating's user among the users.
    codes : array of int32
        Position of its item among the items, and its label: column << 1 | label.
    cells : array of int64
        Hashes of the rated cells, those up to ``limit``, for the sketch.
    limit : int
        See ``core.sketch``.
    """

    users: pa.Array
    items: pa.Array
    rows: NDArray[np.int32]
    codes: NDArray[np.int32]
    cells: NDArray[np.int64]
    limit: int

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.users), len(self.items)

    def sketch(self, others: NDArray[np.int64] | None = None, n_others: int = 0) -> CellSketch:
        """The sketch of these ratings, and of n others by the hashes of their cells up to the limit."""
        cells = self.cells if others is None else np.concatenate([self.cells, others])
        hashes, ratings = np.unique(cells, return_counts=True)
        return CellSketch(self.limit, hashes, ratings).under(limit_for(len(self.rows) + n_others))


def weighed(df: DataFrame, columns: Columns) -> Weighed:
    """Validate and count the ratings."""
    ids = {name: F.col(quoted(name)) for name in (columns.user, columns.item)}
    further = {"users": F.approx_count_distinct(ids[columns.user]), "items": F.approx_count_distinct(ids[columns.item])}
    long = [ids[name] for name in ids if isinstance(df.schema[name].dataType, StringType | BinaryType)]
    if long:
        further["text"] = F.sum(sum((F.octet_length(value) + 4 for value in long), F.lit(0)))
    totals = count_ratings(df, columns, further)
    tally = verdict(df, columns, totals)
    fixed = sum(_width(df.schema[name].dataType) for name in ids)
    return Weighed(tally, totals["users"], totals["items"], 8 + 1 / 8 + fixed + totals.get("text", 0) / tally.n)


def gathered(df: DataFrame, columns: Columns, counted: Weighed, limit: int, most_bytes: int) -> Gathered:
    """The ratings that were weighed; ``most_bytes`` bounds one collect, ``limit`` the hashes that are kept."""
    users, items, labels, cells = _Encoded(), _Encoded(), [], []
    n, sums = 0, np.zeros(2, np.int64)
    parts = max(1, int(np.ceil(counted.tally.n * counted.bytes_per_rating / min(PART_BYTES, most_bytes))))
    for table in _parts(_raw(df, columns), parts):
        label, hashes = (_array(table[name]) for name in (LABEL, HASH))
        n, sums = n + len(label), sums + _hash_sums(hashes, label)
        cells.append(hashes[hashes <= limit])
        labels.append(label)
        users.add(table[USER])
        items.add(table[ITEM])
    if (n, fingerprint_of(sums.tolist())) != (counted.tally.n, counted.tally.fingerprint):
        raise not_deterministic(f"{counted.tally.n:,} ratings were counted, and those that came after are others")
    rows, row_ids = users.numbered()
    codes, col_ids = items.numbered()
    codes <<= 1
    place = 0
    while labels:
        label = labels.pop(0)
        codes[place : place + len(label)] |= label
        place += len(label)
    return Gathered(row_ids, col_ids, rows, codes, np.concatenate(cells), limit)


@dataclass(frozen=True)
class GatheredPairs:
    """Other ratings, numbered like those of the fit; an id that was not fitted has the number −1."""

    rows: NDArray[np.int32]
    columns: NDArray[np.int32]
    positive: NDArray[np.bool_]
    cells: NDArray[np.int64]


def gathered_pairs(df: DataFrame, columns: Columns, users: pa.Array, items: pa.Array, limit: int) -> GatheredPairs:
    """Ratings that were checked already, numbered by known ids."""
    table = _raw(df, columns).toArrow()
    rows, cols = (
        pc.fill_null(pc.index_in(table[name], value_set=known), -1).to_numpy().astype(np.int32)
        for name, known in ((USER, users), (ITEM, items))
    )
    hashes = _array(table[HASH])
    return GatheredPairs(rows, cols, _array(table[LABEL]), hashes[hashes <= limit])


def _raw(df: DataFrame, columns: Columns) -> DataFrame:
    """The two ids, the label and the cell's hash."""
    return df.select(
        *(_id(df, name).alias(alias) for name, alias in ((columns.user, USER), (columns.item, ITEM))),
        positive(df, columns.label, columns.threshold).alias(LABEL),
        cell_hash(df, columns).alias(HASH),
    )


def _id(df: DataFrame, name: str) -> Column:
    """The id; −0.0 is 0.0, as Spark's grouping and joins have it."""
    value = F.col(quoted(name))
    if isinstance(df.schema[name].dataType, FloatType | DoubleType):
        return F.when(value == 0, F.lit(0.0).cast(df.schema[name].dataType)).otherwise(value)
    return value


def _parts(raw: DataFrame, parts: int) -> Iterator[pa.Table]:
    """The table in parts of about the same size, by the hash of the cell; the source is read once."""
    if parts == 1:
        yield raw.toArrow()
        return
    with _kept(raw) as kept:
        for part in range(parts):
            yield kept.where(F.pmod(F.col(HASH), F.lit(parts)) == part).toArrow()


@contextmanager
def _kept(frame: DataFrame) -> Iterator[DataFrame]:
    frame.persist()
    try:
        yield frame
    finally:
        frame.unpersist()


class _Encoded:
    """A column of ids that arrives in parts: each as positions in a dictionary of its own, 4 bytes per rating."""

    def __init__(self) -> None:
        self._positions: list[NDArray[np.int32]] = []
        self._dictionaries: list[pa.Array] = []

    def add(self, ids: pa.ChunkedArray) -> None:
        if ids.null_count:
            raise not_deterministic("ids were there when the ratings were counted, and are null now")
        encoded = ids.dictionary_encode().unify_dictionaries()
        self._positions.append(np.concatenate([chunk.indices.to_numpy() for chunk in encoded.chunks] or [_NONE]))
        self._dictionaries.append(encoded.chunk(0).dictionary if encoded.num_chunks else pa.array([], ids.type))

    def numbered(self) -> tuple[NDArray[np.int32], pa.Array]:
        """The position of every rating's id among all ids, ascending, and these ids."""
        known = pa.concat_arrays(self._dictionaries).unique()
        known = known.take(pc.sort_indices(known))
        numbers = np.empty(sum(map(len, self._positions)), np.int32)
        place = 0
        while self._positions:
            positions, dictionary = self._positions.pop(0), self._dictionaries.pop(0)
            number = pc.index_in(dictionary, value_set=known).to_numpy(zero_copy_only=False).astype(np.int32)
            np.take(number, positions, out=numbers[place : place + len(positions)], mode="clip")
            place += len(positions)
        return numbers, known


_NONE = np.empty(0, np.int32)


def _array(column: pa.ChunkedArray) -> NDArray[Any]:
    return column.to_numpy()


def _hash_sums(hashes: NDArray[np.int64], label: NDArray[np.bool_]) -> NDArray[np.int64]:
    """What ``defects.fingerprint`` sums, of the cells' hashes and the labels."""
    mask, sums = np.uint64((1 << PART_BITS) - 1), np.zeros(2, np.int64)
    for lo in range(0, len(hashes), SLICE):  # in slices: temporary arrays of the whole part would be its largest
        part = slice(lo, lo + SLICE)
        whole = np.where(label[part], ~hashes[part], hashes[part]).view(np.uint64)
        sums += np.array([(whole & mask).sum(), ((whole >> np.uint64(PART_BITS)) & mask).sum()], np.int64)
    return sums


def _width(kind: DataType) -> int:
    """Bytes of an id; text is weighed by itself."""
    if isinstance(kind, StringType | BinaryType):
        return 0
    sizes = {"boolean": 1, "tinyint": 1, "smallint": 2, "int": 4, "float": 4, "date": 4}
    return sizes.get(kind.simpleString(), 16 if kind.simpleString().startswith("decimal") else 8)
