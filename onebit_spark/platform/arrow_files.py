"""A path on the file systems that Arrow knows, for Spark Connect, where there is no JVM to ask.

This process and the server must see the same files under the same path: a shared disk, a mounted volume, or an object
store (s3://, gs://, abfss://, hdfs://) for which this machine has credentials.
"""

from __future__ import annotations

import os
import posixpath
import re
from contextlib import suppress

from pyarrow import fs


class ArrowPath:
    """See ``files.FilePath``."""

    def __init__(self, path: str) -> None:
        if not path:
            raise OSError("the path is empty")
        path = re.sub(r"^file:(//)?(?=/)", "", path)
        if found := re.match(r"([A-Za-z][A-Za-z0-9+.-]+)://", path):
            self._files, self._path = fs.FileSystem.from_uri(path)
            self.scheme = found[1]
            self.uri = path.rstrip("/")
        else:
            self._files = fs.LocalFileSystem()
            self._path = os.path.abspath(path)
            self.scheme = "file"
            self.uri = f"file:{self._path}"
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

    def _kind(self) -> fs.FileType:
        return self._files.get_file_info(self._path).type
