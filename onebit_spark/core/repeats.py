"""Cells that were rated more than once."""

from __future__ import annotations

from dataclasses import dataclass

from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.compiled import jit


@dataclass(frozen=True)
class Repeats:
    """Cells that were rated more than once: every rating counts."""

    repeated_cells: int = 0
    repeated: int = 0  # ratings beyond the first of their cell
    conflicting: int = 0  # cells rated both ways


def repeats_of(ratings: RatingBlock) -> Repeats:
    return Repeats(*_count_repeats(ratings.row_pointers, ratings.codes))


@jit
def _count_repeats(pointers, codes):  # type: ignore[no-untyped-def]
    """The fields of ``Repeats``. In a row the ratings of a cell stand together, the negative ones first."""
    cells, ratings, conflicting = 0, 0, 0
    for row in range(len(pointers) - 1):
        for l in range(pointers[row] + 1, pointers[row + 1]):
            if codes[l] >> 1 == codes[l - 1] >> 1:
                ratings += 1
                first = l == pointers[row] + 1 or codes[l - 2] >> 1 != codes[l] >> 1
                cells += first
                conflicting += codes[l] != codes[l - 1]
    return cells, ratings, conflicting
