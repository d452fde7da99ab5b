"""Spark's ``xxhash64`` computed here (XXH64; Collet, 2012): of cells of integer ids, of weights, and their sums.

Spark would hash the salt again for every rating, and send 8 more bytes of each to Python.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core.compiled import jit

SALT = "onebit_spark cell"  # so that no other use of the same hash has chosen the ratings
SALT_HASH = 0xF46402A423482CFF  # xxhash64(SALT)
HASH_PARTS = ("hash_low", "hash_high")
PART_BITS = 28  # so that the sum over 2³⁵ rows is still a bigint

P1, P2, P3, P4, P5 = (
    np.uint64(prime)
    for prime in (
        0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5,
    )
)  # fmt: skip
SPARK_SEED = np.uint64(42)
_MASK = np.uint64((1 << PART_BITS) - 1)


def cell_hashes(users: NDArray[np.integer], items: NDArray[np.integer]) -> NDArray[np.int64]:
    """``xxhash64(SALT, user, item)`` of every rating; ids of all widths are hashed as 64-bit integers."""
    return np.asarray(_cell_hashes(users, items, np.uint64(SALT_HASH))).view(np.int64)


def weight_hashes(weights: NDArray[np.float32]) -> NDArray[np.int64]:
    """``xxhash64`` of a column of floats."""
    return np.asarray(_weight_hashes(weights.view(np.uint32))).view(np.int64)


def hash_sums(
    hashes: NDArray[np.int64], label: NDArray[np.bool_], weights: NDArray[np.float32] | None = None
) -> dict[str, int]:
    """What ``defects.fingerprint`` sums, of the cells' hashes, the labels and the weights."""
    of_weights = np.empty(0, np.int64) if weights is None else weight_hashes(weights)
    sums = _sums(hashes.view(np.uint64), label, of_weights.view(np.uint64))
    return {name: int(total) for name, total in zip(HASH_PARTS, sums, strict=True)}


@jit
def _sums(hashes, label, of_weights):  # type: ignore[no-untyped-def]
    low, high = np.uint64(0), np.uint64(0)
    for k in range(len(hashes)):
        whole = ~hashes[k] if label[k] else hashes[k]
        if len(of_weights):
            whole ^= of_weights[k]
        low += whole & _MASK
        high += (whole >> np.uint64(PART_BITS)) & _MASK
    return low, high


@jit
def _cell_hashes(users, items, seed):  # type: ignore[no-untyped-def]
    hashes = np.empty(len(users), np.uint64)
    for k in range(len(users)):
        hashes[k] = _hash_long(np.uint64(np.int64(items[k])), _hash_long(np.uint64(np.int64(users[k])), seed))
    return hashes


@jit
def _weight_hashes(weights):  # type: ignore[no-untyped-def]
    hashes = np.empty(len(weights), np.uint64)
    for k in range(len(weights)):
        x = (SPARK_SEED + P5 + np.uint64(4)) ^ (np.uint64(weights[k]) * P1)
        hashes[k] = _mixed((x << np.uint64(23) | x >> np.uint64(41)) * P2 + P3)
    return hashes


@jit
def _hash_long(value, seed):  # type: ignore[no-untyped-def]
    word = value * P2
    word = (word << np.uint64(31) | word >> np.uint64(33)) * P1
    x = (seed + P5 + np.uint64(8)) ^ word
    return _mixed((x << np.uint64(27) | x >> np.uint64(37)) * P1 + P4)


@jit
def _mixed(x):  # type: ignore[no-untyped-def]
    x = (x ^ x >> np.uint64(33)) * P2
    x = (x ^ x >> np.uint64(29)) * P3
    return x ^ x >> np.uint64(32)
