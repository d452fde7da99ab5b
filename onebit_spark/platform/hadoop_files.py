"""A path on the file systems that Hadoop knows, through Spark's driver."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession


class HadoopPath:
    """See ``files.FilePath``."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        jvm: Any = spark._jvm
        jvm_session: Any = spark._jsparkSession
        bare = jvm.org.apache.hadoop.fs.Path(path)
        self._files = bare.getFileSystem(jvm_session.sessionState().newHadoopConf())
        self._path = bare.makeQualified(self._files.getUri(), self._files.getWorkingDirectory())
        self.uri: str = self._path.toString()
        self.scheme: str = self._path.toUri().getScheme()
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


def statuses(spark: SparkSession, uris: Sequence[str]) -> dict[str, tuple[int, int]]:
    """URI of a file ─► its length in bytes, and the time of its last change in milliseconds.

    Every folder is listed once. Files that are not there are left out.
    """
    jvm: Any = spark._jvm
    jvm_session: Any = spark._jsparkSession
    configuration = jvm_session.sessionState().newHadoopConf()
    listed: dict[str, dict[str, tuple[int, int]]] = {}
    found = {}
    for uri in uris:
        path = jvm.org.apache.hadoop.fs.Path(jvm.java.net.URI(uri))
        folder, name = path.getParent(), str(path.getName())
        if (key := str(folder.toString())) not in listed:
            files = folder.getFileSystem(configuration)
            entries = files.listStatus(folder) if files.exists(folder) else []
            listed[key] = {str(e.getPath().getName()): (int(e.getLen()), int(e.getModificationTime())) for e in entries}
        if name in listed[key]:
            found[uri] = listed[key][name]
    return found
