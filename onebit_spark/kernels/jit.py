"""jit: numba's compiler with a cache that works for zipped, read-only and per-application installs,
and after edits.

Numba's own cache is keyed by the path of a file and the name of a function. Here kernels of
different files call each other, so an edit of an inner loop would go unnoticed, and a zip that is
sent to an executor has a new path in every application. This cache is keyed by the *content* of all
files that contain kernels. Its folder is writable by the user alone.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import IO, Any

import numba
import numba.extending
from llvmlite import ir
from numba.core import cgutils, event, types
from numba.core.caching import CompileResultCacheImpl, FunctionCache, _CacheLocator
from numba.np.arrayobj import make_array

try:
    import fcntl
except ModuleNotFoundError:
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger("onebit_spark")

# Sums may be reordered and fused, for vector instructions. Infinities and NaN keep their meaning.
REORDERED_SUMS = frozenset({"reassoc", "contract", "nsz"})
_ARITHMETIC: dict[str, Any] = {"error_model": "numpy", "fastmath": set(REORDERED_SUMS)}
# An entry point for C takes time to compile and is not used
_NOT_FOR_C: dict[str, Any] = {"no_cfunc_wrapper": True}

PATIENCE = 1.0  # seconds of waiting for another process, before the log says so
_held: set[Path] = set()  # the lock files that threads of this process hold

_IMPORT = re.compile(
    r"^(?:from|import) (?P<module>[\w.]+)(?: import (?P<names>\([^)]*\)|.*))?", re.MULTILINE
)


def jit(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile at the first call, keep the result on disk, run without the interpreter lock, sum in
    any order.

    Division by zero gives ±∞ or NaN, as in numpy: the test for it would keep a loop from vector
    instructions.
    """
    dispatcher = numba.njit(**_ARITHMETIC, nogil=True, **_NOT_FOR_C)(function)
    if cache_folder() is not None:
        dispatcher._cache = _Cache(function)
    return dispatcher


