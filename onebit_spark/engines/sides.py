"""One orientation of the ratings as cached blocks, and how both are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pyspark import Broadcast, StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from onebit_spark.core.losses import OTHER, SIDES, Side
from onebit_spark.core.repeats import Repeats
from onebit_spark.core.spectral_rows import Rows
from onebit_spark.core.split import Split
from onebit_spark.engines.block_frames import Batches, read_ascending, worker_errors
from onebit_spark.engines.blocking import (
    CHUNKS,
    COUNTS,
    REPEATS,
    Build,
    Choose,
    SideTable,
    Transpose,
    count_rows,
)
from onebit_spark.engines.layout import Placement
from onebit_spark.engines.routes import ROUTED, Route
from onebit_spark.engines.tables import Storage
from onebit_spark.platform.binary_cells import cell_array
from onebit_spark.platform.plans import cached, cut_from_plan, in_partitions, partition_keys
from onebit_spark.platform.sessions import is_connect

Part = TypeVar("Part")

ROUTES = ("routes", "ends", "row_weights")  # what only a sender needs


@dataclass(frozen=True)
class SidePlan:
    """How the rows of a side are divided into blocks."""

    placement: Placement  # the block of each row
    n_rows: int  # number of rows
    n_tasks: int  # Number of partitions. Block b is in partition b mod ``n_tasks``.
    held: bool  # whether the driver holds the tables of this side
    ids: Broadcast[SideTable] | None = None  # what the blocks must find, if the driver knows it
    rows: Rows | None = None  # the counts of all rows, if the driver knows them


@dataclass(frozen=True)
class BlockedSide:
    """One orientation of the ratings."""

    # The cached blocks, a few in a partition. If tables are stored: with the routes to the blocks of the other side,
    # and where Spark's hash partitioning sends their keys.
    blocks: DataFrame
    plan: SidePlan  # how the rows are divided
    keys: NDArray[np.int32]  # key of each block
    checksums: dict[int, tuple[int, int]]  # key ─► (ratings, checksum)
    n_rated: int  # rows with ratings
    repeats: Repeats  # cells that were rated more than once

    @property
    def n_ratings(self) -> int:
        return sum(n for n, _ in self.checksums.values())

    @property
    def ratings(self) -> DataFrame:
        """The blocks without their routes."""
        return self.blocks.drop(*ROUTES)

    def sent(self, cells: DataFrame) -> DataFrame:
        """Cells in the partitions of the blocks' keys. To group them with the blocks, Spark need not move a block."""
        return cells.repartition(self.plan.n_tasks, "key")

    def in_order(self, parts: Mapping[int, Part]) -> list[Part]:
        """What came from the blocks, by their numbers: sums of floats do not depend on which task ended first."""
        return [parts[key] for key in self.keys.tolist() if key in parts]

    @cached_property
    def rows_of(self) -> dict[int, NDArray[np.int64]]:
        """Key of a block ─► its rows, ascending."""
        rows_of = self.plan.placement.rows_of(self.plan.n_rows)
        return {key: rows_of[block] for block, key in enumerate(self.keys.tolist())}

    @cached_property
    def counted_rows(self) -> Rows:
        """All rows with their counts, on the driver: known before, or by a job."""
        if self.plan.rows is not None:
            return self.plan.rows
        return Rows(np.arange(self.plan.n_rows), self._counts["weights"], self._counts["positives"])

    @property
    def row_counts(self) -> NDArray[np.int64]:
        """The number of ratings of every row, on the driver."""
        return np.asarray(self._counts["ratings"] if self.plan.rows is None else self.plan.rows.counts, np.int64)

    @cached_property
    def _counts(self) -> dict[str, NDArray[Any]]:
        """Of every row: its ratings, and the sums of their weights, of all and of the positive ones."""
        lines = self.blocks.drop(*ROUTES, "key").mapInArrow(count_rows, COUNTS).toArrow()
        totals: dict[str, NDArray[Any]] = {}
        for name, dtype in (("ratings", np.int64), ("weights", np.float64), ("positives", np.float64)):
            totals[name] = np.zeros(self.plan.n_rows, dtype)
            for rows, cell in zip(lines["rows"], lines[name], strict=True):
                totals[name][read_ascending(rows)] = cell_array(cell, dtype)
        return totals


