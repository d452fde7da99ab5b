"""What is read off columns of ratings as they arrive: numbers of ids, counts of labels, sums of hashes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from onebit_spark.core.compiled import jit
from onebit_spark.input.columns import PART_BITS
from onebit_spark.input.defects import BIT
from onebit_spark.input.weights import weight_hashes

SLICE = 1 << 16
MOST_TEXT = 2**31 - 1  # bytes of one array of text, whose offsets have 32 bits
DENSE = 1 << 24  # integer ids of a smaller range are numbered by a table of 4 bytes for each number in it


class Encoded:
    """A column of ids that arrives in parts: each rating as a position in one dictionary, 4 bytes.

    Integers of a moderate range are looked up in a table. Of other ids each part brings a dictionary of its own. These
    wait until they are together as long as the one of all ids, and are then merged into it. So no id is kept much more
    than twice, and the time grows with the ratings alone.
    """

    def __init__(self) -> None:
        self._positions: list[NDArray[np.int32]] = []  # the last ones in the dictionaries that wait
        self._waiting: list[pa.Array] = []
        self._known: pa.Array | None = None  # the different ids, by their numbers; None if they are in the table
        self._dense = DenseNumbers()
        self._type: pa.DataType | None = None  # of the ids as they arrive

    def add(self, ids: pa.ChunkedArray) -> bool:
        """Whether none of the ids is null or NaN; otherwise they are not kept."""
        if ids.null_count:
            return False
        # One array first: to unify the dictionaries of many chunks takes their number times the number of ids.
        nothing = pa.array([], ids.type)
        here = one_array([*ids.chunks, nothing])
        self._type = in_utc(nothing).type
        if self._known is None and pa.types.is_integer(here.type):
            numbered = self._dense.add(here.to_numpy())
            if numbered is not None:
                self._positions.append(numbered[0])
                return True
        encoded = here.dictionary_encode()
        dictionary = in_utc(encoded.dictionary)
        if pa.types.is_floating(dictionary.type) and pc.any(pc.is_nan(dictionary)).as_py():
            return False
        self._known = self._ids
        self._positions.append(encoded.indices.to_numpy())
        self._waiting.append(dictionary)
        if sum(map(len, self._waiting)) >= len(self._known):
            self._merge()
        return True

    def numbered(self) -> tuple[NDArray[np.int32], pa.Array]:
        """The position of every rating's id among all ids, ascending, and these ids."""
        self._merge()
        order = pc.sort_indices(self._ids)
        known = narrow(self._ids.take(order), self._type)
        number = np.empty(len(known), np.int32)
        number[order.to_numpy()] = np.arange(len(known), dtype=np.int32)
        numbers = np.empty(sum(map(len, self._positions)), np.int32)
        place = 0
        while self._positions:
            positions = self._positions.pop(0)
            np.take(number, positions, out=numbers[place : place + len(positions)], mode="clip")
            place += len(positions)
        return numbers, known

    @property
    def _ids(self) -> pa.Array:
        if self._known is not None:
            return self._known
        return pa.array(self._dense.ids if self._dense.n else [], self._type)

    def _merge(self) -> None:
        """Take up the dictionaries that wait. Ids that are known keep their numbers, for they come first."""
        if self._known is None or not self._waiting:
            return
        encoded = one_array([self._known, *self._waiting]).dictionary_encode()
        numbers, place = encoded.indices.to_numpy(), len(self._known)
        self._known = encoded.dictionary
        first = len(self._positions) - len(self._waiting)
        for k, dictionary in enumerate(self._waiting, first):
            self._positions[k] = numbers[place : place + len(dictionary)][self._positions[k]]
            place += len(dictionary)
        self._waiting = []


def one_array(parts: Iterable[pa.Array]) -> pa.Array:
    """All ids of some arrays; with 64-bit offsets where their text is too long for 32 bits."""
    arrays = list(parts)
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


