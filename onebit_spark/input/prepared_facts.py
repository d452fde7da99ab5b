"""prepared.json: what is known of prepared ratings, and how others differ from them. This module imports no Spark."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from onebit_spark.errors import RequestError
from onebit_spark.input.rating_checks import Columns, RatingCounts
from onebit_spark.platform.origin import Origin

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
