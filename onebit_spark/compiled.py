"""jit: numba's compiler with a cache that survives zipped, read-only and per-application installs, and edits.

numba keys its cache on a function's own file and path. Kernels here call each other across files, so an edit of an
inner loop would go unnoticed; and a zip shipped to an executor lies at a new path in every application. This cache is
keyed on the *contents* of all files with kernels, in a folder that only the user can write to.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import CompileResultCacheImpl, FunctionCache, _CacheLocator

# Sums may be reordered and fused (vector lanes), but infinities and NaN keep their meaning.
REORDERED_SUMS = frozenset({"reassoc", "contract", "nsz"})


def jit(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile on first call, without the interpreter lock, sums in any order; keep the result on disk."""
    dispatcher = numba.njit(nogil=True, fastmath=set(REORDERED_SUMS))(function)
    if cache_folder() is not None:
        dispatcher._cache = _Cache(function)  # type: ignore[attr-defined]
    return dispatcher


@cache
def cache_folder() -> Path | None:
    """$ONEBIT_CACHE, the user's cache folder, or one in the temporary folder: the first that can be written to."""
    digest = _kernel_digest()
    for base in _candidates():
        folder = base / f"kernels-{digest[:16]}"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError:
            continue
        if _is_private(folder):
            return folder
    return None


def _candidates() -> Iterator[Path]:
    if "ONEBIT_CACHE" in os.environ:
        yield Path(os.environ["ONEBIT_CACHE"])
    home = Path(os.path.expanduser("~"))
    if home.is_dir():
        yield Path(os.environ.get("XDG_CACHE_HOME", home / ".cache")) / "onebit_spark"
    yield Path(tempfile.gettempdir()) / f"onebit_spark-{os.getuid() if hasattr(os, 'getuid') else 'user'}"


def _is_private(folder: Path) -> bool:
    """Compiled code is only loaded from a folder that nobody else can have written to."""
    if not hasattr(os, "getuid"):
        return True
    status = folder.stat()
    return status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


@cache
def _kernel_digest() -> str:
    """A hash of every file of the package that compiles something."""
    digest = hashlib.sha256(numba.__version__.encode())
    for source in sorted(sources(files("onebit_spark")), key=lambda file: str(file)):
        text = source.read_bytes()
        if b"onebit_spark.compiled import jit" in text:
            digest.update(text)
    return digest.hexdigest()


def sources(folder: Traversable) -> Iterator[Traversable]:
    """The Python files of a package, wherever it was imported from."""
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from sources(entry)
        elif entry.name.endswith(".py"):
            yield entry


class _Locator(_CacheLocator):
    """Where a kernel's compiled form lies, whatever file or archive its source came from."""

    def __init__(self, function: Callable[..., Any], source_file: str) -> None:
        self._py_file = source_file
        self._line = function.__code__.co_firstlineno

    @classmethod
    def from_function(cls, function: Callable[..., Any], source_file: str) -> _Locator:
        return cls(function, source_file)

    def get_cache_path(self) -> str:
        return str(cache_folder())

    def get_source_stamp(self) -> str:
        return _kernel_digest()

    def get_disambiguator(self) -> str:
        return str(self._line)


class _CacheFiles(CompileResultCacheImpl):
    _locator_classes = [_Locator]  # noqa: RUF012


class _Cache(FunctionCache):
    _impl_class = _CacheFiles
