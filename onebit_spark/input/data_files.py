"""The files of a table and their format: one file, a folder, a pattern; local, or a URI that Arrow or fsspec knows.

Spark's rules hold: names that begin with a dot or an underscore are skipped. This module imports no Spark.
"""

from __future__ import annotations

import glob
import os
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import fs

from onebit_spark.errors import RequestError
from onebit_spark.platform.file_systems import file_system

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
    kind = next((each for each in known if each is not None), DEFAULT)
    return Format(ENDINGS[kind], OPTIONS_OF.get(kind, {}))


# ---- files -----------------------------------------------------------------------------------------------------------

PATTERN = re.compile(r"[*?\[]")
NO_PARTITION = "__HIVE_DEFAULT_PARTITION__"  # the folder that stands for null


@dataclass(frozen=True)
class DataFile:
    """A file of a table."""

    system: fs.FileSystem
    path: str
    size: int
    changed: int | None  # time of its last change, in nanoseconds, if the file system knows
    partition: Mapping[str, str | None]  # column ─► its value, from folders such as day=3

    def open(self) -> Any:
        """The content, wherever it is asked for."""
        return self.system.open_input_file(self.path)

    def stream(self) -> Any:
        """The content from the beginning to the end. It is decompressed if the name says that it must be."""
        return self.system.open_input_stream(self.path)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Say of an error in the body which file is damaged."""
        try:
            yield
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            place = f"file:{self.path}" if isinstance(self.system, fs.LocalFileSystem) else self.path
            raise RequestError(f"the file {place} cannot be read, is it damaged? {in_one_line(error)}") from error


def in_one_line(error: Exception) -> str:
    words = " ".join(str(error).split())
    no_utf8 = isinstance(error, UnicodeDecodeError) or "invalid UTF8" in words
    return f"{words}: name its encoding, such as --option encoding=latin1" if no_utf8 else words


def data_files(path: str) -> list[DataFile]:
    """The files of a table, in the order of their names; none if the path is an empty folder.

    Raises FileNotFoundError if there is nothing.
    """
    system, inside = file_system(path)
    places = [inside]
    if isinstance(system, fs.LocalFileSystem) and PATTERN.search(inside) and not os.path.exists(inside):
        places = sorted(glob.glob(inside))
    infos = system.get_file_info(places)
    if not infos or any(info.type == fs.FileType.NotFound for info in infos):
        raise FileNotFoundError(path)
    return [file for info in infos for file in _files_at(system, info)]


def _files_at(system: fs.FileSystem, info: fs.FileInfo) -> Iterator[DataFile]:
    if info.type == fs.FileType.File:
        yield DataFile(system, info.path, info.size, info.mtime_ns, {})
        return
    entries = system.get_file_info(fs.FileSelector(info.path, recursive=True))
    for each in sorted(entries, key=lambda entry: entry.path):
        *folders, name = posixpath.relpath(each.path, info.path).split("/")
        inside = all("=" in folder for folder in folders)  # Spark looks into no other folders
        if each.type == fs.FileType.File and inside and all(map(is_data, (*folders, name))):
            values = (unquote(folder).partition("=") for folder in folders)
            partition = {column: None if value == NO_PARTITION else value for column, _, value in values}
            yield DataFile(system, each.path, each.size, each.mtime_ns, partition)
