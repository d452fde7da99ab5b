"""DeviceRatings: the ratings of one orientation on the GPU, sorted by row, and cut into tasks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.losses import Side
from onebit_spark.core.repeats import Repeats
from onebit_spark.core.spectral_rows import Rows
from onebit_spark.core.split import Split
from onebit_spark.engines.cuda.device import NULL, cupy, kernel, launch
from onebit_spark.engines.cuda.shapes import TASK, Shape
from onebit_spark.engines.cuda.transfer import download, upload

REPEATED = np.uint32(2**31)  # in a code: the rating before is of the same cell
MANY_TASKS = 32  # a row that more tasks share is joined by a block of threads of its own

ANY_SHAPE = Shape(1, 0, False).pair_macros  # kernels that read no row


class Cuts(NamedTuple):
    """The ratings in tasks of equal length, whatever rows they are of. The arrays are those of ``pointers``' module."""

    first_rows: Any  # the row of the first rating of each task
    few: Any  # rows that 2 … MANY_TASKS tasks share
    many: Any  # rows that more tasks share

    @classmethod
    def of(cls, pointers: Any, module: Any = np, task: int = TASK) -> Cuts:
        begins = module.arange(0, int(pointers[-1]), task)
        first_rows = module.searchsorted(pointers, begins, side="right") - 1
        shared_by = (pointers[1:] - 1) // task - pointers[:-1] // task + 1
        shared_by = module.where(pointers[1:] > pointers[:-1], shared_by, 0)
        few = module.flatnonzero((shared_by > 1) & (shared_by <= MANY_TASKS))
        many = module.flatnonzero(shared_by > MANY_TASKS)
        return cls(*(found.astype(np.int32) for found in (first_rows, few, many)))


