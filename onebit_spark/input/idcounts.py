"""The ids of packed ratings, each once, with the number of its ratings and of its positive ratings.

bundles ─CountIds─► ids of every segment, in parts by a hash of the id ─shuffle─► sum_counts ─► one line per id
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from onebit_spark.core.compiled import jit
from onebit_spark.input.packing import read_bundles
from onebit_spark.input.ratings import ITEM, USER
from onebit_spark.platform.binary import binary_line, cell_array, ids_cell, read_ids
from onebit_spark.platform.shortrows import Batches

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
            parts = (hashes_of(ids) >> np.uint64(20)) % np.uint64(self.n_parts)
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
    """A hash of every id of an array without nulls: equal for equal ids of one type. The high bits are mixed best."""
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
        hashes[k] = (x ^ (x >> np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)
    return hashes
