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

from onebit_spark.core.compiled import AHEAD, inner, jit, prefetch

Codes = NDArray[np.int32]
Bytes = NDArray[np.uint8]
Offsets = NDArray[np.int64]

KEY_BYTES = 8
SLOTS = 1 << 10  # of an empty hash table: a power of 2
FREE = -1
MOST_TEXT = 2**31 - 1  # bytes of one array of text, whose offsets have 32 bits
DENSE = 1 << 24  # integers of a smaller range are encoded and found by a table of 4 bytes for each number in it
DENSE_PER_ID = 4  # they are also found so if it has at most so many numbers for each id


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
            low, table = self._table
            places = asked.to_numpy() - low  # beyond 64 bits it wraps round, and is still outside
            inside = (places >= 0) & (places < len(table))
            return np.where(inside, table[np.where(inside, places, 0)], np.int32(-1))
        if len(asked) > len(self):  # most of them repeat
            codes, different = encode(asked)
            return self._search(different)[codes]
        return self._search(asked)

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


# ---- the hash table --------------------------------------------------------------------------------------------------


class IdHashTable:
    """Different ids of one type, without null and NaN. The code of an id is its place in the order of arrival.

    Linear probing (Knuth, The Art of Computer Programming 3, §6.4). An id of at most 8 bytes is its own key. A longer
    one, and text, has a hash of 64 bits as its key; where two keys are equal, the bytes are compared. Arrow's
    ``dictionary_encode`` begins anew with every array.
    """

    def __init__(self) -> None:
        self.n = 0
        self._slots = np.full((SLOTS, 2), FREE, np.int64)  # a line is a key and its code
        self._keys = np.empty(_most(SLOTS), np.int64)  # by code
        self._text: Bytes = np.empty(0, np.uint8)  # of ids that are not their own keys, one after the other
        self._ends: Offsets = np.zeros(_most(SLOTS) + 1, np.int64)  # where the text of each code begins and ends

    def add(self, ids: pa.Array) -> tuple[Codes, Codes]:
        """The code of every id, and the places of those that are new."""
        given = keys, _, ends = _keyed(ids)
        codes, new, before, done = np.empty(len(keys), np.int32), np.empty(len(keys), np.int32), self.n, 0
        while True:
            known = self._slots, self._keys, self._text, self._ends
            done, self.n = _encode(given, known, self.n, before, done, codes, new)
            if done == len(keys):
                return codes, new[: self.n - before].copy()
            self._grow(int(ends[done + 1] - ends[done]) if len(ends) else 0)

    def ids(self, kind: pa.DataType) -> pa.Array:
        """The ids by their codes. Text has offsets of 64 bits."""
        if pa.types.is_boolean(kind):
            return self.ids(pa.int8()).cast(kind)
        if (width := _width(kind)) is None:
            ends = pa.py_buffer(self._ends[: self.n + 1])
            return pa.Array.from_buffers(wide(kind), self.n, [None, ends, pa.py_buffer(self._text)])
        values = self._keys[: self.n].astype(f"int{8 * width}") if width <= KEY_BYTES else self._text
        return pa.Array.from_buffers(kind, self.n, [None, pa.py_buffer(values)])

    def _grow(self, text: int) -> None:
        """Make room for at least one id more, of so many bytes."""
        if self.n == len(self._keys):
            self._slots = np.full((2 * len(self._slots), 2), FREE, np.int64)
            _fill(self._slots, self._keys)
            most = _most(len(self._slots))
            self._keys, self._ends = np.resize(self._keys, most), np.resize(self._ends, most + 1)
        if self._ends[self.n] + text > len(self._text):
            self._text = np.concatenate([self._text, np.empty(len(self._text) + text, np.uint8)])


def hashes_of(ids: pa.Array) -> NDArray[np.uint64]:
    """A hash of every id of an array without nulls: equal for equal ids of one type. The high bits are mixed best."""
    return _hashed_bytes(*_bytes_of(_plain(ids)))


def _keyed(ids: pa.Array) -> tuple[Offsets, Bytes, Offsets]:
    """The keys, and the bytes with their offsets where the keys are hashes."""
    ids = _plain(ids)
    width = _width(ids.type)
    if width is not None and width <= KEY_BYTES:
        values = np.frombuffer(ids.buffers()[1] or b"", f"int{8 * width}")[ids.offset : ids.offset + len(ids)]
        return values.astype(np.int64), np.empty(0, np.uint8), np.empty(0, np.int64)
    return hashes_of(ids).view(np.int64), *_bytes_of(ids)


