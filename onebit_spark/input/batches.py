"""Ratings under the names that are used inside, as they arrive in Arrow batches, and what is read off them.

This module imports no Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from onebit_spark.core.hashes import cell_hashes, hash_sums
from onebit_spark.input.rating_checks import BIT

USER, ITEM, LABEL, WEIGHT = "__onebit_user", "__onebit_item", "__onebit_label", "__onebit_weight"
HASH = "__onebit_hash"

Batches = Iterator[pa.RecordBatch]


def joined(batches: Iterable[pa.RecordBatch], size: Callable[[pa.RecordBatch], int], enough: int) -> Iterator[pa.Table]:
    """Tables of successive batches, each as soon as its size is enough. The last one may be smaller, but not empty."""
    held: list[pa.RecordBatch] = []
    total = 0
    for batch in batches:
        held.append(batch)
        total += size(batch)
        if total >= enough:
            yield pa.Table.from_batches(held)
            held, total = [], 0
    if sum(batch.num_rows for batch in held):
        yield pa.Table.from_batches(held)


@dataclass(frozen=True)
class RatingBatch:
    """Some raw ratings in this process, without their ids."""

    positive: NDArray[np.bool_]
    # ``defects.cell_hash`` of the cells; 0 for all if an id is null, for such ratings are refused.
    hashes: NDArray[np.int64]
    weights: NDArray[np.float32] | None  # NaN for null
    # To be summed over batches: ``n``, the counts of ``rating_checks.BIT``, HASH_PARTS, ``absent`` if a label is null,
    # and with weights ``weight``, their finite sum.
    facts: dict[str, Any]


def read_batch(table: pa.Table, threshold: float | None) -> RatingBatch:
    """What is read off some raw ratings."""
    label, facts = count_labels(table[LABEL], threshold)
    if HASH in table.schema.names:
        hashes = np.asarray(table[HASH].to_numpy())
    elif table[USER].null_count or table[ITEM].null_count:
        hashes = np.zeros(len(table), np.int64)
    else:
        hashes = cell_hashes(table[USER], table[ITEM])
    weights = None
    if WEIGHT in table.schema.names:
        weights = np.array(table[WEIGHT].to_numpy(), np.float32)  # a copy: a view would keep the whole table
        facts["bad_weight"] = int(np.count_nonzero(~((weights > 0) & (weights < np.inf))))
        facts["weight"] = float(np.sum(weights, dtype=np.float64, where=np.isfinite(weights)))
    if table[LABEL].null_count:
        facts["absent"] = 1
    return RatingBatch(label, hashes, weights, facts | hash_sums(hashes, label, weights))


def count_labels(labels: pa.ChunkedArray, threshold: float | None) -> tuple[NDArray[np.bool_], dict[str, Any]]:
    """Which labels are positive, and how often each flag of ``rating_checks.BIT`` holds, on labels as Spark holds them.

    A null is counted as ``bad_label``, like NaN.
    """
    values = (labels.cast(pa.int8()) if pa.types.is_boolean(labels.type) else labels).to_numpy()  # null is NaN
    limit = np.float64(0.0 if threshold is None else threshold)  # so that numpy compares doubles, as Spark does
    above: NDArray[np.bool_] = values > limit
    kinds = {name: int(np.count_nonzero(values == value)) for name, value in _VALUES.items()}
    if values.dtype.kind == "f":
        kinds["bad_label"] = int(np.count_nonzero(np.isnan(values)))
    kinds["other"] = len(values) - sum(kinds.values())
    return above, {**dict.fromkeys(BIT, 0), **kinds, "n": len(values), "above": int(np.count_nonzero(above))}


_VALUES = {"plus": 1, "minus": -1, "zero": 0}
