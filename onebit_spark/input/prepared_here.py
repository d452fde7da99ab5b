"""Prepared ratings without Spark: the folders of ``prepared_ratings``, read and written by this process.

A folder that Spark has prepared serves here, and the other way round. Files and queries are compared only with what the
same reader told of them; otherwise the ratings are read, and compared by their number and fingerprint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from onebit_spark.core.output_kinds import PREPARED
from onebit_spark.core.sketch import limit_for
from onebit_spark.input import packing
from onebit_spark.input.batches import ITEM, LABEL, USER, WEIGHT, Batches
from onebit_spark.input.gathering import CollectedRatings
from onebit_spark.input.id_counts import COUNTED, CountIds, sum_counts
from onebit_spark.input.prepared_facts import (
    BUNDLES,
    FACTS,
    IDS,
    PreparedFacts,
    facts_of,
    nothing_prepared,
    refuse_others,
)
from onebit_spark.input.rating_checks import Columns
from onebit_spark.input.unpacking import UNPACKED, Unpacking
from onebit_spark.platform.file_systems import file_system
from onebit_spark.platform.files import replace_folder
from onebit_spark.platform.origin import Origin


@dataclass(frozen=True)
class PreparedHere:
    """The folder for the prepared ratings of a fit."""

    path: str
    columns: Columns
    types: Mapping[str, str]  # "user" and "item" ─► type of the ids
    origin: Origin | None  # of the ratings that are to be fitted
    facts: PreparedFacts | None  # None: the folder does not exist yet

    @classmethod
    def of(cls, path: str, columns: Columns, types: Mapping[str, str], origin: Origin | None) -> PreparedHere:
        """Refuses a folder that is not complete, or was prepared for other columns."""
        folder, facts = _here(path), None
        if folder.exists():
            if not (folder / FACTS).exists():
                raise nothing_prepared(path)
            facts = facts_of((folder / FACTS).read_text(encoding="utf-8", errors="replace"), path)
            facts.check_lengths(_lengths(folder), path)
            refuse_others(path, facts.other_request(columns, types))
        return cls(path, columns, types, origin, facts)

    def ratings(self) -> CollectedRatings | None:
        """The ratings in the folder. None if they must be read from the source: to prepare, or to compare them."""
        facts, now = self.facts, self.origin
        if facts is None or facts.origin is None or now is None or not facts.origin.is_comparable(now):
            return None
        refuse_others(self.path, facts.origin.differences(now))
        return Unpacking(limit_for(facts.tally.n)).all_of(_lines(_here(self.path))).ratings(facts.tally)

    def keep(self, ratings: CollectedRatings) -> None:
        """Prepare ratings that were read, or refuse them if the folder holds others."""
        tally = ratings.tally
        if self.facts is not None:
            refuse_others(self.path, self.facts.other_content(tally.n, tally.fingerprint))
            return
        with replace_folder(None, self.path, PREPARED) as uri:
            folder, counts = _here(uri), []
            with _writer(folder / BUNDLES, packing.LINES) as writer:
                for line in packing.Pack(None)(_batches(ratings)):
                    writer.write_batch(line)
                    counts.append(line.select(COUNTED))
            ids = pa.Table.from_batches(sum_counts(CountIds(1)(iter(counts))))
            with _writer(folder / IDS, ids.schema) as writer:
                writer.write_table(ids)
            facts = PreparedFacts(
                columns=self.columns,
                types=dict(self.types),
                tally=tally,
                n_users=ratings.n_users,
                n_items=ratings.n_items,
                weight=None if self.columns.weight is None else float(ratings.ratings.row_weights.sum()),
                origin=self.origin,
                lengths=_lengths(folder),
                time_zone="UTC" if "timestamp" in self.types.values() else None,
            )
            (folder / FACTS).write_text(facts.as_json(), encoding="utf-8")


def _batches(ratings: CollectedRatings) -> Batches:
    """The ratings as they are packed, by their ids."""
    block = ratings.ratings
    for first in range(0, block.n_ratings, packing.BUNDLE):
        codes = block.codes[first : first + packing.BUNDLE]
        rows = np.searchsorted(block.row_pointers, np.arange(first, first + len(codes)), side="right") - 1
        columns = {
            USER: ratings.users.take(pa.array(rows)),
            ITEM: ratings.items.take(pa.array(codes >> 1)),
            LABEL: pa.array((codes & 1).astype(np.int8)),
        }
        if block.weights is not None:
            columns[WEIGHT] = pa.array(block.weights[first : first + len(codes)])
        yield pa.RecordBatch.from_pydict(columns)


def _here(path: str) -> Path:
    return Path(file_system(path)[1])


def _writer(folder: Path, schema: pa.Schema) -> pq.ParquetWriter:
    """Every batch is a row group of its own: see ``prepared_ratings.LONG_LINES``."""
    folder.mkdir(parents=True)
    return pq.ParquetWriter(folder / "part-00000.parquet", schema, compression="none", use_dictionary=False)


def _lines(folder: Path) -> Iterator[pa.RecordBatch]:
    for part in (folder / BUNDLES).glob("part-*"):
        yield from pq.ParquetFile(part).iter_batches(1, columns=list(UNPACKED))


def _lengths(folder: Path) -> dict[str, int]:
    """The data files of the folder, with their lengths."""
    return {
        f"{kind}/{part.name}": part.stat().st_size for kind in (BUNDLES, IDS) for part in (folder / kind).glob("part-*")
    }