def inner(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that only kernels call.

    It is compiled as a part of them, without a cache entry of its own.

    Called from Python it is plain Python.
    """
    return numba.extending.register_jitable(**_ARITHMETIC, **_NOT_FOR_C)(function)


def intrinsic(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that emits LLVM instructions, for kernels to call.

    Calls omit its first argument, ``typing``.
    """
    return numba.extending.intrinsic(function)


class _CompileTimer(event.Listener):
    """Adds up the time during which kernels are compiled.

    Numba compiles one at a time, and callees within callers.
    """

    def __init__(self) -> None:
        self.depth = 0
        self.began = 0.0
        self.total = 0.0

    def on_start(self, event: Any) -> None:
        if self.depth == 0:
            self.began = time.perf_counter()
        self.depth += 1

    def on_end(self, event: Any) -> None:
        self.depth -= 1
        if self.depth == 0:
            self.total += time.perf_counter() - self.began


_timer = _CompileTimer()
event.register("numba:compile", _timer)


def compile_seconds() -> float:
    """Seconds during which this process has compiled kernels so far, in any thread."""
    return _timer.total + (time.perf_counter() - _timer.began if _timer.depth else 0.0)


def book_compiling(seconds: float) -> None:
    """Add the seconds of other processes, which have compiled kernels for this one."""
    _timer.total += seconds


@cache
def cache_folder() -> Path | None:
    """The first writable one of $ONEBIT_CACHE, the user's cache folder, and the temporary
    folder.
    """
    home = Path(os.path.expanduser("~"))
    user = os.getuid() if hasattr(os, "getuid") else None
    asked = os.environ.get("ONEBIT_CACHE")  # as everywhere in a shell, empty means unset
    bases = [Path(asked)] if asked else []
    if home.is_dir():
        bases.append(Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "onebit_spark")
    bases.append(Path(tempfile.gettempdir()) / f"onebit_spark-{'user' if user is None else user}")
    for base in bases:
        folder = base / f"kernels-{_kernel_digest()[:16]}"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError:
            continue
        status = folder.stat()
        others_write = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        # Code is loaded from private folders alone
        if user is None or (status.st_uid == user and not others_write):
            return folder
    return None


@cache
def _kernel_digest() -> str:
    package = __name__.partition(".")[0]
    return digest_of({name: file.read_bytes() for name, file in sources(files(package), package)})


def digest_of(texts: Mapping[str, bytes]) -> str:
    """A hash of the modules (name ─► source) that contain kernels or that kernels depend on."""
    digest = hashlib.sha256(numba.__version__.encode())
    for name in sorted(kernel_modules(texts)):
        digest.update(f"\n# {name}\n".encode() + texts[name])
    return digest.hexdigest()


def kernel_modules(texts: Mapping[str, bytes]) -> set[str]:
    """The modules that mention ``jit``, and all modules that they import, directly or indirectly.

    Imported modules count because a compiled kernel contains the values of imported constants.
    """
    kernels: set[str] = set()
    waiting = [
        name for name, text in texts.items() if b"jit" in text and re.search(rb"\bjit\b", text)
    ]
    while waiting:
        name = waiting.pop()
        if name in texts and name not in kernels:
            kernels.add(name)
            waiting += _imported(texts[name], texts)
    return kernels


def _imported(text: bytes, known: Container[str]) -> Iterator[str]:
    """The modules that a file imports at its top, by a pattern: parsing the files would slow down
    every start.
    """
    for match in _IMPORT.finditer(text.decode()):
        for name in re.findall(r"\w+", match["names"] or "") or [""]:
            submodule = f"{match['module']}.{name}"
            yield submodule if submodule in known else match["module"]


def sources(folder: Traversable, name: str) -> Iterator[tuple[str, Traversable]]:
    """The modules of a package and their files, also from a zip."""
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from sources(entry, f"{name}.{entry.name}")
        elif entry.name.endswith(".py"):
            yield name if entry.name == "__init__.py" else f"{name}.{entry.name[:-3]}", entry


class _Locator(_CacheLocator):
    """The place of a compiled kernel in the cache, for source in a file or in an archive."""

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
    """Numba's cache, which logs once that kernels are compiled and lets one process write at a
    time.
    """

    _impl_class = _CacheFiles

    def save_overload(self, sig: Any, data: Any) -> None:
        say_compiling()
        # Otherwise two processes could give the same name to two kernels
        with locked(cache_folder()):
            super().save_overload(sig, data)


@contextmanager
def locked(folder: Path | None, name: str = "lock") -> Iterator[None]:
    """Hold a lock file of the folder. Where files cannot be locked, nothing is locked."""
    with ExitStack() as release:
        if folder is not None and fcntl is not None:
            place = folder / name
            with suppress(OSError):
                _lock(release.enter_context(open(place, "w")), place)
                _held.add(place)
                release.callback(_held.discard, place)
        yield


def _lock(file: IO[str], place: Path) -> None:
    """Lock an open file, which another process or another thread may hold."""
    with suppress(BlockingIOError):
        return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    saying = threading.Timer(PATIENCE, lambda: place in _held or _say_waiting())
    saying.daemon = True
    saying.start()
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
    finally:
        saying.cancel()


@cache
def _say_waiting() -> None:
    log.info("waiting for another process, which compiles kernels on this machine")


@cache
def say_compiling() -> None:
    log.info(
        "compiling kernels for these settings, once on this machine: this run takes some 10 to 30 "
        "s longer"
    )


def compiled_kernels() -> dict[str, bytes]:
    """The files of the kernels that this machine has compiled, by name, for ``adopt_kernels`` on
    another machine.
    """
    folder = cache_folder()
    with locked(folder):
        return (
            {}
            if folder is None
            else {path.name: path.read_bytes() for path in sorted(folder.glob("*.nb[ci]"))}
        )


def adopt_kernels(kernels: Mapping[str, bytes]) -> None:
    """Put kernels of another machine into the cache.

    A function that has compiled kernels here keeps them.

    Numba loads those that were compiled for this kind of processor, and compiles the others.
    """
    folder = cache_folder()
    indices = [
        name
        for name in kernels
        if name.endswith(".nbi") and folder and not (folder / name).exists()
    ]
    if folder is None or not indices:
        return
    with locked(folder):
        for index in indices:
            stem = index.removesuffix("nbi")
            # The index is written last.
            for name in sorted(
                (each for each in kernels if each.startswith(stem)), key=index.__eq__
            ):
                part = folder / f"{name}.{os.getpid()}"
                part.write_bytes(kernels[name])
                part.replace(folder / name)


# ---- software prefetch -------------------------------------------------------------------------

# A table line is requested some ratings before it is read. In a table larger than the cache every
# rating is a cache miss, and the processor looks only a few ratings ahead. A prefetch changes no
# result.

AHEAD = 8  # ratings
CACHE_LINE = 64  # bytes
SMALL_TABLE = 1 << 20  # bytes


@intrinsic
def prefetch(typing, table, row, byte):  # type: ignore[no-untyped-def]
    """Prefetch the cache line that holds byte ``byte`` of a row of a contiguous table."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        array = make_array(table)(context, builder, arguments[0])
        width = builder.extract_value(array.strides, 0)
        pointer = ir.IntType(8).as_pointer()
        number = ir.IntType(32)
        start = builder.bitcast(array.data, pointer)
        place = builder.gep(start, [builder.add(builder.mul(arguments[1], width), arguments[2])])
        kind = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [place, number(0), number(3), number(1)])  # to read, keep, data
        return context.get_dummy_value()

    return types.void(table, types.intp, types.intp), generate


@inner
def prefetch_rows(table, codes, l, n):  # type: ignore[no-untyped-def]
    """Prefetch the table lines of ratings l … l+n−1, as far as there are any.

    Small tables are in the cache anyway.
    """
    bytes_per_row = table.shape[1] * table.itemsize
    if len(table) * bytes_per_row < SMALL_TABLE:
        return
    for m in range(l, min(l + n, len(codes))):
        row = codes[m] >> 1
        for byte in range(0, bytes_per_row, CACHE_LINE):
            prefetch(table, row, byte)
