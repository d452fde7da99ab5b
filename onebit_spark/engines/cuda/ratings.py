"""DeviceRatings: the ratings of one orientation on the GPU, sorted by row and cut into tasks.

Ratings in numpy arrays are checked and sorted on the GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from onebit_spark.core.blocks import RatingBlock, Repeats
from onebit_spark.core.losses import Side
from onebit_spark.core.posterior import Form
from onebit_spark.core.randomness import UNITS, Split
from onebit_spark.core.spectral import CountedRows
from onebit_spark.data.limits import MAX_COLUMNS
from onebit_spark.data.user_tables import checked_arrays
from onebit_spark.engines.cuda.device import (
    NULL,
    Array,
    Kernel,
    check_memory,
    cupy,
    download,
    kernel,
    launch,
    or_null,
    upload,
)
from onebit_spark.engines.cuda.shapes import MANY_TASKS, RATING_MACROS, TASK


class Cuts(NamedTuple):
    """The ratings in tasks of equal length, whatever rows they are of."""

    first_rows: Array  # the row of the first rating of each task
    # Rows with more than MANY_TASKS tasks of ratings: a block of threads joins their parts
    many: Array


class RowWeights(NamedTuple):
    """Sums over the ratings of each row, float64, and a count, int32."""

    weights: Array  # the sum of the weights of all ratings
    positives: Array  # the sum of the weights of positive ratings
    root: Array  # D^{−½}: 1/√weights, 0 without ratings
    distinct: Array  # number of different columns


@dataclass(frozen=True)
class DeviceRatings:
    """A ``RatingBlock`` on the device.

    The upper bit of a code marks a rating of the same cell as the one before.
    """

    pointers: Array  # int64
    codes: Array  # uint32: repeated << 31 | column << 1 | positive
    n_columns: int
    weights: Array = None  # float32

    @classmethod
    def of_keys(cls, keys: Array, shape: tuple[int, int], weights: Array) -> DeviceRatings:
        """From ratings in any order: row << 32 | column << 1 | positive. The keys are sorted in
        place.
        """
        n = len(keys)
        cp = cupy()
        if weights is None:
            keys.sort()
        else:  # the weights of equal codes ascend
            order = cp.argsort(weights)
            order = order[cp.argsort(keys[order])]
            keys = keys[order]
            weights = weights[order]
        codes = cp.empty(n, np.uint32)
        pointers = cp.empty(shape[0] + 1, np.int64)
        launch(_rating_kernel("fill_codes"), n, keys, codes, np.int64(n))
        launch(
            _rating_kernel("fill_pointers"),
            shape[0] + 1,
            keys,
            pointers,
            np.int64(shape[0]),
            np.int64(n),
        )
        return cls(pointers, codes, shape[1], weights)

    @property
    def n_rows(self) -> int:
        return len(self.pointers) - 1

    @property
    def n(self) -> int:
        return len(self.codes)

    @cached_property
    def cuts(self) -> Cuts:
        n_tasks = -(-self.n // TASK)
        first_rows = cupy().empty(n_tasks, np.int32)
        rows = np.int64(self.n_rows)
        launch(
            _rating_kernel("fill_first_rows"),
            n_tasks,
            self.pointers,
            rows,
            first_rows,
            np.int32(n_tasks),
        )
        many = np.flatnonzero(self.counts > MANY_TASKS * TASK).astype(np.int32)
        return Cuts(first_rows, upload(many))

    @property
    def places(self) -> tuple[Array, Array, np.int32, np.int64]:
        """``Ratings`` of ``random.cuh``, which finds the row of a rating."""
        first_rows = self.cuts.first_rows
        return self.pointers, first_rows, np.int32(len(first_rows)), np.int64(self.n_rows)

    def transposed(self) -> DeviceRatings:
        keys = cupy().empty(self.n, np.uint64)
        n = self.n
        launch(
            _rating_kernel("fill_transposed_keys"), n, *self.places, self.codes, keys, np.int64(n)
        )
        return DeviceRatings.of_keys(keys, (self.n_columns, self.n_rows), self.weights)

    # ---- numbers of the rows --------------------------------------------------------------------

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Number of ratings of each row, on the host."""
        return np.diff(download(self.pointers))

    @cached_property
    def n_rated(self) -> int:
        return int(np.count_nonzero(self.counts))

    @cached_property
    def row_weights(self) -> RowWeights:
        return self._summed(self.weights)

    @property
    def total_weight(self) -> float:
        """The sum of the weights; the number of ratings where they have none."""
        return float(self.row_weights.weights.sum())

    @property
    def distinct(self) -> Array:
        return self.row_weights.distinct

    @property
    def counted_rows(self) -> CountedRows:
        """The rows with the sums of their weights, on the host."""
        total, positive = (download(self.row_weights[k]) for k in range(2))
        if self.weights is None:
            total = total.astype(np.int64)
            positive = positive.astype(np.int64)
        return CountedRows(np.arange(self.n_rows), total, positive)

    @property
    def positives(self) -> int:
        return int(self._unweighted.positives.sum())

    @property
    def _unweighted(self) -> RowWeights:
        return self.row_weights if self.weights is None else self._summed(None)

    def _summed(self, weights: Array) -> RowWeights:
        m = self.n_rows
        cp = cupy()
        sums = RowWeights(cp.empty(m), cp.empty(m), cp.empty(m), cp.empty(m, np.int32))
        launch(
            _rating_kernel("count_rows"),
            32 * m,
            self.pointers,
            self.codes,
            or_null(weights),
            *sums,
            np.int64(m),
        )
        return sums

    @cached_property
    def repeats(self) -> Repeats:
        counts = cupy().zeros(3, np.uint64)
        launch(_rating_kernel("count_repeats"), self.n, self.codes, counts, np.int64(self.n))
        return Repeats(*map(int, counts.get()))

    # ---- a part of the ratings ------------------------------------------------------------------

    def part_of(self, split: Split, those: bool = True) -> DeviceRatings:
        """The ratings that a split chooses (``those``), or the others.

        The ratings must be those by rows.
        """
        m = np.int64(self.n_rows)
        counts = cupy().empty(self.n_rows, np.int64)
        cp = cupy()
        coin = np.uint64(split.seed), np.float64(split.fraction), np.int32(UNITS.index(split.by))
        launch(
            _rating_kernel("count_split"),
            32 * self.n_rows,
            self.pointers,
            self.codes,
            *coin,
            counts,
            m,
        )
        chosen = download(counts)
        kept = np.append(0, np.cumsum(chosen if those else self.counts - chosen))
        n = int(kept[-1])
        pointers = upload(kept)
        codes = cp.empty(n, np.uint32)
        weights = None if self.weights is None else cp.empty(n, np.float32)
        launch(
            _rating_kernel("write_split"),
            32 * self.n_rows,
            self.pointers,
            self.codes,
            or_null(self.weights),
            *coin,
            np.int32(those),
            pointers,
            codes,
            or_null(weights),
            np.int64(self.n_rows),
        )
        return DeviceRatings(pointers, codes, self.n_columns, weights)


