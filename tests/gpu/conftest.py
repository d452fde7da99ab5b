"""These tests need a GPU. Without one they are skipped, and say why."""

import numpy as np
import pytest

from onebit_spark.settings import no_device


@pytest.fixture(autouse=True)
def device():
    """Skips a test of this folder, and of no other one, where there is no device."""
    lacking = no_device()
    if lacking is not None:
        pytest.skip(f"device='cuda' {lacking}")


@pytest.fixture
def ratings():
    """A function that makes ratings with repeated cells, heavy rows that several tasks share, and
    empty rows.
    """

    def made(seed, n=4000, m=300, c=60, weighted=False):
        rng = np.random.default_rng(seed)
        rows = rng.integers(0, m, n)
        cols = np.minimum(rng.exponential(c / 4, n).astype(int), c - 1)
        rows[:700] = 5
        cols[700:1600] = 3
        left = rng.normal(size=(m + 20, 3))
        right = rng.normal(size=(c + 5, 3))
        positive = rng.random(n) < 1 / (1 + np.exp(-(left[rows] * right[cols]).sum(axis=1)))
        weights = np.round(rng.uniform(0.25, 3, n), 3).astype(np.float32) if weighted else None
        return rows, cols, positive, (m + 20, c + 5), weights

    return made
