"""Ratings packed on the executors by one pass that finds every defect, and the ids of both sides counted.

    raw ratings ─Pack─► bundles of 8 bytes per rating, under the positions of their own ids, on the executors' disks
                          ─► facts (counts, defects, fingerprint) of every bundle
                          ─► ids with their counts
                          ─► hashes of cells, for the sketch
                          ─► blocks (``engines.blocking``)

A task cuts its ratings into bundles, one line each. A bundle has its own different ids, with the number of ratings and
of positive ratings of each. So no rating is read again to count the ids:

    few ids      SUMMARY of all bundles ─► the driver counts them                    one job that runs no Python
    many ids     bundles ─CountIds─► ids of every bundle, in parts by a hash of the id ─shuffle─► sum_counts
                 ─► one line per id, cached ─► how many there are

An exchange that shuffles needs one line per id. If the driver has counted few ids, these lines are made when they are
first used.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark import StorageLevel, TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from onebit_spark.core.hashes import CellSketch, limit_for
from onebit_spark.core.id_index import hashes_of, sum_by_id
from onebit_spark.core.losses import Side
from onebit_spark.core.user_data import in_utc, one_array
from onebit_spark.input.ratings import (
    ITEM,
    TABLE_BYTES,
    USER,
    Batches,
    Columns,
    RatingCollector,
    RatingCounts,
    joined,
    may_be_refused,
    not_deterministic,
    of_both_classes,
    read_batch,
)
from onebit_spark.input.spark_ratings import (
    check_columns,
    check_ratings,
    checked_counts,
    rating_files,
    type_of,
    unchecked_ratings,
)
from onebit_spark.platform.frames import (
    binary_line,
    cached,
    cell_array,
    expect_long_lines,
    ids_cell,
    in_partitions,
    map_rows,
    read_ids,
    rows_session,
    schema_of,
    truncate_plan,
    working_session,
)
from onebit_spark.platform.sessions import described, driver_limits, parallelism

# ---- packed on the executors -----------------------------------------------------------------------------------------

BUNDLE = 4_000_000  # ratings, about
SUMMARY = ("user_ids", "item_ids", "user_counts", "item_counts", "cells")  # the columns that are not per rating
NOTHING = np.empty(0, np.int32)
NO_WEIGHTS = np.empty(0, np.float32)


@dataclass(frozen=True)
class Pack:
    threshold: float | None
    first_bundle: Callable[[], int] = int  # its number, which no other task has

    def __call__(self, batches: Batches) -> Batches:
        n, number, bundle = 0, self.first_bundle(), RatingCollector(limit_for(0))
        for table in joined(batches, lambda batch: int(batch.nbytes), TABLE_BYTES):
            n += len(table)
            bundle.limit = limit_for(n)
            bundle.add(table, read_batch(table, self.threshold))
            if bundle.facts["n"] >= BUNDLE:
                yield _packed(number, bundle)
                number, bundle = number + 1, RatingCollector(limit_for(n))
        if bundle.facts["n"]:
            yield _packed(number, bundle)


def _packed(number: int, bundle: RatingCollector) -> pa.RecordBatch:
    """One bundle. If an id or a label is null, it has facts alone: such ratings are refused."""
    facts: dict[str, Any] = dict(bundle.facts)
    if facts["absent"]:
        return binary_line(bundle=number, facts=json.dumps(facts), **dict.fromkeys(BINARY_CELLS, NOTHING))
    users, items, rows, codes, weights, cells = bundle.columns(ascending=False)
    user_ids, item_ids = ids_cell(users), ids_cell(items)
    counts = _counts(rows << 1 | codes & 1, len(users)), _counts(codes, len(items))
    facts["summary_bytes"] = user_ids.size + item_ids.size + sum(each.nbytes for each in (*counts, cells))
    return binary_line(
        bundle=number, facts=json.dumps(facts), user_ids=user_ids, item_ids=item_ids, users=rows, codes=codes,
        weights=NO_WEIGHTS if weights is None else weights, cells=cells, user_counts=counts[0], item_counts=counts[1],
    )  # fmt: skip


def _counts(codes: NDArray[np.int32], n: int) -> NDArray[np.int32]:
    """The ratings of n ids, all and the positive ones (n × 2), from the codes id << 1 | positive."""
    counts = np.bincount(codes, minlength=2 * n).reshape(n, 2).astype(np.int32)
    counts[:, 0] += counts[:, 1]
    return counts


@dataclass(frozen=True)
class Bundle:
    number: int
    user_ids: pa.Array  # the different ids
    item_ids: pa.Array
    users: NDArray[np.int32]  # each rating's user, as a position among the ids
    codes: NDArray[np.int32]  # each rating's item, in the same way, and label: item << 1 | positive
    weights: NDArray[np.float32]  # empty if there are none


BUNDLES = ("bundle", "user_ids", "item_ids", "users", "codes", "weights")  # the columns that ``read_bundles`` takes


def read_bundles(batches: Batches) -> Iterator[Bundle]:
    """The bundles of some lines, without copying their ratings."""
    for batch in batches:
        for number, user_ids, item_ids, users, codes, weights in zip(*map(batch.column, BUNDLES), strict=True):
            yield Bundle(
                number.as_py(), read_ids(user_ids), read_ids(item_ids),
                cell_array(users, np.int32), cell_array(codes, np.int32), cell_array(weights, np.float32),
            )  # fmt: skip


# ---- ids and their counts --------------------------------------------------------------------------------------------

SIDE_NUMBERS = {USER: 1, ITEM: 2}  # in the lines of ``sum_counts``
COUNTED = ("user_ids", "item_ids", "user_counts", "item_counts")  # the columns that ``CountIds`` takes


@dataclass(frozen=True)
class CountIds:
    """The ids of every bundle with their ratings and positive ratings, in ``n_parts`` parts by a hash of the id.

    ``side`` is a number of SIDE_NUMBERS.
    """

    n_parts: int

    def __call__(self, batches: Batches) -> Batches:
        for batch in batches:
            for user_ids, item_ids, *cells in zip(*map(batch.column, COUNTED), strict=True):
                users, items = read_ids(user_ids), read_ids(item_ids)
                counts = [cell_array(cell, np.int32).reshape(-1, 2) for cell in cells]
                yield from self._lines(1, users, ids_cell(items[:0]), counts[0])
                yield from self._lines(2, items, ids_cell(users[:0]), counts[1])

    def _lines(self, side: int, ids: pa.Array, none: pa.Buffer, counts: NDArray[np.int32]) -> Batches:
        if self.n_parts == 1:
            n, above = counts.T
            yield binary_line(part=0, side=side, ids=ids_cell(ids), none=none, n=n, above=above)
            return
        parts = (hashes_of(ids) >> np.uint64(20)) % np.uint64(self.n_parts)
        order = np.argsort(parts.astype(np.uint16) if self.n_parts <= 2**16 else parts, kind="stable")
        edges = np.searchsorted(parts[order], np.arange(self.n_parts + 1, dtype=np.uint64))
        for part in np.flatnonzero(np.diff(edges)):
            here = order[edges[part] : edges[part + 1]]
            n, above = counts[here].T
            yield binary_line(part=part, side=side, ids=ids_cell(ids.take(pa.array(here))), none=none, n=n, above=above)


def sum_counts(batches: Batches) -> Batches:
    """(user, item, side, n, above): the different ids of a part, each once; of the other side's id there is none."""
    ids: dict[int, list[pa.Array]] = {1: [], 2: []}
    counts: dict[int, list[NDArray[np.int32]]] = {1: [], 2: []}
    kinds: dict[int, pa.DataType] = {}
    for batch in batches:
        for i, side in enumerate(batch.column("side").to_pylist()):
            ids[side].append(read_ids(batch.column("ids")[i]))
            kinds = {side: ids[side][0].type, 3 - side: read_ids(batch.column("none")[i]).type}
            counts[side].append(np.stack([cell_array(batch.column(name)[i], np.int32) for name in ("n", "above")]))
    for side in (side for side, arrays in ids.items() if arrays):
        different, totals = sum_by_id(pa.concat_arrays(ids[side]), *np.hstack(counts[side]))
        n = len(different)
        both = [different if side == which else pa.nulls(n, kinds[which]) for which in (1, 2)]
        rest = pa.array(np.full(n, side, np.int32)), *map(pa.array, totals)
        yield pa.RecordBatch.from_arrays([*both, *rest], names=[USER, ITEM, "side", "n", "above"])


