"""Sample: ratings as arrays in this process, and how they are divided for fitting and testing."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Sample:
    """Ratings of a matrix.

    Parameters
    ----------
    rows, cols : arrays of int32
        Row and column of each rating.
    labels : array of int8
        ±1.
    shape : (int, int)
        Rows and columns of the matrix.
    weights : array of float32, optional
        Weight of each rating.
    """

    rows: NDArray[np.int32]
    cols: NDArray[np.int32]
    labels: NDArray[np.int8]
    shape: tuple[int, int]
    weights: NDArray[np.float32] | None = None

    @classmethod
    def of(
        cls, rows: NDArray, cols: NDArray, labels: NDArray, shape: tuple[int, int], weights: NDArray | None = None
    ) -> Sample:
        return cls(rows.astype(np.int32), cols.astype(np.int32), labels.astype(np.int8), shape, weights)

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, which: NDArray) -> Sample:
        """The ratings at these positions, or where a mask is true."""
        weights = None if self.weights is None else self.weights[which]
        return Sample(self.rows[which], self.cols[which], self.labels[which], self.shape, weights)

    def split(self, held_out: int, seed: int) -> tuple[Sample, Sample]:
        """(train, test) with ``held_out`` ratings in the test part. The choice depends on the seed only."""
        order = np.random.default_rng(seed).permutation(len(self))
        return self.take(order[held_out:]), self.take(order[:held_out])

    def folds(self, n_folds: int, seed: int) -> Iterator[tuple[Sample, Sample]]:
        """(train, test) of every fold: each rating is in one test part."""
        fold = np.random.default_rng(seed).permutation(len(self)) % n_folds
        for number in range(n_folds):
            yield self.take(fold != number), self.take(fold == number)

    @property
    def fingerprint(self) -> str:
        """A hash of the ratings."""
        digest = hashlib.sha256(repr(self.shape).encode())
        for part in (self.rows, self.cols, self.labels, self.weights):
            digest.update(b"" if part is None else part.tobytes())
        return digest.hexdigest()[:16]
