"""Codes of ids as they arrive, by a hash table with linear probing (Knuth, The Art of Computer Programming 3, §6.4).

An id of at most 8 bytes is its own key. A longer one, and text, has a hash of 64 bits as its key; where two keys are
equal, the bytes are compared. Arrow's ``dictionary_encode`` begins anew with every array.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from onebit_spark.core.compiled import inner, jit
from onebit_spark.core.prefetch import AHEAD, prefetch

Codes = NDArray[np.int32]
Bytes = NDArray[np.uint8]
Offsets = NDArray[np.int64]

KEY_BYTES = 8
SLOTS = 1 << 10  # of an empty table: a power of 2
FREE = -1


class IdHashTable:
    """Different ids of one type, without null and NaN. The code of an id is its place in the order of arrival."""

    def __init__(self) -> None:
        self.n = 0
        self._slots = _slots(SLOTS)  # a line is a key and its code
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
            return pa.Array.from_buffers(_long(kind), self.n, [None, ends, pa.py_buffer(self._text)])
        values = self._keys[: self.n].astype(f"int{8 * width}") if width <= KEY_BYTES else self._text
        return pa.Array.from_buffers(kind, self.n, [None, pa.py_buffer(values)])

    def _grow(self, text: int) -> None:
        """Make room for at least one id more, of so many bytes."""
        if self.n == len(self._keys):
            self._slots = _slots(2 * len(self._slots))
            _fill(self._slots, self._keys)
            most = _most(len(self._slots))
            self._keys, self._ends = np.resize(self._keys, most), np.resize(self._ends, most + 1)
        if self._ends[self.n] + text > len(self._text):
            self._text = np.concatenate([self._text, np.empty(len(self._text) + text, np.uint8)])


def hashes_of(ids: pa.Array) -> NDArray[np.uint64]:
    """A hash of every id of an array without nulls: equal for equal ids of one type. The high bits are mixed best."""
    ids = _plain(ids)
    width = _width(ids.type)
    if width is None:
        return _hashed_bytes(*_text_of(ids))
    data = np.frombuffer(ids.buffers()[1], np.uint8)[ids.offset * width : (ids.offset + len(ids)) * width]
    return _hashed_bytes(data, np.arange(len(ids) + 1, dtype=np.int64) * width)


# ---- keys and bytes of ids -------------------------------------------------------------------------------------------


def _keyed(ids: pa.Array) -> tuple[Offsets, Bytes, Offsets]:
    """The keys, and the bytes with their offsets where the keys are hashes."""
    ids = _plain(ids)
    width = _width(ids.type)
    if width is not None and width <= KEY_BYTES:
        values = np.frombuffer(ids.buffers()[1] or b"", f"int{8 * width}")[ids.offset : ids.offset + len(ids)]
        return values.astype(np.int64), np.empty(0, np.uint8), np.empty(0, np.int64)
    keys = hashes_of(ids).view(np.int64)
    if width is None:
        return keys, *_text_of(ids)
    return keys, np.frombuffer(ids.buffers()[1], np.uint8), (ids.offset + np.arange(len(ids) + 1)) * width


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


def _long(kind: pa.DataType) -> pa.DataType:
    return {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}.get(kind, kind)


def _text_of(ids: pa.Array) -> tuple[Bytes, Offsets]:
    _, ends, text = ids.buffers()
    kind = np.int64 if ids.type == _long(ids.type) else np.int32
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


# ---- the table -------------------------------------------------------------------------------------------------------


def _slots(n: int) -> NDArray[Any]:
    return np.full((n, 2), FREE, np.int64)


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
