"""The real data sets of the benchmarks, read from $ONEBIT_DATA (default ./data); none of them is
redistributed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray


class Ratings(NamedTuple):
    """Ratings by index, labels ±1."""

    rows: NDArray[np.int64]
    cols: NDArray[np.int64]
    labels: NDArray[np.int8]

    def take(self, index: NDArray[np.int64]) -> Ratings:
        return Ratings(self.rows[index], self.cols[index], self.labels[index])


def folder() -> Path:
    return Path(os.environ.get("ONEBIT_DATA", "data"))


def movielens_100k() -> Ratings:
    """Harper and Konstan (2015); good = rating > 3.5."""
    table = np.loadtxt(folder() / "ml-100k" / "u.data", dtype=np.int64)
    return _indexed(table[:, 0], table[:, 1], table[:, 2] > 3.5)


def movielens_1m(above: float = 3.5) -> Ratings:
    """Harper and Konstan (2015); good = rating > 3.5, or above another number."""
    table = pq.read_table(folder() / "ml-1m" / "ratings.parquet")
    user, item, rating = (table[name].to_numpy() for name in ("user", "item", "rating"))
    return _indexed(user, item, rating > above)


def senate() -> Ratings:
    """Roll calls of the US Senate, congresses 102–112 (Voteview); 1 = yea."""
    table = pq.read_table(folder() / "senate" / "votes.parquet")
    senator, rollcall, vote = (table[name].to_numpy() for name in ("senator", "rollcall", "vote"))
    return _indexed(senator, rollcall, vote > 0)


def congress() -> Ratings:
    """Roll calls of both chambers of the US Congress, 1989 to 2026 (unitedstates/congress); 1 =
    yea.
    """
    table = pq.read_table(folder() / "congress" / "votes.parquet")
    member, rollcall = (
        table[name].combine_chunks().dictionary_encode().indices for name in ("member", "rollcall")
    )
    return _indexed(member.to_numpy(), rollcall.to_numpy(), table["vote"].to_numpy() > 0)


def assistments() -> Ratings:
    """ASSISTments 2017 (Patikorn, Heffernan et al.): the first answer of a student to a problem; 1
    = right.
    """
    table = pq.read_table(folder() / "assist2017" / "answers.parquet")
    student, problem, correct = (
        table[name].to_numpy() for name in ("student", "problem", "correct")
    )
    return _indexed(student, problem, correct > 0)


def split(ratings: Ratings, held_out: float, seed: int) -> tuple[Ratings, Ratings]:
    """Train and test; ``held_out`` is a number of ratings, or a share below 1."""
    n = len(ratings.rows)
    order = np.random.default_rng(seed).permutation(n)
    cut = round(held_out * n) if held_out < 1 else int(held_out)
    return ratings.take(order[cut:]), ratings.take(order[:cut])


def _indexed(
    users: NDArray[np.generic], items: NDArray[np.generic], positive: NDArray[np.bool_]
) -> Ratings:
    rows, cols = (np.unique(ids, return_inverse=True)[1] for ids in (users, items))
    return Ratings(rows, cols, np.where(positive, 1, -1).astype(np.int8))
