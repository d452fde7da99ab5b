"""Ratings prepared once, in a folder, and fitted many times. A fit from there reads no rating of the source.

    prepare    source ─Pack─► bundles ─► facts, ids with their counts           the one reading of the source
    a fit      prepared.json compared with the request ─► ids, bundles ─► blocks, or the driver's arrays

FOLDER/bundles/         Parquet, the lines of ``packing.PACKED``: 8 bytes per rating, 12 with weights, and the ids
FOLDER/ids/             Parquet, one line per id: user or item, side, n, above (``survey.id_counts``)
FOLDER/prepared.json    ``PreparedFacts``; written last

Preparing takes three jobs: one reads, packs and writes, a small one reads the facts of the bundles, one counts the ids
and writes them. That is what a fit without a folder does in its survey, which keeps the same bytes on the executors'
disks. A fit from the folder has no survey: it lists the files of the source and of the folder. What follows is as
without a folder, and so are the numbers of the ids and the fit, to the bit.

The folder appears whole or not at all. A segment is read in its order, so no task reads a part of a file.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import TimestampType

from onebit_spark.core.output_kinds import PREPARED
from onebit_spark.errors import RequestError
from onebit_spark.input.batches import ITEM, USER
from onebit_spark.input.collect import collect_bundles
from onebit_spark.input.columns import quoted, type_of
from onebit_spark.input.defects import check_columns, count_ratings
from onebit_spark.input.gathering import CollectedRatings, SizeEstimate
from onebit_spark.input.packing import PACKED, PackedRatings, packed_lines, sum_facts
from onebit_spark.input.rating_checks import Columns, RatingCounts, fingerprint_of
from onebit_spark.input.survey import RatingSurvey, id_counts, numbers_of_ids, packed_counts
from onebit_spark.platform.arrow_stream import rows_session
from onebit_spark.platform.file_systems import statuses
from onebit_spark.platform.files import Location, replace_folder
from onebit_spark.platform.lineage import Origin, origin_of
from onebit_spark.platform.plans import expect_long_lines, read_whole_files, working_session
from onebit_spark.platform.sessions import described, require_classic

FORMAT_VERSION = 1
FACTS, BUNDLES, IDS = "prepared.json", "bundles", "ids"
CURE = "name another folder, or delete this one, and the ratings are prepared anew"
LONG_LINES = {  # Parquet's writer looks at the size of a row group after every line, not first after a hundred
    "parquet.block.size": str(32 * 2**20),
    "parquet.page.size.row.check.min": "1",
    "parquet.page.size.row.check.max": "1",
    "parquet.block.size.row.check.min": "1",
    "parquet.block.size.row.check.max": "1",
    "parquet.enable.dictionary": "false",
    "compression": "uncompressed",
}


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

    def differences(self, df: DataFrame, columns: Columns, size: SizeEstimate | None = None) -> list[str]:
        """In words, how the ratings of a fit differ from these.

        Columns, types and threshold are compared, then the ratings: by ``size``, if it has their fingerprint; else
        by the files and the query of their source. Only if these do not determine the ratings does an aggregation
        read them, for their number and fingerprint.
        """
        were, are = asdict(self.columns), asdict(columns)
        pairs = {"threshold" if role == "threshold" else f"the {role} column": role for role in are}
        changed = _changes({name: (were[role], are[role]) for name, role in pairs.items()})
        if not changed:
            now = id_types(df, columns)
            changed = _changes({f"the type of the {who}s": (self.types[who], now[who]) for who in now})
        if not changed:
            changed = _changes({"spark.sql.session.timeZone": (self.time_zone, time_zone(df, columns))})
        return changed or self._other_ratings(df, columns, size)

    def _other_ratings(self, df: DataFrame, columns: Columns, size: SizeEstimate | None) -> list[str]:
        if size is not None and size.fingerprint is not None:
            return self._other_content(size.n, size.fingerprint)
        origin = ratings_origin(df, columns) if self.origin is not None else None
        if self.origin is not None and origin is not None:
            return self.origin.differences(origin)
        totals = count_ratings(df, columns)
        return self._other_content(totals["n"], fingerprint_of(totals))

    def _other_content(self, n: int, fingerprint: str) -> list[str]:
        if n != self.tally.n:
            return [f"{self.tally.n:,} ratings were prepared, and {n:,} are to be fitted"]
        return [] if fingerprint == self.tally.fingerprint else [f"of the {n:,} ratings some are others"]


@dataclass(frozen=True)
class PreparedRatings:
    """Ratings in a folder, ready to be fitted."""

    spark: SparkSession  # the user's session
    folder: str
    facts: PreparedFacts

    def __repr__(self) -> str:
        facts = self.facts
        counts = f"{facts.tally.n:,} ratings of {facts.n_users:,} users on {facts.n_items:,} items"
        return f"PreparedRatings({self.folder!r}: {counts})"

    def require(self, df: DataFrame, columns: Columns, size: SizeEstimate | None = None) -> None:
        """Refuse if the ratings of a DataFrame are others: see ``PreparedFacts.differences``."""
        if differing := self.facts.differences(df, columns, size):
            raise RequestError(f"the ratings prepared in {self.folder} are others: {'; '.join(differing)}: {CURE}")

    @property
    def n_bytes(self) -> int:
        """The size of the bundles."""
        return sum(length for name, length in self.facts.lengths.items() if name.startswith(BUNDLES))

    def size(self) -> SizeEstimate:
        """The number of ratings, and their size on the way to the driver. It is known already."""
        n, weighted = self.facts.tally.n, self.facts.weight is not None
        ids = max(0, self.n_bytes - (12 if weighted else 8) * n)  # each id once per segment, and cells of the sketch
        return SizeEstimate(n, self.n_bytes / n, self.facts.tally.fingerprint, weighted, ids)

    def collected(self, size: SizeEstimate, most_bytes: int) -> CollectedRatings:
        """All ratings on the driver, from the bundles."""
        return collect_bundles(self._packed().bundles, self.facts.tally, self.n_bytes, most_bytes)

    @contextmanager
    def surveyed(self, collect_ids: bool = True) -> Iterator[RatingSurvey]:
        """The ratings and the counted ids. No job runs."""
        facts, packed = self.facts, self._packed()
        yield RatingSurvey(facts.tally, facts.n_users, facts.n_items, packed, self._ids, facts.weight)

    def _packed(self) -> PackedRatings:
        return stored_bundles(Location(self.spark, self.folder))

    def _ids(self) -> DataFrame:
        types = self.facts.types
        schema = f"{USER} {types['user']}, {ITEM} {types['item']}, side int, n long, above long"
        return rows_session(self.spark).read.schema(schema).parquet((Location(self.spark, self.folder) / IDS).uri)


def stored_bundles(folder: Location) -> PackedRatings:
    """The bundles of a folder. Nothing is read yet, and their facts are not known."""
    spark, uri = folder.spark, (folder / BUNDLES).uri
    own = working_session(spark)
    expect_long_lines(own, 1)
    read_whole_files(own)
    short = rows_session(spark).read.schema(PACKED).parquet(uri)
    return PackedRatings(own.read.schema(PACKED).parquet(uri), Counter(), short)


def prepare_ratings(df: DataFrame, columns: Columns, path: str, overwrite: bool = False) -> PreparedRatings:
    """Read the ratings, check and count them, and write them to a folder."""
    spark = df.sparkSession
    require_classic(spark, "to prepare ratings")
    check_columns(df, columns)
    origin = ratings_origin(df, columns)  # before they are read, so that a later change is noticed
    with described(spark, "preparing"), replace_folder(spark, path, PREPARED, overwrite) as uri:
        folder = Location(spark, uri)
        packed_lines(df, columns).write.options(**LONG_LINES).parquet((folder / BUNDLES).uri)
        bundles = stored_bundles(folder).bundles
        counted = sum_facts(bundles)
        tally = packed_counts(df, columns, counted)
        id_counts(bundles, tally.n, df, columns).write.parquet((folder / IDS).uri)
        weight = None if columns.weight is None else float(counted["weight"])
        ids = numbers_of_ids(spark.read.parquet((folder / IDS).uri))
        types, zone, lengths = id_types(df, columns), time_zone(df, columns), _lengths(folder)
        facts = PreparedFacts(columns, types, tally, *ids, weight, origin, lengths, zone)
        (folder / FACTS).write_text(facts.as_json())
    return PreparedRatings(spark, path, facts)


def open_prepared(spark: SparkSession, path: str) -> PreparedRatings:
    """The ratings that were prepared in a folder. Refuses one that is not complete, or of another version."""
    require_classic(spark, "to fit prepared ratings")
    folder = Location(spark, path)
    if not (folder / FACTS).exists():
        raise RequestError(f"{path} exists and holds no prepared ratings (no {FACTS}): {CURE}")
    damaged = f"the prepared ratings in {path} are damaged"
    try:
        content = json.loads((folder / FACTS).read_text())
        version = content["format_version"]
        facts = PreparedFacts.from_json(content) if version == FORMAT_VERSION else None
    except (ValueError, KeyError, TypeError) as error:
        raise RequestError(f"{damaged}: {FACTS} cannot be read ({type(error).__name__}): {CURE}") from None
    if facts is None:
        written = f"was prepared in format {version} by another version of onebit_spark"
        raise RequestError(f"{path} {written}, and this one reads format {FORMAT_VERSION}: {CURE}")
    present = _lengths(folder)
    for name, length in facts.lengths.items():
        if present.get(name) != length:
            what = "is not there" if name not in present else f"has {present[name]:,} bytes instead of {length:,}"
            raise RequestError(f"{damaged}: the file {name} {what}: {CURE}")
    return PreparedRatings(spark, path, facts)


def prepared_for(df: DataFrame, columns: Columns, path: str, size: SizeEstimate | None = None) -> PreparedRatings:
    """The ratings of a DataFrame in a folder: prepared now if it does not exist, refused if it holds others."""
    if not Location(df.sparkSession, path).exists():
        return prepare_ratings(df, columns, path)
    check_columns(df, columns)
    prepared = open_prepared(df.sparkSession, path)
    prepared.require(df, columns, size)
    return prepared


def _lengths(folder: Location) -> dict[str, int]:
    """The data files of the folder, with their lengths."""
    files = [(part, file) for part in (BUNDLES, IDS) for file in (folder / part).children()]
    known = statuses(folder.spark, [file.uri for _, file in files])
    return {f"{part}/{file.name}": known[file.uri][0] for part, file in files if file.name.startswith("part-")}


def ratings_origin(df: DataFrame, columns: Columns) -> Origin | None:
    """The origin of the columns of ratings, whatever else there is in the frame."""
    return origin_of(df.select(*map(quoted, columns.names)))


def id_types(df: DataFrame, columns: Columns) -> dict[str, str]:
    return {who: type_of(df, getattr(columns, who)).simpleString() for who in ("user", "item")}


def time_zone(df: DataFrame, columns: Columns) -> str | None:
    """The session's time zone, if an id is a timestamp: Arrow's timestamps have it in their type."""
    kinds = [type_of(df, name) for name in (columns.user, columns.item)]
    stamped = any(isinstance(kind, TimestampType) for kind in kinds)
    return str(df.sparkSession.conf.get("spark.sql.session.timeZone")) if stamped else None


def _changes(values: dict[str, tuple[object, object]]) -> list[str]:
    return [f"{name} was {was} and is {now}" for name, (was, now) in values.items() if was != now]
