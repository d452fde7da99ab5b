"""The ids of packed ratings with their numbers of ratings, summed over segments. This module imports no Spark."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from onebit_spark.core.id_hash_table import hashes_of
from onebit_spark.core.id_index import sum_by_id
from onebit_spark.input.batches import ITEM, USER, Batches
from onebit_spark.platform.binary_cells import binary_line, cell_array, ids_cell, read_ids

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
