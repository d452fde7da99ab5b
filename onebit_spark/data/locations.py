"""Files by URI, folders that appear whole or not at all, and the kinds of output, with what each
may overwrite.

A session reaches its files by Hadoop. Arrow serves jobs without Spark, and Spark Connect, which
gives no access to the JVM. This process and the server must then see the same files under the same
path: a shared disk, a mounted volume, or an object store (s3://, gs://, abfss://, hdfs://) that
this machine has credentials for. This module imports no Spark.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from pyarrow import fs

from onebit_spark.engines.spark.sessions import JavaObject, is_connect
from onebit_spark.errors import RequestError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
# The whole name: to resolve `jvm.org.apache…` part by part would search all jars at each step, in 2
# ms.
PATH = "org.apache.hadoop.fs.Path"
HADOOPS = {"s3a": "s3", "s3n": "s3"}  # schemes of Hadoop ─► those of Arrow
# Schemes that rename a folder in one atomic step
RENAMING = (
    "file",
    "hdfs",
    "viewfs",
    "webhdfs",
    "swebhdfs",
)
FAILURES = {"Py4JJavaError", "PySparkException", "OSError", "ArrowInvalid"}
LARGEST = 2**26  # bytes of a file by which an output is recognised
SEALS = ("metadata.json", "_SUCCESS")  # written last; a folder without one of these is not complete

T = TypeVar("T")


def file_system(path: str) -> tuple[fs.FileSystem, str]:
    """Arrow's file system of a path or URI, and the path there.

    Schemes that Arrow lacks are left to fsspec.
    """
    path = re.sub(r"^file:(//)?(?=/)", "", path)
    scheme = SCHEME.match(path)
    if scheme is None:
        return fs.LocalFileSystem(), os.path.abspath(path)
    try:
        system, inside = fs.FileSystem.from_uri(
            HADOOPS.get(scheme[1], scheme[1]) + path[scheme.end(1) :]
        )
        return system, inside
    except pa.ArrowInvalid as unknown:
        try:
            from fsspec.core import url_to_fs
        except ModuleNotFoundError:
            raise unknown from None
        try:
            system, inside = url_to_fs(path)
        except ValueError:  # fsspec does not know the scheme either
            raise unknown from None
        except ImportError as lacking:  # the message names the package to install
            raise OSError(str(lacking)) from None
        return fs.PyFileSystem(fs.FSSpecHandler(system)), inside


@contextlib.contextmanager
def explained(complaint: str) -> Iterator[None]:
    """Raise errors of Spark and of file systems in the body as a RequestError of one line:
    ``complaint: reason``.
    """
    try:
        yield
    except Exception as error:
        # By name: Spark need not be installed
        kinds = {kind.__name__ for kind in type(error).__mro__}
        if isinstance(error, RequestError) or not kinds & FAILURES:
            raise
        reason = str(error)
        if "Py4JJavaError" in kinds:
            reason = error.java_exception.toString()  # type: ignore[attr-defined]
        raise RequestError(
            f"{complaint}: {(reason.strip() or 'unknown error').splitlines()[0]}"
        ) from None


def _explaining(method: Callable[..., T]) -> Callable[..., T]:
    """A method of a Location that raises errors of its file system as a RequestError."""

    @wraps(method)
    def call(self: Location, *args: Any) -> T:
        with explained(f"cannot use {self.uri}"):
            return method(self, *args)

    return call


class Location:
    """A path on the file system that its scheme names, by Arrow or, with a classic session, by
    Hadoop.
    """

    uri: str
    scheme: str
    name: str

    def __new__(cls, spark: SparkSession | None, path: str | os.PathLike[str]) -> Location:
        return object.__new__(Location if spark is None or is_connect(spark) else HadoopLocation)

    def __init__(self, spark: SparkSession | None, path: str | os.PathLike[str]) -> None:
        self._spark = spark
        with explained(f"cannot use {os.fspath(path)!r}"):
            self._open(os.fspath(path))

    @property
    def spark(self) -> SparkSession:
        assert self._spark is not None
        return self._spark

    def __truediv__(self, name: str) -> Location:
        return Location(self._spark, f"{self.uri.rstrip('/')}/{name}")

    def sibling(self, name: str) -> Location:
        return self.parent / name

    def children(self) -> list[Location]:
        return [Location(self._spark, path) for path in self._paths()]

    def names(self, folder: str = "") -> list[str]:
        """The names in this folder, or in one inside it; an empty list if there is no such
        folder.
        """
        return [
            os.path.basename(path.rstrip("/"))
            for path in (self / folder if folder else self)._paths()
        ]

    def read_text(self, most: int | None = None) -> str:
        return self._read(most).decode("utf-8", errors="replace")

    def text(self, file: str = "") -> str:
        """The content of this file, or of one inside this folder; an empty text if there is no such
        file.
        """
        place = self / file if file else self
        return place.read_text(LARGEST) if place.exists() and not place.is_folder() else ""

    def write_text(self, text: str) -> None:
        self.write_bytes(text.encode("utf-8"))

    # ---- by Arrow

    def _open(self, path: str) -> None:
        if not path:
            raise OSError("the path is empty")
        self._files: Any
        self._path: Any
        self._files, self._path = file_system(path)
        local = isinstance(self._files, fs.LocalFileSystem)
        self.scheme = "file" if local else path.partition(":")[0]
        self.uri = f"file:{self._path}" if local else path.rstrip("/")
        self.name = posixpath.basename(self._path.rstrip("/"))

    @property
    def parent(self) -> Location:
        folder = (
            f"file:{posixpath.dirname(self._path)}"
            if self.scheme == "file"
            else posixpath.dirname(self.uri)
        )
        return Location(self._spark, folder)

    @_explaining
    def exists(self) -> bool:
        return bool(self._files.get_file_info(self._path).type != fs.FileType.NotFound)

    @_explaining
    def is_folder(self) -> bool:
        return bool(self._files.get_file_info(self._path).type == fs.FileType.Directory)

    @_explaining
    def _paths(self) -> list[str]:
        if not self.is_folder():
            return []
        entries = self._files.get_file_info(fs.FileSelector(self._path))
        return [f"{self.uri}/{entry.base_name}" for entry in entries]

    def delete(self) -> None:
        """Delete the file, or the folder with its content. Nothing happens if it does not exist."""
        if self.is_folder():
            self._files.delete_dir(self._path)
        elif self.exists():
            self._files.delete_file(self._path)

    def move_to(self, target: Location) -> None:
        self._files.move(self._path, target._path)

    @_explaining
    def _read(self, most: int | None) -> bytes:
        with self._files.open_input_stream(self._path) as stream:
            return bytes(stream.read(most))

    def write_bytes(self, content: bytes) -> None:
        """Write a file, and the folders above it.

        It appears whole, where the file system renames, or not at all.
        """
        folder = posixpath.dirname(self._path)
        self._files.create_dir(folder)
        unfinished = posixpath.join(folder, f".{self.name}.writing")
        try:
            with self._files.open_output_stream(unfinished) as stream:
                stream.write(content)
            self._files.move(unfinished, self._path)
        except BaseException:
            with contextlib.suppress(OSError):  # the first error is the one to report
                self._files.delete_file(unfinished)
            raise


class HadoopLocation(Location):
    def _open(self, path: str) -> None:
        jvm_session: JavaObject = self.spark._jsparkSession
        bare = getattr(self.spark._jvm, PATH)(path)
        self._files = bare.getFileSystem(jvm_session.sessionState().newHadoopConf())
        self._path = self._files.makeQualified(bare)
        self.uri = self._path.toString()
        self.scheme = self.uri.partition(":")[0]
        self.name = self._path.getName()

    @property
    def parent(self) -> Location:
        return Location(self._spark, self._path.getParent().toString())

    @_explaining
    def exists(self) -> bool:
        return bool(self._files.exists(self._path))

    @_explaining
    def is_folder(self) -> bool:
        return bool(
            self._files.exists(self._path) and self._files.getFileStatus(self._path).isDirectory()
        )

    @_explaining
    def _paths(self) -> list[str]:
        if not self.is_folder():
            return []
        return [entry.getPath().toString() for entry in self._files.listStatus(self._path)]

    def delete(self) -> None:
        self._files.delete(self._path, True)

    def move_to(self, target: Location) -> None:
        # Not by Hadoop, which would move the checksum file beside it, too
        if self.scheme == "file":
            Location(None, self.uri).move_to(Location(None, target.uri))
        elif not self._files.rename(self._path, target._path):
            raise OSError(f"could not move {self.uri} to {target.uri}")

    @_explaining
    def _read(self, most: int | None) -> bytes:
        with contextlib.closing(self._files.open(self._path)) as stream:
            return bytes(stream.readAllBytes() if most is None else stream.readNBytes(most))

    def write_bytes(self, content: bytes) -> None:
        if self.scheme == "file":  # not by Hadoop, which would write a checksum file beside it
            Location(None, self.uri).write_bytes(content)
            return
        with contextlib.closing(self._files.create(self._path, True)) as stream:
            stream.write(bytearray(content))


# ---- outputs -----------------------------------------------------------------------------------

PREDICTED = {"score", "std", "probability"}  # columns of all predictions and recommendations
MARKER = (
    "_onebit_spark"  # names the kind of a folder; Spark and Arrow read no file with such a name
)
# What Spark leaves in a folder without data
UNFINISHED = {
    "_SUCCESS",
    "._SUCCESS.crc",
    "_temporary",
}


@dataclass(frozen=True)
class OutputKind:
    """A kind of output, which replaces outputs of the same kind and nothing else.

    Any kind may replace an empty folder, or an empty file where a file is written.
    """

    name: str  # in words, with its article
    mark: str = ""  # a pattern in a file of this kind; a folder has a file ``MARKER`` with the name

    @property
    def is_file(self) -> bool:
        return bool(self.mark)

    def is_own(self, output: Location) -> bool:
        if self.is_file:
            return re.search(self.mark, output.text()) is not None
        marked = output.text(MARKER) == self.name
        # A folder of ours may have become a table of Delta Lake, Iceberg or Hudi since.
        return marked and table_format(output._spark, output.uri) is None

    def write_marker(self, folder: Location) -> None:
        (folder / MARKER).write_text(self.name)

    def may_replace(self, output: Location) -> bool:
        if output.is_folder() == self.is_file:
            return False
        blank = not output.text().strip() if self.is_file else set(output.names()) <= UNFINISHED
        return blank or self.is_own(output)

    def check(self, output: Location, place: str) -> None:
        if not self.may_replace(output):
            raise RequestError(
                f"{place} is not {self.name} of onebit_spark, and nothing else is overwritten: "
                "choose another path, "
                "or delete it yourself"
            )

    def check_target(self, target: Location, path: object, overwrite: bool) -> None:
        """Raise a RequestError if there is an output at the path that may not be overwritten, or is
        something else.
        """
        if not target.name:
            raise RequestError(f"cannot write to {path}: name a folder below it")
        if target.exists():
            if not overwrite:
                raise RequestError(
                    f"the output {path} exists: choose another path, or allow it to be overwritten"
                )
            self.check(target, f"the output {path}")

    @contextlib.contextmanager
    def written_beside(self, target: Location, path: object, overwrite: bool) -> Iterator[Location]:
        """Yield a place for a new folder.

        At the end it is at ``target``, complete; after an error nothing changed.

        It has a hidden name beside the target, and is renamed at the end. An old folder is moved
        away first, and comes back if the rename fails. A killed process may leave hidden folders,
        but never a part of a folder at the target.
        """
        self.check_target(target, path, overwrite)
        token = uuid.uuid4().hex[:8]
        fresh, old = (
            target.sibling(f".{target.name}.{state}-{token}") for state in ("writing", "replaced")
        )
        with deleted_on_error(fresh):
            yield fresh
            # It may exist by now: a rename would move the folder into it
            self.check_target(target, path, overwrite)
            replaced = target.exists()
            if replaced:
                target.move_to(old)
            try:
                fresh.move_to(target)
            except BaseException:
                if replaced:
                    old.move_to(target)
                raise
        if replaced:
            old.delete()


@contextlib.contextmanager
def deleted_on_error(folder: Location) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with contextlib.suppress(Exception):  # the first error is the one to report
            folder.delete()
        raise


@contextlib.contextmanager
def replace_folder(
    spark: SparkSession | None,
    path: str | os.PathLike[str],
    kind: OutputKind,
    overwrite: bool = False,
) -> Iterator[str]:
    """Yield the URI of a new folder, which has its marker. At the end it is at ``path``, complete.

    After an error nothing changed. With ``overwrite`` it replaces an output of the same kind, and
    nothing else.

    On a local disk and on HDFS it is written beside ``path`` and then renamed. Object stores have
    no rename. There the old folder is deleted (its file of ``SEALS`` first), and the new one is
    written in place. The caller writes its file of ``SEALS`` last.
    """
    target = Location(spark, path)
    if target.scheme in RENAMING:
        with kind.written_beside(target, path, overwrite) as fresh:
            kind.write_marker(fresh)
            yield fresh.uri
        return
    kind.check_target(target, path, overwrite)
    for name in SEALS:
        (target / name).delete()
    target.delete()
    with deleted_on_error(target):
        kind.write_marker(target)
        yield target.uri


MODEL = OutputKind("a model")
ESTIMATOR = OutputKind("an estimator")
VECTORS = OutputKind("a folder of vectors")
PREDICTIONS = OutputKind("a folder of predictions")
PREDICTIONS_CSV = OutputKind(
    "a CSV file of predictions", r'\A.*"?\bscore"?,"?std"?,"?probability\b'
)
POSITIONS = OutputKind("a folder of positions")
POSITIONS_CSV = OutputKind("a CSV file of positions", r"\A.*\bn_ratings\b.*\b(dim|slope)1_std\b")
TABLES = {"predictions": (PREDICTIONS, PREDICTIONS_CSV), "positions": (POSITIONS, POSITIONS_CSV)}
MAP_MARK = "<!-- a map of onebit_spark -->"
MAP = OutputKind("a map", MAP_MARK)
PAGE_MARK = "<title>onebit_spark: "
PAGE = OutputKind("a report", PAGE_MARK)
METRICS = OutputKind("a file of figures", r'\A\{[\s\S]*"majority_error": ')


# ---- tables of Delta Lake, Iceberg and Hudi: only their log says which of their files count ------


def table_format(spark: SparkSession | None, path: str) -> str | None:
    """delta, iceberg or hudi, if the path is a table or a part of one: a file, a partition, its
    folder of data.

    None if it is not, or cannot be seen from here. The path may have a pattern, such as
    ``table/*.parquet``.
    """
    try:
        place = Location(spark, re.sub(r"[^/]*[*?\[{].*", "", path) or ".")
        while True:
            is_folder = place.is_folder()
            if is_folder and (place / "_delta_log").exists():
                return "delta"
            if is_folder and (place / ".hoodie").exists():
                return "hudi"
            # pyspark.ml has a metadata/, too
            if is_folder and any(
                name.endswith(".metadata.json") for name in place.names("metadata")
            ):
                return "iceberg"
            if "=" not in place.name and place.name != "data" and (is_folder or not place.exists()):
                return None
            place = place.parent
    except RequestError:
        return None
