"""The hash of a cell for integer ids, as Spark's ``xxhash64`` has it (XXH64; Collet, 2012): two rounds per rating.

Spark would hash the salt again for every rating, and send 8 more bytes of each to Python.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core.compiled import jit

P1, P2, P3, P4, P5 = (
    0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5,
)  # fmt: skip
SPARK_SEED = 42
_MASK = 2**64 - 1


def integer_cell_hashes(users: NDArray[np.integer], items: NDArray[np.integer], salt: str) -> NDArray[np.int64]:
    """``xxhash64(salt, user, item)`` of every rating; ids of all widths are hashed as 64-bit integers."""
    return np.asarray(_hashes(users, items, np.uint64(text_hash(salt.encode(), SPARK_SEED)))).view(np.int64)


def text_hash(data: bytes, seed: int) -> int:
    """XXH64 of fewer than 32 bytes."""
    assert len(data) < 32, "longer texts go through another loop first"
    x = (seed + P5 + len(data)) & _MASK
    while len(data) >= 8:
        word = _rotated(int.from_bytes(data[:8], "little") * P2 & _MASK, 31) * P1 & _MASK
        x, data = (_rotated(x ^ word, 27) * P1 + P4) & _MASK, data[8:]
    if len(data) >= 4:
        x ^= int.from_bytes(data[:4], "little") * P1 & _MASK
        x, data = (_rotated(x, 23) * P2 + P3) & _MASK, data[4:]
    for byte in data:
        x = _rotated(x ^ (byte * P5 & _MASK), 11) * P1 & _MASK
    x = (x ^ x >> 33) * P2 & _MASK
    x = (x ^ x >> 29) * P3 & _MASK
    return x ^ x >> 32


def _rotated(x: int, bits: int) -> int:
    return (x << bits | x >> (64 - bits)) & _MASK


@jit
def _hashes(users, items, seed):  # type: ignore[no-untyped-def]
    hashes = np.empty(len(users), np.uint64)
    for k in range(len(users)):
        hashes[k] = _hash_long(np.uint64(np.int64(items[k])), _hash_long(np.uint64(np.int64(users[k])), seed))
    return hashes


@jit
def _hash_long(value, seed):  # type: ignore[no-untyped-def]
    word = value * np.uint64(P2)
    word = (word << np.uint64(31) | word >> np.uint64(33)) * np.uint64(P1)
    x = (seed + np.uint64(P5) + np.uint64(8)) ^ word
    x = (x << np.uint64(27) | x >> np.uint64(37)) * np.uint64(P1) + np.uint64(P4)
    x = (x ^ x >> np.uint64(33)) * np.uint64(P2)
    x = (x ^ x >> np.uint64(29)) * np.uint64(P3)
    return x ^ x >> np.uint64(32)