# ---- the job that packs ----------------------------------------------------------------------------------------------

BINARY_CELLS = ("user_ids", "item_ids", "users", "codes", "weights", "cells", "user_counts", "item_counts")
PACKED = schema_of(", ".join(["bundle long", "facts string", *(f"{name} binary" for name in BINARY_CELLS)]))


@dataclass(frozen=True)
class PackedRatings:
    bundles: DataFrame  # the lines of PACKED, in a session that reads one line at a time
    # Sums over all bundles: ``n``, the flags of ``ratings.BIT``, HASH_PARTS, ``absent``, ``weight`` and
    # ``summary_bytes``, the size of SUMMARY.
    facts: Counter[str]
    cached: DataFrame  # the same lines, where they are kept, in a session that sends many short rows to Python

    @classmethod
    def of(cls, df: DataFrame, columns: Columns, release: ExitStack) -> PackedRatings:
        """Read the ratings once, by one job. The bundles remain on the executors' disks until ``release`` is closed."""
        own, pack = rows_session(df.sparkSession), Pack(columns.threshold, first_bundle)
        files = rating_files(df, columns)
        lines = None if files is None else files.mapped(own, pack, PACKED)
        if lines is None:
            lines = map_rows(truncate_plan(unchecked_ratings(df, columns), own), pack, PACKED)
        kept, facts = cached(lines, release, StorageLevel.DISK_ONLY), Counter[str]()
        for text in kept.select("facts").toArrow()["facts"].to_pylist():
            facts.update(json.loads(text))
        working = working_session(df.sparkSession)
        expect_long_lines(working, 1)
        return cls(truncate_plan(kept, working), facts, kept)


