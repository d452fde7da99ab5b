"""Ratings into cached block DataFrames, one line per block, a few blocks per partition, both orientations.

    bundles ─number─► one binary chunk for each (bundle, row block) ─shuffle─► build ─► row blocks, cached
    row blocks ─transpose─► one chunk for each (row block, column block) ─shuffle─► build ─► column blocks, cached

A rating crosses the network as 8 bytes, 12 with a weight, never as a row of its own. Everything here runs in Python
workers on Arrow.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark import Broadcast
from pyspark.sql import DataFrame

from onebit_spark.core.blocks import RatingBlock, like, pointers_of
from onebit_spark.core.compiled import jit
from onebit_spark.core.id_index import IdIndex
from onebit_spark.core.repeats import Repeats, repeats_of
from onebit_spark.core.split import Split
from onebit_spark.engines.block_frames import (
    Batches,
    Numbers,
    ascending_cell,
    distinct,
    positions,
    read_blocks,
    weight_cell,
)
from onebit_spark.engines.layout import Placement
from onebit_spark.errors import FitFailed
from onebit_spark.input.packing import BUNDLES, NO_WEIGHTS, Bundle, read_bundles
from onebit_spark.input.rating_checks import not_deterministic
from onebit_spark.platform.binary_cells import binary_line, cell_array, schema_of

NO_NUMBERS = np.empty(0, np.int32)

COUNTS = schema_of("block int, rows binary, ratings binary, weights binary, positives binary")
CHUNKS = schema_of("block int, rows binary, codes binary, weights binary, members binary")


@dataclass(frozen=True)
class SideTable:
    """What tasks must know of one side: broadcast once."""

    values: pa.Array  # ids, ascending
    block_of: NDArray[np.int32]
    counts: NDArray[np.int64]  # what the blocks must find
    positives: NDArray[np.int64]

    @cached_property
    def index(self) -> IdIndex:
        """Made where it is first asked for, once in every Python worker."""
        return IdIndex(self.values)


REPEATS = tuple(field.name for field in fields(Repeats))  # columns of the blocks


def numbered_chunks(bundles: DataFrame, users: Broadcast[SideTable], items: Broadcast[SideTable]) -> DataFrame:
    """The packed ratings under the numbers of their ids, in chunks for the blocks of users."""
    return bundles.select(*BUNDLES).mapInArrow(_Number(users, items), CHUNKS)


def count_rows(batches: Batches) -> Batches:
    """The ratings of every row of the blocks, and the sums of their weights: of all, and of the positive ones."""
    for block in read_blocks(batches):
        ratings = block.ratings
        weights, positives = (part.astype(np.float64) for part in (ratings.row_weights, ratings.row_positive_weights))
        rows, counts = ascending_cell(block.rows), ratings.row_counts
        yield binary_line(block=block.number, rows=rows, ratings=counts, weights=weights, positives=positives)


@dataclass(frozen=True)
class _Number:
    """Bundles of ratings under the numbers of all ids, grouped by the user's block."""

    users: Broadcast[SideTable]
    items: Broadcast[SideTable]

    def __call__(self, batches: Batches) -> Batches:
        users, items = self.users.value, self.items.value
        segment, numbers = None, (NO_NUMBERS, NO_NUMBERS)
        for bundle in read_bundles(batches):
            if bundle.segment != segment:
                segment, numbers = bundle.segment, (NO_NUMBERS, NO_NUMBERS)
            new = _index(bundle.user_ids, users), _index(bundle.item_ids, items)
            numbers = (np.concatenate([numbers[0], new[0]]), np.concatenate([numbers[1], new[1]]))
            rows, codes = numbered(bundle, *numbers)
            yield from chunks(users.block_of[rows], rows, codes, bundle.weights)


def numbered(bundle: Bundle, users: Numbers, items: Numbers) -> tuple[Numbers, Numbers]:
    """The rows and codes of a bundle, by the numbers of the ids of its segment."""
    codes = items[bundle.codes >> 1] << 1
    codes |= bundle.codes & 1
    return users[bundle.users], codes


@dataclass(frozen=True)
class Transpose:
    """The ratings of row blocks, grouped by the item's block. A column without ratings is still a member of its."""

    placement: Placement
    wide: bool = False  # 64-bit numbers travel, for more than 2³⁰ rows or columns
    split: Split | None = None  # only the ratings that it chooses

    def __call__(self, batches: Batches) -> Batches:
        dtype = np.int64 if self.wide else np.int32
        for block in read_blocks(batches):
            ratings = block.ratings if self.split is None else self.split.chosen_of(block.ratings, block.rows)
            codes = ratings.codes
            block_of = self.placement.of(block.columns)
            rows = np.repeat(block.rows.astype(dtype), ratings.row_counts)
            columns = block.columns.astype(dtype)
            turned = rows << 1 | (codes & 1).astype(dtype)
            yield from chunks(block_of[codes >> 1], columns[codes >> 1], turned, ratings.weights)
            idle = np.bincount(codes >> 1, minlength=len(columns)) == 0
            for number in np.unique(block_of[idle]):
                members, nothing = columns[idle & (block_of == number)], columns[:0]
                yield binary_line(block=int(number), rows=nothing, codes=nothing, weights=NO_WEIGHTS, members=members)


