"""The folders of ``prepared_ratings``: what ``prepared.json`` says, and how this process reads and writes them.

This module imports no Spark.
A folder that Spark has prepared serves here, and the other way round. Files and queries are compared only with what the
same reader describes them; otherwise the ratings are read, and compared by their number and fingerprint.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from onebit_spark.core.output_kinds import PREPARED
from onebit_spark.core.sketch import limit_for
from onebit_spark.errors import RequestError
from onebit_spark.input import packing
from onebit_spark.input.batches import ITEM, LABEL, USER, WEIGHT, Batches, CollectedRatings
from onebit_spark.input.packing import COUNTED, UNPACKED, CountIds, Unpacking, sum_counts
from onebit_spark.input.rating_checks import Columns, RatingCounts
from onebit_spark.platform.file_systems import file_system
from onebit_spark.platform.files import Origin, replace_folder

FORMAT_VERSION = 1
FACTS, BUNDLES, IDS = "prepared.json", "bundles", "ids"
CURE = "name another folder, or delete this one, and the ratings are prepared anew"


@dataclass(frozen=True)
class PreparedFacts:
    """What is known of prepared ratings."""

    columns: Columns
    types: dict[str, str]  # "user" and "item" ─► type of the ids
    tally: RatingCounts  # the counts, and the fingerprint of the set of ratings
    n_users: int
    n_items: int
    weight: float | None  # the sum of the weights
    origin: Origin | None  # files and query of the source; None if these do not determine its ratings
    lengths: dict[str, int]  # the files of the folder, with their lengths in bytes
    time_zone: str | None = None  # of the session, where an id is a timestamp

    def as_json(self) -> str:
        return json.dumps({"format_version": FORMAT_VERSION, **asdict(self)}, indent=1, allow_nan=False)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> PreparedFacts:
        """The facts of a content of this format version. Raises KeyError or TypeError if it is not complete."""
        fields = {name: value for name, value in content.items() if name != "format_version"}
        origin = fields["origin"]
        nested = {"columns": Columns(**fields["columns"]), "tally": RatingCounts(**fields["tally"])}
        return cls(**{**fields, **nested, "origin": None if origin is None else Origin(**origin)})

    def other_request(self, columns: Columns, types: Mapping[str, str]) -> list[str]:
        """In words, how columns, threshold and types of the ids differ."""
        were, are = asdict(self.columns), asdict(columns)
        pairs = {"threshold" if role == "threshold" else f"the {role} column": role for role in are}
        changed = changes({name: (were[role], are[role]) for name, role in pairs.items()})
        return changed or changes({f"the type of the {who}s": (self.types[who], types[who]) for who in types})

    def other_content(self, n: int, fingerprint: str) -> list[str]:
        """In words, how n ratings with a fingerprint differ."""
        if n != self.tally.n:
            return [f"{self.tally.n:,} ratings were prepared, and {n:,} are to be fitted"]
        return [] if fingerprint == self.tally.fingerprint else [f"of the {n:,} ratings some are others"]

    def check_lengths(self, present: Mapping[str, int], path: str) -> None:
        """Refuse a folder of which a file is lost, or was cut."""
        for name, length in self.lengths.items():
            if present.get(name) != length:
                what = "is not there" if name not in present else f"has {present[name]:,} bytes instead of {length:,}"
                raise _damaged(path, f"the file {name} {what}")


def facts_of(text: str, path: str) -> PreparedFacts:
    """The facts of the folder at ``path``. Refuses those that cannot be read, or of another version."""
    try:
        content = json.loads(text)
        version = content["format_version"]
        facts = PreparedFacts.from_json(content) if version == FORMAT_VERSION else None
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(path, f"{FACTS} cannot be read ({type(error).__name__})") from None
    if facts is None:
        written = f"was prepared in format {version} by another version of onebit_spark"
        raise RequestError(f"{path} {written}, and this one reads format {FORMAT_VERSION}: {CURE}")
    return facts


def nothing_prepared(path: str) -> RequestError:
    return RequestError(f"{path} exists and holds no prepared ratings (no {FACTS}): {CURE}")


def refuse_others(path: str, differing: Sequence[str]) -> None:
    """Refuse ratings that differ, in words, from those in the folder."""
    if differing:
        raise RequestError(f"the ratings prepared in {path} are others: {'; '.join(differing)}: {CURE}")


def changes(values: Mapping[str, tuple[object, object]]) -> list[str]:
    return [f"{name} was {was} and is {now}" for name, (was, now) in values.items() if was != now]


def _damaged(path: str, what: str) -> RequestError:
    return RequestError(f"the prepared ratings in {path} are damaged: {what}: {CURE}")


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
