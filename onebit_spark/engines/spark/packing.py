"""Ratings packed on the executors.

    raw ratings ─Pack─► bundles of 8 bytes per rating, under positions of their own ids, on disks
                          ─► facts (counts, defects, fingerprint) of every bundle
                          ─► ids with their counts
                          ─► hashes of cells, for the sketch
                          ─► blocks (``engines.spark.blocking``)

A task cuts its ratings into bundles, one line each. A bundle has its own different ids, with the
number of ratings and of positive ratings of each. So no rating is read again to count the ids:

    few ids      SUMMARY of all bundles ─► the driver counts them     one job without Python
    many ids     bundles ─CountIds─► ids of every bundle, by a hash ─shuffle─► sum_counts
                 ─► one line per id, cached ─► how many there are

An exchange that shuffles needs one line per id. If the driver has counted few ids, these lines are
made when they are first used.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from onebit_spark.data.hashes import limit_for
from onebit_spark.data.id_index import hashes_of, sum_by_id
from onebit_spark.data.ratings import (
    ITEM,
    USER,
    Batches,
    RatingCollector,
    rating_tables,
    read_batch,
)
from onebit_spark.engines.spark.frames import binary_line, cell_array, ids_cell, read_ids, schema_of
from onebit_spark.records import Fields

BUNDLE = 4_000_000  # ratings, about
# The columns that are not per rating
SUMMARY = (
    "user_ids",
    "item_ids",
    "user_counts",
    "item_counts",
    "cells",
)
NOTHING = np.empty(0, np.int32)
NO_WEIGHTS = np.empty(0, np.float32)


@dataclass(frozen=True)
class Pack:
    threshold: float | None
    first_bundle: Callable[[], int] = int  # its number, which no other task has

    def __call__(self, batches: Batches) -> Batches:
        n = 0
        number = self.first_bundle()
        bundle = RatingCollector(limit_for(0))
        for table in rating_tables(batches):
            n += len(table.plain)
            bundle.limit = limit_for(n)
            bundle.add(table.plain, read_batch(table.plain, self.threshold))
            if bundle.facts["n"] >= BUNDLE:
                yield _packed(number, bundle)
                number = number + 1
                bundle = RatingCollector(limit_for(n))
        if bundle.facts["n"]:
            yield _packed(number, bundle)


def _packed(number: int, bundle: RatingCollector) -> pa.RecordBatch:
    """One bundle. If an id or a label is null, it has facts alone: such ratings are refused."""
    facts: Fields = dict(bundle.facts)
    if facts["absent"]:
        return binary_line(
            bundle=number, facts=json.dumps(facts), **dict.fromkeys(BINARY_CELLS, NOTHING)
        )
    users, items, rows, codes, weights, cells = bundle.columns(ascending=False)
    user_ids = ids_cell(users)
    item_ids = ids_cell(items)
    counts = _counts(rows << 1 | codes & 1, len(users)), _counts(codes, len(items))
    facts["summary_bytes"] = (
        user_ids.size + item_ids.size + sum(each.nbytes for each in (*counts, cells))
    )
    return binary_line(
        bundle=number,
        facts=json.dumps(facts),
        user_ids=user_ids,
        item_ids=item_ids,
        users=rows,
        codes=codes,
        weights=NO_WEIGHTS if weights is None else weights,
        cells=cells,
        user_counts=counts[0],
        item_counts=counts[1],
    )


def _counts(codes: NDArray[np.int32], n: int) -> NDArray[np.int32]:
    """The ratings of n ids, all and the positive ones (n × 2), from the codes id << 1 |
    positive.
    """
    counts = np.bincount(codes, minlength=2 * n).reshape(n, 2).astype(np.int32)
    counts[:, 0] += counts[:, 1]
    return counts


@dataclass(frozen=True)
class Bundle:
    number: int
    user_ids: pa.Array  # the different ids
    item_ids: pa.Array
    users: NDArray[np.int32]  # each rating's user, as a position among the ids
    codes: NDArray[np.int32]  # each rating's item, in the same way, and label: item << 1 | positive
    weights: NDArray[np.float32]  # empty if there are none


# The columns that ``read_bundles`` takes
BUNDLES = (
    "bundle",
    "user_ids",
    "item_ids",
    "users",
    "codes",
    "weights",
)


def read_bundles(batches: Batches) -> Iterator[Bundle]:
    """The bundles of some lines, without copying their ratings."""
    for batch in batches:
        for number, user_ids, item_ids, users, codes, weights in zip(
            *map(batch.column, BUNDLES), strict=True
        ):
            yield Bundle(
                number.as_py(),
                read_ids(user_ids),
                read_ids(item_ids),
                cell_array(users, np.int32),
                cell_array(codes, np.int32),
                cell_array(weights, np.float32),
            )


# ---- ids and their counts ----------------------------------------------------------------------

SIDE_NUMBERS = {USER: 1, ITEM: 2}  # in the lines of ``sum_counts``
# The columns that ``CountIds`` takes
COUNTED = (
    "user_ids",
    "item_ids",
    "user_counts",
    "item_counts",
)


@dataclass(frozen=True)
class CountIds:
    """The ids of every bundle with their ratings and positive ratings, in ``n_parts`` parts by a
    hash of the id.

    ``side`` is a number of SIDE_NUMBERS.
    """

    n_parts: int

    def __call__(self, batches: Batches) -> Batches:
        for batch in batches:
            for user_ids, item_ids, *cells in zip(*map(batch.column, COUNTED), strict=True):
                users = read_ids(user_ids)
                items = read_ids(item_ids)
                counts = [cell_array(cell, np.int32).reshape(-1, 2) for cell in cells]
                yield from self._lines(1, users, ids_cell(items[:0]), counts[0])
                yield from self._lines(2, items, ids_cell(users[:0]), counts[1])

    def _lines(
        self, side: int, ids: pa.Array, none: pa.Buffer, counts: NDArray[np.int32]
    ) -> Batches:
        if self.n_parts == 1:
            n, above = counts.T
            yield binary_line(part=0, side=side, ids=ids_cell(ids), none=none, n=n, above=above)
            return
        parts = (hashes_of(ids) >> np.uint64(20)) % np.uint64(self.n_parts)
        order = np.argsort(
            parts.astype(np.uint16) if self.n_parts <= 2**16 else parts, kind="stable"
        )
        edges = np.searchsorted(parts[order], np.arange(self.n_parts + 1, dtype=np.uint64))
        for part in np.flatnonzero(np.diff(edges)):
            here = order[edges[part] : edges[part + 1]]
            n, above = counts[here].T
            yield binary_line(
                part=part,
                side=side,
                ids=ids_cell(ids.take(pa.array(here))),
                none=none,
                n=n,
                above=above,
            )


def sum_counts(batches: Batches) -> Batches:
    """(user, item, side, n, above): the different ids of a part, each once; of the other side's id
    there is none.
    """
    ids: dict[int, list[pa.Array]] = {1: [], 2: []}
    counts: dict[int, list[NDArray[np.int32]]] = {1: [], 2: []}
    kinds: dict[int, pa.DataType] = {}
    for batch in batches:
        for i, side in enumerate(batch.column("side").to_pylist()):
            ids[side].append(read_ids(batch.column("ids")[i]))
            kinds = {side: ids[side][0].type, 3 - side: read_ids(batch.column("none")[i]).type}
            counts[side].append(
                np.stack([cell_array(batch.column(name)[i], np.int32) for name in ("n", "above")])
            )
    for side in (side for side, arrays in ids.items() if arrays):
        different, totals = sum_by_id(pa.concat_arrays(ids[side]), *np.hstack(counts[side]))
        n = len(different)
        both = [different if side == which else pa.nulls(n, kinds[which]) for which in (1, 2)]
        rest = pa.array(np.full(n, side, np.int32)), *map(pa.array, totals)
        yield pa.RecordBatch.from_arrays([*both, *rest], names=[USER, ITEM, "side", "n", "above"])


# ---- the job that packs ------------------------------------------------------------------------


BINARY_CELLS = (
    "user_ids",
    "item_ids",
    "users",
    "codes",
    "weights",
    "cells",
    "user_counts",
    "item_counts",
)
PACKED = schema_of(
    ", ".join(["bundle long", "facts string", *(f"{name} binary" for name in BINARY_CELLS)])
)