@dataclass(frozen=True)
class Build:
    """All chunks of a block into one compressed block, checked against the survey where there is a table of it."""

    side: Broadcast[SideTable] | None
    wide: bool = False

    def __call__(self, batches: Batches) -> Batches:
        dtype = np.int64 if self.wide else np.int32
        types = {"rows": dtype, "codes": dtype, "weights": np.float32, "members": dtype}
        arrived: dict[int, list[tuple[NDArray, ...]]] = {}
        for batch in batches:
            for i in range(batch.num_rows):
                cells = tuple(cell_array(batch.column(name)[i], kind) for name, kind in types.items())
                arrived.setdefault(batch.column("block")[i].as_py(), []).append(cells)
        for number, parts in arrived.items():
            yield self._built(number, *(np.concatenate(part) for part in zip(*parts, strict=True)))

    def _built(
        self, number: int, rows: Numbers, codes: Numbers, weights: NDArray[np.float32], idle: Numbers
    ) -> pa.RecordBatch:
        members, columns = distinct(np.concatenate([rows, idle])), distinct(codes >> 1)
        ratings = RatingBlock.from_coordinates(
            positions(members, rows), positions(columns, codes >> 1), codes & 1 == 1, (len(members), len(columns)),
            weights if len(weights) else None,
        )  # fmt: skip
        if self.side is not None:
            side = self.side.value
            same = np.array_equal(ratings.row_counts, side.counts[members])
            if not (same and np.array_equal(ratings.row_positives, side.positives[members])):
                raise changed("a row does not have the ratings that were counted")
        return _block(number, members, columns, ratings)


@dataclass(frozen=True)
class Choose:
    """The ratings of row blocks that a split chooses. Rows stay; of the columns, those that are still referred to."""

    split: Split

    def __call__(self, batches: Batches) -> Batches:
        for block in read_blocks(batches):
            ratings = self.split.chosen_of(block.ratings, block.rows)
            kept = distinct(ratings.codes >> 1)
            codes = positions(kept, ratings.codes >> 1) << 1 | ratings.codes & 1
            ratings = RatingBlock(ratings.row_pointers, codes.astype(np.int32), len(kept), ratings.weights)
            yield _block(block.number, block.rows, block.columns[kept], ratings)


def _block(number: int, rows: NDArray[np.int64], columns: NDArray[np.int64], ratings: RatingBlock) -> pa.RecordBatch:
    return binary_line(
        block=number,
        rows=ascending_cell(rows),
        columns=ascending_cell(columns),
        pointers=ratings.row_pointers,
        codes=ratings.codes,
        weights=weight_cell(ratings.weights),
        n=ratings.n_ratings,
        checksum=_checksum(rows, columns, ratings),
        **asdict(repeats_of(ratings)),
    )


def _index(ids: pa.Array, side: SideTable) -> NDArray[np.int32]:
    """The position of every id among the side's ids."""
    found = side.index.find(ids)
    missing = np.flatnonzero(found < 0)
    if len(missing):
        raise changed(f"id {ids[int(missing[0])]} was not there when the ratings were counted")
    return found


def chunks(
    blocks: NDArray[np.int32], rows: Numbers, codes: Numbers, weights: NDArray[np.float32] | None = None
) -> Batches:
    """One line for every block that occurs."""
    if len(rows) == 0:
        return
    carried = None if weights is None or len(weights) == 0 else weights
    pointers, rows, codes, carried = by_block(blocks, rows, codes, carried, int(blocks.max()) + 1)
    for block in np.flatnonzero(np.diff(pointers)):
        here = slice(pointers[block], pointers[block + 1])
        own = NO_WEIGHTS if carried is None else carried[here]
        yield binary_line(block=int(block), rows=rows[here], codes=codes[here], weights=own, members=rows[:0])


@jit
def by_block(blocks, rows, codes, weights, n_blocks):  # type: ignore[no-untyped-def]
    """Stable counting sort of ratings by their block: pointers, then rows, codes and weights in this order."""
    pointers = pointers_of(blocks, n_blocks)
    position = pointers[:-1].copy()
    sorted_rows, sorted_codes, carried = np.empty_like(rows), np.empty_like(codes), like(weights)
    for l in range(len(blocks)):
        place = position[blocks[l]]
        position[blocks[l]] += 1
        sorted_rows[place] = rows[l]
        sorted_codes[place] = codes[l]
        if weights is not None:
            carried[place] = weights[l]
    return pointers, sorted_rows, sorted_codes, carried


def _checksum(rows: NDArray[np.int64], columns: NDArray[np.int64], ratings: RatingBlock) -> int:
    """A sum over ratings of a hash of (row, column, label, weight): whatever their order, additive over blocks."""
    row = np.repeat(rows.astype(np.uint64), ratings.row_counts)
    code = columns.astype(np.uint64)[ratings.codes >> 1] << np.uint64(1) | (ratings.codes & 1).astype(np.uint64)
    with np.errstate(over="ignore"):
        x = row * np.uint64(0x9E3779B97F4A7C15) ^ code
        if ratings.weights is not None:
            x = (x ^ (x >> np.uint64(32))) * np.uint64(0x94D049BB133111EB) + ratings.weights.view(np.uint32)
        x = (x ^ (x >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9)
        return int(np.sum(x ^ (x >> np.uint64(29)), dtype=np.uint64).astype(np.int64))


def check_count(counted: int, blocked: int) -> None:
    """An orientation must hold every rating that was counted."""
    if blocked != counted:
        raise not_deterministic(f"{counted:,} ratings were counted but {blocked:,} blocked")


def check_weight(counted: float | None, blocked: float) -> None:
    """The weights in the blocks must have the sum that was counted, up to rounding."""
    if counted is not None and not abs(blocked - counted) <= 1e-6 * counted:
        raise not_deterministic(
            f"the weights summed to {counted:.9g} when they were counted, and to {blocked:.9g} later"
        )


def changed(detail: str) -> FitFailed:
    return not_deterministic(f"the source of the ratings changed while it was read: {detail}")
