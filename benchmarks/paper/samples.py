"""Random parts of a sample, for the experiments of the paper."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np

from onebit_spark.tuning import Sample


def split(sample: Sample, held_out: int, seed: int) -> tuple[Sample, Sample]:
    """(train, test) with ``held_out`` ratings in the test part. The choice depends on the seed only."""
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
    for part in (sample.rows, sample.cols, sample.labels, sample.weights):
        digest.update(b"" if part is None else part.tobytes())
    return digest.hexdigest()[:16]
