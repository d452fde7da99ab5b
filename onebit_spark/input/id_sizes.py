"""How much memory the ids of a table will take if they are text, by an estimate from its first rows. No Spark."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pyarrow as pa

from onebit_spark.input.arrow_table import ArrowTable


def text_bytes(table: ArrowTable, columns: Sequence[str], n: int) -> float:
    """Bytes of the different ids that are text, among n rows of a table. Columns that are not there count nothing."""
    names = [name for column in columns for name in table.matching(column)]
    text = [name for name in dict.fromkeys(names) if _is_text(table.schema.field(name).type)]
    first = next(table.batches(text), None) if text else None
    if first is None or len(first) < 2:
        return 0.0
    return sum(n_different(first[name], n) * first[name].nbytes / len(first) for name in text)


def n_different(first: pa.Array, n: int) -> float:
    """About how many of n values differ, by Heaps' law: k rows have c·k^β different values.

    β is 1 where every row brings a new value, or the rows are sorted, and near 0 where all values have been seen.
    """
    half, whole = (len(part.unique()) for part in (first.slice(0, len(first) // 2), first))
    growth = min(1.0, math.log2(whole / half))
    return min(n, whole * max(1.0, n / len(first)) ** growth)


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind)
