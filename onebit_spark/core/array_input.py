"""Checks of ratings in numpy arrays: all problems at once, for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from onebit_spark.core.blocks import MAX_COLUMNS
from onebit_spark.errors import RequestError


class CheckedRatings(NamedTuple):
    """Ratings without defects."""

    rows: NDArray[np.int64]
    cols: NDArray[np.int64]
    positive: NDArray[np.bool_]
    shape: tuple[int, int]
    weights: NDArray[np.float32] | None


def checked_ratings(
    rows: ArrayLike, cols: ArrayLike, labels: ArrayLike, shape: Sequence[int] | None, settings: Sequence[object],
    weights: ArrayLike | None = None,
) -> CheckedRatings:  # fmt: skip
    """The input of ``fit_arrays`` as index arrays and label bits, or one RequestError with all problems.

    Ratings of weight 0 are dropped before anything else is looked at. ``settings`` are problems with the settings. They
    come first in the message.
    """
    problems = [str(problem) for problem in settings]
    arrays = {"rows": np.asarray(rows), "cols": np.asarray(cols), "labels": np.asarray(labels)}
    if weights is not None:
        arrays["weights"] = np.asarray(weights)
        problems += weight_problems(arrays["weights"])
    lengths = {name: array.size for name, array in arrays.items()}
    for name, array in arrays.items():
        if array.ndim != 1:
            problems.append(f"{name} must be one-dimensional, not of shape {array.shape}")
    if len(set(lengths.values())) > 1:
        sizes = ", ".join(f"{name} {length}" for name, length in lengths.items())
        problems.append(f"{' and '.join([', '.join(list(arrays)[:-1]), list(arrays)[-1]])} differ in length: {sizes}")
    if weights is not None and not problems:
        kept = arrays["weights"].astype(np.float32) != 0
        arrays = {name: array[kept] for name, array in arrays.items()}
        lengths = {name: array.size for name, array in arrays.items()}
    if min(lengths.values()) == 0:
        problems.append("there is no rating" + (" of positive weight" if weights is not None else ""))
    declared: tuple[int | None, int | None] = None, None
    if shape is not None:
        pair = np.asarray(shape)
        if pair.shape != (2,) or pair.dtype.kind not in "iu" or pair.min() < 0 or pair.max() > MAX_COLUMNS:
            problems.append(f"shape must be two integers from 0 to 2^30, not {shape!r}")
        else:
            declared = int(pair[0]), int(pair[1])
    size = []
    for name, limit in zip(("rows", "cols"), declared, strict=True):
        wrong, largest = _index_problems(name, arrays[name], limit)
        problems += wrong
        size.append(largest + 1 if limit is None else limit)
    wrong, n = label_problems(arrays["labels"]), arrays["labels"].size
    if not wrong and n and (positives := np.count_nonzero(arrays["labels"] > 0)) in (0, n):
        wrong = [f"labels are all {'positive' if positives else 'negative'}: both classes are needed"]
    problems += wrong
    if problems:
        raise RequestError("cannot fit:\n" + "\n".join(f"- {problem}" for problem in problems))
    row_index, col_index = (arrays[name].astype(np.int64, copy=False) for name in ("rows", "cols"))
    carried = arrays["weights"].astype(np.float32) if weights is not None else None
    return CheckedRatings(row_index, col_index, arrays["labels"] > 0, (size[0], size[1]), carried)


def _index_problems(name: str, index: NDArray[Any], declared: int | None) -> tuple[list[str], int]:
    """The problems of an index array, and the largest index."""
    if index.size == 0:
        return [], -1
    if index.dtype.kind not in "iuf":
        return [f"{name} must hold integers, not {index.dtype}"], -1
    values = index.ravel()
    broken = ~np.isfinite(values) | (values != np.floor(values)) if values.dtype.kind not in "iu" else np.zeros(0)
    if np.any(broken):
        return [f"{name} must hold integers: {_examples(values[broken])}"], -1
    problems = []
    if values.min() < 0:
        problems.append(f"{name} holds negative indices: {_examples(values[values < 0])}")
    if declared is not None and values.max() >= declared:
        problems.append(f"{name} reaches index {values.max()}, beyond the declared shape {declared}")
    elif values.max() >= MAX_COLUMNS:
        problems.append(f"{name} reaches index {values.max()}, beyond the limit of 2^30: number them from 0 on")
    return problems, int(values.max())


def label_problems(labels: NDArray[Any]) -> list[str]:
    if labels.size == 0:
        return []
    if labels.dtype.kind not in "biuf":
        return [f"labels must be numbers or booleans, not {labels.dtype}: convert them to ±1, 0/1 or booleans first"]
    values = labels.ravel()
    if values.dtype != bool:
        if np.any(np.isnan(values)):
            return [f"labels hold {int(np.isnan(values).sum())} NaN"]
        wrong = values[(values != 1) & (values != -1) & (values != 0)]
        if wrong.size:
            return [f"labels must be ±1 or 0/1: {_examples(wrong)}"]
        if np.any(values == 0) and np.any(values == -1):
            return ["labels mix 0 and −1: use either ±1 or 0/1"]
    return []


def weight_problems(weights: NDArray[Any]) -> list[str]:
    """The problems of an array of weights. They are held as float32, where 1e39 is infinite."""
    if weights.dtype.kind not in "biuf":
        return [f"weights must be numbers, not {weights.dtype}"]
    with np.errstate(over="ignore"):
        held = weights.ravel().astype(np.float32)
    wrong = weights.ravel()[~((held >= 0) & (held < np.inf))]
    return [f"weights must be positive and finite, or 0: {_examples(wrong)}"] if wrong.size else []


def _examples(values: NDArray[Any]) -> str:
    shown = ", ".join(str(value) for value in np.unique(values)[:3])
    return f"{values.size} found, such as {shown}"