def first_bundle() -> int:
    context = TaskContext.get()
    return (0 if context is None else context.partitionId()) << 32


# ---- ids -------------------------------------------------------------------------------------------------------------

# ``none`` holds no id: it carries the type of the other side's ids.
PARTIAL = schema_of("part int, side int, ids binary, none binary, n binary, above binary")
HASHES = schema_of("cells binary")
SUMMARY_BYTES = 128 * 2**20  # that the driver takes
RATINGS_PER_PART = 10**7  # whose ids one task sums up; at least a part for every core
PARTS_PER_CORE = 4  # at most


@dataclass(frozen=True)
class Ids:
    """The ids of one side in ascending order, with the number of ratings and of positive ratings of each."""

    values: pa.Array
    counts: NDArray[np.int64]
    positives: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.counts)


@dataclass(frozen=True)
class RatingSurvey:
    counts: RatingCounts
    n_users: int
    n_items: int
    packed: PackedRatings
    group: Callable[[], DataFrame]  # makes ``grouped``
    weight: float | None = None  # the sum of the weights
    # If they are few enough for the driver: the ids of users and of items, and the hashes of cells.
    summary: tuple[tuple[Ids, Ids], NDArray[np.int64]] | None = None

    @cached_property
    def grouped(self) -> DataFrame:
        return self.group()

    def ids(self) -> dict[Side, Ids]:
        users, items = _sides(self.grouped.toArrow()) if self.summary is None else self.summary[0]
        return {"rows": users, "cols": items}

    def sketch(self) -> CellSketch:
        limit = limit_for(self.counts.n)
        if self.summary is not None:
            hashes = self.summary[1]
        else:

            def up_to_limit(batches: Batches) -> Batches:
                for batch in batches:
                    for cell in batch.column("cells"):
                        part = cell_array(cell, np.int64)
                        yield binary_line(cells=part[part <= limit])

            bundles = self.packed.bundles
            with described(bundles.sparkSession, "sketch"):
                hashes = _all_hashes(bundles.select("cells").mapInArrow(up_to_limit, HASHES).toArrow())
        return CellSketch(limit, *np.unique(hashes[hashes <= limit], return_counts=True))


