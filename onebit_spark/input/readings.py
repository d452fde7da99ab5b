"""What is read off columns of ratings as they arrive: numbers of ids, counts of labels, sums of hashes."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from onebit_spark.core.compiled import jit
from onebit_spark.input.columns import PART_BITS
from onebit_spark.input.defects import BIT
from onebit_spark.input.weights import weight_hashes

SLICE = 1 << 16
DENSE = 1 << 24  # integer ids of a smaller range are numbered by a table of 4 bytes for each number in it


class Encoded:
    """A column of ids that arrives in parts: each as positions in a dictionary, 4 bytes per rating.

    A part has a dictionary of its own. Integers of a moderate range share one.
    """

    def __init__(self) -> None:
        self._positions: list[NDArray[np.int32]] = []
        self._dictionaries: list[pa.Array] = []
        self._shared: DenseNumbers | None = DenseNumbers()
        self._type: pa.DataType | None = None  # of integers that share a dictionary

    def add(self, ids: pa.ChunkedArray) -> bool:
        """Whether none of the ids is null or NaN; otherwise they are not kept."""
        if ids.null_count:
            return False
        # One array first: to unify the dictionaries of many chunks takes their number times the number of ids.
        here = pa.concat_arrays([*ids.chunks, pa.array([], ids.type)])
        if self._shared is not None:
            numbered = self._shared.add(here.to_numpy()) if pa.types.is_integer(here.type) else None
            if numbered is not None:
                self._positions.append(numbered[0])
                self._type = here.type
                return True
            self._end_sharing()
        encoded = here.dictionary_encode()
        dictionary = encoded.dictionary
        if pa.types.is_floating(dictionary.type) and pc.any(pc.is_nan(dictionary)).as_py():
            return False
        self._positions.append(encoded.indices.to_numpy())
        self._dictionaries.append(in_utc(dictionary))
        return True

    def numbered(self) -> tuple[NDArray[np.int32], pa.Array]:
        """The position of every rating's id among all ids, ascending, and these ids."""
        self._end_sharing()
        different = {id(dictionary): dictionary for dictionary in self._dictionaries}
        known = pa.concat_arrays(different.values()).unique()
        known = known.take(pc.sort_indices(known))
        numbers = np.empty(sum(map(len, self._positions)), np.int32)
        place, last, number = 0, None, np.empty(0, np.int32)
        while self._positions:
            positions, dictionary = self._positions.pop(0), self._dictionaries.pop(0)
            if dictionary is not last:
                number = pc.index_in(dictionary, value_set=known).to_numpy(zero_copy_only=False).astype(np.int32)
                last = dictionary
            np.take(number, positions, out=numbers[place : place + len(positions)], mode="clip")
            place += len(positions)
        return numbers, known

    def _end_sharing(self) -> None:
        if self._shared is not None and self._positions:
            self._dictionaries = [pa.array(self._shared.ids, self._type)] * len(self._positions)
        self._shared = None


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
        here = pa.concat_arrays([*ids.chunks, pa.array([], ids.type)])
        if self._ids is None and pa.types.is_integer(here.type):
            numbered = self._dense.add(here.to_numpy())
            if numbered is not None:
                return numbered[0], pa.array(numbered[1], here.type)
            self._ids = pa.array(self._dense.ids, here.type)
        encoded = here.dictionary_encode()
        dictionary = encoded.dictionary
        if pa.types.is_floating(dictionary.type) and pc.any(pc.is_nan(dictionary)).as_py():
            return None
        known = pa.array([], dictionary.type) if self._ids is None else self._ids
        found = pc.index_in(dictionary, value_set=known)
        new = dictionary.filter(pc.is_null(found))
        numbers = pc.fill_null(found, -1).to_numpy().astype(np.int32)
        numbers[numbers < 0] = np.arange(len(known), len(known) + len(new))
        self._ids = pa.concat_arrays([known, new])
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