def _rating_kernel(name: str) -> Kernel:
    return kernel("ratings", name, RATING_MACROS)


def count_marked(marked: Array) -> int:
    """The number of bytes of an array that are not 0."""
    counts = cupy().zeros(1, np.uint64)
    launch(_rating_kernel("count_marked"), marked.size, marked, counts, np.int64(marked.size))
    return int(counts.get()[0])


def count_distinct(ratings: DeviceRatings) -> int:
    """The number of different pairs (total weight, positive weight) of the rows."""
    n = ratings.n_rows
    counts = cupy().zeros(1, np.uint64)
    keys = cupy().empty(n, np.uint64)
    launch(_rating_kernel("hash_rows"), n, *ratings.row_weights[:2], keys, np.int64(n))
    keys.sort()
    launch(_rating_kernel("count_changes"), n, keys, counts, np.int64(n))
    return int(counts.get()[0])


def keyed_normals(
    ratings: DeviceRatings, width: int, seed: int, deviation: float, numbered: bool
) -> Array:
    """Normals of every row, from a hash of its weights or of its number; 0 without ratings
    (``core.spectral``).
    """
    out = cupy().empty((ratings.n_rows, width))
    keys = (NULL, NULL) if numbered else ratings.row_weights[:2]
    launch(
        _rating_kernel("keyed_normals"),
        out.size,
        ratings.pointers,
        *keys,
        np.uint64(seed % 2**64),
        np.int32(width),
        np.float64(deviation),
        out,
        np.int64(ratings.n_rows),
    )
    return out