def _plain(ids: pa.Array) -> pa.Array:
    """With whole bytes; −0.0 is 0.0."""
    if pa.types.is_boolean(ids.type):
        return ids.cast(pa.int8())
    return pc.add(ids, pa.scalar(0.0, ids.type)) if pa.types.is_floating(ids.type) else ids


def _width(kind: pa.DataType) -> int | None:
    """Bytes of a value; None of text and of bytes."""
    try:
        return int(kind.bit_width) // 8
    except ValueError:
        return None


def _bytes_of(ids: pa.Array) -> tuple[Bytes, Offsets]:
    """The bytes of an array, and the place where each value begins and ends."""
    if (width := _width(ids.type)) is not None:
        return np.frombuffer(ids.buffers()[1] or b"", np.uint8), (ids.offset + np.arange(len(ids) + 1)) * width
    _, ends, text = ids.buffers()
    kind = np.int64 if ids.type == wide(ids.type) else np.int32
    offsets = np.frombuffer(ends, kind)[ids.offset : ids.offset + len(ids) + 1].astype(np.int64)
    return np.empty(0, np.uint8) if text is None else np.frombuffer(text, np.uint8), offsets


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


def _most(slots: int) -> int:
    """How many ids so many slots may have: five of eight, so that an id is found in a step or two."""
    return slots // 8 * 5


@inner
def _slot(key, n):  # type: ignore[no-untyped-def]
    """The slot at which the search for a key starts."""
    x = np.uint64(key)
    x = (x ^ (x >> np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)
    return np.int64((x ^ (x >> np.uint64(29))) & np.uint64(n - 1))


@jit
def _encode(given, known, n, first, begin, codes, new):  # type: ignore[no-untyped-def]
    """Codes of the given ids from ``begin`` on, until there is no room for a new one: (how far it came, known ids).

    The places of those with a code from ``first`` on are written to ``new``.
    """
    keys, text, ends = given
    slots, known_keys, known_text, known_ends = known
    hashed = len(ends) > 0
    for k in range(begin, len(keys)):
        _ask_ahead(keys, k, slots, known_text, known_ends)
        slot = _slot(keys[k], len(slots))
        while True:
            code = slots[slot, 1]
            if code == FREE:
                break
            if slots[slot, 0] == keys[k] and (not hashed or _same(text, ends, k, known_text, known_ends, code)):
                break
            slot = (slot + 1) & (len(slots) - 1)
        if code == FREE:
            if n == len(known_keys) or (hashed and known_ends[n] + ends[k + 1] - ends[k] > len(known_text)):
                return k, n
            code = n
            slots[slot, 0], slots[slot, 1] = keys[k], code
            known_keys[n] = keys[k]
            new[n - first] = k
            if hashed:
                begin_of_text = known_ends[n]
                for place in range(ends[k + 1] - ends[k]):
                    known_text[begin_of_text + place] = text[ends[k] + place]
                known_ends[n + 1] = begin_of_text + ends[k + 1] - ends[k]
            n += 1
        codes[k] = code
    return len(keys), n


@inner
def _ask_ahead(keys, k, slots, known_text, known_ends):  # type: ignore[no-untyped-def]
    """Prefetch what the next ids read: first their slots, then the places of their text, then the text."""
    if k + 3 * AHEAD < len(keys):
        prefetch(slots, _slot(keys[k + 3 * AHEAD], len(slots)), 0)
        if len(known_text):
            code = slots[_slot(keys[k + 2 * AHEAD], len(slots)), 1]
            if code != FREE:
                prefetch(known_ends, code, 0)
            code = slots[_slot(keys[k + AHEAD], len(slots)), 1]
            if code != FREE:
                prefetch(known_text, known_ends[code], 0)


@inner
def _same(text, ends, k, known_text, known_ends, code):  # type: ignore[no-untyped-def]
    """Whether the text of the k-th given id is that of a code."""
    length, place = ends[k + 1] - ends[k], 0
    if known_ends[code + 1] - known_ends[code] != length:
        return False
    while place < length and text[ends[k] + place] == known_text[known_ends[code] + place]:
        place += 1
    return place == length


@jit
def _fill(slots, keys):  # type: ignore[no-untyped-def]
    """Put all keys, of different ids, into an empty table."""
    for code in range(len(keys)):
        slot = _slot(keys[code], len(slots))
        while slots[slot, 1] != FREE:
            slot = (slot + 1) & (len(slots) - 1)
        slots[slot, 0], slots[slot, 1] = keys[code], code
