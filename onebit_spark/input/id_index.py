"""The positions of ids in an ascending list of them. The list is prepared once and asked many times.

``pyarrow.compute.index_in`` makes a hash table of the whole list in every call: a second for 10⁷ ids.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from onebit_spark.input.accumulators import DENSE
from onebit_spark.input.id_counts import hashes_of

DENSE_PER_ID = 4  # many integers may have a table of a wider range: so many numbers for each

Find = Callable[[pa.Array], NDArray[np.int32]]


def finder(values: pa.Array) -> Find:
    """A function that gives the position of every id among ``values``, or −1. Values are distinct and ascending."""
    if len(values) == 0:
        return lambda ids: np.full(len(ids), -1, np.int32)
    if pa.types.is_signed_integer(values.type):
        numbers = values.to_numpy()
        span = int(numbers[-1]) - int(numbers[0]) + 1
        dense = span <= max(DENSE, DENSE_PER_ID * len(numbers))
        return in_table(numbers, span) if dense else lambda ids: sorted_positions(numbers, ids.to_numpy())
    if pa.types.is_string(values.type) or pa.types.is_binary(values.type):
        return by_hash(values)
    return lambda ids: by_arrow(values, ids)


def in_table(numbers: NDArray[np.integer], span: int) -> Find:
    """By a table of all integers from the lowest to the highest."""
    low = np.int64(numbers[0])
    table = np.full(span, -1, np.int32)
    table[numbers.astype(np.int64) - low] = np.arange(len(numbers), dtype=np.int32)

    def find(ids: pa.Array) -> NDArray[np.int32]:
        places = ids.to_numpy().astype(np.int64) - low  # beyond 64 bits it wraps round, and is still outside
        inside = (places >= 0) & (places < span)
        return np.where(inside, table[np.where(inside, places, 0)], np.int32(-1))

    return find


def by_hash(values: pa.Array) -> Find:
    """By a hash of 64 bits. What is found is compared with what was asked for."""
    hashes = hashes_of(values)
    order = np.argsort(hashes).astype(np.int32)
    ascending = hashes[order]

    def find(ids: pa.Array) -> NDArray[np.int32]:
        place = sorted_positions(ascending, hashes_of(ids))
        found = np.where(place >= 0, order[place], np.int32(-1))
        known = np.flatnonzero(found >= 0)
        same = pc.equal(values.take(pa.array(found[known])), ids.take(pa.array(known))).to_numpy(zero_copy_only=False)
        other = known[~same]  # two ids with one hash
        if len(other):
            found[other] = by_arrow(values, ids.take(pa.array(other)))
        return found

    return find


def by_arrow(values: pa.Array, ids: pa.Array) -> NDArray[np.int32]:
    """By a hash table of all values, made for this call."""
    found = pc.fill_null(pc.index_in(ids, value_set=values), -1)
    return np.asarray(found.to_numpy(), np.int32)


def sorted_positions(ascending: NDArray, asked: NDArray) -> NDArray[np.int32]:
    """By binary search, in ascending order: neighbours find what they need in the cache."""
    order = np.argsort(asked)
    ordered = asked[order]
    place = np.minimum(np.searchsorted(ascending, ordered), len(ascending) - 1)
    found = np.empty(len(asked), np.int32)
    found[order] = np.where(ascending[place] == ordered, place, -1)
    return found