@contextmanager
def survey_ratings(df: DataFrame, columns: Columns, collect_ids: bool = True) -> Iterator[RatingSurvey]:
    """Pack the ratings, validate them, and count those of every id.

    If ``collect_ids`` is true and the ids are few, the driver counts them.
    The facts of a bundle count its defects. A second pass fetches examples only if there are any.
    """
    check_columns(df, columns)
    with ExitStack() as release:
        with described(df.sparkSession, "survey"):
            survey = _surveyed(df, columns, collect_ids, release)
        yield survey


def _surveyed(df: DataFrame, columns: Columns, collect_ids: bool, release: ExitStack) -> RatingSurvey:
    packed = PackedRatings.of(df, columns, release)
    facts = packed.facts
    if facts["absent"] or may_be_refused(columns, facts):
        check_ratings(df, columns)
        raise not_deterministic("ratings came that cannot be fitted, and are no longer there")
    counts = of_both_classes(checked_counts(df, columns, facts), columns)
    weight = None if columns.weight is None else float(facts["weight"])

    def group() -> DataFrame:
        ids = id_counts(packed.bundles, counts.n, df, columns)
        return cached(truncate_plan(ids, packed.cached.sparkSession), release)

    most_bytes = min(SUMMARY_BYTES, driver_limits(df.sparkSession).result // 2) if collect_ids else 0
    if facts["summary_bytes"] <= most_bytes:  # what ``id_counts`` and ``sketch`` would find by further jobs
        lines = packed.bundles.select(*SUMMARY).toArrow()
        ids = _sides(pa.Table.from_batches(sum_counts(CountIds(1)(lines.to_batches()))))
        summary = ids, _all_hashes(lines)
        return RatingSurvey(counts, len(ids[0]), len(ids[1]), packed, group, weight, summary)
    grouped = group()
    n = {line["side"]: line["count"] for line in grouped.groupBy("side").count().collect()}
    return RatingSurvey(counts, n[SIDE_NUMBERS[USER]], n[SIDE_NUMBERS[ITEM]], packed, lambda: grouped, weight)


def id_counts(bundles: DataFrame, n: int, df: DataFrame, columns: Columns) -> DataFrame:
    """One line per id of n ratings: the user or the item, its side, its ratings and its positive ratings.

    The counting takes one shuffle of the ids.
    """
    ids = [StructField(name, type_of(df, of)) for name, of in ((USER, columns.user), (ITEM, columns.item))]
    numbers = [StructField("side", IntegerType()), StructField("n", LongType()), StructField("above", LongType())]
    cores = parallelism(df.sparkSession)
    n_parts = min(PARTS_PER_CORE * cores, max(cores, n // RATINGS_PER_PART))
    partial = bundles.select(*COUNTED).mapInArrow(CountIds(n_parts), PARTIAL)
    return in_partitions(partial, n_parts, F.col("part")).mapInArrow(sum_counts, StructType([*ids, *numbers]))


def _sides(groups: pa.Table) -> tuple[Ids, Ids]:
    """The users and the items from the lines of ``id_counts``."""

    def side(column: str) -> Ids:
        lines = groups.filter(pc.equal(groups["side"], SIDE_NUMBERS[column]))
        lines = lines.take(pc.sort_indices(lines[column]))
        counts = (lines[name].to_numpy().astype(np.int64) for name in ("n", "above"))
        return Ids(in_utc(one_array(lines[column])), *counts)

    return side(USER), side(ITEM)


def _all_hashes(lines: pa.Table) -> NDArray[np.int64]:
    return np.concatenate([cell_array(cell, np.int64) for cell in lines["cells"]])
