"""Ratings on the driver: collected by Arrow, checked and numbered there, without a Python object per rating.

    weighed ─► n, bytes per rating                              one aggregation; none if Spark's cache knows n
    gathered ─► the ratings of every row, and both sides' ids   one collect, or several that are small enough

Whatever came is what is checked, fitted and certified. If the caller gives a fingerprint of what it counted before, the
ratings that came must have it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, DataType, DecimalType, StringType

from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.sketch import CellSketch, limit_for
from onebit_spark.input.accumulators import Encoded, LabelCounts, hash_sums
from onebit_spark.input.columns import HASH_PARTS, quoted, type_of
from onebit_spark.input.defects import (
    Columns,
    Tally,
    aggregated,
    check_columns,
    check_ratings,
    fingerprint_of,
    not_deterministic,
    suspect,
    verdict,
)
from onebit_spark.input.ratings import ITEM, LABEL, USER, WEIGHT, cell_hashes, raw
from onebit_spark.input.weights import bad_weights
from onebit_spark.platform.arrow_stream import arrow_batches, arrow_batches_by_groups, cached_rows, too_large
from onebit_spark.platform.arrow_tables import joined

TABLE_BYTES = 16 * 2**20  # of ratings that are taken up at once
UNEVEN = 2  # some partitions have more ratings than others: as many times as many jobs as are needed on average


@dataclass(frozen=True)
class Weighed:
    """Ratings counted before the exchange is chosen.

    Parameters
    ----------
    n : int
        Number of ratings.
    bytes_per_rating : float
        Size of a rating on its way to the driver.
    fingerprint : str or None
        That the ratings must have; None if it is not known.
    weighted : bool
        Whether they have weights.
    id_bytes : float
        Size of the different ids that are text, estimated.
    """

    n: int
    bytes_per_rating: float
    fingerprint: str | None = None
    weighted: bool = False
    id_bytes: float = 0.0


@dataclass(frozen=True)
class Gathered:
    """All ratings on the driver.

    Parameters
    ----------
    tally : Tally
        The counts.
    users, items : pa.Array
        The ids of both sides in ascending order.
    ratings : RatingBlock
        The ratings; row and column are the positions of user and item among the ids.
    cells : array of int64
        Hashes of the rated cells, those up to ``limit``, for the sketch.
    limit : int
        See ``core.sketch``.
    """

    tally: Tally
    users: pa.Array
    items: pa.Array
    ratings: RatingBlock
    cells: NDArray[np.int64]
    limit: int

    @property
    def n_users(self) -> int:
        return len(self.users)

    @property
    def n_items(self) -> int:
        return len(self.items)

    def sketch(self, others: NDArray[np.int64] | None = None, n_others: int = 0) -> CellSketch:
        """The sketch of these ratings, and of n others by the hashes of their cells up to the limit."""
        cells = self.cells if others is None else np.concatenate([self.cells, others])
        hashes, ratings = np.unique(cells, return_counts=True)
        return CellSketch(self.limit, hashes, ratings).under(limit_for(self.tally.n + n_others))


def weighed(df: DataFrame, columns: Columns) -> Weighed:
    """Count the ratings. What is wrong with them is found when they are gathered."""
    check_columns(df, columns)
    if not _text_ids(df, columns) and (n := cached_rows(df)) is not None:
        return Weighed(n, bytes_per_rating(df, columns, 0), weighted=columns.weight is not None)
    totals = aggregated(df, {"n": F.count(F.lit(1)), **text_bytes(df, columns)})
    n = totals["n"]
    weight = bytes_per_rating(df, columns, totals["text"] / max(1, n))
    return Weighed(n, weight, weighted=columns.weight is not None, id_bytes=totals["id_bytes"])


def text_bytes(df: DataFrame, columns: Columns) -> dict[str, Column]:
    """Aggregates of the ids that are text: the bytes of all, and, by an estimate, of the different ones."""
    ids = [F.col(quoted(name)) for name in _text_ids(df, columns)]
    sizes = [F.octet_length(name) + 4 for name in ids]
    different = (F.approx_count_distinct(name) * F.avg(size) for name, size in zip(ids, sizes, strict=True))
    return {"text": F.sum(sum(sizes, F.lit(0))), "id_bytes": sum(different, F.lit(0.0))}


def bytes_per_rating(df: DataFrame, columns: Columns, text: float) -> float:
    """Bytes of a rating on its way; the ids' text is known."""
    kinds = (field.dataType for field in raw(df, columns).schema)
    return text + sum(_width(kind) + 1 / 8 for kind in kinds)


def _text_ids(df: DataFrame, columns: Columns) -> list[str]:
    return [name for name in (columns.user, columns.item) if _is_text(type_of(df, name))]


def gathered(df: DataFrame, columns: Columns, counted: Weighed, most_bytes: int) -> Gathered:
    """The ratings, checked. ``most_bytes`` bounds one collect."""
    parts = max(1, int(np.ceil(counted.n * counted.bytes_per_rating / most_bytes)))
    arrived = _arrived(raw(df, columns), columns.threshold, limit_for(counted.n), parts)
    totals, changed = arrived.totals(), None
    if counted.fingerprint is not None:
        found = totals["n"], fingerprint_of([totals[name] for name in HASH_PARTS])
        if found != (counted.n, counted.fingerprint):
            changed = not_deterministic(f"{counted.n:,} ratings were counted, and those that came after are others")
    if arrived.absent or suspect(columns, totals):
        check_ratings(df, columns)  # counts what is wrong, and refuses it
        raise changed or not_deterministic("ratings came that cannot be fitted, and are no longer there")
    if changed is not None:
        raise changed
    tally = verdict(df, columns, totals)
    rows, users = arrived.users.numbered()
    codes, items = arrived.items.numbered()
    codes <<= 1
    place = 0
    while arrived.positive:
        label = arrived.positive.pop(0)
        codes[place : place + len(label)] |= label
        place += len(label)
    weights = np.concatenate(arrived.weights) if arrived.weights else None
    arrived.weights.clear()
    ratings = RatingBlock.from_codes(rows, codes, (len(users), len(items)), weights)
    return Gathered(tally, users, items, ratings, np.concatenate(arrived.cells), arrived.limit)


