"""Ratings as they arrive in Arrow batches: under the names that are used inside, checked, numbered and packed.

They come from Spark (``collect``) or from files (``arrow_ratings``). There is no Python object per rating. This module
imports no Spark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.hashes import cell_hashes, hash_sums
from onebit_spark.core.id_index import IdColumn
from onebit_spark.core.sketch import CellSketch, limit_for
from onebit_spark.input.rating_checks import BIT, RatingCounts

USER, ITEM, LABEL, WEIGHT = "__onebit_user", "__onebit_item", "__onebit_label", "__onebit_weight"
HASH = "__onebit_hash"

Batches = Iterator[pa.RecordBatch]


def joined(batches: Iterable[pa.RecordBatch], size: Callable[[pa.RecordBatch], int], enough: int) -> Iterator[pa.Table]:
    """Tables of successive batches, each as soon as its size is enough. The last one may be smaller, but not empty."""
    held: list[pa.RecordBatch] = []
    total = 0
    for batch in batches:
        held.append(batch)
        total += size(batch)
        if total >= enough:
            yield pa.Table.from_batches(held)
            held, total = [], 0
    if sum(batch.num_rows for batch in held):
        yield pa.Table.from_batches(held)


@dataclass(frozen=True)
class RatingBatch:
    """Some raw ratings in this process, without their ids."""

    positive: NDArray[np.bool_]
    # ``ratings.cell_hash`` of the cells; 0 for all if an id is null, for such ratings are refused.
    hashes: NDArray[np.int64]
    weights: NDArray[np.float32] | None  # NaN for null
    # To be summed over batches: ``n``, the counts of ``rating_checks.BIT``, HASH_PARTS, ``absent`` if a label is null,
    # and with weights ``weight``, their finite sum.
    facts: dict[str, Any]


def read_batch(table: pa.Table, threshold: float | None) -> RatingBatch:
    """What is read off some raw ratings."""
    label, facts = count_labels(table[LABEL], threshold)
    if HASH in table.schema.names:
        hashes = np.asarray(table[HASH].to_numpy())
    elif table[USER].null_count or table[ITEM].null_count:
        hashes = np.zeros(len(table), np.int64)
    else:
        hashes = cell_hashes(table[USER], table[ITEM])
    weights = None
    if WEIGHT in table.schema.names:
        weights = np.array(table[WEIGHT].to_numpy(), np.float32)  # a copy: a view would keep the whole table
        facts["bad_weight"] = int(np.count_nonzero(~((weights > 0) & (weights < np.inf))))
        facts["weight"] = float(np.sum(weights, dtype=np.float64, where=np.isfinite(weights)))
    if table[LABEL].null_count:
        facts["absent"] = 1
    return RatingBatch(label, hashes, weights, facts | hash_sums(hashes, label, weights))


def count_labels(labels: pa.ChunkedArray, threshold: float | None) -> tuple[NDArray[np.bool_], dict[str, Any]]:
    """Which labels are positive, and how often each flag of ``rating_checks.BIT`` holds, on labels as Spark holds them.

    A null is counted as ``bad_label``, like NaN.
    """
    values = (labels.cast(pa.int8()) if pa.types.is_boolean(labels.type) else labels).to_numpy()  # null is NaN
    limit = np.float64(0.0 if threshold is None else threshold)  # so that numpy compares doubles, as Spark does
    above: NDArray[np.bool_] = values > limit
    kinds = {name: int(np.count_nonzero(values == value)) for name, value in _VALUES.items()}
    if values.dtype.kind == "f":
        kinds["bad_label"] = int(np.count_nonzero(np.isnan(values)))
    kinds["other"] = len(values) - sum(kinds.values())
    return above, {**dict.fromkeys(BIT, 0), **kinds, "n": len(values), "above": int(np.count_nonzero(above))}


_VALUES = {"plus": 1, "minus": -1, "zero": 0}


# ---- gathered in this process ----------------------------------------------------------------------------------------

TABLE_BYTES = 16 * 2**20  # of ratings that are taken up at once

Hashes = NDArray[np.int64]


@dataclass(frozen=True)
class SizeEstimate:
    """Ratings counted before the exchange is chosen."""

    n: int
    bytes_per_rating: float  # on its way to the driver
    fingerprint: str | None = None  # that the ratings must have, if it is known
    weighted: bool = False
    id_bytes: float = 0.0  # size of the different ids that are text, estimated


@dataclass(frozen=True)
class CollectedRatings:
    """All ratings on the driver."""

    counts: RatingCounts
    users: pa.Array  # the ids, ascending; so are the items
    items: pa.Array
    ratings: RatingBlock  # row and column are the positions of user and item among the ids
    cells: Hashes  # hashes of the rated cells, those up to ``limit``, for the sketch
    limit: int  # see ``core.sketch``

    @property
    def n_users(self) -> int:
        return len(self.users)

    @property
    def n_items(self) -> int:
        return len(self.items)

    def sketch(self) -> CellSketch:
        """The sketch of these ratings."""
        hashes, ratings = np.unique(self.cells, return_counts=True)
        return CellSketch(self.limit, hashes, ratings).up_to(limit_for(self.counts.n))


class RatingCollector:
    """What has come so far: 9 bytes per rating, 13 with weights, and what was counted of them."""

    def __init__(self, threshold: float | None, limit: int) -> None:
        self.threshold, self.limit = threshold, limit
        self.facts: Counter[str] = Counter()
        self._users, self._items = IdColumn(), IdColumn()
        self._positive: list[NDArray[np.bool_]] = []
        self._weights: list[NDArray[np.float32]] = []  # empty if there are none
        self._cells: list[Hashes] = []

    def all_of(self, batches: Batches) -> RatingCollector:
        """Add all ratings of some batches. Null and NaN are noticed, and such ids are not kept."""
        for table in joined(batches, lambda batch: int(batch.nbytes), TABLE_BYTES):  # encoded with one dictionary
            self.add(table, read_batch(table, self.threshold))
        return self

    def add(self, table: pa.Table, here: RatingBatch) -> None:
        """Add the ratings of a table, and what was read off them."""
        self.facts.update(here.facts)
        self.facts["absent"] += not self._users.add(table[USER])
        self.facts["absent"] += not self._items.add(table[ITEM])
        self._positive.append(here.positive)
        self._cells.append(here.hashes[here.hashes <= self.limit])
        if here.weights is not None:
            self._weights.append(here.weights)

    def ratings(self, counts: RatingCounts) -> CollectedRatings:
        """The ratings. What was kept of them is freed on the way."""
        rows, users = self._users.positions()
        codes, items = self._items.positions()
        codes <<= 1
        place = 0
        while self._positive:
            label = self._positive.pop(0)
            codes[place : place + len(label)] |= label
            place += len(label)
        weights = np.concatenate(self._weights) if self._weights else None
        self._weights.clear()
        ratings = RatingBlock.from_codes(rows, codes, (len(users), len(items)), weights)
        return CollectedRatings(counts, users, items, ratings, np.concatenate(self._cells), self.limit)
