"""Split: divides ratings by a random coin per rating or per cell, which does not depend on the labels."""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core.blocks import RatingBlock, like
from onebit_spark.core.compiled import jit
from onebit_spark.core.randomness import stream, uniform


@dataclass(frozen=True)
class Split:
    """Chooses every rating, or every cell, with the probability ``fraction``.

    The coin is a function of the seed, the row and the position in the row. It does not depend on the label. A coin per
    rating makes the chosen ratings A and the others B independent samples from one distribution, as a learnt prior
    needs (docs/MATH.md, §9.5). A coin per cell keeps all ratings of a cell together, so that none of B is predicted
    from another of its own cell (§14).
    """

    seed: int  # seed of the coins
    fraction: float  # probability that a rating is chosen, between 0 and 1
    by_cell: bool = False  # whether all ratings of a cell share a coin

    def __post_init__(self) -> None:
        if not 0 < self.fraction < 1:
            raise ValueError(f"the fraction of a split must lie strictly between 0 and 1, not {self.fraction!r}")

    def chosen_of(self, block: RatingBlock, row_numbers: NDArray[np.int64]) -> RatingBlock:
        """The chosen ratings of a block. Rows and columns keep their numbers."""
        return self._kept(block, row_numbers, True)

    def left_of(self, block: RatingBlock, row_numbers: NDArray[np.int64]) -> RatingBlock:
        """The other ratings of a block. Rows and columns keep their numbers."""
        return self._kept(block, row_numbers, False)

    def _kept(self, block: RatingBlock, row_numbers: NDArray[np.int64], those: bool) -> RatingBlock:
        coin = self.seed, self.fraction, self.by_cell
        pointers, codes, weights = _keep(block.row_pointers, block.codes, block.weights, row_numbers, coin, those)
        return RatingBlock(pointers, codes, block.n_columns, weights)


@jit
def chosen(seed, fraction, row, position):
    """Whether one rating is chosen."""
    return uniform(stream(seed, row, position)) < fraction


@jit
def _keep(pointers, codes, weights, row_numbers, coin, those):
    """The ratings whose coin fell on ``those``."""
    seed, fraction, by_cell = coin
    kept_pointers, kept = np.zeros_like(pointers), np.empty_like(codes)
    carried = like(weights)
    n = 0
    for i in range(len(pointers) - 1):
        position = -1
        for l in range(pointers[i], pointers[i + 1]):
            # The ratings of a row are in the order of their columns, so those of a cell follow each other.
            if not by_cell or l == pointers[i] or codes[l] >> 1 != codes[l - 1] >> 1:
                position += 1
            if chosen(seed, fraction, row_numbers[i], position) == those:
                kept[n] = codes[l]
                if weights is not None:
                    carried[n] = weights[l]
                n += 1
        kept_pointers[i + 1] = n
    return kept_pointers, kept[:n].copy(), None if weights is None else carried[:n].copy()
