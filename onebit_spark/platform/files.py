"""Files by URI, and folders that appear whole or not at all.

This module imports no Spark.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from onebit_spark.core.output_kinds import OutputKind, deleted_on_error
from onebit_spark.errors import RequestError
from onebit_spark.platform.file_systems import ArrowPath, HadoopPath
from onebit_spark.platform.sessions import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RENAMING = ("file", "hdfs", "viewfs", "webhdfs", "swebhdfs")  # schemes that rename a folder in one atomic step
FAILURES = {"Py4JJavaError", "PySparkException", "OSError", "ArrowInvalid"}
LARGEST = 2**26  # bytes of a file by which an output is recognised
SEALS = ("metadata.json", "_SUCCESS")  # written last; a folder without one of these is not complete


class Location:
    """A path on the file system that its scheme names, without a session by Arrow. It is an ``output_kinds.Place``."""

    def __init__(self, spark: SparkSession | None, path: str | os.PathLike[str]) -> None:
        self._spark = spark
        text = os.fspath(path)
        with explained(f"cannot use {text!r}"):
            self._path: Any = ArrowPath(text) if spark is None or is_connect(spark) else HadoopPath(spark, text)
        self.uri, self.scheme, self.name = self._path.uri, self._path.scheme, self._path.name

    @property
    def spark(self) -> SparkSession:
        """The session that it was made with."""
        assert self._spark is not None
        return self._spark

    def __truediv__(self, name: str) -> Location:
        return Location(self._spark, f"{self.uri.rstrip('/')}/{name}")

    @property
    def parent(self) -> Location:
        return Location(self._spark, self._path.parent)

    def sibling(self, name: str) -> Location:
        return self.parent / name

    def exists(self) -> bool:
        with self._explained():
            return self._path.exists()

    def is_folder(self) -> bool:
        with self._explained():
            return self._path.is_folder()

    def children(self) -> list[Location]:
        """The content of the folder; an empty list if there is no such folder."""
        return [Location(self._spark, path) for path in self._paths()]

    def _paths(self) -> list[str]:
        with self._explained():
            return self._path.children() if self.is_folder() else []

    def delete(self) -> None:
        """Delete the file, or the folder with its content. Nothing happens if it does not exist."""
        self._path.delete()

    def move_to(self, target: Location) -> None:
        self._path.move_to(target._path)

    def read_text(self, most: int | None = None) -> str:
        """The content of a file, or its first ``most`` bytes."""
        with self._explained():
            return self._path.read(most).decode("utf-8", errors="replace")

    def write_text(self, text: str) -> None:
        self.write_bytes(text.encode("utf-8"))

    def write_bytes(self, content: bytes) -> None:
        """Write a file, and the folders above it. It appears whole, where the file system renames, or not at all."""
        self._path.write(content)

    def _explained(self) -> contextlib.AbstractContextManager[None]:
        return explained(f"cannot use {self.uri}")

    def names(self, folder: str = "") -> list[str]:
        return [os.path.basename(path.rstrip("/")) for path in (self / folder if folder else self)._paths()]

    def text(self, file: str = "") -> str:
        place = self / file if file else self
        return place.read_text(LARGEST) if place.exists() and not place.is_folder() else ""

    def columns(self) -> list[str]:
        with contextlib.suppress(RequestError), explained(""):
            return self._path.parquet_columns() if self._spark is None else self._spark.read.parquet(self.uri).columns
        return []


@contextlib.contextmanager
def replace_folder(
    spark: SparkSession | None, path: str | os.PathLike[str], kind: OutputKind, overwrite: bool = False
) -> Iterator[str]:
    """Yield the URI of a new folder to write. At the end it is at ``path``, complete; after an error nothing changed.

    With ``overwrite`` it replaces an output of the same kind, and nothing else.

    On a local disk and on HDFS it is written beside ``path`` and then renamed. Object stores have no rename. There the
    old folder is deleted (its file of ``SEALS`` first), and the new one is written in place. The caller writes its file
    of ``SEALS`` last.
    """
    target = Location(spark, path)
    if target.scheme in RENAMING:
        with kind.written_beside(target, path, overwrite) as fresh:
            yield fresh.uri
        return
    kind.check_target(target, path, overwrite)
    for name in SEALS:
        (target / name).delete()
    target.delete()
    with deleted_on_error(target):
        yield target.uri


@contextlib.contextmanager
def continued_folder(spark: SparkSession | None, path: str, kind: OutputKind, overwrite: bool) -> Iterator[Location]:
    """Yield a folder that is written in place, so a killed run can be continued there.

    With ``overwrite`` an existing one is replaced at the end: see ``replace_folder``.
    """
    place = Location(spark, path)
    if not (overwrite and place.exists()):
        yield place
        return
    with replace_folder(spark, path, kind, overwrite=True) as uri:
        yield Location(spark, uri)


@contextlib.contextmanager
def explained(complaint: str) -> Iterator[None]:
    """Raise errors of Spark and of file systems in the body as a RequestError of one line: ``complaint: reason``."""
    try:
        yield
    except Exception as error:
        kinds = {kind.__name__ for kind in type(error).__mro__}  # by name: Spark need not be installed
        if isinstance(error, RequestError) or not kinds & FAILURES:
            raise
        reason = error.java_exception.toString() if "Py4JJavaError" in kinds else str(error)  # type: ignore[attr-defined]
        raise RequestError(f"{complaint}: {_first_line(reason)}") from None


def _first_line(message: str) -> str:
    return message.strip().splitlines()[0] if message.strip() else "unknown error"


# ---- tables of Delta Lake, Iceberg and Hudi: only the log of such a table says which of its files count --------------


def table_format(spark: SparkSession | None, path: str) -> str | None:
    """delta, iceberg or hudi, if the path is a table or a part of one: a file, a partition, its folder of data.

    None if it is not, or cannot be seen from here. The path may have a pattern, such as ``table/*.parquet``.
    """
    try:
        place = Location(spark, re.sub(r"[^/]*[*?\[{].*", "", path) or ".")
        while (name := _format_of(place)) is None and _is_part(place):
            place = place.parent
    except RequestError:
        return None
    return name


def _format_of(place: Location) -> str | None:
    if not place.is_folder():
        return None
    if (place / "_delta_log").exists():
        return "delta"
    if (place / ".hoodie").exists():
        return "hudi"
    if any(name.endswith(".metadata.json") for name in place.names("metadata")):  # pyspark.ml has a metadata/, too
        return "iceberg"
    return None


def _is_part(place: Location) -> bool:
    return "=" in place.name or place.name == "data" or (place.exists() and not place.is_folder())
