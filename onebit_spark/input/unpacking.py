"""Packed ratings gathered in this process as their lines arrive, in any order. This module imports no Spark."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.id_index import IdColumn
from onebit_spark.input.batches import Batches
from onebit_spark.input.gathering import CollectedRatings, Hashes
from onebit_spark.input.packing import BUNDLES, Bundle, read_bundles
from onebit_spark.input.rating_checks import RatingCounts
from onebit_spark.platform.binary_cells import cell_array

UNPACKED = (*BUNDLES, "cells")  # the columns that are taken

Numbers = NDArray[np.int32]


class Unpacking:
    """The bundles that have come so far, and the hashes of their cells up to ``limit``."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bundles: list[Bundle] = []
        self._cells: list[Hashes] = []

    def all_of(self, batches: Batches) -> Unpacking:
        """Add all bundles of some lines."""
        for batch in batches:
            self._bundles.extend(read_bundles(iter([batch])))
            hashes = (cell_array(cell, np.int64) for cell in batch["cells"])
            self._cells.extend(cells[cells <= self._limit] for cells in hashes)
        return self

    def ratings(self, tally: RatingCounts) -> CollectedRatings:
        """The ratings, numbered across segments. Each bundle is freed when it is taken up."""
        bundles = sorted(self._bundles, key=lambda bundle: (bundle.segment, bundle.place), reverse=True)
        self._bundles.clear()
        users, user_numbers = _segment_numbers(bundles, "user_ids")
        items, item_numbers = _segment_numbers(bundles, "item_ids")
        n = sum(len(bundle.users) for bundle in bundles)
        rows, codes = np.empty(n, np.int32), np.empty(n, np.int32)
        weights = np.empty(n, np.float32) if any(len(bundle.weights) for bundle in bundles) else None
        place = 0
        while bundles:
            bundle = bundles.pop()
            here = slice(place, place + len(bundle.users))
            np.take(user_numbers[bundle.segment], bundle.users, out=rows[here], mode="clip")
            codes[here] = item_numbers[bundle.segment][bundle.codes >> 1] << 1 | bundle.codes & 1
            if weights is not None:
                weights[here] = bundle.weights
            place = here.stop
        ratings = RatingBlock.from_codes(rows, codes, (len(users), len(items)), weights)
        return CollectedRatings(tally, users, items, ratings, np.concatenate(self._cells), self._limit)


def _segment_numbers(bundles: list[Bundle], side: str) -> tuple[pa.Array, dict[int, Numbers]]:
    """The different ids in ascending order; segment ─► the number of each of its ids. The bundles come last first."""
    parts: dict[int, list[pa.Array]] = {}
    for bundle in reversed(bundles):  # in the order of the segment
        parts.setdefault(bundle.segment, []).append(getattr(bundle, side))
    column, n_ids = IdColumn(), {segment: sum(map(len, ids)) for segment, ids in parts.items()}
    for ids in parts.values():
        column.add(pa.chunked_array(ids))
    numbers, known = column.positions()
    return known, dict(zip(n_ids, np.split(numbers, np.cumsum(list(n_ids.values()))[:-1]), strict=True))
