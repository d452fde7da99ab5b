"""Hashes of cells and weights, and sketches of cells.

The hash is Spark's ``xxhash64`` (XXH64; Collet, 2012).

Spark would hash the salt again for every rating, and send 8 more bytes of each to Python. A fit
without Spark holds out the same ratings, and has the same fingerprint, as one with it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from onebit_spark.data.user_tables import one_array
from onebit_spark.kernels.jit import inner, jit
from onebit_spark.records import Fields

SALT = "onebit_spark cell"  # so that no other use of the same hash has chosen the ratings
SALT_HASH = 0xF46402A423482CFF  # xxhash64(SALT)
HASH_PARTS = ("hash_low", "hash_high")
PART_BITS = 28  # so that the sum over 2³⁵ rows is still a bigint

P1, P2, P3, P4, P5 = (
    np.uint64(prime)
    for prime in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
)
# Arrays' own type, for which numba compiles ``_turned`` once, not for each constant.
T1, T7, T11, T12, T18, T23, T27, T31, WORD = (
    np.uint64(bits) for bits in (1, 7, 11, 12, 18, 23, 27, 31, 64)
)
SPARK_SEED = np.uint64(42)
MOST_LONG_DIGITS = 18  # of a decimal that Spark hashes as a 64-bit integer
_MASK = np.uint64((1 << PART_BITS) - 1)


def cell_hashes(
    users: pa.ChunkedArray | pa.Array, items: pa.ChunkedArray | pa.Array
) -> NDArray[np.int64]:
    """``xxhash64(SALT, user, item)`` of every rating, without nulls; integers of all widths are
    hashed as 64 bits.
    """
    hashes = np.full(len(users), SALT_HASH, np.uint64)
    for ids in (users, items):
        hashes = hashed(ids.cast(pa.int64()) if pa.types.is_integer(ids.type) else ids, hashes)
    return hashes.view(np.int64)


def pair_hashes(users: pa.Array, items: pa.Array) -> NDArray[np.int64]:
    return hashed(items, hashed(users, np.full(len(users), SPARK_SEED))).view(np.int64)


def coin_drawn(users: pa.ChunkedArray, items: pa.ChunkedArray, seed: int) -> NDArray[np.uint64]:
    """The 32 bits that ``engines.spark.columns.coin`` compares with the share: of ``xxhash64(seed,
    user, item)``.
    """
    start = np.full(1, SPARK_SEED)
    first = hashed(pa.array([seed], pa.int32() if -(2**31) <= seed < 2**31 else pa.int64()), start)
    hashes = np.full(len(users), first[0], np.uint64)
    return hashed(items, hashed(users, hashes)) >> np.uint64(32)


def hashed(values: pa.ChunkedArray | pa.Array, seeds: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Spark's ``XxHash64`` of each value of a column without nulls, from a seed of its own, by the
    column's type.
    """
    array = one_array(values)
    kind = array.type
    if pa.types.is_boolean(kind) or (pa.types.is_integer(kind) and kind.bit_width < 32):
        array = array.cast(pa.int32())
    elif pa.types.is_timestamp(kind):
        array = array.cast(pa.timestamp("us", kind.tz))
    elif pa.types.is_floating(kind):
        array = pc.add(array, pa.scalar(0.0, kind))  # −0.0 is 0.0
    elif pa.types.is_decimal(kind):
        if kind.precision <= MOST_LONG_DIGITS:
            words = kind.bit_width // 64  # the lowest first
            lowest = np.frombuffer(array.buffers()[1] or b"", np.int64)[
                words * array.offset :: words
            ]
            return _hashed_numbers(lowest[: len(array)], seeds)
        unscaled = _unscaled(array)
        sizes = ((8 + (number + (number < 0)).bit_length()) // 8 for number in unscaled)
        shortest = (
            number.to_bytes(size, "big", signed=True)
            for number, size in zip(unscaled, sizes, strict=True)
        )
        array = pa.array(list(shortest), pa.binary())
    if pa.types.is_primitive(array.type):  # also dates, times and durations
        kind = pa.int64() if array.type.bit_width == 64 else pa.int32()
        return _hashed_numbers(array.view(kind).to_numpy(), seeds)
    text = array.cast(pa.large_binary())
    _, offsets, data = text.buffers()
    places = np.frombuffer(offsets, np.int64)[text.offset : text.offset + len(text) + 1]
    content = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return _hashed_bytes(content, places, seeds)


def _unscaled(decimals: pa.Array) -> list[int]:
    """Decimals of 128 bits without their point.

    ``Decimal.scaleb`` would round them to 28 digits.
    """
    width = decimals.type.bit_width // 8
    data = bytes(decimals.buffers()[1] or b"")[decimals.offset * width :]
    return [
        int.from_bytes(data[place : place + width], "little", signed=True)
        for place in range(0, width * len(decimals), width)
    ]


def weight_hashes(weights: NDArray[np.float32]) -> NDArray[np.int64]:
    return _hashed_numbers(weights.view(np.int32), np.full(len(weights), SPARK_SEED)).view(np.int64)


def hash_sums(
    hashes: NDArray[np.int64], label: NDArray[np.bool_], weights: NDArray[np.float32] | None = None
) -> dict[str, int]:
    """The fingerprint of a set of ratings: sums of 56 bits of the hash of each cell, label and
    weight.

    A sum changes if a rating occurs twice. With an exclusive or, the two would cancel.
    """
    of_weights = np.empty(0, np.int64) if weights is None else weight_hashes(weights)
    sums = _sums(hashes.view(np.uint64), label, of_weights.view(np.uint64))
    return {name: int(total) for name, total in zip(HASH_PARTS, sums, strict=True)}


@jit
def _sums(hashes, label, of_weights):  # type: ignore[no-untyped-def]
    low = np.uint64(0)
    high = np.uint64(0)
    for k in range(len(hashes)):
        whole = ~hashes[k] if label[k] else hashes[k]
        if len(of_weights):
            whole ^= of_weights[k]
        low += whole & _MASK
        high += (whole >> np.uint64(PART_BITS)) & _MASK
    return low, high


@jit
def _hashed_numbers(values, seeds):  # type: ignore[no-untyped-def]
    """The hashes of integers of 32 or of 64 bits."""
    hashes = np.empty(len(values), np.uint64)
    for k in range(len(values)):
        if values.itemsize == 8:
            hashes[k] = _hash_long(np.uint64(np.int64(values[k])), seeds[k])
        else:
            hashes[k] = _hash_int(np.uint64(np.uint32(values[k])), seeds[k])
    return hashes


@jit
def _hashed_bytes(data, places, seeds):  # type: ignore[no-untyped-def]
    """Value k is ``data[places[k] : places[k + 1]]``."""
    hashes = np.empty(len(places) - 1, np.uint64)
    for k in range(len(hashes)):
        at = places[k]
        end = places[k + 1]
        seed = seeds[k]
        length = np.uint64(end - at)
        if end - at >= 32:
            a = seed + P1 + P2
            b = seed + P2
            c = seed
            d = seed - P1
            while end - at >= 32:
                a = _round(a, _word(data, at, 8))
                b = _round(b, _word(data, at + 8, 8))
                c = _round(c, _word(data, at + 16, 8))
                d = _round(d, _word(data, at + 24, 8))
                at += 32
            x = _turned(a, T1) + _turned(b, T7) + _turned(c, T12) + _turned(d, T18)
            for lane in (a, b, c, d):
                x = (x ^ _round(np.uint64(0), lane)) * P1 + P4
        else:
            x = seed + P5
        x += length
        while end - at >= 8:
            x = _turned(x ^ _round(np.uint64(0), _word(data, at, 8)), T27) * P1 + P4
            at += 8
        if end - at >= 4:
            x = _turned(x ^ (_word(data, at, 4) * P1), T23) * P2 + P3
            at += 4
        while at < end:
            x = _turned(x ^ (np.uint64(data[at]) * P5), T11) * P1
            at += 1
        hashes[k] = _mixed(x)
    return hashes


@inner
def _word(data, at, n):  # type: ignore[no-untyped-def]
    """n bytes as a number, the lowest byte first."""
    word = np.uint64(0)
    for place in range(n):
        word |= np.uint64(data[at + place]) << np.uint64(8 * place)
    return word


@inner
def _round(x, word):  # type: ignore[no-untyped-def]
    return _turned(x + word * P2, T31) * P1


@inner
def _turned(x, bits):  # type: ignore[no-untyped-def]
    return x << bits | x >> (WORD - bits)


@inner
def _hash_int(value, seed):  # type: ignore[no-untyped-def]
    return _mixed(_turned((seed + P5 + np.uint64(4)) ^ (value * P1), T23) * P2 + P3)


@inner
def _hash_long(value, seed):  # type: ignore[no-untyped-def]
    x = (seed + P5 + np.uint64(8)) ^ _round(np.uint64(0), value)
    return _mixed(_turned(x, T27) * P1 + P4)


@inner
def _mixed(x):  # type: ignore[no-untyped-def]
    x = (x ^ x >> np.uint64(33)) * P2
    x = (x ^ x >> np.uint64(29)) * P3
    return x ^ x >> np.uint64(32)


# ---- sketches of cells -------------------------------------------------------------------------
#
# What a model was fitted on, in a few megabytes: the cells with the lowest hashes, each with its
# number of ratings. Two sketches can be compared and merged below the smaller of their limits
# (docs/MATH.md, §9.6).

LOWEST = -(2**63)
HIGHEST = 2**63 - 1  # smallest and largest hash
KEPT = 2**20  # the cells of about so many ratings are kept: 16 MB
ENOUGH = 30  # with fewer ratings a share means little
# A share that exceeds the expected one by less is always accepted: at most MOST_MARGIN, and
# MARGIN_OF_ROOT/√n of n ratings, which falls as the margin of a bound does (docs/MATH.md, §9.7).
MOST_MARGIN = 0.01
MARGIN_OF_ROOT = 0.3
ALLOWED_STANDARD_ERRORS = 3.0  # the same, in standard errors
# Few ratings, all on known cells: they are not fresh if this had a smaller chance in a fresh sample
UNLIKELY = 0.01


def limit_for(n: int) -> int:
    """The limit below which about ``KEPT`` of n ratings fall, or all of them if n is smaller."""
    return HIGHEST if n <= KEPT else LOWEST + 2**64 * KEPT // n - 1


@dataclass(frozen=True)
class Comparison:
    share: float  # share of the ratings that is on known cells
    expected: float  # the share that a fresh sample would have
    error: float  # standard error of ``share − expected`` in a fresh sample
    looked_at: int  # ratings that were compared: those below the limit of both sketches

    @property
    def allowed(self) -> float:
        margin = min(MOST_MARGIN, MARGIN_OF_ROOT / max(self.looked_at, 1) ** 0.5)
        return self.expected + max(margin, ALLOWED_STANDARD_ERRORS * self.error)

    @property
    def stale(self) -> bool:
        few_but_all = (
            0 < self.looked_at < ENOUGH
            and self.share == 1
            and self.expected**self.looked_at < UNLIKELY
        )
        return self.share > self.allowed or few_but_all

    @property
    def conclusive(self) -> bool:
        """Whether the comparison could have found ratings that are not fresh."""
        return self.looked_at >= ENOUGH and self.allowed < 1


@dataclass(frozen=True, eq=False)
class CellSketch:
    limit: int  # largest hash that is kept
    hashes: NDArray[np.int64]  # hashes of the cells, ascending
    ratings: NDArray[np.int64]  # number of ratings of each cell
    complete: bool = (
        True  # false if the model was also fitted to cells that the sketch does not hold
    )

    @classmethod
    def of(cls, cells: NDArray[np.int64], limit: int = HIGHEST) -> CellSketch:
        """The sketch of ratings by the hashes of their cells; up to ``limit``, or lower where they
        are many.
        """
        limit = min(limit, limit_for(len(cells)))
        return cls(limit, *np.unique(cells[cells <= limit], return_counts=True))

    @classmethod
    def of_table(cls, cells: pa.Table, limit: int, complete: bool = True) -> CellSketch:
        """From a table with the columns ``hash`` and ``ratings``, one line per cell."""
        ordered = cells.sort_by("hash")
        return cls(limit, ordered["hash"].to_numpy(), ordered["ratings"].to_numpy(), complete)

    @property
    def table(self) -> pa.Table:
        return pa.table({"hash": self.hashes, "ratings": self.ratings})

    @property
    def holds_all(self) -> bool:
        """Whether the sketch has every cell that the model was fitted on."""
        return self.complete and self.limit == HIGHEST

    def holds(self, cells: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these hashes are those of cells of the sketch."""
        return np.isin(cells, self.hashes)

    @property
    def n_ratings(self) -> int:
        return int(self.ratings.sum())

    @property
    def described(self) -> Fields:
        return {"limit": self.limit, "complete": self.complete}

    def up_to(self, limit: int) -> CellSketch:
        limit = min(limit, self.limit)
        n = int(np.searchsorted(self.hashes, limit, side="right"))
        return replace(self, limit=limit, hashes=self.hashes[:n], ratings=self.ratings[:n])

    def compared(self, other: CellSketch) -> Comparison:
        """Compare the ratings of another sketch with the cells of this one (docs/MATH.md, §9.6).

        Where no cell is repeated, the standard error allows for one repeat that was missed by
        chance.
        """
        known = self.up_to(other.limit)
        asked = other.up_to(self.limit)
        looked_at = asked.n_ratings
        n = known.n_ratings
        on_known = int(asked.ratings[np.isin(asked.hashes, known.hashes, assume_unique=True)].sum())
        if not looked_at or not n:
            return Comparison(0.0, 0.0, float("inf"), looked_at)
        singles, doubles = (int(np.count_nonzero(known.ratings == times)) for times in (1, 2))
        chance = (n - singles + 1) / (n + 2)
        variance = chance * (1 - chance) * (1 / looked_at + 1 / n) + 2 * doubles / n**2
        return Comparison(on_known / looked_at, 1 - singles / n, variance**0.5, looked_at)

    def merged(self, other: CellSketch) -> CellSketch:
        """The union of two sketches.

        The ratings of a cell are added if the other sketch is fresh to this one.

        Otherwise some of them may be the same ratings, fitted a second time. Then the larger number
        is kept.
        """
        one = self.up_to(other.limit)
        two = other.up_to(self.limit)
        compared = one.compared(two)
        hashes = np.union1d(one.hashes, two.hashes)
        ratings = np.zeros((2, len(hashes)), np.int64)
        for line, part in zip(ratings, (one, two), strict=True):
            line[np.searchsorted(hashes, part.hashes)] = part.ratings
        fresh = compared.conclusive and not compared.stale
        total = ratings.sum(axis=0) if fresh else ratings.max(axis=0)
        return CellSketch(one.limit, hashes, total, self.complete and other.complete)


def merged_sketch(known: CellSketch | None, new: CellSketch) -> CellSketch:
    """The sketch of an earlier and a new fit.

    It is not complete if the earlier fit has no sketch.
    """
    return replace(new, complete=False) if known is None else known.merged(new)
