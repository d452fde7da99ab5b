"""Folders of this machine, without Spark: which paths are meant, and output that appears whole or not at all."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from onebit_spark.core.output_kinds import OutputKind
from onebit_spark.errors import RequestError

REMOTE = re.compile(r"(?!file:)[A-Za-z][A-Za-z0-9+.-]+:/")


def local_path(path: str | os.PathLike[str]) -> Path:
    """The path without ``file:``. Raises a RequestError if it is on another machine, such as hdfs:// or s3://."""
    text = os.fspath(path)
    if REMOTE.match(text):
        raise RequestError(
            f"{text} is not a folder of this machine, and without Spark only such folders can be used: copy it here, "
            "or use OneBitCompletionModel, which reads and writes wherever Spark does"
        )
    return Path(re.sub(r"^file:(//)?(?=/)", "", text))


@dataclass(frozen=True)
class LocalView:
    """An output on this machine: an ``output_kinds.Place``."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    def exists(self) -> bool:
        return self.path.exists()

    def sibling(self, name: str) -> LocalView:
        return LocalView(self.path.with_name(name))

    def move_to(self, target: LocalView) -> None:
        self.path.rename(target.path)

    def delete(self) -> None:
        if self.path.is_dir() and not self.path.is_symlink():
            shutil.rmtree(self.path, ignore_errors=True)
        else:
            self.path.unlink(missing_ok=True)

    def is_folder(self) -> bool:
        return self.path.is_dir()

    def names(self, folder: str = "") -> list[str]:
        place = self.path / folder
        return sorted(entry.name for entry in place.iterdir()) if place.is_dir() else []

    def text(self, file: str = "") -> str:
        place = self.path / file
        return place.read_text(encoding="utf-8", errors="replace") if place.is_file() else ""

    def columns(self) -> list[str]:
        with contextlib.suppress(pa.ArrowInvalid):
            return next((list(pq.read_schema(part).names) for part in sorted(self.path.glob("part-*"))), [])
        return []


@contextlib.contextmanager
def replaced_folder(path: str | os.PathLike[str], kind: OutputKind, overwrite: bool = False) -> Iterator[Path]:
    """Yield a new folder to write. At the end it is at ``path``, complete; after an error nothing changed.

    With ``overwrite`` it replaces an output of the same kind, and nothing else.
    """
    target = local_path(path)
    with kind.written_beside(LocalView(target), target, overwrite) as fresh:
        fresh.path.mkdir(parents=True)
        yield fresh.path
