"""Paths on the file systems of Hadoop, through Spark's driver, and on those of Arrow.

Arrow's are for jobs without Spark, and for Spark Connect, which gives no access to the JVM. This process and the server
must then see the same files under the same path: a shared disk, a mounted volume, or an object store (s3://, gs://,
abfss://, hdfs://) that this machine has credentials for. Both classes have the methods that ``files.Location`` calls.
"""

from __future__ import annotations

import os
import posixpath
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
# The whole name: to resolve `jvm.org.apache…` part by part would search all jars at each step, in 2 ms.
PATH = "org.apache.hadoop.fs.Path"
HADOOPS = {"s3a": "s3", "s3n": "s3"}  # schemes of Hadoop ─► those of Arrow


def file_system(path: str) -> tuple[fs.FileSystem, str]:
    """The file system of a path or URI, and the path there. Schemes that Arrow lacks are left to fsspec."""
    path = re.sub(r"^file:(//)?(?=/)", "", path)
    scheme = SCHEME.match(path)
    if scheme is None:
        return fs.LocalFileSystem(), os.path.abspath(path)
    try:
        system_and_path: tuple[fs.FileSystem, str] = fs.FileSystem.from_uri(
            HADOOPS.get(scheme[1], scheme[1]) + path[scheme.end(1) :]
        )
        return system_and_path
    except pa.ArrowInvalid as unknown:
        try:
            from fsspec.core import url_to_fs
        except ModuleNotFoundError:
            raise unknown from None
        system, inside = url_to_fs(path)
        return fs.PyFileSystem(fs.FSSpecHandler(system)), inside


class HadoopPath:
    """A path on a file system of Hadoop."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        jvm_session: Any = spark._jsparkSession
        bare = getattr(spark._jvm, PATH)(path)
        self._files = bare.getFileSystem(jvm_session.sessionState().newHadoopConf())
        self._path = self._files.makeQualified(bare)
        self.uri: str = self._path.toString()
        self.scheme = self.uri.partition(":")[0]
        self.name: str = self._path.getName()

    @property
    def parent(self) -> str:
        return str(self._path.getParent().toString())

    def exists(self) -> bool:
        return bool(self._files.exists(self._path))

    def is_folder(self) -> bool:
        return self.exists() and bool(self._files.getFileStatus(self._path).isDirectory())

    def children(self) -> list[str]:
        return [entry.getPath().toString() for entry in self._files.listStatus(self._path)]

    def delete(self) -> None:
        self._files.delete(self._path, True)

    def move_to(self, target: HadoopPath) -> None:
        if not self._files.rename(self._path, target._path):
            raise OSError(f"could not move {self.uri} to {target.uri}")

    def read(self, most: int | None = None) -> bytes:
        stream = self._files.open(self._path)
        try:
            return bytes(stream.readAllBytes() if most is None else stream.readNBytes(most))
        finally:
            stream.close()

    def write(self, content: bytes) -> None:
        if self.scheme == "file":  # not through Hadoop, which would write a checksum file beside it
            local = Path(self.uri.removeprefix("file:"))
            local.parent.mkdir(parents=True, exist_ok=True)
            unfinished = local.with_name(f".{local.name}.writing")
            try:
                unfinished.write_bytes(content)
                os.replace(unfinished, local)
            except BaseException:
                unfinished.unlink(missing_ok=True)
                raise
            return
        stream = self._files.create(self._path, True)
        try:
            stream.write(bytearray(content))
        finally:
            stream.close()


class ArrowPath:
    """A path on a file system of Arrow."""

    def __init__(self, path: str) -> None:
        if not path:
            raise OSError("the path is empty")
        self._files, self._path = file_system(path)
        local = isinstance(self._files, fs.LocalFileSystem)
        self.scheme = "file" if local else path.partition(":")[0]
        self.uri = f"file:{self._path}" if local else path.rstrip("/")
        self.name: str = posixpath.basename(self._path.rstrip("/"))

    @property
    def parent(self) -> str:
        return f"file:{posixpath.dirname(self._path)}" if self.scheme == "file" else posixpath.dirname(self.uri)

    def exists(self) -> bool:
        return self._kind() != fs.FileType.NotFound

    def is_folder(self) -> bool:
        return self._kind() == fs.FileType.Directory

    def children(self) -> list[str]:
        entries = self._files.get_file_info(fs.FileSelector(self._path))
        return [f"{self.uri}/{entry.base_name}" for entry in entries]

    def delete(self) -> None:
        if self.is_folder():
            self._files.delete_dir(self._path)
        elif self.exists():
            self._files.delete_file(self._path)

    def move_to(self, target: ArrowPath) -> None:
        self._files.move(self._path, target._path)

    def read(self, most: int | None = None) -> bytes:
        with self._files.open_input_stream(self._path) as stream:
            return bytes(stream.read(most))

    def write(self, content: bytes) -> None:
        self._files.create_dir(posixpath.dirname(self._path))
        unfinished = posixpath.join(posixpath.dirname(self._path), f".{self.name}.writing")
        try:
            with self._files.open_output_stream(unfinished) as stream:
                stream.write(content)
            self._files.move(unfinished, self._path)
        except BaseException:
            with suppress(OSError):  # the first error is the one to report
                self._files.delete_file(unfinished)
            raise

    def parquet_columns(self) -> list[str]:
        """The columns of the first part file in the folder."""
        parts = sorted(path for path in self.children() if posixpath.basename(path).startswith("part-"))
        if not parts:
            return []
        with self._files.open_input_file(posixpath.join(self._path, posixpath.basename(parts[0]))) as part:
            return list(pq.read_schema(part).names)

    def _kind(self) -> fs.FileType:
        return self._files.get_file_info(self._path).type
