"""Fixtures shared by all tests."""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

# The first example of a test may compile a kernel: no deadline. The same examples in every run.
settings.register_profile("onebit", deadline=None, derandomize=True)
settings.load_profile("onebit")


@pytest.fixture(scope="session")
def movielens_100k():
    """rows, cols, labels of MovieLens-100K (943 × 1,682, 100,000 ratings); +1 is a rating above 3.5, as in the paper.

    Read from ``$ONEBIT_DATA/ml-100k/u.data`` (default ``./data``), never copied into the project.
    """
    path = Path(os.environ.get("ONEBIT_DATA", "data")) / "ml-100k" / "u.data"
    if not path.exists():
        pytest.skip(f"MovieLens-100K is not at {path}; set ONEBIT_DATA to the folder that holds ml-100k/")
    user, item, rating, _ = np.loadtxt(path, dtype=np.int64).T
    return user - 1, item - 1, np.where(rating > 3.5, 1, -1)
