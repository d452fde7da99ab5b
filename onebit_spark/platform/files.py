"""Files wherever their URI says, through Hadoop's FileSystem; and folders that appear whole or not at all."""

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

RENAMING = ("file", "hdfs", "viewfs", "webhdfs", "swebhdfs")  # schemes whose rename of a folder is one atomic step
SEALS = ("metadata.json", "_SUCCESS")  # written last: without its seal a folder does not count


class Location:
    """A path on whatever file system its scheme names. ``uri`` is the path in full."""

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
        """What the folder holds; nothing if there is no such folder."""
        if not self.is_folder():
            return []
        return [Location(self.spark, entry.getPath().toString()) for entry in self._files.listStatus(self._path)]

    def delete(self) -> None:
        """Delete the file, or the folder with all that it holds; nothing happens if there is none."""
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
        if self.scheme == "file":  # not through Hadoop, which would lay a checksum file beside it
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
    """The location of an output; a RequestError if something is there and may not be overwritten."""
    target = Location(spark, path)
    if not target.name:
        raise RequestError(f"cannot write to {target.uri}: name a folder below it")
    if not overwrite and target.exists():
        raise RequestError(f"the output {path} exists: choose another path, or let it be overwritten")
    return target


@contextlib.contextmanager
def replace_folder(spark: SparkSession, path: str | os.PathLike[str], overwrite: bool = False) -> Iterator[str]:
    """Yield the URI of a folder to write, not yet there; at the end it stands at ``path``, whole, or nothing changed.

    Local disk and HDFS: written as a hidden sibling, then renamed; what stood at ``path`` is moved aside first and
    comes back if the rename fails. A process killed half way leaves hidden siblings, never half a folder. Object
    stores have no rename: there the folder is written in place, after the old one was deleted, its seal first; the
    caller writes its own seal (``SEALS``) last.
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
        refuse_existing(spark, path, overwrite)  # it may have appeared meanwhile; a rename would move into it
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
        with contextlib.suppress(Exception):  # the first error is the one to hear about
            folder.delete()
        raise


@contextlib.contextmanager
def explained(complaint: str) -> Iterator[None]:
    """What the JVM has against the body, as a RequestError of one line: ``complaint: reason``."""
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
