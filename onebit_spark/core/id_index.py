"""Ids of any type: encoded as they arrive, found among known ones, counted.

IdEncoder    parts of a column ─► the code of every id, 0, 1, … in the order of arrival, and the ids that are new
IdColumn     the same, with all codes kept, and then sorted: the position of every id among all ids, ascending
encode       a whole column ─► codes and the different ids
IdIndex      known ids, indexed once ─► the position of every id, −1 for an unknown one
sum_by_id    ids that repeat, with counts ─► the different ids and the sums of their counts
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from onebit_spark.core.compiled import jit
from onebit_spark.core.id_hash_table import Codes, IdHashTable, hashes_of

MOST_TEXT = 2**31 - 1  # bytes of one array of text, whose offsets have 32 bits
DENSE = 1 << 24  # integers of a smaller range are encoded and found by a table of 4 bytes for each number in it
DENSE_PER_ID = 4  # they are also found so if it has at most so many numbers for each id


# ---- arrays of ids ---------------------------------------------------------------------------------------------------


def one_array(parts: pa.ChunkedArray | pa.Array | Iterable[pa.Array]) -> pa.Array:
    """A column, or several arrays, as one array; with 64-bit offsets where the text is too long for 32 bits."""
    if isinstance(parts, pa.Array):
        return parts
    arrays = list(parts.chunks or [pa.array([], parts.type)] if isinstance(parts, pa.ChunkedArray) else parts)
    if len(arrays) == 1:
        return arrays[0]
    if len({array.type for array in arrays}) > 1 or sum(array.nbytes for array in arrays) > MOST_TEXT:
        arrays = [array.cast(wide(array.type)) for array in arrays]
    return pa.concat_arrays(arrays)


def narrow(ids: pa.Array, kind: pa.DataType) -> pa.Array:
    """The ids in the type that they arrived in, unless their text is too long for it."""
    return ids if ids.nbytes > MOST_TEXT else ids.cast(kind)


def wide(kind: pa.DataType) -> pa.DataType:
    """The type of ids, with 64-bit offsets if they are text."""
    return {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}.get(kind, kind)


def in_utc(ids: pa.Array) -> pa.Array:
    """The ids; times of the session's time zone as ``toArrow`` has them."""
    if pa.types.is_timestamp(ids.type) and ids.type.tz is not None:
        return ids.cast(pa.timestamp(ids.type.unit, "UTC"))
    return ids


# ---- find ------------------------------------------------------------------------------------------------------------


class IdIndex:
    """Different ids, in any order. The index is built at the first lookup.

    ``pyarrow.compute.index_in`` makes a hash table of all known ids in every call: a second for 10⁷.
    Integers of all widths are comparable, and so are texts with offsets of 32 and of 64 bits.
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
                found[asked.is_valid().to_numpy(zero_copy_only=False)] = self.find(asked.drop_null())
            return found
        if self._table is not None:
            return self._in_table(asked.to_numpy())
        if len(asked) > len(self):  # most of them repeat
            codes, different = encode(asked)
            return self._search(different)[codes]
        return self._search(asked)

    def contains(self, ids: pa.ChunkedArray | pa.Array) -> NDArray[np.bool_]:
        """Which ids are known."""
        return self.find(ids) >= 0

    @cached_property
    def _known(self) -> pa.Array:
        return self.ids.cast(self._type)

    @cached_property
    def _table(self) -> tuple[np.int64, Codes] | None:
        """The lowest integer, and the position of it and of all integers up to the highest; None for other ids."""
        if self._type != pa.int64():
            return None
        known = self._known.to_numpy()
        low, high = known.min(), known.max()
        if int(high) - int(low) >= max(DENSE, DENSE_PER_ID * len(known)):
            return None
        table = np.full(high - low + 1, -1, np.int32)
        table[known - low] = np.arange(len(known), dtype=np.int32)
        return low, table

    def _in_table(self, asked: NDArray[np.int64]) -> Codes:
        assert self._table is not None
        low, table = self._table
        places = asked - low  # beyond 64 bits it wraps round, and is still outside
        inside = (places >= 0) & (places < len(table))
        return np.where(inside, table[np.where(inside, places, 0)], np.int32(-1))

    @cached_property
    def _search(self) -> Callable[[pa.Array], Codes]:
        """Binary search, by integers, or by hashes of 64 bits, after which the ids themselves are compared.

        The keys to look up are sorted too, so that successive searches read the same cache lines.
        """
        integers = self._type == pa.int64()
        keys_of: Callable[[pa.Array], NDArray[Any]] = pa.Array.to_numpy if integers else hashes_of
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
        same = pc.equal(self._known.take(pa.array(found[hit])), ids.take(pa.array(hit))).to_numpy(zero_copy_only=False)
        other = hit[~same]
        if len(other):
            exact = pc.index_in(ids.take(pa.array(other)), value_set=self._known)
            found[other] = pc.fill_null(exact, -1).to_numpy()
        return found


# ---- encode and count ------------------------------------------------------------------------------------------------


def encode(ids: pa.ChunkedArray | pa.Array) -> tuple[Codes, pa.Array]:
    """The code of every id, and the different ids by their codes, in the order of arrival."""
    encoded = one_array(ids).dictionary_encode()
    return encoded.indices.to_numpy(), encoded.dictionary


def sum_by_id(ids: pa.ChunkedArray | pa.Array, *counts: NDArray[Any]) -> tuple[pa.Array, list[NDArray[np.int64]]]:
    """The different ids, and for each of the ``counts`` of the single ids their sums (exact up to 2⁵³)."""
    codes, different = encode(ids)
    return different, [np.bincount(codes, count, len(different)).astype(np.int64) for count in counts]


class IdEncoder:
    """The different ids that have arrived so far. An id's code is its place among them, in the order of arrival.

    Integers of a moderate range are looked up in a table of the range, other ids in a hash table.
    """

    def __init__(self) -> None:
        self._dense = _DenseCodes()
        self._hashed: IdHashTable | None = None  # as long as the ids are in the table of their range
        self._type: pa.DataType | None = None  # of the ids as they arrive

    def __len__(self) -> int:
        return self._dense.n if self._hashed is None else self._hashed.n

    @property
    def ids(self) -> pa.Array:
        """The ids by their codes."""
        if self._hashed is not None:
            return narrow(self._hashed.ids(self._type), self._type)
        return pa.array(self._dense.ids if self._dense.n else [], self._type)

    def add(self, ids: pa.ChunkedArray) -> tuple[Codes, pa.Array] | None:
        """The codes of some ids, and those of them that are new. None, and nothing is added, if one is null or NaN."""
        if ids.null_count or (pa.types.is_floating(ids.type) and pc.any(pc.is_nan(ids)).as_py()):
            return None
        here, self._type = one_array(ids), ids.type
        if self._hashed is None and pa.types.is_integer(here.type):
            encoded = self._dense.add(here.to_numpy())
            if encoded is not None:
                return encoded[0], pa.array(encoded[1], here.type)
        if self._hashed is None:
            before, self._hashed = self.ids, IdHashTable()
            self._hashed.add(before)
        codes, new = self._hashed.add(here)
        return codes, narrow(here.take(pa.array(new)), ids.type)

    def ascending(self) -> tuple[Codes, pa.Array]:
        """The position of each code's id among all ids in ascending order, and these ids."""
        ids = self.ids
        order = pc.sort_indices(ids)
        position = np.empty(len(ids), np.int32)
        position[order.to_numpy()] = np.arange(len(ids), dtype=np.int32)
        return position, in_utc(narrow(ids.take(order), self._type))


