"""Ratings packed in the executors: read once, 8 bytes each, under the numbers of dictionaries of their own.

    raw ratings ─Pack─► bundles on the executors' disks ─► facts (counts, defects, fingerprint) of every bundle
                                                        ─► ids with their counts (CountIds, ``sum_counts``)
                                                        ─► hashes of cells, for the sketch
                                                        ─► blocks (``engines.blocking``)

A task cuts its ratings into bundles, one line each. A segment is a run of bundles that share a dictionary of users and
one of items. A bundle names the ids that are new in its segment, so a segment is read in its order.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark import StorageLevel, TaskContext
from pyspark.sql import DataFrame

from onebit_spark.core.compiled import jit
from onebit_spark.core.sketch import limit_for
from onebit_spark.input.columns import HASH_PARTS
from onebit_spark.input.defects import Columns
from onebit_spark.input.ratings import ITEM, LABEL, USER, WEIGHT, cell_hashes, raw
from onebit_spark.input.readings import GrowingDictionary, LabelCounts, hash_sums
from onebit_spark.input.weights import bad_weights
from onebit_spark.platform.binary import binary_line, cell_array, ids_cell, read_ids
from onebit_spark.platform.joining import joined
from onebit_spark.platform.plans import cut_from_plan, expect_long_lines, working_session
from onebit_spark.platform.shortrows import map_rows, rows_session

BUNDLE = 2_000_000  # ratings of a line
SEGMENT = 16_000_000  # ratings that share their dictionaries
PACKED = (
    "segment long, place int, facts string, user_ids binary, item_ids binary, users binary, codes binary, "
    "weights binary, cells binary"
)
NOTHING = np.empty(0, np.int32)
NO_WEIGHTS = np.empty(0, np.float32)

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True)
class PackedRatings:
    """The packed ratings, and what was counted of them.

    Parameters
    ----------
    bundles : DataFrame
        The lines of PACKED, in a session that reads one line at a time.
    facts : Counter
        Sums over all bundles: ``n``, the flags of ``defects``, HASH_PARTS, ``absent`` and ``weight``.
    cached : DataFrame
        The same lines, where they are kept, in a session that sends many short rows to Python.
    """

    bundles: DataFrame
    facts: Counter[str]
    cached: DataFrame

    @classmethod
    def of(cls, df: DataFrame, columns: Columns) -> PackedRatings:
        """Read the ratings once, by one job."""
        spark = df.sparkSession
        rows = cut_from_plan(raw(df, columns), rows_session(spark))
        cached = map_rows(rows, Pack(columns.threshold), PACKED).persist(StorageLevel.DISK_ONLY)
        try:
            facts: Counter[str] = Counter()
            for told in cached.select("facts").toArrow()["facts"].to_pylist():
                facts.update(json.loads(told))
        except BaseException:
            cached.unpersist()
            raise
        own = working_session(spark)
        expect_long_lines(own, 1)
        return cls(cut_from_plan(cached, own), facts, cached)

    def release(self) -> None:
        """Delete the bundles from the executors' disks."""
        self.cached.unpersist()


@dataclass(frozen=True)
class Pack:
    """Packs the ratings of a task (``ratings.raw``)."""

    threshold: float | None

    def __call__(self, batches: Batches) -> Batches:
        first, n_task, number = _first_segment(), 0, 0
        segment = _Segment(first)
        for table in joined(batches, pa.RecordBatch.__len__, BUNDLE):
            n_task += len(table)
            if segment.n and segment.n + len(table) > SEGMENT:
                number += 1
                segment = _Segment(first + number)
            yield segment.packed(table, self.threshold, limit_for(n_task))


def _first_segment() -> int:
    context = TaskContext.get()
    return (0 if context is None else context.partitionId()) << 32


