"""Numbers the ids in ascending order without collecting them. The survey's arrays have the same numbers."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, LongType, StructType

from onebit_spark.core.id_index import in_utc, one_array
from onebit_spark.core.losses import SIDES, Side
from onebit_spark.engines.block_frames import HEAVY, Batches, Numbers, Placement, block_loads, place
from onebit_spark.engines.blocking import CHUNKS, chunks, numbered, ratings_changed
from onebit_spark.input.batches import ITEM, USER, joined
from onebit_spark.input.packing import BUNDLES, read_bundles
from onebit_spark.input.survey import PARTS_PER_CORE, SIDE_NUMBERS, PackedRatings, RatingSurvey
from onebit_spark.platform.binary_cells import binary_line, cell_array, schema_of
from onebit_spark.platform.plans import cached, cogrouped, truncate_plan, working_session
from onebit_spark.platform.sessions import parallelism

WIDE = 2**30  # from so many rows or columns on, a number with a label bit needs more than 32 bits
RETURNED_LINES = 2_000_000  # numbers that are sorted by segment at once
SEGMENT_PLACE = StructType().add("segment", LongType()).add("place", IntegerType())
NO_NUMBERS = np.empty(0, np.int64)
LOADS = schema_of("side int, loads binary, heavy binary, counts binary")
RETURNED = schema_of("segment long, side int, places binary, numbers binary")


@dataclass(frozen=True)
class NumberedIds:
    """The numbered ids of a side."""

    frame: DataFrame  # ``id``, ``number`` (its position in ascending order) and ``n`` (its ratings), one line per id
    n_rows: int  # number of ids

    @cached_property
    def values(self) -> pa.Array:
        """All ids in the order of their numbers, on the driver."""
        table = self.frame.select("id", "number").toArrow().sort_by("number")
        return in_utc(one_array(table["id"]))


def number_ids(survey: RatingSurvey, release: ExitStack) -> dict[Side, NumberedIds]:
    """Sort the ids of both sides. A number is the position in the partition plus the sizes of those before it."""
    join_session = survey.grouped.sparkSession  # with the partitions of the user, for large joins with the ids
    session = working_session(join_session)
    n_parts, order = PARTS_PER_CORE * parallelism(session), ("side", USER, ITEM)
    grouped = truncate_plan(survey.grouped, session)
    ordered = cached(grouped.repartitionByRange(n_parts, *order).sortWithinPartitions(*order), release)
    lines, part = truncate_plan(ordered), F.spark_partition_id()
    counts = lines.groupBy("side", part.alias("part")).count().collect()
    numbered: dict[Side, NumberedIds] = {}
    for side, column in zip(SIDES, (USER, ITEM), strict=True):
        own, sizes = SIDE_NUMBERS[column], np.zeros(n_parts, np.int64)
        for line in counts:
            if line["side"] == own:
                sizes[line["part"]] = line["count"]
        offset = F.element_at(F.array(*(F.lit(int(start)) for start in np.cumsum(sizes) - sizes)), part + 1)
        place_in_part = F.monotonically_increasing_id().bitwiseAND(F.lit((1 << 33) - 1))  # the rest is the partition
        number = (offset + place_in_part).cast("long").alias("number")
        frame = lines.where(F.col("side") == own).select(F.col(column).alias("id"), number, "n")
        numbered[side] = NumberedIds(truncate_plan(cached(frame, release), join_session), int(sizes.sum()))
    return numbered


def placements(ids: dict[Side, NumberedIds], n_ratings: int, n_blocks: dict[Side, int]) -> dict[Side, Placement]:
    """The placements of ``placement_by_counts``, from the heavy rows and the load of each block only."""
    parts = [
        ids[side].frame.mapInArrow(_Loads(number, n_blocks[side], n_ratings / (HEAVY * n_blocks[side])), LOADS)
        for number, side in enumerate(SIDES)
    ]
    lines = parts[0].unionAll(parts[1]).toArrow()
    placed: dict[Side, Placement] = {}
    for number, side in enumerate(SIDES):
        here = lines.filter(pc.equal(lines["side"], number))
        numbers, counts, loads = (
            [cell_array(cell, np.int64) for cell in here[name]] for name in ("heavy", "counts", "loads")
        )
        heavy = np.concatenate(numbers)
        order = np.argsort(heavy)
        placed[side] = place(n_blocks[side], heavy[order], np.concatenate(counts)[order], np.sum(loads, axis=0))
    return placed


def encoded(packed: PackedRatings, ids: dict[Side, NumberedIds], placement: Placement, wide: bool) -> DataFrame:
    """The packed ratings under the numbers of their ids, in chunks for the blocks of rows.

    The ids of every segment are joined with the numbers, not the ratings. The numbers return to their segment as
    arrays, and so do the bundles: 8 bytes for each rating.
    """
    session = packed.cached.sparkSession  # it sends many short rows to Python
    n_parts = PARTS_PER_CORE * parallelism(session)
    join_session = working_session(session)
    numbers = []
    for number, side in enumerate(SIDES):
        known = ids[side].frame.select("id", "number")
        kind = StructType([*SEGMENT_PLACE.fields, known.schema["id"]])
        places = truncate_plan(packed.bundles.select(*BUNDLES).mapInArrow(_Places(number), kind), join_session)
        known = truncate_plan(known, join_session).repartition(n_parts, "id")
        joined = places.repartition(n_parts, "id").join(known, "id").select("segment", "place", "number")
        numbers.append(joined.mapInArrow(_Returned(number), RETURNED))
    bundles = packed.bundles.select(*BUNDLES)
    returned = truncate_plan(numbers[0].unionAll(numbers[1]), bundles.sparkSession)
    bundles, returned = (frame.repartition(n_parts, "segment") for frame in (bundles, returned))
    return cogrouped(bundles, returned, "segment", _EncodeNumbers(placement, wide), CHUNKS)


@dataclass(frozen=True)
class _Loads:
    """The ids of a task with more than ``least`` ratings, and how many ratings of the others each block gets."""

    side: int
    n_blocks: int
    least: float

    def __call__(self, batches: Batches) -> Batches:
        loads = np.zeros(self.n_blocks, np.int64)
        heavy: list[tuple[Numbers, Numbers]] = [(NO_NUMBERS, NO_NUMBERS)]
        for batch in batches:
            numbers, counts = (batch.column(name).to_numpy() for name in ("number", "n"))
            many = counts > self.least
            heavy.append((numbers[many], counts[many]))
            loads += block_loads(numbers[~many], counts[~many], self.n_blocks)
        numbers, counts = (np.concatenate(part) for part in zip(*heavy, strict=True))
        yield binary_line(side=self.side, loads=loads, heavy=numbers, counts=counts)


@dataclass(frozen=True)
class _Places:
    """The ids of one side in every segment, with their places: 0 for users, 1 for items."""

    side: int

    def __call__(self, batches: Batches) -> Batches:
        segment, n = None, 0
        for bundle in read_bundles(batches):
            if bundle.segment != segment:
                segment, n = bundle.segment, 0
            ids = (bundle.user_ids, bundle.item_ids)[self.side]
            places = pa.array(np.arange(n, n + len(ids), dtype=np.int32))
            segments = pa.array(np.full(len(ids), segment, np.int64))
            yield pa.RecordBatch.from_arrays([segments, places, ids], names=["segment", "place", "id"])
            n += len(ids)


@dataclass(frozen=True)
class _Returned:
    """(segment, place, number) in any order into arrays, one line for each segment that occurs."""

    side: int

    def __call__(self, batches: Batches) -> Batches:
        for table in joined(batches, pa.RecordBatch.__len__, RETURNED_LINES):
            segments, places, numbers = (table[name].to_numpy() for name in ("segment", "place", "number"))
            order = np.argsort(segments, kind="stable")
            starts = np.flatnonzero(np.diff(segments[order], prepend=-1))
            for lo, hi in zip(starts, [*starts[1:], len(order)], strict=True):
                here = order[lo:hi]
                yield binary_line(segment=segments[here[0]], side=self.side, places=places[here], numbers=numbers[here])


@dataclass(frozen=True)
class _EncodeNumbers:
    """The bundles of a segment as chunks."""

    placement: Placement
    wide: bool

    def __call__(self, bundles: pa.Table, numbers: pa.Table) -> pa.Table:
        read = sorted(read_bundles(iter(bundles.to_batches())), key=lambda bundle: bundle.place)
        users = self._numbers_of(numbers, 0, [bundle.user_ids for bundle in read])
        items = self._numbers_of(numbers, 1, [bundle.item_ids for bundle in read])
        parts: list[pa.RecordBatch] = []
        for bundle in read:
            rows, codes = numbered(bundle, users, items)
            parts += chunks(self.placement.of(rows), rows, codes, bundle.weights)
        return pa.Table.from_batches(parts)

    def _numbers_of(self, lines: pa.Table, side: int, ids: list[pa.Array]) -> Numbers:
        """The numbers of a segment's ids of one side, by their places.

        If a bundle was lost in between and packed again, its ids may stand at other places. So the numbers must ascend
        with the ids.
        """
        here = pa.concat_arrays(ids)
        numbers: Numbers = np.full(len(here), -1, np.int64 if self.wide else np.int32)
        for i, which in enumerate(lines["side"].to_pylist()):
            places = cell_array(lines["places"][i], np.int32)
            if which == side and len(places):
                if places.max() >= len(numbers):
                    raise ratings_changed("a part of it has fewer ids than before")
                numbers[places] = cell_array(lines["numbers"][i], np.int64)
        ascending = here.take(pa.array(np.argsort(numbers)))
        if len(here) and (numbers.min() < 0 or not pc.all(pc.less(ascending[:-1], ascending[1:]), min_count=0).as_py()):
            raise ratings_changed("a part of it has other ids than before")
        return numbers