class IdColumn:
    """A column of ids that arrives in parts: 4 bytes per rating, and the different ids."""

    def __init__(self) -> None:
        self._encoder = IdEncoder()
        self._codes: list[Codes] = []

    def add(self, ids: pa.ChunkedArray) -> bool:
        """Whether none of the ids is null or NaN; otherwise they are not kept."""
        encoded = self._encoder.add(ids)
        if encoded is not None:
            self._codes.append(encoded[0])
        return encoded is not None

    def positions(self) -> tuple[Codes, pa.Array]:
        """The position of every rating's id among all ids, ascending, and these ids. The column is empty after."""
        position, ids = self._encoder.ascending()
        positions, place = np.empty(sum(map(len, self._codes)), np.int32), 0
        while self._codes:
            codes = self._codes.pop(0)
            np.take(position, codes, out=positions[place : place + len(codes)], mode="clip")
            place += len(codes)
        return positions, ids


class _DenseCodes:
    """Codes of integer ids of a moderate range, by a table of the range instead of a hash table."""

    def __init__(self) -> None:
        self.n = 0
        self._low = 0
        self._table = np.empty(0, np.int32)  # of id − low ─► code, −1 for none

    @property
    def ids(self) -> NDArray[np.int64]:
        """The ids by their codes."""
        known = np.flatnonzero(self._table >= 0)
        ids = np.empty(self.n, np.int64)
        ids[self._table[known]] = known + self._low
        return ids

    def add(self, ids: NDArray[np.integer]) -> tuple[Codes, NDArray[np.int64]] | None:
        """The codes of some ids, and the ids that are new; None, and nothing is added, if their range is too wide."""
        if len(ids) == 0:
            return np.empty(0, np.int32), np.empty(0, np.int64)
        low, high = int(ids.min()), int(ids.max())
        if len(self._table):
            low, high = min(low, self._low), max(high, self._low + len(self._table) - 1)
        if high - low >= DENSE:
            return None
        if high - low >= len(self._table):  # wider than before, which includes a lower start
            table = np.full(high - low + 1, -1, np.int32)
            shift = self._low - low if len(self._table) else 0
            table[shift : shift + len(self._table)] = self._table
            self._low, self._table = low, table
        codes, new, n_new = _encode_dense(ids, self._low, self._table, self.n)
        self.n += n_new
        return codes, new[:n_new].copy()


@jit
def _encode_dense(ids, low, table, n):  # type: ignore[no-untyped-def]
    codes, new, n_new = np.empty(len(ids), np.int32), np.empty(len(ids), np.int64), 0
    for k in range(len(ids)):
        place = np.int64(ids[k]) - low
        if table[place] < 0:
            table[place] = n + n_new
            new[n_new] = ids[k]
            n_new += 1
        codes[k] = table[place]
    return codes, new, n_new
