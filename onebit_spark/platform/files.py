"""Files by URI, through Hadoop's FileSystem, and folders that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from onebit_spark.errors import RequestError

RENAMING = ("file", "hdfs", "viewfs", "webhdfs", "swebhdfs")  # schemes that rename a folder in one atomic step
SEALS = ("metadata.json", "_SUCCESS")  # written last; a folder without one of these is not complete


class Location:
    """A path on the file system that its scheme names.

    Attributes
    ----------
    uri : str
        The full path.
    scheme : str
        The scheme, such as file or hdfs.
    name : str
        The last part of the path.
    """

    def __init__(self, spark: SparkSession, path: str | os.PathLike[str]) -> None:
        self.spark = spark
        with explained(f"cannot use {os.fspath(path)!r}"):
            bare = _jvm(spark).org.apache.hadoop.fs.Path(os.fspath(path))
            self._files = bare.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
            self._path = bare.makeQualified(self._files.getUri(), self._files.getWorkingDirectory())
        self.uri: str = self._path.toString()
        self.scheme: str = self._path.toUri().getScheme()
        self.name: str = self._path.getName()

    def __truediv__(self, name: str) -> Location:
        return Location(self.spark, f"{self.uri.rstrip('/')}/{name}")

    def sibling(self, name: str) -> Location:
        return Location(self.spark, self._path.getParent().toString()) / name

    def exists(self) -> bool:
        with explained(f"cannot use {self.uri}"):
            return bool(self._files.exists(self._path))

    def is_folder(self) -> bool:
        return self.exists() and bool(self._files.getFileStatus(self._path).isDirectory())

    def children(self) -> list[Location]:
        """The content of the folder; an empty list if there is no such folder."""
        if not self.is_folder():
            return []
        return [Location(self.spark, entry.getPath().toString()) for entry in self._files.listStatus(self._path)]

    def delete(self) -> None:
        """Delete the file, or the folder with its content. Nothing happens if it does not exist."""
        self._files.delete(self._path, True)

    def move_to(self, target: Location) -> None:
        if not self._files.rename(self._path, target._path):
            raise OSError(f"could not move {self.uri} to {target.uri}")

    def read_text(self) -> str:
        with explained(f"cannot use {self.uri}"):
            stream = self._files.open(self._path)
            try:
                return bytes(stream.readAllBytes()).decode("utf-8", errors="replace")
            finally:
                stream.close()

    def write_text(self, text: str) -> None:
        self.write_bytes(text.encode("utf-8"))

    def write_bytes(self, content: bytes) -> None:
        if self.scheme == "file":  # not through Hadoop, which would write a checksum file beside it
            local = Path(self.uri.removeprefix("file:"))
            local.parent.mkdir(parents=True, exist_ok=True)
            unfinished = local.with_name(f".{local.name}.writing")
            unfinished.write_bytes(content)
            os.replace(unfinished, local)
            return
        stream = self._files.create(self._path, True)
        try:
            stream.write(bytearray(content))
        finally:
            stream.close()


def refuse_existing(spark: SparkSession, path: str | os.PathLike[str], overwrite: bool) -> Location:
    """The location of an output. Raises a RequestError if it exists and may not be overwritten."""
    target = Location(spark, path)
    if not target.name:
        raise RequestError(f"cannot write to {target.uri}: name a folder below it")
    if not overwrite and target.exists():
        raise RequestError(f"the output {path} exists: choose another path, or allow it to be overwritten")
    return target


@contextlib.contextmanager
def replace_folder(spark: SparkSession, path: str | os.PathLike[str], overwrite: bool = False) -> Iterator[str]:
    """Yield the URI of a new folder to write. At the end it is at ``path``, complete; after an error nothing changed.

    On a local disk and on HDFS the folder is written under a hidden name beside ``path`` and then renamed. An old
    folder is moved away first, and comes back if the rename fails. A killed process may leave hidden folders, but never
    a part of a folder at ``path``. Object stores have no rename. There the old folder is deleted (its file of ``SEALS``
    first), and the new one is written in place. The caller writes its file of ``SEALS`` last.
    """
    target = refuse_existing(spark, path, overwrite)
    if target.scheme not in RENAMING:
        for name in SEALS:
            (target / name).delete()
        target.delete()
        with _deleted_on_error(target):
            yield target.uri
        return
    token = uuid.uuid4().hex[:8]
    fresh, old = target.sibling(f".{target.name}.writing-{token}"), target.sibling(f".{target.name}.replaced-{token}")
    with _deleted_on_error(fresh):
        yield fresh.uri
        refuse_existing(spark, path, overwrite)  # it may exist by now, and a rename would move the folder into it
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
def _deleted_on_error(folder: Location) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with contextlib.suppress(Exception):  # the first error is the one to report
            folder.delete()
        raise


@contextlib.contextmanager
def explained(complaint: str) -> Iterator[None]:
    """Raise errors of the JVM in the body as a RequestError of one line: ``complaint: reason``."""
    try:
        yield
    except Py4JJavaError as error:
        raise RequestError(f"{complaint}: {_first_line(error.java_exception.toString())}") from None
    except PySparkException as error:
        raise RequestError(f"{complaint}: {_first_line(str(error))}") from None


def _first_line(message: str) -> str:
    return message.strip().splitlines()[0] if message.strip() else "unknown error"


def _jvm(spark: SparkSession) -> Any:
    return spark._jvm
