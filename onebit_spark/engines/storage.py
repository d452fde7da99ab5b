"""Where tall tables are kept: in files that all executors can reach, or on the executors that made them."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from onebit_spark.platform.files import Location
from onebit_spark.platform.plans import forget, on_executors
from onebit_spark.platform.temporary_folders import TemporaryFolders


class Storage(Protocol):
    """Keeps what was computed. Neither plan nor lineage of it grows."""

    def keep(self, made: DataFrame, schema: StructType) -> tuple[DataFrame, Callable[[], object]]:
        """The lines, computed now, and a function that deletes them."""

    def outlasting(self, frame: DataFrame, schema: StructType) -> DataFrame:
        """The lines, computed now. They remain as long as a plan reads them."""

    def clear(self) -> None:
        """Delete all that was kept, but not what outlasts."""


@dataclass(frozen=True)
class InFiles:
    """In Parquet, in a folder that all executors can reach."""

    folder: Location

    def keep(self, made: DataFrame, schema: StructType) -> tuple[DataFrame, Callable[[], object]]:
        place = self.folder / f"table-{uuid.uuid4().hex}"
        made.write.parquet(place.uri, compression="uncompressed")  # factors cannot be compressed
        return made.sparkSession.read.schema(schema).parquet(place.uri), place.delete

    def outlasting(self, frame: DataFrame, schema: StructType) -> DataFrame:
        """In a folder beside this one: see ``temporary_folders``."""
        folder = self.folder.sibling(f"{self.folder.name}-model")
        part = folder / uuid.uuid4().hex
        frame.write.parquet(part.uri)
        stored = frame.sparkSession.read.schema(schema).parquet(part.uri)
        TemporaryFolders.of(folder.spark).delete_after(folder, stored)
        return stored

    def clear(self) -> None:
        self.folder.delete()


@dataclass(frozen=True)
class OnExecutors:
    """On the disks of the executors. What is lost with one of them cannot be computed again, and the fit ends."""

    def keep(self, made: DataFrame, schema: StructType) -> tuple[DataFrame, Callable[[], object]]:
        kept = on_executors(made)
        return kept, partial(forget, kept)

    def outlasting(self, frame: DataFrame, schema: StructType) -> DataFrame:
        return on_executors(frame)

    def clear(self) -> None:
        """Nothing: a table is forgotten when nothing refers to it."""