@dataclass(frozen=True)
class DeviceRatings:
    """As ``RatingBlock``, on the device. The upper bit of a code says that the rating before is of the same cell."""

    pointers: Any  # int64
    codes: Any  # uint32: repeated << 31 | column << 1 | positive
    n_columns: int
    weights: Any = None  # float32

    @classmethod
    def sorted(cls, rows: Any, columns: Any, positive: Any, shape: tuple[int, int], weights: Any) -> DeviceRatings:
        """From ratings in any order: int32, int32, uint8 and float32 arrays of the device."""
        n, cp = len(rows), cupy()
        keys = cp.empty(n, np.uint64)
        launch(kernel("ratings", "fill_keys", ANY_SHAPE), n, rows, columns, positive, keys, np.int64(n))
        if weights is None:
            keys.sort()
        else:  # the weights of equal codes ascend
            order = cp.argsort(weights)
            order = order[cp.argsort(keys[order])]
            keys, weights = keys[order], weights[order]
        codes, pointers = cp.empty(n, np.uint32), cp.empty(shape[0] + 1, np.int64)
        launch(kernel("ratings", "fill_codes", ANY_SHAPE), n, keys, codes, np.int64(n))
        fill = kernel("ratings", "fill_pointers", ANY_SHAPE)
        launch(fill, shape[0] + 1, keys, pointers, np.int64(shape[0]), np.int64(n))
        return cls(pointers, codes, shape[1], weights)

    @property
    def n_rows(self) -> int:
        return len(self.pointers) - 1

    @property
    def n(self) -> int:
        return len(self.codes)

    @cached_property
    def cuts(self) -> Cuts:
        return Cuts.of(self.pointers, cupy())

    @cached_property
    def rows(self) -> Any:
        """The row of each rating."""
        out = cupy().empty(self.n, np.int32)
        find = kernel("ratings", "rows_of_ratings", ANY_SHAPE)
        launch(find, self.n, self.pointers, np.int64(self.n_rows), out, np.int64(self.n))
        return out

    def forget_rows(self) -> None:
        """Free ``rows``, 4 bytes per rating."""
        self.__dict__.pop("rows", None)

    def transposed(self) -> DeviceRatings:
        columns = ((self.codes & ~REPEATED) >> 1).astype(np.int32)
        positive = (self.codes & 1).astype(np.uint8)
        shape = self.n_columns, self.n_rows
        found = DeviceRatings.sorted(columns, self.rows, positive, shape, self.weights)
        self.forget_rows()
        return found

    # ---- numbers of the rows -----------------------------------------------------------------------------------------

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Number of ratings of each row, on the host."""
        return download(cupy().diff(self.pointers))

    @cached_property
    def n_rated(self) -> int:
        """Rows with ratings."""
        return int(np.count_nonzero(self.counts))

    @property
    def distinct(self) -> Any:
        """Number of different columns that each row has rated, int32."""
        return self._counted[2]

    @property
    def counted_rows(self) -> Rows:
        """The rows with the sums of their weights, as arrays of the device."""
        numbers, (total, positive, _) = cupy().arange(self.n_rows, dtype=np.int64), self._counted
        if self.weights is None:
            total, positive = total.astype(np.int64), positive.astype(np.int64)
        return Rows(numbers, total, positive)

    @property
    def positive_counts(self) -> NDArray[np.int64]:
        """Number of positive ratings of each row, on the host."""
        return download(self._summed(None)[1]).astype(np.int64)

    @cached_property
    def _counted(self) -> tuple[Any, Any, Any]:
        return self._summed(self.weights)

    def _summed(self, weights: Any) -> tuple[Any, Any, Any]:
        """Of each row: the sum of its weights, that of the positive ones, and its different columns."""
        m, cp = self.n_rows, cupy()
        found = cp.empty(m), cp.empty(m), cp.empty(m, np.int32)
        count, given = kernel("ratings", "count_rows", ANY_SHAPE), NULL if weights is None else weights
        launch(count, 32 * m, self.pointers, self.codes, given, *found, np.int64(m))
        return found

    @property
    def positives(self) -> int:
        """Number of positive ratings."""
        return int((self.codes & 1).sum(dtype=np.int64))

    @cached_property
    def repeats(self) -> Repeats:
        again = (self.codes & REPEATED) != 0
        first = again[1:] & ~again[:-1]  # no row begins with a repeated cell, so `again[0]` is false
        differs = again[1:] & ((self.codes[1:] ^ self.codes[:-1]) & 1).astype(bool)
        return Repeats(*(int(cupy().count_nonzero(found)) for found in (first, again, differs)))

    # ---- a part of the ratings ---------------------------------------------------------------------------------------

    def tossed(self, split: Split) -> Any:
        """Whether the split chooses each rating. These are the ratings of the rows."""
        out, cells = cupy().empty(self.n, np.uint8), NULL
        if split.by_cell:
            cells = cupy().cumsum((self.codes & REPEATED) == 0, dtype=np.int64)
        toss = kernel("ratings", "toss", ANY_SHAPE)
        coin = np.uint64(split.seed), np.float64(split.fraction)
        launch(toss, self.n, self.pointers, self.rows, cells, *coin, out, np.int64(self.n))
        self.forget_rows()
        return out.view(bool)

    def kept(self, mask: Any) -> DeviceRatings:
        """The ratings that are marked. All of a cell are marked, or the bit for repeated cells is made anew."""
        totals = cupy().zeros(self.n + 1, np.int64)
        cupy().cumsum(mask, dtype=np.int64, out=totals[1:])
        codes = self.codes[mask]
        weights = None if self.weights is None else self.weights[mask]
        return DeviceRatings(totals[self.pointers], codes, self.n_columns, weights)._marked()

    def _marked(self) -> DeviceRatings:
        """With the bit of repeated cells made anew."""
        plain = self.codes & ~REPEATED
        again = cupy().zeros(self.n, bool)
        again[1:] = (plain[1:] >> 1) == (plain[:-1] >> 1)
        again[self.pointers[:-1][cupy().diff(self.pointers) > 0]] = False  # a row begins
        codes = plain | (again.astype(np.uint32) << 31)
        return DeviceRatings(self.pointers, codes, self.n_columns, self.weights)


Orientations = dict[Side, DeviceRatings]


def orientations(rows: Any, columns: Any, positive: Any, shape: tuple[int, int], weights: Any = None) -> Orientations:
    """Both orientations of ratings that are on the device, in any order."""
    across, down = shape
    return {
        "rows": DeviceRatings.sorted(rows, columns, positive, (across, down), weights),
        "cols": DeviceRatings.sorted(columns, rows, positive, (down, across), weights),
    }


def orientations_of(block: RatingBlock) -> Orientations:
    """Both orientations of the ratings of a block."""
    weights = None if block.weights is None else upload(block.weights)
    codes = upload(block.codes).view(np.uint32)
    rows = DeviceRatings(upload(block.row_pointers), codes, block.n_columns, weights)._marked()
    return {"rows": rows, "cols": rows.transposed()}
