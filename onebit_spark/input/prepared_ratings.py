"""Ratings prepared once, in a folder, and fitted many times. A fit from there reads no rating of the source.

    prepare    source ─Pack─► bundles ─► facts, ids with their counts           the one reading of the source
    a fit      prepared.json compared with the request ─► ids, bundles ─► blocks, or the driver's arrays

FOLDER/bundles/         Parquet, the lines of ``survey.PACKED``: 8 bytes per rating, 12 with weights, and the ids
FOLDER/ids/             Parquet, one line per id: user or item, side, n, above (``survey.id_counts``)
FOLDER/prepared.json    ``PreparedFacts``; written last

Preparing takes three jobs: one reads, packs and writes, a small one reads the facts of the bundles, one counts the ids
and writes them. That is what a fit without a folder does in its survey, which keeps the same bytes on the executors'
disks. A fit from the folder has no survey: it lists the files of the source and of the folder. What follows is as
without a folder, and so are the numbers of the ids and the fit, to the bit.

The folder appears whole or not at all. A segment is read in its order, so no task reads a part of a file.

``RatingsFrame`` is the other source of a fit: a DataFrame.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import TimestampType

from onebit_spark.core.output_kinds import PREPARED
from onebit_spark.input.batches import ITEM, USER, CollectedRatings, SizeEstimate
from onebit_spark.input.collect import collect_bundles, collect_ratings, estimate_size
from onebit_spark.input.columns import quoted, type_of
from onebit_spark.input.prepared_folder import (
    BUNDLES,
    FACTS,
    IDS,
    PreparedFacts,
    changes,
    facts_of,
    nothing_prepared,
    refuse_others,
)
from onebit_spark.input.rating_checks import Columns, fingerprint_of
from onebit_spark.input.ratings import check_columns, count_ratings
from onebit_spark.input.survey import (
    PACKED,
    PackedRatings,
    RatingSurvey,
    id_counts,
    numbers_of_ids,
    packed_counts,
    packed_lines,
    sum_facts,
    survey_ratings,
)
from onebit_spark.platform.arrow_stream import rows_session
from onebit_spark.platform.file_systems import statuses
from onebit_spark.platform.files import Location, replace_folder
from onebit_spark.platform.lineage import Origin, origin_of
from onebit_spark.platform.plans import expect_long_lines, read_whole_files, working_session
from onebit_spark.platform.sessions import described, require_classic

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
        """Refuse if the ratings of a DataFrame are others.

        Columns, types and threshold are compared, then the ratings: by ``size``, if it has their fingerprint; else
        by the files and the query of their source. Only if these do not determine the ratings does an aggregation
        read them, for their number and fingerprint.
        """
        changed = self.facts.other_request(columns, id_types(df, columns))
        if not changed:
            changed = changes({"spark.sql.session.timeZone": (self.facts.time_zone, time_zone(df, columns))})
        refuse_others(self.folder, changed or self._other_ratings(df, columns, size))

    def _other_ratings(self, df: DataFrame, columns: Columns, size: SizeEstimate | None) -> list[str]:
        facts = self.facts
        if size is not None and size.fingerprint is not None:
            return facts.other_content(size.n, size.fingerprint)
        origin = ratings_origin(df, columns) if facts.origin is not None else None
        if facts.origin is not None and origin is not None and facts.origin.is_comparable(origin):
            return facts.origin.differences(origin)
        totals = count_ratings(df, columns)
        return facts.other_content(totals["n"], fingerprint_of(totals))

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
        raise nothing_prepared(path)
    facts = facts_of((folder / FACTS).read_text(), path)
    facts.check_lengths(_lengths(folder), path)
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


@dataclass(frozen=True)
class RatingsFrame:
    """Ratings of a DataFrame. All of it is read, every time."""

    frame: DataFrame
    columns: Columns

    @property
    def spark(self) -> SparkSession:
        return self.frame.sparkSession

    def size(self) -> SizeEstimate:
        """The number of ratings, and their size on the way to the driver."""
        return estimate_size(self.frame, self.columns)

    def collected(self, size: SizeEstimate, most_bytes: int) -> CollectedRatings:
        """All ratings on the driver, checked. ``most_bytes`` bounds one collect."""
        return collect_ratings(self.frame, self.columns, size, most_bytes)

    def surveyed(self, collect_ids: bool = True) -> AbstractContextManager[RatingSurvey]:
        """The ratings packed, checked and counted by their ids, on the executors.

        ``collect_ids``: a few ids may come to the driver. An exchange that shuffles has no use for them there.
        """
        return survey_ratings(self.frame, self.columns, collect_ids)


RatingsSource = RatingsFrame | PreparedRatings
