"""Ratings in numpy arrays, checked and sorted on the GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from onebit_spark.core.array_input import checked_ratings
from onebit_spark.core.blocks import MAX_COLUMNS
from onebit_spark.core.posterior import Form
from onebit_spark.engines.cuda.device import check_memory
from onebit_spark.engines.cuda.ratings import Orientations, count_marked, orientations
from onebit_spark.engines.cuda.transfer import upload


def device_ratings(
    rows: ArrayLike, cols: ArrayLike, labels: ArrayLike, shape: Sequence[int] | None, settings: Sequence[object],
    weights: ArrayLike | None, form: Form,
) -> Orientations:  # fmt: skip
    """Both orientations. The arguments are those of ``core.array_input.checked_ratings``, which says what is wrong.

    Arrays that look right are sent as they are, and the device looks at their numbers: to check a billion of them takes
    the host longer than the whole fit.
    """
    own_rows, own_cols, own_labels = map(np.asarray, (rows, cols, labels))
    found = None if settings or weights is not None else _sent(own_rows, own_cols, own_labels, shape, form)
    if found is None:
        checked = checked_ratings(own_rows, own_cols, own_labels, shape, settings, weights)
        size, extent, carried = len(checked.rows), checked.shape, checked.weights
        check_memory(size, *extent, form, carried is not None)
        row, col = (upload(array.astype(np.int32)) for array in (checked.rows, checked.cols))
        positive = upload(checked.positive.view(np.uint8))
        return orientations(row, col, positive, extent, None if carried is None else upload(carried))
    row, col, positive, extent = found
    check_memory(len(row), *extent, form, False)
    return orientations(row, col, positive, extent)


def _sent(
    rows: NDArray[Any], cols: NDArray[Any], labels: NDArray[Any], shape: Sequence[int] | None, form: Form
) -> tuple[Any, Any, Any, tuple[int, int]] | None:
    """Rows, columns, labels as bytes, and the shape; None if anything about them is not as it should be."""
    kinds = rows.dtype.kind in "iu" and cols.dtype.kind in "iu" and labels.dtype.kind in "biu"
    if not kinds or not rows.shape == cols.shape == labels.shape or rows.ndim != 1 or not len(rows):
        return None
    if shape is not None and (np.shape(shape) != (2,) or np.asarray(shape).dtype.kind not in "iu"):
        return None
    check_memory(len(rows), 0, 0, form, False)
    index, extent = [], []
    for place, array in enumerate((rows, cols)):
        sent = upload(array)
        low, high = int(sent.min()), int(sent.max())
        size = high + 1 if shape is None else shape[place]
        if low < 0 or high >= min(size, MAX_COLUMNS) or size > MAX_COLUMNS:
            return None
        index.append(sent.astype(np.int32, copy=False))
        extent.append(int(size))
    sent = upload(labels.view(np.uint8) if labels.dtype == bool else labels)
    positive, least = (sent == 1).view(np.uint8), int(sent.min())
    if least not in (0, -1):
        return None
    counts = count_marked(positive), count_marked((sent == least).view(np.uint8))
    if sum(counts) != len(sent) or not all(counts):
        return None
    return index[0], index[1], positive, (extent[0], extent[1])
