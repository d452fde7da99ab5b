"""prepared.json: what is known of prepared ratings, and whether they are the ratings that a fit asks for."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import TimestampType

from onebit_spark.input.collect import Weighed
from onebit_spark.input.columns import HASH_PARTS, quoted, type_of
from onebit_spark.input.defects import Columns, Tally, count_ratings, fingerprint_of
from onebit_spark.platform.lineage import Origin, origin_of

FORMAT_VERSION = 1


@dataclass(frozen=True)
class PreparedFacts:
    """What is known of prepared ratings.

    Parameters
    ----------
    columns : Columns
        Their columns and the threshold.
    types : dict of str to str
        "user" and "item" ─► type of the ids.
    tally : Tally
        The counts, and the fingerprint of the set of ratings.
    n_users, n_items : int
        Numbers of ids.
    weight : float or None
        The sum of the weights.
    origin : Origin or None
        Files and query of the source; None if these do not determine its ratings.
    lengths : dict of str to int
        The files of the folder, with their lengths in bytes.
    time_zone : str or None
        Of the session, where an id is a timestamp.
    """

    columns: Columns
    types: dict[str, str]
    tally: Tally
    n_users: int
    n_items: int
    weight: float | None
    origin: Origin | None
    lengths: dict[str, int]
    time_zone: str | None = None

    def as_json(self) -> str:
        return json.dumps({"format_version": FORMAT_VERSION, **asdict(self)}, indent=1, allow_nan=False)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> PreparedFacts:
        """The facts of a content of this format version. Raises KeyError or TypeError if it is not complete."""
        told = {name: value for name, value in content.items() if name != "format_version"}
        origin = told["origin"]
        nested = {"columns": Columns(**told["columns"]), "tally": Tally(**told["tally"])}
        return cls(**{**told, **nested, "origin": None if origin is None else Origin(**origin)})

    def differences(self, df: DataFrame, columns: Columns, counted: Weighed | None = None) -> list[str]:
        """In words, how the ratings of a fit differ from these.

        Columns, types and threshold are compared, then the ratings: by ``counted``, if it has their fingerprint; else
        by the files and the query of their source. Only if these do not determine the ratings does an aggregation
        read them, for their number and fingerprint.
        """
        were, are = asdict(self.columns), asdict(columns)
        pairs = {"threshold" if role == "threshold" else f"the {role} column": role for role in are}
        found = [_changed(name, were[role], are[role]) for name, role in pairs.items() if were[role] != are[role]]
        if not found:
            types = id_types(df, columns)
            found = [_changed(f"the type of the {who}s", self.types[who], types[who]) for who in types
                     if types[who] != self.types[who]]  # fmt: skip
        if not found and self.time_zone != (zone := time_zone(df, columns)):
            found = [_changed("spark.sql.session.timeZone", self.time_zone, zone)]
        return found or self._other_ratings(df, columns, counted)

    def _other_ratings(self, df: DataFrame, columns: Columns, counted: Weighed | None) -> list[str]:
        if counted is not None and counted.fingerprint is not None:
            return self._other_content(counted.n, counted.fingerprint)
        origin = ratings_origin(df, columns) if self.origin is not None else None
        if self.origin is not None and origin is not None:
            return self.origin.differences(origin)
        totals = count_ratings(df, columns)
        return self._other_content(totals["n"], fingerprint_of([totals[name] for name in HASH_PARTS]))

    def _other_content(self, n: int, fingerprint: str) -> list[str]:
        if n != self.tally.n:
            return [f"{self.tally.n:,} ratings were prepared, and {n:,} are to be fitted"]
        return [] if fingerprint == self.tally.fingerprint else [f"of the {n:,} ratings some are others"]


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


def _changed(name: str, was: object, now: object) -> str:
    return f"{name} was {was} and is {now}"
