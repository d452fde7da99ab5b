"""One orientation of the ratings: cached blocks, each with the routes of its rows to the blocks of the other side."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from onebit_spark.core.blocks import Sums
from onebit_spark.core.spectral_rows import Rows
from onebit_spark.engines.block_frames import Batches, read_ascending
from onebit_spark.engines.blocking import COUNTS, REPEATS, Repeats, count_rows
from onebit_spark.engines.faults import worker_errors
from onebit_spark.engines.layout import Placement
from onebit_spark.engines.shuffle.routes import ROUTED, Route
from onebit_spark.engines.shuffle.storage import Storage
from onebit_spark.platform.binary_cells import cell_array
from onebit_spark.platform.plans import cached, in_partitions, partition_keys
from onebit_spark.platform.sessions import is_connect

ROUTES = ("routes", "ends", "row_weights")  # what only a sender needs


@dataclass(frozen=True)
class HeldRows:
    """What the driver knows of a side whose tables it holds.

    Parameters
    ----------
    rows_of : dict
        Key of a block ─► its rows.
    counts, positives : array
        Ratings of every row, and positive ones; sums of weights if there are weights.
    """

    rows_of: dict[int, NDArray[np.int64]]
    counts: Sums
    positives: Sums

    @property
    def rows(self) -> Rows:
        return Rows(np.arange(len(self.counts)), self.counts, self.positives)


@dataclass(frozen=True)
class RoutedSide:
    """One orientation of the ratings.

    Parameters
    ----------
    blocks : DataFrame
        The cached blocks, a few in a partition, with the routes to the blocks of the other side. Block b is in
        partition b mod ``n_tasks``, where Spark's hash partitioning sends its key.
    placement : Placement
        The block of each row.
    keys : array of int32
        Key of each block.
    n_tasks : int
        Number of partitions.
    checksums : dict
        Key ─► (ratings, checksum).
    n_rated : int
        Rows with ratings.
    repeats : Repeats
        Cells that were rated more than once.
    held : HeldRows, optional
        The rows, if the driver holds the tables of this side.
    """

    blocks: DataFrame
    placement: Placement
    keys: NDArray[np.int32]
    n_tasks: int
    checksums: dict[int, tuple[int, int]]
    n_rated: int
    repeats: Repeats
    held: HeldRows | None = None

    @property
    def n_ratings(self) -> int:
        return sum(n for n, _ in self.checksums.values())

    @property
    def ratings(self) -> DataFrame:
        """The blocks without their routes."""
        return self.blocks.drop(*ROUTES)

    def sent(self, lines: DataFrame) -> DataFrame:
        """Lines in the partitions of the blocks' keys. To group them with the blocks, Spark need not move a block."""
        return lines.repartition(self.n_tasks, "key")


def in_tasks(chunks: DataFrame, n_tasks: int) -> DataFrame:
    """The chunks of blocks in the partitions of their blocks."""
    return in_partitions(chunks, n_tasks, F.col("block") % n_tasks)


@dataclass(frozen=True)
class Routing:
    """Makes sides, until ``release`` is closed.

    Parameters
    ----------
    storage : Storage
        Where tables are kept.
    release : ExitStack
        Deletes what was cached.
    """

    storage: Storage
    release: ExitStack

    def routed(
        self, parts: DataFrame, build: Callable[[Batches], Batches], here: Placement, there: Placement, n_tasks: int,
        held: bool = False,
    ) -> RoutedSide:  # fmt: skip
        """Build blocks from the partitions of ``parts``, add their routes, and cache them by key.

        If the driver holds the tables of this side, no routes are needed. On Spark Connect the plan of the blocks
        cannot be cut, and every job would carry it along. So they are stored there first.
        """
        keys = partition_keys(n_tasks, -(-here.n_blocks // n_tasks))[: here.n_blocks]
        built = parts.mapInArrow(Route(build, keys, None if held else there), ROUTED)
        with worker_errors():
            if is_connect(parts.sparkSession):
                built, delete = self.storage.keep(built, ROUTED)
                self.release.callback(delete)
            blocks = cached(built.repartition(n_tasks, "key"), self.release, StorageLevel.DISK_ONLY)
            lines = blocks.select("key", "n", "checksum", "rated", *REPEATS).toArrow().to_pylist()
        checksums = {line["key"]: (line["n"], line["checksum"]) for line in lines}
        rated, *repeated = (sum(line[name] for line in lines) for name in ("rated", *REPEATS))
        rows = _held_rows(blocks, keys) if held else None
        return RoutedSide(blocks, here, keys, n_tasks, checksums, rated, Repeats(*repeated), rows)


def _held_rows(blocks: DataFrame, keys: NDArray[np.int32]) -> HeldRows:
    lines = blocks.drop(*ROUTES, "key").mapInArrow(count_rows, COUNTS).toArrow()
    rows = [read_ascending(cell) for cell in lines["rows"]]
    n = sum(map(len, rows))
    totals = np.zeros(n), np.zeros(n)
    for name, total in zip(("weights", "positives"), totals, strict=True):
        for numbers, cell in zip(rows, lines[name], strict=True):
            total[numbers] = cell_array(cell, np.float64)
    numbered = zip(lines["block"].to_pylist(), rows, strict=True)
    return HeldRows({int(keys[block]): numbers for block, numbers in numbered}, *totals)
