"""Ids of any type: encoded, found among known ones, counted.

encode       a column ─► the code of every id, and the different ids by their codes
IdColumn     a column that arrives in parts ─► the position of every id among the different ones
IdIndex      known ids, indexed once ─► the position of every id, −1 for an unknown one
TextIds      ids that are text ─► their bytes, and about how many differ
sum_by_id    ids that repeat, with counts ─► the different ids and the sums of their counts
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from onebit_spark.data.hashes import hashed
from onebit_spark.data.user_tables import in_utc, narrow, one_array, wide

Codes = NDArray[np.int32]

# Integers are encoded by a table of their range if it has at most so many numbers for each of them
DENSE_PER_ID = 4
FEW = 1 << 20  # different ids of several parts that are not merged yet


class Ids(Protocol):
    """The ids of a side in the order of its rows."""

    @property
    def values(self) -> pa.Array: ...


class HeldIds(NamedTuple):
    values: pa.Array


class IdIndex:
    """Different ids, in any order. The index is built at the first lookup.

    ``pyarrow.compute.index_in`` makes a hash table of all known ids in every call: a second for
    10⁷. Integers of all widths are comparable, and so are texts with offsets of 32 and of 64 bits.
    """

    def __init__(self, ids: pa.ChunkedArray | pa.Array) -> None:
        self.ids = one_array(ids)
        self._type = pa.int64() if pa.types.is_integer(self.ids.type) else wide(self.ids.type)

    def __len__(self) -> int:
        return len(self.ids)

    def __reduce__(self) -> tuple[Any, ...]:
        return IdIndex, (self.ids,)  # a worker builds the index again

    def find(self, ids: pa.ChunkedArray | pa.Array) -> Codes:
        """The position of every id; −1 for one that is not known, and for null."""
        asked = one_array(ids).cast(self._type)
        if asked.null_count or not len(self):
            found = np.full(len(asked), -1, np.int32)
            if len(self):
                found[asked.is_valid().to_numpy(zero_copy_only=False)] = self.find(
                    asked.drop_null()
                )
            return found
        if len(asked) > len(self):  # most of them repeat
            codes, different = encode(asked)
            return self._search(different)[codes]
        return self._search(asked)

    @cached_property
    def _known(self) -> pa.Array:
        return self.ids.cast(self._type)

    @cached_property
    def _search(self) -> Callable[[pa.Array], Codes]:
        """Binary search, by integers, or by hashes of 64 bits, after which the ids themselves are
        compared.

        The keys to look up are sorted too, so that successive searches read the same cache lines.
        """
        integers = self._type == pa.int64()
        keys_of: Callable[[pa.Array], NDArray[np.generic]] = (
            pa.Array.to_numpy if integers else hashes_of
        )
        keys = keys_of(self._known)
        order = np.argsort(keys).astype(np.int32)
        keys = keys[order]

        def search(ids: pa.Array) -> Codes:
            asked = keys_of(ids)
            by_key = np.argsort(asked)
            asked = asked[by_key]
            place = np.minimum(np.searchsorted(keys, asked), len(keys) - 1)
            found = np.empty(len(asked), np.int32)
            found[by_key] = np.where(keys[place] == asked, order[place], np.int32(-1))
            return found if integers else self._compared(found, ids)

        return search

    def _compared(self, found: Codes, ids: pa.Array) -> Codes:
        """The positions, where two different ids may have one hash."""
        hit = np.flatnonzero(found >= 0)
        same = pc.equal(self._known.take(pa.array(found[hit])), ids.take(pa.array(hit))).to_numpy(
            zero_copy_only=False
        )
        other = hit[~same]
        if len(other):
            exact = pc.index_in(ids.take(pa.array(other)), value_set=self._known)
            found[other] = pc.fill_null(exact, -1).to_numpy()
        return found


# ---- encode and count --------------------------------------------------------------------------


def encode(ids: pa.ChunkedArray | pa.Array) -> tuple[Codes, pa.Array]:
    """The code of every id, none of which is null, and the different ids by their codes."""
    array = one_array(ids)
    if pa.types.is_integer(array.type) and len(array):
        values = array.to_numpy()
        low = int(values.min())
        high = int(values.max())
        if high - low < DENSE_PER_ID * len(values):
            places = np.subtract(values, low, dtype=np.int64)
            present = np.zeros(high - low + 1, bool)
            present[places] = True
            different = np.flatnonzero(present)
            table = np.empty(len(present), np.int32)
            table[different] = np.arange(len(different), dtype=np.int32)
            return table[places], pa.array(different + low, array.type)
    encoded = array.dictionary_encode()
    return encoded.indices.to_numpy(), encoded.dictionary


def sum_by_id(
    ids: pa.ChunkedArray | pa.Array, *counts: NDArray[np.generic]
) -> tuple[pa.Array, list[NDArray[np.int64]]]:
    """The different ids, and for each of the ``counts`` of the single ids their sums (exact up to
    2⁵³).
    """
    codes, different = encode(ids)
    return different, [
        np.bincount(codes, count, len(different)).astype(np.int64) for count in counts
    ]


LOWEST = 1024  # hashes that are kept, so that the number of different ids is known to 3%


class TextIds:
    """The bytes of ids that are text, and about how many of them differ (Bar-Yossef and others,
    2002). These add up.
    """

    def __init__(self, bytes: int = 0, lowest: Sequence[int] = ()) -> None:
        self.bytes = bytes
        self.lowest = np.array(lowest, np.uint64)  # hashes of different ids

    @property
    def n_different(self) -> float:
        """Exact if it is below ``LOWEST``."""
        n = len(self.lowest)
        return n if n < LOWEST else (n - 1) * 2.0**64 / float(self.lowest[-1])

    def add(self, ids: pa.ChunkedArray) -> None:
        hashes = hashes_of(one_array(ids).drop_null())
        if len(self.lowest) == LOWEST:
            hashes = hashes[hashes < self.lowest[-1]]
        self._join(ids.nbytes, hashes)

    def merge(self, other: TextIds) -> None:
        self._join(other.bytes, other.lowest)

    def _join(self, size: int, hashes: NDArray[np.uint64]) -> None:
        self.bytes += size
        self.lowest = np.unique(np.append(self.lowest, hashes))[:LOWEST]


class IdColumn:
    """A column of ids that arrives in parts: 4 bytes per rating, and the different ids.

    Every part has a dictionary of its own. The dictionaries are merged when they have more ids than
    were known before, so an id is encoded a few times, however many parts there are.
    """

    def __init__(self) -> None:
        self._codes: list[Codes] = []  # of each part
        self._unmerged: list[pa.Array] = []  # the dictionaries of the last parts
        self._known: pa.Array | None = None  # the ids by the codes of all other parts
        self._type: pa.DataType | None = None  # of the ids as they arrive

    def add(self, ids: pa.ChunkedArray) -> bool:
        """Whether none of the ids is null or NaN; otherwise they are not kept."""
        if is_incomplete(ids):
            return False
        codes, different = encode(ids)
        self._type = ids.type
        self._codes.append(codes)
        self._unmerged.append(different)
        if sum(map(len, self._unmerged)) > max(FEW, len(self._known or ())):
            self._merge()
        return True

    def _merge(self) -> None:
        known = [] if self._known is None else [self._known]
        encoded = one_array(
            [*known, *self._unmerged]
        ).dictionary_encode()  # the known ones keep their codes
        code = encoded.indices.to_numpy()
        place = sum(map(len, known))
        for part, different in enumerate(self._unmerged, len(self._codes) - len(self._unmerged)):
            self._codes[part] = code[place : place + len(different)][self._codes[part]]
            place += len(different)
        self._known = encoded.dictionary
        self._unmerged = []

    def positions(self, ascending: bool = True) -> tuple[Codes, pa.Array]:
        """The position of every rating's id among the different ids, and these ids.

        The column is empty after.
        """
        self._merge()
        positions = np.empty(sum(map(len, self._codes)), np.int32)
        place = 0
        ids: Any = self._known
        order = pc.sort_indices(ids).to_numpy() if ascending else np.arange(len(ids))
        rank = np.empty(len(ids), np.int32)
        rank[order] = np.arange(len(ids), dtype=np.int32)
        while self._codes:
            codes = self._codes.pop(0)
            np.take(rank, codes, out=positions[place : place + len(codes)], mode="clip")
            place += len(codes)
        return positions, in_utc(narrow(ids.take(pa.array(order)), self._type))


def is_incomplete(ids: pa.ChunkedArray) -> bool:
    return bool(
        ids.null_count or (pa.types.is_floating(ids.type) and pc.any(pc.is_nan(ids)).as_py())
    )


def hashes_of(ids: pa.Array) -> NDArray[np.uint64]:
    """A hash of every id of an array without nulls: equal for equal ids of one type."""
    return hashed(ids, np.zeros(len(ids), np.uint64))
