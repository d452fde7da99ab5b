"""Rows in batches: their sums are made one after the other, their systems are solved together."""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import numpy as np

from onebit_spark.core.compiled import jit
from onebit_spark.core.losses.lanes import LANES

MOST_RATINGS = 1024  # of several rows together: their partners stay in the second-level cache until they are read again


@jit
def next_batch(pointers, first, last, members):
    """Put the next rows with ratings, at most LANES, into ``members``; return their number and the row after them."""
    count, i, begin = 0, first, pointers[first]
    while i < last and count < LANES and (count == 0 or pointers[i + 1] - begin <= MOST_RATINGS):
        if pointers[i + 1] > pointers[i]:
            members[count] = i
            count += 1
        i += 1
    return count, i


@jit
def fill_up(system, solution, size, count):
    """Lanes without a row solve x = 0."""
    for b in range(count, LANES):
        for q in range(size * (size + 1) // 2):
            system[q, b] = 0.0
        for k in range(size):
            system[k * (k + 3) // 2, b] = 1.0
            solution[k, b] = 0.0


@jit
def room(size):
    """Arrays for the packed systems and the solutions of a batch."""
    return np.empty((size * (size + 1) // 2, LANES)), np.empty((size, LANES))
