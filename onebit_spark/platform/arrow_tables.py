"""Small Arrow batches joined to larger tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa


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