class _Segment:
    """The dictionaries of a segment."""

    def __init__(self, number: int) -> None:
        self.number, self.n, self.n_bundles = number, 0, 0
        self._users, self._items = GrowingDictionary(), GrowingDictionary()

    def packed(self, table: pa.Table, threshold: float | None, limit: int) -> pa.RecordBatch:
        """One bundle. If an id or a label is null, only its facts are told: such ratings are refused."""
        self.n += len(table)
        users, items = self._users.add(table[USER]), self._items.add(table[ITEM])
        counts = LabelCounts()
        label = counts.add(table[LABEL], threshold)
        hashes = cell_hashes(table)
        weights = np.array(table[WEIGHT].to_numpy(), np.float32) if WEIGHT in table.schema.names else None
        facts: dict[str, Any] = counts.totals()
        facts.update(zip(HASH_PARTS, hash_sums(hashes, label, weights).tolist(), strict=True))
        if weights is not None:
            facts.update(bad_weight=bad_weights(weights), weight=_finite_sum(weights))
        if users is None or items is None or table[LABEL].null_count:
            return self._line({**facts, "absent": 1})
        codes = items[0] << 1
        codes |= label
        return self._line(
            facts, ids_cell(users[1]), ids_cell(items[1]), users[0], codes,
            NO_WEIGHTS if weights is None else weights, hashes[hashes <= limit],
        )  # fmt: skip

    def _line(self, facts: dict[str, Any], *cells: Any) -> pa.RecordBatch:
        names = ("user_ids", "item_ids", "users", "codes", "weights", "cells")
        given = dict(zip(names, cells or [NOTHING] * len(names), strict=True))
        place, self.n_bundles = self.n_bundles, self.n_bundles + 1
        return binary_line(segment=self.number, place=place, facts=json.dumps(facts), **given)


def _finite_sum(weights: NDArray[np.float32]) -> float:
    return float(np.sum(weights, dtype=np.float64, where=np.isfinite(weights)))


@dataclass(frozen=True)
class Bundle:
    """A bundle as it is read.

    Parameters
    ----------
    segment, place : int
        Its segment, and its place there.
    user_ids, item_ids : pa.Array
        The ids that are new in the segment.
    users : array of int32
        Each rating's user, as a position among the ids of the segment.
    codes : array of int32
        Each rating's item, in the same way, and label: item << 1 | positive.
    weights : array of float32
        Weights; empty if there are none.
    """

    segment: int
    place: int
    user_ids: pa.Array
    item_ids: pa.Array
    users: NDArray[np.int32]
    codes: NDArray[np.int32]
    weights: NDArray[np.float32]


BUNDLES = (
    "segment",
    "place",
    "user_ids",
    "item_ids",
    "users",
    "codes",
    "weights",
)  # the columns that ``read_bundles`` takes


def read_bundles(batches: Batches) -> Iterator[Bundle]:
    """The bundles of some lines, without copying their ratings."""
    for batch in batches:
        cells = {name: batch.column(name) for name in BUNDLES}
        for i in range(batch.num_rows):
            yield Bundle(
                cells["segment"][i].as_py(),
                cells["place"][i].as_py(),
                read_ids(cells["user_ids"][i]),
                read_ids(cells["item_ids"][i]),
                cell_array(cells["users"][i], np.int32),
                cell_array(cells["codes"][i], np.int32),
                cell_array(cells["weights"][i], np.float32),
            )


PARTIAL = "part int, side int, ids binary, none binary, n binary, above binary"  # none: no id of the other side


@dataclass(frozen=True)
class CountIds:
    """The ids of every segment with their ratings and positive ratings, in ``n_parts`` parts by a hash of the id.

    ``side`` is 1 for users and 2 for items.
    """

    n_parts: int

    def __call__(self, batches: Batches) -> Batches:
        counts: dict[int, _Counted] = {}
        segment = None
        for bundle in read_bundles(batches):
            if bundle.segment != segment:
                yield from self._lines(counts)
                segment, counts = bundle.segment, {side: _Counted() for side in (1, 2)}
            label = bundle.codes & 1
            counts[1].add(bundle.user_ids, bundle.users, label)
            counts[2].add(bundle.item_ids, bundle.codes >> 1, label)
        yield from self._lines(counts)

    def _lines(self, counts: dict[int, _Counted]) -> Batches:
        for side, counted in counts.items():
            ids, none = pa.concat_arrays(counted.ids), ids_cell(counts[3 - side].ids[0][:0])
            parts = hashes_of(ids) % np.uint64(self.n_parts)
            order = np.argsort(parts.astype(np.uint16) if self.n_parts <= 2**16 else parts, kind="stable")
            edges = np.searchsorted(parts[order], np.arange(self.n_parts + 1, dtype=np.uint64))
            for part in np.flatnonzero(np.diff(edges)):
                here = order[edges[part] : edges[part + 1]]
                n, above = counted.totals[here].T
                own = ids_cell(ids.take(pa.array(here)))
                yield binary_line(part=part, side=side, ids=own, none=none, n=n, above=above)