def _arrived(frame: DataFrame, threshold: float | None, limit: int, parts: int) -> _Arrived:
    """All raw ratings: by one job, else by several over some partitions each, else by parts of a cached copy."""
    if parts == 1:
        return _Arrived(threshold, limit).all_of(arrow_batches(frame))
    batches = arrow_batches_by_groups(frame, UNEVEN * parts)
    if batches is not None:
        try:
            return _Arrived(threshold, limit).all_of(batches)
        except PySparkException as error:  # a few partitions hold most of the ratings
            if not too_large(error):
                raise
    arrived = _Arrived(threshold, limit)
    with _kept(frame) as kept:  # the source is read once
        for part in range(parts):
            chosen = F.pmod(F.xxhash64(USER, ITEM), F.lit(parts)) == part
            arrived.all_of(arrow_batches(kept.where(chosen)))
    return arrived


@dataclass
class _Arrived:
    """What has come so far: 9 bytes per rating, 13 with weights, and what was counted of them."""

    threshold: float | None
    limit: int
    users: Encoded = field(default_factory=Encoded)
    items: Encoded = field(default_factory=Encoded)
    positive: list[NDArray[np.bool_]] = field(default_factory=list)
    weights: list[NDArray[np.float32]] = field(default_factory=list)  # empty if there are none
    bad_weights: int = 0
    cells: list[NDArray[np.int64]] = field(default_factory=list)
    labels: LabelCounts = field(default_factory=LabelCounts)
    sums: NDArray[np.int64] = field(default_factory=lambda: np.zeros(2, np.int64))
    absent: bool = False

    def all_of(self, batches: Iterator[pa.RecordBatch]) -> _Arrived:
        """Add all ratings of some batches."""
        for table in joined(batches, _bytes, TABLE_BYTES):  # a table is encoded with one dictionary
            self.take_up(table)
        return self

    def take_up(self, table: pa.Table) -> None:
        """Add ratings. Null and NaN are noticed, and such ratings are not kept."""
        present = [self.users.add(table[USER]), self.items.add(table[ITEM]), not table[LABEL].null_count]
        if not all(present):
            self.absent = True
        label = self.labels.add(table[LABEL], self.threshold)
        hashes, weights = cell_hashes(table), _weights(table)
        if weights is not None:
            self.bad_weights += bad_weights(weights)
            self.weights.append(weights)
        self.sums += hash_sums(hashes, label, weights)
        self.cells.append(hashes[hashes <= self.limit])
        self.positive.append(label)

    def totals(self) -> dict[str, int]:
        """What ``verdict`` looks at."""
        sums = dict(zip(HASH_PARTS, self.sums.tolist(), strict=True))
        return {**self.labels.totals(), "bad_weight": self.bad_weights, **sums}


@dataclass(frozen=True)
class GatheredPairs:
    """Other ratings, numbered like those of the fit; ids that are not fitted follow, in the order of ``unfitted``."""

    rows: NDArray[np.int32]
    columns: NDArray[np.int32]
    positive: NDArray[np.bool_]
    cells: NDArray[np.int64]
    unfitted: tuple[pa.Array, pa.Array]
    weights: NDArray[np.float32] | None = None


def gathered_pairs(df: DataFrame, columns: Columns, users: pa.Array, items: pa.Array, limit: int) -> GatheredPairs:
    """Ratings that were checked already, numbered by known ids."""
    table = raw(df, columns).toArrow()
    (rows, new_users), (cols, new_items) = _numbered(table[USER], users), _numbered(table[ITEM], items)
    hashes = cell_hashes(table)
    positive = LabelCounts().add(table[LABEL], columns.threshold)
    return GatheredPairs(rows, cols, positive, hashes[hashes <= limit], (new_users, new_items), _weights(table))


def _numbered(ids: pa.ChunkedArray, known: pa.Array) -> tuple[NDArray[np.int32], pa.Array]:
    """The numbers of ids, first of the known ones, then of the others; and these others, each once."""
    ids = ids.cast(known.type)
    others = ids.filter(pc.invert(pc.is_in(ids, value_set=known))).unique()
    places = pc.index_in(ids, value_set=pa.concat_arrays([known, others]))
    return places.to_numpy().astype(np.int32), others


def _weights(table: pa.Table) -> NDArray[np.float32] | None:
    """The weights, NaN for null. A copy: a view would keep the whole table."""
    return np.array(table[WEIGHT].to_numpy(), np.float32) if WEIGHT in table.schema.names else None


@contextmanager
def _kept(frame: DataFrame) -> Iterator[DataFrame]:
    frame.persist()
    try:
        yield frame
    finally:
        frame.unpersist()


def _bytes(batch: pa.RecordBatch) -> int:
    return int(batch.nbytes)


def _width(kind: DataType) -> int:
    """Bytes of an id; text is weighed by itself."""
    if _is_text(kind):
        return 0
    sizes = {"boolean": 1, "tinyint": 1, "smallint": 2, "int": 4, "float": 4, "date": 4}
    return sizes.get(kind.simpleString(), 16 if isinstance(kind, DecimalType) else 8)


def _is_text(kind: DataType) -> bool:
    return isinstance(kind, StringType | BinaryType)