class GrowingDictionary:
    """The different ids that have come so far. An id's number is its place among them, in the order of arrival."""

    def __init__(self) -> None:
        self._ids: pa.Array | None = None
        self._dense = DenseNumbers()

    def __len__(self) -> int:
        return self._dense.n if self._ids is None else len(self._ids)

    def add(self, ids: pa.ChunkedArray) -> tuple[NDArray[np.int32], pa.Array] | None:
        """The numbers of some ids, and those of them that are new. None if one is null or NaN."""
        if ids.null_count:
            return None
        here = one_array([*ids.chunks, pa.array([], ids.type)])
        if self._ids is None and pa.types.is_integer(here.type):
            numbered = self._dense.add(here.to_numpy())
            if numbered is not None:
                return numbered[0], pa.array(numbered[1], here.type)
            self._ids = pa.array(self._dense.ids, here.type)
        encoded = here.dictionary_encode()
        dictionary = narrow(encoded.dictionary, ids.type)
        if pa.types.is_floating(dictionary.type) and pc.any(pc.is_nan(dictionary)).as_py():
            return None
        known = pa.array([], dictionary.type) if self._ids is None else self._ids
        found = pc.index_in(dictionary.cast(known.type), value_set=known)
        new = dictionary.filter(pc.is_null(found))
        numbers = pc.fill_null(found, -1).to_numpy().astype(np.int32)
        numbers[numbers < 0] = np.arange(len(known), len(known) + len(new))
        self._ids = one_array([known, new])
        return numbers[encoded.indices.to_numpy()], new


class DenseNumbers:
    """Numbers of integer ids of a moderate range, by a table of the range instead of a hash table."""

    def __init__(self) -> None:
        self.n = 0
        self._low = 0
        self._table = np.empty(0, np.int32)  # of id − low ─► number, −1 for none

    @property
    def ids(self) -> NDArray[np.int64]:
        """The ids by their numbers."""
        known = np.flatnonzero(self._table >= 0)
        ids = np.empty(self.n, np.int64)
        ids[self._table[known]] = known + self._low
        return ids

    def add(self, ids: NDArray[np.integer]) -> tuple[NDArray[np.int32], NDArray[np.int64]] | None:
        """The numbers of some ids, and the ids that are new; None, and nothing is added, if their range is too wide."""
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
        numbers, new, n_new = _number_dense(ids, self._low, self._table, self.n)
        self.n += n_new
        return numbers, new[:n_new].copy()


@jit
def _number_dense(ids, low, table, n):  # type: ignore[no-untyped-def]
    numbers, new, n_new = np.empty(len(ids), np.int32), np.empty(len(ids), np.int64), 0
    for k in range(len(ids)):
        place = np.int64(ids[k]) - low
        if table[place] < 0:
            table[place] = n + n_new
            new[n_new] = ids[k]
            n_new += 1
        numbers[k] = table[place]
    return numbers, new, n_new


class LabelCounts:
    """How often each kind of label has come: ``defects._flags`` in numpy, on labels as Spark holds them."""

    def __init__(self) -> None:
        self._counts = Counter(dict.fromkeys(("n", *BIT), 0))

    def add(self, labels: pa.ChunkedArray, threshold: float | None) -> NDArray[np.bool_]:
        """Count the labels, and say which are positive. A null is counted as ``bad_label``, like NaN."""
        values = (labels.cast(pa.int8()) if pa.types.is_boolean(labels.type) else labels).to_numpy()  # null is NaN
        limit = np.float64(0.0 if threshold is None else threshold)  # so that numpy compares doubles, as Spark does
        positive: NDArray[np.bool_] = values > limit
        found = {name: int(np.count_nonzero(values == value)) for name, value in _VALUES.items()}
        if values.dtype.kind == "f":
            found["bad_label"] = int(np.count_nonzero(np.isnan(values)))
        found["other"] = len(values) - sum(found.values())
        self._counts.update(found | {"n": len(values), "above": int(np.count_nonzero(positive))})
        return positive

    def totals(self) -> dict[str, int]:
        """The counts by the names of the flags, and n."""
        return dict(self._counts)


_VALUES = {"plus": 1, "minus": -1, "zero": 0}


def hash_sums(
    hashes: NDArray[np.int64], label: NDArray[np.bool_], weights: NDArray[np.float32] | None = None
) -> NDArray[np.int64]:
    """What ``defects.fingerprint`` sums, of the cells' hashes, the labels and the weights."""
    mask, sums = np.uint64((1 << PART_BITS) - 1), np.zeros(2, np.int64)
    for lo in range(0, len(hashes), SLICE):  # in slices: temporary arrays of the whole part would be its largest
        part = slice(lo, lo + SLICE)
        whole = np.where(label[part], ~hashes[part], hashes[part])
        if weights is not None:
            whole ^= weight_hashes(weights[part])
        whole = whole.view(np.uint64)
        sums += np.array([(whole & mask).sum(), ((whole >> np.uint64(PART_BITS)) & mask).sum()], np.int64)
    return sums
