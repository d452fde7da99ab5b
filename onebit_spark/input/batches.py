"""Ratings as they arrive in Arrow batches: checked, and then gathered in this process or packed on the executors.

    raw ratings ─read_batch─► labels, hashes of cells, facts
      ─RatingCollector─► all ratings in this process, numbered: 9 bytes each, 13 with weights       CollectedRatings
      ─Pack─► bundles of 8 bytes per rating, under numbers of their own dictionaries, on the executors' disks
                ─► facts (counts, defects, fingerprint) of every bundle
                ─► ids with their counts (``CountIds``, ``sum_counts``)
                ─► hashes of cells, for the sketch
                ─► blocks (``engines.blocking``)

Raw ratings come from Spark (``collect``, ``survey``) or from files (``arrow_ratings``, ``rating_files``). No Python
object is made per rating. This module imports no Spark.

A task cuts its ratings into bundles, one line each. A segment is a run of bundles that share a dictionary of users and
one of items. A bundle holds the ids that are new in its segment, so the lines of a segment are read in order. The last
line of a segment has no ratings: it holds the number of ratings, and of positive ones, of every id of the segment.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.compiled import jit
from onebit_spark.core.hashes import CellSketch, cell_hashes, hash_sums, limit_for
from onebit_spark.core.id_index import IdColumn, IdEncoder, hashes_of, sum_by_id
from onebit_spark.input.rating_checks import BIT, RatingCounts
from onebit_spark.platform.binary_cells import binary_line, cell_array, ids_cell, read_ids

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
    """Labels, hashes of cells, weights and facts of some raw ratings."""
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

TABLE_BYTES = 16 * 2**20  # of ratings that are processed at once

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
    limit: int  # see ``core.hashes``

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
    """Collects ratings: 9 bytes per rating, 13 with weights, and their facts."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.facts: Counter[str] = Counter()
        self._users, self._items = IdColumn(), IdColumn()
        self._positive: list[NDArray[np.bool_]] = []
        self._weights: list[NDArray[np.float32]] = []  # empty if there are none
        self._cells: list[Hashes] = []

    def add(self, table: pa.Table, here: RatingBatch) -> None:
        """Add the ratings of a table, as ``read_batch`` has read them. Ids that are null or NaN are not kept."""
        self.facts.update(here.facts)
        self.facts["absent"] += not self._users.add(table[USER])
        self.facts["absent"] += not self._items.add(table[ITEM])
        self._positive.append(here.positive)
        self._cells.append(here.hashes[here.hashes <= self.limit])
        if here.weights is not None:
            self._weights.append(here.weights)

    def ratings(self, counts: RatingCounts) -> CollectedRatings:
        """The ratings. The collector is empty afterwards."""
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


# ---- packed on the executors -----------------------------------------------------------------------------------------

BUNDLE = 2_000_000  # ratings of a line
SEGMENT = 16_000_000  # ratings that share their dictionaries
BINARY_CELLS = ("user_ids", "item_ids", "users", "codes", "weights", "cells", "user_counts", "item_counts")
SUMMARY = ("user_ids", "item_ids", "user_counts", "item_counts", "cells")  # the columns that are not per rating
NOTHING = np.empty(0, np.int32)
NO_WEIGHTS = np.empty(0, np.float32)
NO_COUNTS = np.empty((0, 2), np.int32)


@dataclass(frozen=True)
class Pack:
    """Packs the ratings of a task (``ratings.unchecked_ratings``)."""

    threshold: float | None
    first_segment: Callable[[], int] = int  # its number, which no other task has

    def __call__(self, batches: Batches) -> Batches:
        first, n_task, number = self.first_segment(), 0, 0
        segment = _Segment(first)
        for table in joined(batches, pa.RecordBatch.__len__, BUNDLE):
            n_task += len(table)
            if segment.n and segment.n + len(table) > SEGMENT:
                yield from segment.counts()
                number += 1
                segment = _Segment(first + number)
            yield segment.packed(table, self.threshold, limit_for(n_task))
        yield from segment.counts()


class _Segment:
    """The dictionaries of a segment, and the ratings of each id: all, and the positive ones."""

    def __init__(self, number: int) -> None:
        self.number, self.n, self._n_lines = number, 0, 0
        self._users, self._items = IdEncoder(), IdEncoder()
        self._user_counts, self._item_counts = NO_COUNTS, NO_COUNTS
        self._types: tuple[pa.DataType, pa.DataType] | None = None

    def packed(self, table: pa.Table, threshold: float | None, limit: int) -> pa.RecordBatch:
        """One bundle. If an id or a label is null, it has facts alone: such ratings are refused."""
        self.n += len(table)
        users, items = self._users.add(table[USER]), self._items.add(table[ITEM])
        batch = read_batch(table, threshold)
        facts = batch.facts
        if users is None or items is None or "absent" in facts:
            return self._line({**facts, "absent": 1})
        codes = items[0] << 1
        codes |= batch.positive
        self._types = users[1].type, items[1].type
        self._user_counts = _with_room(self._user_counts, len(self._users))
        self._item_counts = _with_room(self._item_counts, len(self._items))
        _count(users[0], codes, self._user_counts, self._item_counts)
        user_ids, item_ids, cells = ids_cell(users[1]), ids_cell(items[1]), batch.hashes[batch.hashes <= limit]
        facts["summary_bytes"] = user_ids.size + item_ids.size + 8 * (len(users[1]) + len(items[1])) + cells.nbytes
        return self._line(
            facts, user_ids=user_ids, item_ids=item_ids, users=users[0], codes=codes,
            weights=NO_WEIGHTS if batch.weights is None else batch.weights, cells=cells,
        )  # fmt: skip

    def counts(self) -> Batches:
        """The last line; none if there are no ratings that can be fitted."""
        if self._types is not None:
            user_ids, item_ids = (ids_cell(pa.array([], kind)) for kind in self._types)
            counts = {"user_counts": self._user_counts, "item_counts": self._item_counts}
            yield self._line({}, user_ids=user_ids, item_ids=item_ids, **counts)

    def _line(self, facts: dict[str, Any], **cells: Any) -> pa.RecordBatch:
        place, self._n_lines = self._n_lines, self._n_lines + 1
        given = {name: cells.get(name, NOTHING) for name in BINARY_CELLS}
        return binary_line(segment=self.number, place=place, facts=json.dumps(facts), **given)


