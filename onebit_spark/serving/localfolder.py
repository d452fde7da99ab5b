"""Folders of this machine, without Spark: which paths are meant, and output that appears whole or not at all."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

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


@contextlib.contextmanager
def replaced_folder(path: str | os.PathLike[str], overwrite: bool = False) -> Iterator[Path]:
    """Yield a new folder to write. At the end it is at ``path``, complete; after an error nothing changed.

    It is written under a hidden name beside ``path`` and then renamed, as by ``platform.files.replace_folder``.
    """
    target = local_path(path)
    _refuse_existing(target, overwrite)
    token = uuid.uuid4().hex[:8]
    fresh, old = (target.with_name(f".{target.name}.{state}-{token}") for state in ("writing", "replaced"))
    fresh.mkdir(parents=True)
    try:
        yield fresh
        _refuse_existing(target, overwrite)
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


def _refuse_existing(target: Path, overwrite: bool) -> None:
    if not target.name:
        raise RequestError(f"cannot write to {target}: name a folder below it")
    if not overwrite and target.exists():
        raise RequestError(f"the output {target} exists: choose another path, or allow it to be overwritten")