Orientations = dict[Side, DeviceRatings]


def orientations(
    rows: Array,
    columns: Array,
    positive: Array,
    shape: tuple[int, int],
    weights: Array | None = None,
) -> Orientations:
    """Both orientations of ratings in any order: int32, int32, uint8 and float32 arrays of the
    device.
    """
    across, down = shape

    def sorted_by(first: Array, second: Array, extent: tuple[int, int]) -> DeviceRatings:
        keys = cupy().empty(len(first), np.uint64)
        n = len(first)
        launch(_rating_kernel("fill_keys"), n, first, second, positive, keys, np.int64(n))
        return DeviceRatings.of_keys(keys, extent, weights)

    return {
        "rows": sorted_by(rows, columns, (across, down)),
        "cols": sorted_by(columns, rows, (down, across)),
    }


def orientations_of(block: RatingBlock) -> Orientations:
    """Both orientations of the ratings of a block."""
    plain = upload(block.codes).view(np.uint32)
    pointers = upload(block.row_pointers)
    codes = cupy().empty(len(plain), np.uint32)
    n_rows = block.n_rows
    launch(_rating_kernel("mark_repeated"), 32 * n_rows, pointers, plain, codes, np.int64(n_rows))
    weights = None if block.weights is None else upload(block.weights)
    rows = DeviceRatings(pointers, codes, block.n_columns, weights)
    return {"rows": rows, "cols": rows.transposed()}


def device_ratings(
    rows: ArrayLike,
    cols: ArrayLike,
    labels: ArrayLike,
    shape: Sequence[int] | None,
    settings: Sequence[object],
    weights: ArrayLike | None,
    form: Form,
) -> Orientations:
    """Both orientations of ratings in arrays; the arguments are those of
    ``data.user_tables.checked_arrays``.

    Arrays of the right types are uploaded as they are, and the device checks their values: the host
    would take longer to check a billion values than the whole fit takes. If a check fails,
    ``checked_arrays`` reports the problem.
    """
    given = np.asarray(rows), np.asarray(cols), np.asarray(labels)
    sent = None if settings or weights is not None else _sent(*given, shape, form)
    if sent is None:
        checked = checked_arrays(*given, shape, settings, weights)
        size = len(checked.rows)
        extent = checked.shape
        carried = checked.weights
        check_memory(size, *extent, form, carried is not None)
        row, col = (upload(array.astype(np.int32)) for array in (checked.rows, checked.cols))
        positive = upload(checked.positive.view(np.uint8))
        return orientations(
            row, col, positive, extent, None if carried is None else upload(carried)
        )
    row, col, positive, extent = sent
    check_memory(len(row), *extent, form, False)
    return orientations(row, col, positive, extent)


def _sent(
    rows: NDArray[Any],
    cols: NDArray[Any],
    labels: NDArray[Any],
    shape: Sequence[int] | None,
    form: Form,
) -> tuple[Array, Array, Array, tuple[int, int]] | None:
    """Rows, columns, labels as bytes, and the shape; None if anything about them is wrong or
    unusual.
    """
    kinds = rows.dtype.kind in "iu" and cols.dtype.kind in "iu" and labels.dtype.kind in "biu"
    if not kinds or not rows.shape == cols.shape == labels.shape or rows.ndim != 1 or not len(rows):
        return None
    if shape is not None and (np.shape(shape) != (2,) or np.asarray(shape).dtype.kind not in "iu"):
        return None
    check_memory(len(rows), 0, 0, form, False)
    index = []
    extent = []
    for place, array in enumerate((rows, cols)):
        sent = upload(array)
        low = int(sent.min())
        high = int(sent.max())
        size = high + 1 if shape is None else shape[place]
        if low < 0 or high >= min(size, MAX_COLUMNS) or size > MAX_COLUMNS:
            return None
        index.append(sent.astype(np.int32, copy=False))
        extent.append(int(size))
    sent = upload(labels.view(np.uint8) if labels.dtype == bool else labels)
    positive = (sent == 1).view(np.uint8)
    least = int(sent.min())
    if least not in (0, -1):
        return None
    counts = count_marked(positive), count_marked((sent == least).view(np.uint8))
    if sum(counts) != len(sent) or not all(counts):
        return None
    return index[0], index[1], positive, (extent[0], extent[1])
