"""The sizes of the kernels for one form of a row, and the places of their numbers in memory.

A line of the other side has the moments E[z zᵀ] of z = [R, 1], packed (``core.losses.logistic``),
followed by the vectors of implicit features. A group of threads reads it together. With 4 threads
that hold 20 moments each:

    memory        0 1 2 3   4 5 6 7   8 9 10 11   12 13 14 15   16 17 18 19   …   76 77 78 79
    thread        0         1         2           3             0             …   3
    its register  0 1 2 3   0 1 2 3   0 1 2  3    0  1  2  3    4  5  6  7    …   16 17 18 19

So every thread reads 16 bytes at a time, and its neighbours read the adjacent bytes. The groups of
a warp sum different ratings of a row. In the end each group has a part of the sums and writes it in
the order of the line.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property

from onebit_spark.core.posterior import SENT_VECTORS, Form, packed_size

GROUPS = (4, 8, 16, 32, 64, 96)  # threads that may share a rating, or map a row together
# Systems up to this size are solved by a grid of so many lines and columns of threads
GRIDS = {12: (2, 2), 16: (4, 2), 24: (4, 4), 32: (8, 4), 64: (8, 8)}
MOST_MOMENTS = 24  # moments of a thread; more would not fit its registers
TASK = 512  # ratings of a task
MANY_TASKS = 32  # a row with more tasks than that is joined by a whole block of threads
RATING_MACROS = {"TASK": TASK}
MODE_LOGISTIC, MODE_PRODUCT, MODE_READS, MODE_CURVATURE = range(4)  # what sums.cu sums
WARP = 32
BLOCK = 128  # numbers of threads
REGISTERS = 65536  # of a multiprocessor
OTHER_REGISTERS = 28  # of a thread of sums.cu, for addresses, codes and the like


def _rounded(n: int, to: int) -> int:
    return -(-n // to) * to


def _one_read(n: int) -> int:
    """n, or n + 1 where n leaves three numbers beyond fours: those could not be read at once."""
    return n + (n % 4 == 3)


@dataclass(frozen=True)
class LineShape:
    """How ``sums.cu`` reads the lines of the other side, and where it writes the sums of a row."""

    group: int  # threads that share a rating
    moments: int  # moments of a line that each of them holds
    implicit: int = 0  # numbers of the implicit vectors that each of them holds
    signed: int = 0  # how many of the last moments are also summed with the labels

    @classmethod
    def of_columns(cls, columns: int) -> LineShape:
        """The shape of lines of plain numbers, which the start multiplies."""
        group = next(threads for threads in GROUPS if 16 * threads >= columns)
        return cls(group, _rounded(columns, 4 * group) // group)

    @property
    def groups(self) -> int:
        """Groups in a warp."""
        return max(1, WARP // self.group)

    @property
    def values(self) -> int:
        return _rounded(self._summed, 4 * self.groups)

    @property
    def _summed(self) -> int:
        return sum(_rounded(part, 4) for part in (self.moments, self.signed, self.implicit))

    @property
    def width(self) -> int:
        return (self.moments + self.implicit) * self.group

    @property
    def sums(self) -> int:
        """Numbers of a row's sums."""
        return self.values * self.group

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.group if self.group > WARP else BLOCK

    @property
    def tasks_per_block(self) -> int:
        return 1 if self.group > WARP else BLOCK // WARP

    @property
    def macros(self) -> dict[str, int]:
        return {
            "GROUP": self.group,
            "MOMENTS": self.moments,
            "IMPLICIT": self.implicit,
            "SIGNED": self.signed,
            "VALUES": self.values,
        }

    def sum_macros(self, weighted: bool, mode: int, cached: bool = False) -> dict[str, int]:
        """The macros of ``sums.cu``. ``cached``: whether all lines fit the cache of the device.

        A group reads two ratings at once. From the cache one is enough: that takes fewer registers,
        so more blocks run at the same time. The order of the sums is the same.
        """
        ahead = 1 if cached else 2
        read = self.moments + self.implicit
        registers = ahead * read + self.moments + self._summed + OTHER_REGISTERS + 8 * ahead
        blocks = max(1, REGISTERS // (self.threads * registers))
        return {
            **self.macros,
            **RATING_MACROS,
            "MANY_TASKS": MANY_TASKS,
            "AHEAD": ahead,
            "WEIGHTED": int(weighted),
            "MODE": mode,
            "MIN_BLOCKS": blocks,
        }


@dataclass(frozen=True)
class Shape:
    """The sizes of all kernels for one form of a row."""

    size: int  # D, the free coordinates of a row
    fixed: int  # 1 with intercepts, else 0
    implicit: bool  # whether the rows have implicit features
    spread: bool = False  # whether a row keeps standard deviations instead of a covariance

    @classmethod
    @cache
    def of(cls, form: Form) -> Shape:
        return cls(form.dimension, int(form.has_intercept), form.vectors > 0, form.kind == "spread")

    @property
    def rank(self) -> int:
        return self.size - self.fixed

    @property
    def packed(self) -> int:
        return packed_size(self.size)

    @cached_property
    def line(self) -> LineShape:
        """Rows of the moments of [R, 1], D + 1 coordinates, and of 4K numbers of implicit
        features.
        """
        numbers = packed_size(self.size + 1)
        group = next(
            threads
            for threads in GROUPS
            if MOST_MOMENTS * threads >= _rounded(numbers, 4 * threads)
        )
        moments = _rounded(numbers, 4 * group) // group
        implicit = _one_read(-(-SENT_VECTORS * self.rank * self.implicit // group))
        return LineShape(group, moments, implicit, moments - self.packed // (4 * group) * 4)

    @property
    def row_width(self) -> int:
        return self.line.moments * self.line.group

    # ---- lines.cu, solve.cu, maps.cu ------------------------------------------------------------

    @property
    def edge(self) -> int:
        """1 if the last coordinate of a system is solved separately, since one more would take a
        larger grid.
        """
        return int(self.size - 1 in (32, 64))

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of the grid of threads that solves a row."""
        return next(grid for most, grid in GRIDS.items() if self.size - self.edge <= most)

    @property
    def lanes(self) -> int:
        """Threads that solve a row."""
        down, across = self.grid
        return down * across

    @property
    def rows_per_block(self) -> int:
        """Rows that a block solves."""
        return 1 if self.lanes > WARP else BLOCK // self.lanes

    def row_blocks(self, n: int) -> tuple[tuple[int], tuple[int]]:
        """The number of blocks for n rows, and the threads of a block."""
        return (-(-n // self.rows_per_block),), (self.rows_per_block * self.lanes,)

    @property
    def root_bytes(self) -> int:
        """Shared memory of a block of ``roots``: a square matrix per row."""
        return 0 if self.spread else 8 * self.rows_per_block * self.size * (self.size | 1)

    @property
    def map_lanes(self) -> int:
        """Threads that map a row."""
        return next(threads for threads in GROUPS if threads >= self.size)

    @property
    def map_rows(self) -> int:
        """Rows that a block maps at a time."""
        return 1 if self.map_lanes > WARP else BLOCK // self.map_lanes

    @property
    def map_bytes(self) -> int:
        """Shared memory of a block of ``map_rows``: T, and two square matrices per row."""
        return 4 * (1 + 2 * self.map_rows) * self.size * (self.size | 1)

    @cached_property
    def row_macros(self) -> dict[str, int]:
        """The macros of ``lines.cu`` and ``solve.cu``."""
        return {**self.line.macros, **self.map_macros, "EDGE": self.edge}

    @cached_property
    def map_macros(self) -> dict[str, int]:
        """The macros of ``maps.cu``."""
        down, across = self.grid
        return {**self.total_macros, "DOWN": down, "ACROSS": across, "MAP_LANES": self.map_lanes}

    # ---- pairs.cu, totals.cu --------------------------------------------------------------------

    @cached_property
    def pair_macros(self) -> dict[str, int]:
        return {**RATING_MACROS, **self.total_macros}

    @cached_property
    def total_macros(self) -> dict[str, int]:
        return {"SIZE": self.size, "FIXED": self.fixed, "SPREAD": int(self.spread)}
