"""Packed ratings on the driver: as ``collect``, from bundles that were checked when they were packed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.sketch import limit_for
from onebit_spark.input.accumulators import Encoded
from onebit_spark.input.collect import UNEVEN, Gathered
from onebit_spark.input.defects import Tally
from onebit_spark.input.packing import BUNDLES, Bundle, read_bundles
from onebit_spark.platform.arrow_stream import arrow_batches, arrow_batches_by_groups, too_large
from onebit_spark.platform.binary_cells import cell_array

Numbers = NDArray[np.int32]


def gathered_bundles(lines: DataFrame, tally: Tally, n_bytes: int, most_bytes: int) -> Gathered:
    """The ratings of the lines of PACKED, which hold ``n_bytes``. ``most_bytes`` bounds one collect."""
    parts = max(1, -(-n_bytes // most_bytes))
    limit = limit_for(tally.n)
    bundles, cells = _arrived(lines.select(*BUNDLES, "cells"), parts, limit)
    bundles.sort(key=lambda bundle: (bundle.segment, bundle.place))
    users, user_numbers = _numbered(bundles, "user_ids")
    items, item_numbers = _numbered(bundles, "item_ids")
    n = sum(len(bundle.users) for bundle in bundles)
    rows, codes = np.empty(n, np.int32), np.empty(n, np.int32)
    weights = np.empty(n, np.float32) if any(len(bundle.weights) for bundle in bundles) else None
    place = 0
    bundles.reverse()
    while bundles:  # each is freed when it is taken up
        bundle = bundles.pop()
        here = slice(place, place + len(bundle.users))
        np.take(user_numbers[bundle.segment], bundle.users, out=rows[here], mode="clip")
        codes[here] = item_numbers[bundle.segment][bundle.codes >> 1] << 1 | bundle.codes & 1
        if weights is not None:
            weights[here] = bundle.weights
        place = here.stop
    ratings = RatingBlock.from_codes(rows, codes, (len(users), len(items)), weights)
    return Gathered(tally, users, items, ratings, np.concatenate(cells), limit)


def _arrived(lines: DataFrame, parts: int, limit: int) -> tuple[list[Bundle], list[NDArray[np.int64]]]:
    """All bundles, and the hashes of cells up to the limit: by one job, or by several over some partitions each."""
    if parts > 1 and (batches := arrow_batches_by_groups(lines, UNEVEN * parts)) is not None:
        try:
            return _read(batches, limit)
        except PySparkException as error:  # a few partitions hold most of the ratings
            if not too_large(error):
                raise
    bundles: list[Bundle] = []
    cells: list[NDArray[np.int64]] = []
    for part in range(parts):
        chosen = lines if parts == 1 else lines.where(F.pmod(F.col("segment") + F.col("place"), F.lit(parts)) == part)
        found = _read(arrow_batches(chosen), limit)
        bundles += found[0]
        cells += found[1]
    return bundles, cells


def _read(batches: Iterator[pa.RecordBatch], limit: int) -> tuple[list[Bundle], list[NDArray[np.int64]]]:
    bundles: list[Bundle] = []
    cells: list[NDArray[np.int64]] = []
    for batch in batches:
        bundles += read_bundles(iter([batch]))
        for cell in batch.column("cells"):
            hashes = cell_array(cell, np.int64)
            cells.append(hashes[hashes <= limit])
    return bundles, cells


def _numbered(bundles: list[Bundle], side: str) -> tuple[pa.Array, dict[int, Numbers]]:
    """The different ids in ascending order; segment ─► the number of each of its ids."""
    parts: dict[int, list[pa.Array]] = {}
    for bundle in bundles:  # in the order of the segment
        parts.setdefault(bundle.segment, []).append(getattr(bundle, side))
    column, n_ids = Encoded(), {segment: sum(map(len, ids)) for segment, ids in parts.items()}
    for ids in parts.values():
        column.add(pa.chunked_array(ids))
    numbers, known = column.numbered()
    return known, dict(zip(n_ids, np.split(numbers, np.cumsum(list(n_ids.values()))[:-1]), strict=True))