class _Counted:
    def __init__(self) -> None:
        self.ids: list[pa.Array] = []
        self.totals = np.zeros((0, 2), np.int64)

    def add(self, new: pa.Array, numbers: NDArray[np.int32], label: NDArray[np.int32]) -> None:
        self.ids.append(new)
        self.totals = np.vstack([self.totals, np.zeros((len(new), 2), np.int64)])
        _count(numbers, label, self.totals)


@jit
def _count(numbers, label, totals):  # type: ignore[no-untyped-def]
    for k in range(len(numbers)):
        totals[numbers[k], 0] += 1
        totals[numbers[k], 1] += label[k]


def sum_counts(batches: Batches) -> Batches:
    """(user, item, side, n, above): the different ids of a part, each once; of the other side's id there is none."""
    ids: dict[int, list[pa.Array]] = {1: [], 2: []}
    counts: dict[int, list[NDArray[np.int64]]] = {1: [], 2: []}
    kinds: dict[int, pa.DataType] = {}
    for batch in batches:
        for i, side in enumerate(batch.column("side").to_pylist()):
            ids[side].append(read_ids(batch.column("ids")[i]))
            kinds = {side: ids[side][0].type, 3 - side: read_ids(batch.column("none")[i]).type}
            counts[side].append(np.stack([cell_array(batch.column(name)[i], np.int64) for name in ("n", "above")]))
    for side in (side for side, arrays in ids.items() if arrays):
        encoded = pa.concat_arrays(ids[side]).dictionary_encode()
        totals = np.zeros((len(encoded.dictionary), 2), np.int64)
        _add_up(encoded.indices.to_numpy(), np.hstack(counts[side]), totals)
        n = len(totals)
        both = [encoded.dictionary if side == which else pa.nulls(n, kinds[which]) for which in (1, 2)]
        rest = pa.array(np.full(n, side, np.int32)), *(pa.array(part) for part in totals.T.copy())
        yield pa.RecordBatch.from_arrays([*both, *rest], names=[USER, ITEM, "side", "n", "above"])


@jit
def _add_up(numbers, counts, totals):  # type: ignore[no-untyped-def]
    for k in range(len(numbers)):
        totals[numbers[k], 0] += counts[0, k]
        totals[numbers[k], 1] += counts[1, k]


def hashes_of(ids: pa.Array) -> NDArray[np.uint64]:
    """A hash of every id of an array without nulls. Equal ids of one type have equal hashes."""
    if pa.types.is_boolean(ids.type):
        ids = ids.cast(pa.int8())
    _, *buffers = ids.buffers()
    if len(buffers) == 1:  # of a fixed width
        width = ids.type.bit_width // 8
        data = np.frombuffer(buffers[0], np.uint8)[ids.offset * width : (ids.offset + len(ids)) * width]
        return _hashed_bytes(data, np.arange(len(ids) + 1, dtype=np.int64) * width)
    kind = np.int64 if pa.types.is_large_string(ids.type) or pa.types.is_large_binary(ids.type) else np.int32
    offsets = np.frombuffer(buffers[0], kind)[ids.offset : ids.offset + len(ids) + 1].astype(np.int64)
    data = np.empty(0, np.uint8) if buffers[1] is None else np.frombuffer(buffers[1], np.uint8)
    return _hashed_bytes(data, offsets)


@jit
def _hashed_bytes(data, offsets):  # type: ignore[no-untyped-def]
    """FNV-1a (Fowler, Noll and Vo, 1991) of the bytes of each value, mixed once more."""
    hashes = np.empty(len(offsets) - 1, np.uint64)
    for k in range(len(hashes)):
        x = np.uint64(0xCBF29CE484222325)
        for place in range(offsets[k], offsets[k + 1]):
            x = (x ^ np.uint64(data[place])) * np.uint64(0x100000001B3)
        hashes[k] = (x ^ (x >> np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(20)
    return hashes
