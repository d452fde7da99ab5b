"""The format of a file by the ending of its name, and of a folder by the files that it holds. It imports no Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

ENDINGS = {"parquet": "parquet", "csv": "csv", "tsv": "csv", "json": "json", "jsonl": "json", "ndjson": "json"}
COMPRESSIONS = ("gz", "bz2", "zst", "lz4")
OPTIONS_OF = {"tsv": {"sep": "\t"}}  # what an ending says beside the format
DEFAULT = "parquet"


class Format(NamedTuple):
    """A format, and options of its reader."""

    name: str
    options: Mapping[str, str]


def is_data(name: str) -> bool:
    """Whether a name in a folder is one of data: Spark skips those that begin with a dot or an underscore."""
    return not name.startswith((".", "_")) or ("=" in name and not name.startswith("."))


def ending(name: str) -> str | None:
    """The ending that tells the format, such as csv of ratings.csv.gz; None if there is none."""
    parts = name.lower().rstrip("/").split(".")[1:]
    if parts and parts[-1] in COMPRESSIONS:
        parts.pop()
    return parts[-1] if parts and parts[-1] in ENDINGS else None


def format_of(path: str, within: Iterable[str] = ()) -> Format:
    """By the name of a file, or by the names of the files ``within`` a folder. Parquet if none tells."""
    known = (ending(name.rpartition("/")[2]) for name in (path, *within))
    found = next((each for each in known if each is not None), DEFAULT)
    return Format(ENDINGS[found], OPTIONS_OF.get(found, {}))
