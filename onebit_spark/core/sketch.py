"""What a model was fitted on, in a few megabytes: the cells with the lowest hashes, each with its number of ratings.

A cell (a user and an item) is kept if its hash is at most ``limit``. So two sketches hold the same cells under the
smaller of their limits, and there they can be compared and merged. How many cells have one rating tells how many
ratings of a fresh sample fall on cells that are there already (Good and Turing).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

LOWEST, HIGHEST = -(2**63), 2**63 - 1  # of a hash
KEPT = 2**20  # ratings whose cells are kept, about: 16 MB
ENOUGH = 30  # ratings that must be looked at before a share means something
ALLOWED_MARGIN = 0.01  # by which the share may exceed what is expected, however many were looked at
ALLOWED_STANDARD_ERRORS = 3.0  # and standard errors by which it may
UNLIKELY = 0.01  # chance that so few fresh ratings all fall on known cells, below which they are not taken for fresh


def limit_for(n: int) -> int:
    """The limit under which about ``KEPT`` of n ratings fall: all of them if there are no more."""
    return HIGHEST if n <= KEPT else LOWEST + 2**64 * KEPT // n - 1


@dataclass(frozen=True)
class Comparison:
    """Which share of some ratings lies on known cells, and which share would if they were fresh."""

    share: float
    expected: float
    error: float  # the standard error of share − expected in a fresh sample
    looked_at: int

    @property
    def allowed(self) -> float:
        """The largest share that passes for a fresh sample's."""
        return self.expected + max(ALLOWED_MARGIN, ALLOWED_STANDARD_ERRORS * self.error)

    @property
    def stale(self) -> bool:
        """A fresh sample has no such share."""
        few_but_all = 0 < self.looked_at < ENOUGH and self.share == 1 and self.expected**self.looked_at < UNLIKELY
        return self.share > self.allowed or few_but_all

    @property
    def telling(self) -> bool:
        """Ratings that are not fresh would show: enough were looked at, and not all of a fresh sample is known."""
        return self.looked_at >= ENOUGH and self.allowed < 1


@dataclass(frozen=True, eq=False)
class CellSketch:
    """The cells whose hash is at most ``limit``; hashes ascend. Not ``complete``: it lacks some that were fitted."""

    limit: int
    hashes: NDArray[np.int64]
    ratings: NDArray[np.int64]
    complete: bool = True

    @property
    def n_ratings(self) -> int:
        return int(self.ratings.sum())

    @property
    def described(self) -> dict[str, Any]:
        """All but the cells."""
        return {"limit": self.limit, "complete": self.complete}

    def under(self, limit: int) -> CellSketch:
        """The part of it up to a limit."""
        n = int(np.searchsorted(self.hashes, limit, side="right"))
        return replace(self, limit=min(limit, self.limit), hashes=self.hashes[:n], ratings=self.ratings[:n])

    def compared(self, other: CellSketch) -> Comparison:
        """The other's ratings against the cells of this one.

        A fresh rating falls on a known cell with a chance near 1 − N₁/n, where N₁ of the n ratings here are alone in
        their cell. The error has three parts: of the share, of N₁ (Esty, 1983), and one rating that might have been a
        repeat where there is none.
        """
        known, asked = self.under(other.limit), other.under(self.limit)
        looked_at, n = asked.n_ratings, known.n_ratings
        found = int(asked.ratings[np.isin(asked.hashes, known.hashes, assume_unique=True)].sum())
        if not looked_at or not n:
            return Comparison(0.0, 0.0, float("inf"), looked_at)
        singles, doubles = (int(np.count_nonzero(known.ratings == times)) for times in (1, 2))
        chance = (n - singles + 1) / (n + 2)
        variance = chance * (1 - chance) * (1 / looked_at + 1 / n) + 2 * doubles / n**2
        return Comparison(found / looked_at, 1 - singles / n, variance**0.5, looked_at)

    def merged(self, other: CellSketch) -> CellSketch:
        """Both together. The ratings of a cell add up only if the other's are fresh to this one.

        Otherwise some may be the same ratings, fitted once more: they do not make a cell a repeated one.
        """
        one, two = self.under(other.limit), other.under(self.limit)
        compared = one.compared(two)
        hashes = np.union1d(one.hashes, two.hashes)
        ratings = np.zeros((2, len(hashes)), np.int64)
        for line, part in zip(ratings, (one, two), strict=True):
            line[np.searchsorted(hashes, part.hashes)] = part.ratings
        fresh = compared.telling and not compared.stale
        total = ratings.sum(axis=0) if fresh else ratings.max(axis=0)
        return CellSketch(one.limit, hashes, total, self.complete and other.complete)


def together(known: CellSketch | None, new: CellSketch) -> CellSketch:
    """A sketch of what was fitted before and now; nothing is known of what came before if there is no sketch of it."""
    return replace(new, complete=False) if known is None else known.merged(new)
