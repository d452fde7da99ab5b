"""What a model was fitted on, in a few megabytes: the cells with the lowest hashes, each with its number of ratings.

A cell (a user and an item) is kept if its hash is at most ``limit``. So two sketches can be compared and merged below
the smaller of their limits. The number of cells with exactly one rating tells how many ratings of a fresh sample fall
on known cells (Good and Turing). See docs/MATH.md, §9.7.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

LOWEST, HIGHEST = -(2**63), 2**63 - 1  # smallest and largest hash
KEPT = 2**20  # the cells of about so many ratings are kept: 16 MB
ENOUGH = 30  # with fewer ratings a share says little
ALLOWED_MARGIN = 0.01  # a share that exceeds the expected one by less is always accepted
ALLOWED_STANDARD_ERRORS = 3.0  # the same, in standard errors
UNLIKELY = 0.01  # few ratings, all on known cells: they are not fresh if this had a smaller chance in a fresh sample


def limit_for(n: int) -> int:
    """The limit below which about ``KEPT`` of n ratings fall, or all of them if n is smaller."""
    return HIGHEST if n <= KEPT else LOWEST + 2**64 * KEPT // n - 1


@dataclass(frozen=True)
class Comparison:
    """Some ratings compared with the cells of a sketch."""

    share: float  # share of the ratings that is on known cells
    expected: float  # the share that a fresh sample would have
    error: float  # standard error of ``share − expected`` in a fresh sample
    looked_at: int  # ratings that were compared: those below the limit of both sketches

    @property
    def allowed(self) -> float:
        """The largest share that a fresh sample may have."""
        return self.expected + max(ALLOWED_MARGIN, ALLOWED_STANDARD_ERRORS * self.error)

    @property
    def stale(self) -> bool:
        """Whether the share is too large for a fresh sample."""
        few_but_all = 0 < self.looked_at < ENOUGH and self.share == 1 and self.expected**self.looked_at < UNLIKELY
        return self.share > self.allowed or few_but_all

    @property
    def conclusive(self) -> bool:
        """Whether the comparison could have found ratings that are not fresh.

        It needs enough ratings, and cells that are not rated so often that a fresh sample meets only known ones.
        """
        return self.looked_at >= ENOUGH and self.allowed < 1


@dataclass(frozen=True, eq=False)
class CellSketch:
    """The cells whose hash is at most ``limit``, with their numbers of ratings."""

    limit: int  # largest hash that is kept
    hashes: NDArray[np.int64]  # hashes of the cells, ascending
    ratings: NDArray[np.int64]  # number of ratings of each cell
    complete: bool = True  # false if the model was also fitted to cells that the sketch does not know

    @classmethod
    def of(cls, cells: NDArray[np.int64], limit: int = HIGHEST) -> CellSketch:
        """The sketch of ratings by the hashes of their cells; up to ``limit``, or lower where they are many."""
        limit = min(limit, limit_for(len(cells)))
        return cls(limit, *np.unique(cells[cells <= limit], return_counts=True))

    @classmethod
    def of_table(cls, cells: pa.Table, limit: int, complete: bool = True) -> CellSketch:
        """From a table with the columns ``hash`` and ``ratings``, one line per cell."""
        ordered = cells.sort_by("hash")
        return cls(limit, ordered["hash"].to_numpy(), ordered["ratings"].to_numpy(), complete)

    @property
    def table(self) -> pa.Table:
        """The inverse of ``of_table``."""
        return pa.table({"hash": self.hashes, "ratings": self.ratings})

    @property
    def n_ratings(self) -> int:
        """Ratings of all kept cells."""
        return int(self.ratings.sum())

    @property
    def described(self) -> dict[str, Any]:
        """The sketch without its cells, for ``metadata.json``."""
        return {"limit": self.limit, "complete": self.complete}

    def up_to(self, limit: int) -> CellSketch:
        """The part of the sketch up to a limit."""
        limit = min(limit, self.limit)
        n = int(np.searchsorted(self.hashes, limit, side="right"))
        return replace(self, limit=limit, hashes=self.hashes[:n], ratings=self.ratings[:n])

    def compared(self, other: CellSketch) -> Comparison:
        """Compare the ratings of another sketch with the cells of this one.

        A fresh rating falls on a known cell with a probability near 1 − N₁/n, where N₁ of the n ratings here are alone
        in their cell. The standard error accounts for the sampling of the share and of N₁ (Esty, 1983). Where no cell
        is repeated, it allows for one repeat that was missed by chance.
        """
        known, asked = self.up_to(other.limit), other.up_to(self.limit)
        looked_at, n = asked.n_ratings, known.n_ratings
        on_known = int(asked.ratings[np.isin(asked.hashes, known.hashes, assume_unique=True)].sum())
        if not looked_at or not n:
            return Comparison(0.0, 0.0, float("inf"), looked_at)
        singles, doubles = (int(np.count_nonzero(known.ratings == times)) for times in (1, 2))
        chance = (n - singles + 1) / (n + 2)
        variance = chance * (1 - chance) * (1 / looked_at + 1 / n) + 2 * doubles / n**2
        return Comparison(on_known / looked_at, 1 - singles / n, variance**0.5, looked_at)

    def merged(self, other: CellSketch) -> CellSketch:
        """The union of two sketches. The ratings of a cell are added if the other sketch is fresh to this one.

        Otherwise some of them may be the same ratings, fitted a second time. Then the larger number is kept.
        """
        one, two = self.up_to(other.limit), other.up_to(self.limit)
        compared = one.compared(two)
        hashes = np.union1d(one.hashes, two.hashes)
        ratings = np.zeros((2, len(hashes)), np.int64)
        for line, part in zip(ratings, (one, two), strict=True):
            line[np.searchsorted(hashes, part.hashes)] = part.ratings
        fresh = compared.conclusive and not compared.stale
        total = ratings.sum(axis=0) if fresh else ratings.max(axis=0)
        return CellSketch(one.limit, hashes, total, self.complete and other.complete)


def merged_sketch(known: CellSketch | None, new: CellSketch) -> CellSketch:
    """The sketch of an earlier and a new fit. It is not complete if the earlier fit has no sketch."""
    return replace(new, complete=False) if known is None else known.merged(new)
