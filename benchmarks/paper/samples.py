"""Ratings by their numbers, and random parts of them, for the experiments of the paper."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Sample:
    rows: NDArray[np.int32]
    cols: NDArray[np.int32]
    labels: NDArray[np.int8]  # ±1
    shape: tuple[int, int]  # of the matrix

    @classmethod
    def of(cls, rows: NDArray, cols: NDArray, labels: NDArray, shape: tuple[int, int]) -> Sample:
        return cls(rows.astype(np.int32), cols.astype(np.int32), labels.astype(np.int8), shape)

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, which: NDArray) -> Sample:
        return Sample(self.rows[which], self.cols[which], self.labels[which], self.shape)


def split(sample: Sample, held_out: int, seed: int) -> tuple[Sample, Sample]:
    """(train, test) with ``held_out`` ratings in the test part.

    The choice depends on the seed only.
    """
    order = np.random.default_rng(seed).permutation(len(sample))
    return sample.take(order[held_out:]), sample.take(order[:held_out])


def folds(sample: Sample, n_folds: int, seed: int) -> Iterator[tuple[Sample, Sample]]:
    """(train, test) of every fold: each rating is in one test part."""
    fold = np.random.default_rng(seed).permutation(len(sample)) % n_folds
    for number in range(n_folds):
        yield sample.take(fold != number), sample.take(fold == number)


def fingerprint(sample: Sample) -> str:
    """A hash of the ratings."""
    digest = hashlib.sha256(repr(sample.shape).encode())
    for part in (sample.rows, sample.cols, sample.labels):
        digest.update(part.tobytes())
    return digest.hexdigest()[:16]
