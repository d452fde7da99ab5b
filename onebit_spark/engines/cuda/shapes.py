"""How the kernels are sized for one form of a row, and where their numbers are in memory.

A partner's line has the moments E[z zᵀ] of z = [R, 1], packed (``core.losses.logistic_full``), and behind them what
implicit features tell. A group of threads reads it together. With 4 threads, of which each holds 20 moments:

    memory        0 1 2 3   4 5 6 7   8 9 10 11   12 13 14 15   16 17 18 19   …   76 77 78 79
    thread        0         1         2           3             0             …   3
    its register  0 1 2 3   0 1 2 3   0 1 2  3    0  1  2  3    4  5  6  7    …   16 17 18 19

So every thread reads 16 bytes at a time, and its neighbours read the bytes beside them. The groups of a warp sum
different ratings of a row. In the end each group keeps a part of the sums, and the warp writes them side by side.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core.posterior import Form, packed_size

Places = NDArray[np.int64]

GROUPS = (4, 8, 16, 32, 64, 96)  # threads that may share a rating
LANES = (4, 8, 16, 32, 64, 96)  # threads that may work on a row together
MOST_MOMENTS = 24  # of a thread: more would not fit its registers
TASK = 512  # ratings of a task
WARP, BLOCK = 32, 128  # threads
SMALL = 64  # rows of a block that solves small systems
REGISTERS = 65536  # of a multiprocessor


def _rounded(n: int, to: int) -> int:
    return -(-n // to) * to


@dataclass(frozen=True)
class LineShape:
    """How ``sums.cu`` reads the lines of partners, and where it writes the sums of a row."""

    group: int  # threads that share a rating
    moments: int  # numbers of a line that each of them holds
    told: int = 0  # the same of what implicit features tell
    signed: int = 0  # how many of the last moments are summed with the labels as well

    @classmethod
    def of_columns(cls, columns: int) -> LineShape:
        """Of lines of plain numbers, as the start multiplies them."""
        group = next(threads for threads in GROUPS if 16 * threads >= columns)
        return cls(group, _rounded(columns, 4 * group) // group)

    @property
    def groups(self) -> int:
        """Groups of a warp."""
        return max(1, WARP // self.group)

    @property
    def values(self) -> int:
        """Sums per thread."""
        return _rounded(self.moments + self.signed + self.told, self.groups)

    @property
    def width(self) -> int:
        """Numbers of a line."""
        return (self.moments + self.told) * self.group

    @property
    def sums(self) -> int:
        """Sums of a row."""
        return self.values * self.group

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.group if self.group > WARP else BLOCK

    @property
    def tasks_per_block(self) -> int:
        return 1 if self.group > WARP else BLOCK // WARP

    def moment_places(self, numbers: Places) -> Places:
        """Where the sums of these numbers of a line are."""
        return self._places(*self._wide(numbers))

    def signed_places(self, numbers: Places) -> Places:
        """The same of the sums with the labels."""
        thread, register = self._wide(numbers)
        return self._places(thread, register + self.signed)

    def told_places(self, numbers: Places) -> Places:
        """The same of what implicit features tell."""
        whole, rest = self.told // 4 * 4, max(self.told % 4, 1)
        thread, register = self._wide(numbers)
        beyond = numbers - whole * self.group
        thread = np.where(beyond < 0, thread, beyond // rest)
        register = np.where(beyond < 0, register, whole + beyond % rest)
        return self._places(thread, self.moments + self.signed + register)

    def _wide(self, numbers: Places) -> tuple[Places, Places]:
        """Thread and register of numbers that are read four at a time."""
        return numbers // 4 % self.group, numbers // (4 * self.group) * 4 + numbers % 4

    def _places(self, thread: Places, value: Places) -> Places:
        """Where value v of thread t is in the sums of a row."""
        kept = self.values // self.groups
        return np.asarray(value % kept * (self.groups * self.group) + value // kept * self.group + thread)

    @property
    def macros(self) -> dict[str, int]:
        return {
            "GROUP": self.group, "MOMENTS": self.moments, "TOLD": self.told, "SIGNED": self.signed,
            "VALUES": self.values,
        }  # fmt: skip

    def sum_macros(self, weighted: bool, mode: int, cached: bool = False) -> dict[str, int]:
        """Of ``sums.cu``. ``cached``: whether all lines fit the cache of the device.

        A group reads two ratings ahead. From the cache one is enough: it takes fewer registers, and as many blocks run
        side by side as have room for theirs. The order of the sums is the same.
        """
        ahead = 1 if cached else 2
        registers = ahead * (self.moments + self.told) + self.moments + self.values + 16 + 8 * ahead
        blocks = max(1, REGISTERS // (self.threads * registers))
        return {
            **self.macros, "TASK": TASK, "AHEAD": ahead, "WEIGHTED": int(weighted), "MODE": mode, "MIN_BLOCKS": blocks,
        }  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """The sizes of all kernels for one form of a row."""

    size: int  # D, the free coordinates of a row
    fixed: int  # 1 with intercepts, else 0
    tells: bool  # whether the rows have implicit features
    spread: bool = False  # whether a row keeps standard deviations instead of a covariance

    @classmethod
    def of(cls, form: Form) -> Shape:
        return cls(form.dimension, int(form.has_intercept), form.has_implicit, form.kind == "spread")

    @property
    def rank(self) -> int:
        return self.size - self.fixed

    @property
    def packed(self) -> int:
        """Entries of a covariance."""
        return packed_size(self.size)

    @cached_property
    def line(self) -> LineShape:
        """The moments of [R, 1], D + 1 coordinates, and 2K numbers of implicit features."""
        numbers = packed_size(self.size + 1)
        group = next(threads for threads in GROUPS if MOST_MOMENTS * threads >= _rounded(numbers, 4 * threads))
        moments = _rounded(numbers, 4 * group) // group
        told = -(-2 * self.rank // group) if self.tells else 0
        told += told % 4 == 3  # three numbers are no single read
        return LineShape(group, moments, told, moments - self.packed // (4 * group) * 4)

    @property
    def own_width(self) -> int:
        """Numbers of a row's own line: moments alone."""
        return self.line.moments * self.line.group

    # ---- rows.cu -----------------------------------------------------------------------------------------------------

    @property
    def lanes(self) -> int:
        """Threads that solve a row; the last coordinate needs none of its own."""
        return next(threads for threads in LANES if threads >= self.size - 1)

    @property
    def rows_per_block(self) -> int:
        """Rows that a block solves."""
        return 1 if self.lanes > WARP else BLOCK // self.lanes

    @property
    def solve_bytes(self) -> int:
        """Shared memory of a block that solves: a square and four vectors per row."""
        return 8 * self.rows_per_block * (self.size * (self.size | 1) + 4 * self.size)

    @property
    def small(self) -> bool:
        """Whether the system of a row fits the registers of one thread (``solve_small``)."""
        return self.size <= 12

    @property
    def solve_launch(self) -> tuple[str, int, int, int]:
        """The kernel that solves, and of its blocks: rows, threads, and bytes of shared memory."""
        if self.small:
            return "solve_small", SMALL, SMALL, 4 * SMALL * (self.line.sums + 1)
        return "solve", self.rows_per_block, self.rows_per_block * self.lanes, self.solve_bytes

    @property
    def map_lanes(self) -> int:
        """Threads that map a row."""
        return next(threads for threads in LANES if threads >= self.size)

    @property
    def map_rows(self) -> int:
        """Rows that a block maps at a time."""
        return 1 if self.map_lanes > WARP else BLOCK // self.map_lanes

    @property
    def map_bytes(self) -> int:
        """Shared memory of a block that maps: T, and two squares per row."""
        return 4 * (1 + 2 * self.map_rows) * self.size * (self.size | 1)

    @property
    def row_macros(self) -> dict[str, int]:
        return {**self.line.macros, **self.pair_macros, "LANES": self.lanes, "MAP_LANES": self.map_lanes}

    # ---- ratings.cu, totals.cu ---------------------------------------------------------------------------------------

    @property
    def pair_macros(self) -> dict[str, int]:
        return {"SIZE": self.size, "FIXED": self.fixed, "SPREAD": int(self.spread)}

    @property
    def total_macros(self) -> dict[str, int]:
        return {"PAIRS": -(-((self.size + 1) ** 2) // 256)}
