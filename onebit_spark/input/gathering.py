"""Ratings gathered in this process as they arrive: checked, numbered and packed, without a Python object per rating.

They arrive as Arrow batches with the columns of ``batches``, from Spark (``collect``) or from files
(``arrow_ratings``). This module imports no Spark.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.id_index import IdColumn
from onebit_spark.core.sketch import CellSketch, limit_for
from onebit_spark.input.batches import ITEM, USER, Batches, RatingBatch, joined, read_batch
from onebit_spark.input.rating_checks import RatingCounts

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

    tally: RatingCounts
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

    def sketch(self, others: Hashes | None = None, n_others: int = 0) -> CellSketch:
        """The sketch of these ratings, and of n others by the hashes of their cells up to the limit."""
        cells = self.cells if others is None else np.concatenate([self.cells, others])
        hashes, ratings = np.unique(cells, return_counts=True)
        return CellSketch(self.limit, hashes, ratings).under(limit_for(self.tally.n + n_others))


class Gathering:
    """What has come so far: 9 bytes per rating, 13 with weights, and what was counted of them."""

    def __init__(self, threshold: float | None, limit: int) -> None:
        self.threshold, self.limit = threshold, limit
        self.facts: Counter[str] = Counter()
        self._users, self._items = IdColumn(), IdColumn()
        self._positive: list[NDArray[np.bool_]] = []
        self._weights: list[NDArray[np.float32]] = []  # empty if there are none
        self._cells: list[Hashes] = []

    def all_of(self, batches: Batches) -> Gathering:
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

    def ratings(self, tally: RatingCounts) -> CollectedRatings:
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
        return CollectedRatings(tally, users, items, ratings, np.concatenate(self._cells), self.limit)