def _with_room(counts: NDArray[np.int32], n: int) -> NDArray[np.int32]:
    """The counts, with zeros for the ids that are new."""
    return np.vstack([counts, np.zeros((n - len(counts), 2), np.int32)])


@jit
def _count(users, codes, user_counts, item_counts):  # type: ignore[no-untyped-def]
    for k in range(len(users)):
        user, item, label = users[k], codes[k] >> 1, codes[k] & 1
        user_counts[user, 0] += 1
        user_counts[user, 1] += label
        item_counts[item, 0] += 1
        item_counts[item, 1] += label


@dataclass(frozen=True)
class Bundle:
    """A bundle as it is read."""

    segment: int
    place: int  # in the segment
    user_ids: pa.Array  # the ids that are new in the segment
    item_ids: pa.Array
    users: NDArray[np.int32]  # each rating's user, as a position among the ids of the segment
    codes: NDArray[np.int32]  # each rating's item, in the same way, and label: item << 1 | positive
    weights: NDArray[np.float32]  # empty if there are none


# The columns that ``read_bundles`` takes.
BUNDLES = ("segment", "place", "user_ids", "item_ids", "users", "codes", "weights")


def read_bundles(batches: Batches) -> Iterator[Bundle]:
    """The bundles of some lines, without copying their ratings."""
    for batch in batches:
        for segment, place, user_ids, item_ids, users, codes, weights in zip(*map(batch.column, BUNDLES), strict=True):
            yield Bundle(
                segment.as_py(), place.as_py(), read_ids(user_ids), read_ids(item_ids),
                cell_array(users, np.int32), cell_array(codes, np.int32), cell_array(weights, np.float32),
            )  # fmt: skip


# ---- ids and their counts --------------------------------------------------------------------------------------------

SIDE_NUMBERS = {USER: 1, ITEM: 2}  # in the lines of ``sum_counts``
COUNTED = ("user_ids", "item_ids", "user_counts", "item_counts")  # the columns that ``CountIds`` takes


@dataclass(frozen=True)
class CountIds:
    """The ids of every segment with their ratings and positive ratings, in ``n_parts`` parts by a hash of the id.

    ``side`` is a number of SIDE_NUMBERS.
    """

    n_parts: int

    def __call__(self, batches: Batches) -> Batches:
        segment: tuple[list[pa.Array], list[pa.Array]] = ([], [])  # ids of users and of items
        for batch in batches:
            for *ids, user_counts, item_counts in zip(*map(batch.column, COUNTED), strict=True):
                for known, cell in zip(segment, ids, strict=True):
                    known.append(read_ids(cell))
                counts = [cell_array(cell, np.int32).reshape(-1, 2) for cell in (user_counts, item_counts)]
                if len(counts[0]):  # the last line of a segment
                    users, items = map(pa.concat_arrays, segment)
                    yield from self._lines(1, users, ids_cell(items[:0]), counts[0])
                    yield from self._lines(2, items, ids_cell(users[:0]), counts[1])
                    segment = ([], [])

    def _lines(self, side: int, ids: pa.Array, none: pa.Buffer, counts: NDArray[np.int32]) -> Batches:
        if self.n_parts == 1:
            n, above = counts.T
            yield binary_line(part=0, side=side, ids=ids_cell(ids), none=none, n=n, above=above)
            return
        parts = (hashes_of(ids) >> np.uint64(20)) % np.uint64(self.n_parts)
        order = np.argsort(parts.astype(np.uint16) if self.n_parts <= 2**16 else parts, kind="stable")
        edges = np.searchsorted(parts[order], np.arange(self.n_parts + 1, dtype=np.uint64))
        for part in np.flatnonzero(np.diff(edges)):
            here = order[edges[part] : edges[part + 1]]
            n, above = counts[here].T
            yield binary_line(part=part, side=side, ids=ids_cell(ids.take(pa.array(here))), none=none, n=n, above=above)


def sum_counts(batches: Batches) -> Batches:
    """(user, item, side, n, above): the different ids of a part, each once; of the other side's id there is none."""
    ids: dict[int, list[pa.Array]] = {1: [], 2: []}
    counts: dict[int, list[NDArray[np.int32]]] = {1: [], 2: []}
    kinds: dict[int, pa.DataType] = {}
    for batch in batches:
        for i, side in enumerate(batch.column("side").to_pylist()):
            ids[side].append(read_ids(batch.column("ids")[i]))
            kinds = {side: ids[side][0].type, 3 - side: read_ids(batch.column("none")[i]).type}
            counts[side].append(np.stack([cell_array(batch.column(name)[i], np.int32) for name in ("n", "above")]))
    for side in (side for side, arrays in ids.items() if arrays):
        different, totals = sum_by_id(pa.concat_arrays(ids[side]), *np.hstack(counts[side]))
        n = len(different)
        both = [different if side == which else pa.nulls(n, kinds[which]) for which in (1, 2)]
        rest = pa.array(np.full(n, side, np.int32)), *map(pa.array, totals)
        yield pa.RecordBatch.from_arrays([*both, *rest], names=[USER, ITEM, "side", "n", "above"])