@dataclass(frozen=True)
class Blocking:
    """Makes both orientations of the ratings, and keeps them until ``release`` is closed."""

    session: SparkSession  # a working session (``plans.working_session``)
    storage: Storage  # where tables are kept
    release: ExitStack  # deletes what was cached
    plans: dict[Side, SidePlan]  # how the rows of each side are divided
    wide: bool = False  # whether 64-bit numbers travel, for more than 2³⁰ rows or columns

    def until(self, release: ExitStack) -> Blocking:
        """The same, for another length of time."""
        return replace(self, release=release)

    @property
    def is_joined(self) -> bool:
        """Whether lines are joined with blocks. They are not if the driver holds all tables."""
        return not all(plan.held for plan in self.plans.values())

    def blocked(self, chunks: DataFrame) -> dict[Side, BlockedSide]:
        """Both orientations from chunks of ratings by blocks of rows."""
        rows, cols = (self.plans[side] for side in SIDES)
        by_row = self._side("rows", _in_tasks(chunks, rows), Build(rows.ids, self.wide))
        turned = by_row.blocks.mapInArrow(Transpose(cols.placement, self.wide), CHUNKS)
        return {"rows": by_row, "cols": self._side("cols", _in_tasks(turned, cols), Build(cols.ids, self.wide))}

    def chosen(self, sides: dict[Side, BlockedSide], split: Split) -> dict[Side, BlockedSide]:
        """Both orientations of the ratings that a split chooses. Rows keep their numbers and their blocks."""
        uncounted = {side: replace(plan, ids=None, rows=None) for side, plan in self.plans.items()}
        part, cols, blocks = replace(self, plans=uncounted), self.plans["cols"], sides["rows"].blocks
        turned = blocks.mapInArrow(Transpose(cols.placement, self.wide, split), CHUNKS)
        return {
            "rows": part._side("rows", blocks, Choose(split)),
            "cols": part._side("cols", _in_tasks(turned, cols), Build(None, self.wide)),
        }

    def _side(self, side: Side, parts: DataFrame, build: Callable[[Batches], Batches]) -> BlockedSide:
        """Build blocks from the partitions of ``parts``, and cache them.

        If lines will be joined with them, they are cached by key, with the routes of their rows unless the driver holds
        the tables of this side. On Spark Connect the plan of the blocks cannot be cut, and every job would carry it
        along. So they are stored there first.
        """
        here, there = self.plans[side], self.plans[OTHER[side]]
        n_blocks, n_tasks = here.placement.n_blocks, here.n_tasks
        keys = partition_keys(n_tasks, -(-n_blocks // n_tasks))[:n_blocks]
        built = parts.mapInArrow(Route(build, keys, None if here.held else there.placement), ROUTED)
        with worker_errors():
            if is_connect(self.session):
                built, delete = self.storage.keep(built, ROUTED)
                self.release.callback(delete)
            if self.is_joined:
                built = built.repartition(n_tasks, "key")
            blocks = cached(built, self.release, StorageLevel.DISK_ONLY)
            lines = blocks.select("key", "n", "checksum", "rated", *REPEATS).toArrow().to_pylist()
        if not self.is_joined:
            blocks = cut_from_plan(blocks, self.session)  # a cut frame no longer says how it is partitioned
        checksums = {line["key"]: (line["n"], line["checksum"]) for line in lines}
        rated, *repeated = (sum(line[name] for line in lines) for name in ("rated", *REPEATS))
        return BlockedSide(blocks, here, keys, checksums, rated, Repeats(*repeated))


def _in_tasks(chunks: DataFrame, plan: SidePlan) -> DataFrame:
    """The chunks of blocks in the partitions of their blocks."""
    return in_partitions(chunks, plan.n_tasks, F.col("block") % plan.n_tasks)
