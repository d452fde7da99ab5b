"""Folders of this machine, without Spark: which paths are meant, and output that appears whole or not at all."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import uuid
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
    """An output on this machine: see ``output_kinds.View``."""

    path: Path

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

    With ``overwrite`` it replaces an output of the same kind, and nothing else. It is written under a hidden name
    beside ``path`` and then renamed, as by ``platform.files.replace_folder``.
    """
    target = local_path(path)
    _refuse_existing(target, kind, overwrite)
    token = uuid.uuid4().hex[:8]
    fresh, old = (target.with_name(f".{target.name}.{state}-{token}") for state in ("writing", "replaced"))
    fresh.mkdir(parents=True)
    try:
        yield fresh
        _refuse_existing(target, kind, overwrite)
        replaced = target.exists()
        if replaced:
            target.rename(old)
        try:
            fresh.rename(target)
        except BaseException:
            if replaced:
                old.rename(target)
            raise
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    if replaced:
        _deleted(old)


def _deleted(target: Path) -> None:
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target, ignore_errors=True)
    else:
        target.unlink()


def _refuse_existing(target: Path, kind: OutputKind, overwrite: bool) -> None:
    if not target.name:
        raise RequestError(f"cannot write to {target}: name a folder below it")
    if target.exists():
        if not overwrite:
            raise RequestError(f"the output {target} exists: choose another path, or allow it to be overwritten")
        kind.check(LocalView(target), f"the output {target}")
