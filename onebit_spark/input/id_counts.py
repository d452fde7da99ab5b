"""The ids of packed ratings, each once, with the number of its ratings and of its positive ratings.

bundles ─CountIds─► ids of every segment, in parts by a hash of the id ─shuffle─► sum_counts ─► one line per id

``packing`` has counted the ratings of each segment's ids. No rating is read here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from onebit_spark.core.compiled import jit
from onebit_spark.input.ratings import ITEM, USER
from onebit_spark.platform.binary_cells import binary_line, cell_array, ids_cell, read_ids
from onebit_spark.platform.schemas import schema_of
from onebit_spark.platform.short_rows import Batches

COUNTED = ("user_ids", "item_ids", "user_counts", "item_counts")  # the columns that ``CountIds`` takes
SIDES = {1: "user", 2: "item"}
# ``none`` holds no id, only the type of the other side's.
PARTIAL = schema_of("part int, side int, ids binary, none binary, n binary, above binary")


@dataclass(frozen=True)
class CountIds:
    """The ids of every segment with their ratings and positive ratings, in ``n_parts`` parts by a hash of the id.

    ``side`` is a number of SIDES.
    """

    n_parts: int

    def __call__(self, batches: Batches) -> Batches:
        ids: dict[int, list[pa.Array]] = {1: [], 2: []}
        for batch in batches:
            for line in range(batch.num_rows):
                for side, name in SIDES.items():
                    ids[side].append(read_ids(batch.column(f"{name}_ids")[line]))
                counts = {side: _counts(batch.column(f"{name}_counts")[line]) for side, name in SIDES.items()}
                if len(counts[1]):  # the last line of a segment
                    yield from self._lines({side: pa.concat_arrays(arrays) for side, arrays in ids.items()}, counts)
                    ids = {1: [], 2: []}

    def _lines(self, ids: dict[int, pa.Array], counts: dict[int, NDArray[np.int32]]) -> Batches:
        for side, own in ids.items():
            none = ids_cell(ids[3 - side][:0])
            if self.n_parts == 1:
                n, above = counts[side].T
                yield binary_line(part=0, side=side, ids=ids_cell(own), none=none, n=n, above=above)
                continue
            parts = (hashes_of(own) >> np.uint64(20)) % np.uint64(self.n_parts)
            order = np.argsort(parts.astype(np.uint16) if self.n_parts <= 2**16 else parts, kind="stable")
            edges = np.searchsorted(parts[order], np.arange(self.n_parts + 1, dtype=np.uint64))
            for part in np.flatnonzero(np.diff(edges)):
                here = order[edges[part] : edges[part + 1]]
                n, above = counts[side][here].T
                yield binary_line(
                    part=part, side=side, ids=ids_cell(own.take(pa.array(here))), none=none, n=n, above=above
                )


def _counts(cell: Any) -> NDArray[np.int32]:
    """For each id of a segment: its ratings, and the positive ones. Empty if this is not its last line."""
    return cell_array(cell, np.int32).reshape(-1, 2)


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
