"""RatingBlock: the ratings of a block of rows, compressed by row: four bytes per rating, eight with
weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core.arrays import DoubleArray, Indices, IntArray, Mask
from onebit_spark.data.limits import MAX_COLUMNS
from onebit_spark.kernels.jit import inner, jit

Sums = Indices | DoubleArray  # sums of weights, or counts if all weights are 1

RANGE = 1 << 15  # ratings that a thread takes at a time, about
EVEN_ROWS = 4096  # a statistic of fewer rows takes less time than the calls that compute it


@dataclass(frozen=True)
class RatingBlock:
    """The ratings of some rows, compressed by row.

    A rating is one int32: ``column << 1 | positive``.

    The ±1 matrix on the left (a dot is an empty cell) becomes the two arrays on the right::

             0  1  2  3        row_pointers = [0,         2, 2,              5]
        0    +  .  −  .        codes        = [0<<1 | 1, 2<<1 | 0,
        1    .  .  .  .                        1<<1 | 0, 1<<1 | 1, 3<<1 | 1]
        2    .  ∓  .  +

    Row 1 is empty. Cell (2, 1) was rated twice, and both ratings count. The codes of a row ascend,
    and so do the weights of equal codes. So a row is always summed in the same order, whatever the
    order of the input.
    """

    # The ratings of row i, Ω_i in docs/MATH.md, §1.1, are codes[row_pointers[i] : row_pointers[i +
    # 1]].
    row_pointers: Indices
    codes: NDArray[np.int32]  # one per rating
    n_columns: int  # at most 2³⁰
    weights: NDArray[np.float32] | None = (
        None  # w_l > 0 of each rating, which multiplies κ (§16); None: all are 1
    )

    def __post_init__(self) -> None:
        pointers = self.row_pointers
        codes = self.codes
        if pointers.dtype != np.int64 or codes.dtype != np.int32:
            raise TypeError(
                f"row_pointers must be int64 and codes int32, not {pointers.dtype}, {codes.dtype}"
            )
        if (
            pointers.ndim != 1
            or len(pointers) == 0
            or pointers[0] != 0
            or pointers[-1] != len(codes)
        ):
            raise ValueError("row_pointers must start at 0 and end at the number of codes")
        if np.any(np.diff(pointers) < 0):
            raise ValueError("row_pointers must not decrease")
        if not 0 <= self.n_columns <= MAX_COLUMNS:
            raise ValueError(f"a block refers to at most 2^30 columns, not {self.n_columns}")
        if len(codes) and not (codes.min() >= 0 and (codes.max() >> 1) < self.n_columns):
            raise ValueError(f"a code points outside the block's {self.n_columns} columns")
        if self.weights is not None:
            if self.weights.dtype != np.float32 or self.weights.shape != codes.shape:
                raise TypeError("weights must be float32, one per rating")
            if len(codes) and not 0 < self.weights.min() <= self.weights.max() < np.inf:
                raise ValueError("weights must be positive and finite")

    @classmethod
    def from_coordinates(
        cls,
        rows: IntArray,
        columns: IntArray,
        positive: Mask,
        shape: tuple[int, int],
        weights: NDArray[np.float32] | None = None,
    ) -> RatingBlock:
        """Compress (row, column, label) triples in any order, by two counting sorts in O(n + m1 +
        m2).
        """
        n_rows, n_columns = shape
        if not len(rows) == len(columns) == len(positive):
            raise ValueError(
                f"lengths differ: {len(rows)} rows, {len(columns)} columns, {len(positive)} labels"
            )
        for name, index, size in (("row", rows, n_rows), ("column", columns, n_columns)):
            if not 0 <= size <= MAX_COLUMNS:
                raise ValueError(f"a block has at most 2^30 {name}s, not {size}")
            if len(index) and not 0 <= index.min() <= index.max() < size:
                raise ValueError(
                    f"{name} indices reach from {index.min()} to {index.max()}, outside 0 … "
                    f"{size - 1}"
                )
        codes = np.asarray(columns, np.int32) << 1
        codes |= np.asarray(positive, bool)
        return cls.from_codes(np.asarray(rows, np.int32), codes, shape, weights)

    @classmethod
    def from_codes(
        cls,
        rows: NDArray[np.int32],
        codes: NDArray[np.int32],
        shape: tuple[int, int],
        weights: NDArray[np.float32] | None = None,
    ) -> RatingBlock:
        """Compress rows and codes (column << 1 | label) in any order.

        This takes 8 more bytes per rating, and 16 with weights.
        """
        n_rows, n_columns = shape
        for name, index, size in (("row", rows, n_rows), ("code", codes, 2 * n_columns)):
            if len(index) and not 0 <= index.min() <= index.max() < size:
                raise ValueError(
                    f"{name}s reach from {index.min()} to {index.max()}, outside 0 … {size - 1}"
                )
        if weights is not None and len(weights) != len(codes):
            raise ValueError(f"lengths differ: {len(codes)} ratings, {len(weights)} weights")
        pointers, ordered, carried = _rows_from_columns(
            *_bucket(codes, rows, weights, 2 * n_columns), n_rows
        )
        if carried is not None:
            _order_ties(pointers, ordered, carried)
        return cls(pointers, ordered, n_columns, carried)

    @property
    def n_rows(self) -> int:
        """Number of rows, including those without ratings."""
        return len(self.row_pointers) - 1

    @property
    def n_ratings(self) -> int:
        return len(self.codes)

    @cached_property
    def row_counts(self) -> Indices:
        return np.diff(self.row_pointers)

    @cached_property
    def distinct_counts(self) -> Indices:
        return _distinct_counts(self.row_pointers, self.codes)

    @cached_property
    def row_positives(self) -> Indices:
        totals = np.concatenate([[0], np.cumsum(self.codes & 1, dtype=np.int64)])
        return totals[self.row_pointers[1:]] - totals[self.row_pointers[:-1]]

    @property
    def row_weights(self) -> Sums:
        """Sum of the weights of each row, or ``row_counts`` without weights."""
        return self.row_counts if self.weights is None else self._weight_sums[0]

    @property
    def row_positive_weights(self) -> Sums:
        """Sum of the weights of the positive ratings of each row, or ``row_positives`` without
        weights.
        """
        return self.row_positives if self.weights is None else self._weight_sums[1]

    @cached_property
    def _weight_sums(self) -> tuple[DoubleArray, DoubleArray]:
        rows = np.repeat(np.arange(self.n_rows), self.row_counts)
        weights = np.asarray(self.weights, np.float64)
        total, positive = (
            np.bincount(rows, w, self.n_rows) for w in (weights, weights * (self.codes & 1))
        )
        return np.asarray(total, np.float64), np.asarray(positive, np.float64)

    def compacted(self) -> tuple[RatingBlock, Indices, Indices]:
        """The same ratings without empty rows and columns, and the positions of the rows and
        columns that are left.
        """
        rows = np.flatnonzero(self.row_counts)
        rated = np.zeros(self.n_columns, bool)
        rated[self.codes >> 1] = True
        place = np.cumsum(rated, dtype=np.int32) - np.int32(1)
        codes = place[self.codes >> 1] << 1 | self.codes & 1
        pointers = np.append(self.row_pointers[rows], self.n_ratings)
        columns = np.flatnonzero(rated)
        return RatingBlock(pointers, codes, len(columns), self.weights), rows, columns

    def transpose(self) -> RatingBlock:
        pointers, codes, weights = _transpose(
            self.row_pointers, self.codes, self.weights, self.n_columns
        )
        return RatingBlock(pointers, codes, self.n_rows, weights)

    @property
    def even_ranges(self) -> list[tuple[int, int]]:
        """Ranges with ``EVEN_ROWS`` rows each, for work on rows alone."""
        edges = [*range(0, self.n_rows, EVEN_ROWS), self.n_rows]
        return list(pairwise(edges))

    @cached_property
    def ranges(self) -> list[tuple[int, int]]:
        """Consecutive ranges of rows with about ``RANGE`` ratings each.

        A row counts as at least 8 ratings.

        The ranges (first row, last row + 1), and so the sums over them, do not depend on the number
        of threads.
        """
        work = np.concatenate([[0], np.cumsum(np.maximum(self.row_counts, 8))])
        cuts = np.searchsorted(work, np.arange(RANGE, int(work[-1]), RANGE))
        edges = np.unique(np.concatenate([[0], cuts, [self.n_rows]]))
        return [(int(lo), int(hi)) for lo, hi in pairwise(edges)]


@inner
def empty_like(weights):  # type: ignore[no-untyped-def]
    """An uninitialised array like ``weights``; None for None."""
    return None if weights is None else np.empty_like(weights)


@inner
def pointers_of(keys, n):  # type: ignore[no-untyped-def]
    """The first position of each of n buckets, and the end of the last one, after a sort by
    ``keys``.
    """
    pointers = np.zeros(n + 1, np.int64)
    for key in keys:
        pointers[key + 1] += 1
    for b in range(n):
        pointers[b + 1] += pointers[b]
    return pointers


@jit
def _bucket(keys, values, weights, n_buckets):  # type: ignore[no-untyped-def]
    """Stable counting sort of ``values`` and ``weights`` by ``keys``.

    Returns bucket pointers and both, sorted.
    """
    pointers = pointers_of(keys, n_buckets)
    position = pointers[:-1].copy()
    ordered = np.empty(len(values), np.int32)
    carried = empty_like(weights)
    for l in range(len(values)):
        place = position[keys[l]]
        ordered[place] = values[l]
        if weights is not None:
            carried[place] = weights[l]
        position[keys[l]] += 1
    return pointers, ordered, carried


@jit
def _rows_from_columns(column_pointers, rows, weights, n_rows):  # type: ignore[no-untyped-def]
    """Codes compressed by row, from rows that are sorted by code (column << 1 | label)."""
    pointers = pointers_of(rows, n_rows)
    position = pointers[:-1].copy()
    codes = np.empty(len(rows), np.int32)
    carried = empty_like(weights)
    for code in range(len(column_pointers) - 1):
        for l in range(column_pointers[code], column_pointers[code + 1]):
            place = position[rows[l]]
            codes[place] = code
            if weights is not None:
                carried[place] = weights[l]
            position[rows[l]] += 1
    return pointers, codes, carried


@jit
def _order_ties(pointers, codes, weights):  # type: ignore[no-untyped-def]
    for row in range(len(pointers) - 1):
        lo = pointers[row]
        while lo < pointers[row + 1]:
            hi = lo + 1
            while hi < pointers[row + 1] and codes[hi] == codes[lo]:
                hi += 1
            if hi > lo + 1:
                weights[lo:hi].sort()
            lo = hi


@jit
def _transpose(row_pointers, codes, weights, n_columns):  # type: ignore[no-untyped-def]
    """The codes by column. Rows are visited in order, so the codes of each column ascend too."""
    pointers = pointers_of(codes, 2 * n_columns)[::2].copy()
    position = pointers[:-1].copy()
    transposed = np.empty(len(codes), np.int32)
    carried = empty_like(weights)
    for row in range(len(row_pointers) - 1):
        for l in range(row_pointers[row], row_pointers[row + 1]):
            column = codes[l] >> 1
            transposed[position[column]] = row << 1 | (codes[l] & 1)
            if weights is not None:
                carried[position[column]] = weights[l]
            position[column] += 1
    return pointers, transposed, carried


@jit
def _distinct_counts(pointers, codes):  # type: ignore[no-untyped-def]
    """Number of different columns of each row.

    Codes ascend, so the ratings of a cell are neighbours.
    """
    counts = np.zeros(len(pointers) - 1, np.int64)
    for i in range(len(counts)):
        last = -1
        for l in range(pointers[i], pointers[i + 1]):
            column = codes[l] >> 1
            counts[i] += column != last
            last = column
    return counts


@dataclass(frozen=True)
class Repeats:
    """Counts of cells that were rated more than once.

    Every rating of such a cell counts in a fit.
    """

    repeated_cells: int = 0
    repeated: int = 0  # ratings beyond the first of their cell
    conflicting: int = 0  # cells rated both ways


def repeats_of(ratings: RatingBlock) -> Repeats:
    return Repeats(*_count_repeats(ratings.row_pointers, ratings.codes))


@jit
def _count_repeats(pointers, codes):  # type: ignore[no-untyped-def]
    """The fields of ``Repeats``. The ratings of a cell are neighbours, the negative ones first."""
    cells = 0
    ratings = 0
    conflicting = 0
    for row in range(len(pointers) - 1):
        for l in range(pointers[row] + 1, pointers[row + 1]):
            if codes[l] >> 1 == codes[l - 1] >> 1:
                ratings += 1
                first = l == pointers[row] + 1 or codes[l - 2] >> 1 != codes[l] >> 1
                cells += first
                conflicting += codes[l] != codes[l - 1]
    return cells, ratings, conflicting
