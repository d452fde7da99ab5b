"""The GPU of this machine: its memory, its compiled kernels, and transfers of arrays.

The device reads and writes pinned memory only. A copy of other memory goes through a buffer of the
driver, at 1 or 2 GB/s. Here several threads copy pieces into pinned buffers of their own while
other pieces are being transferred.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core.posterior import Form, RowPosterior
from onebit_spark.engines.cuda.shapes import Shape
from onebit_spark.errors import RequestError
from onebit_spark.settings import available_cores, no_device

Array = Any  # an array of the device: CuPy has no types
Kernel = Callable[..., None]

INCLUDE = re.compile(r'#include "(\w+\.cuh)"')
OPTIONS = ("-std=c++17",)
# Threads suffice: the compiler does not hold the interpreter lock
COMPILERS = ThreadPoolExecutor(8)
SPARE = 0.9  # share of the free memory that a fit may use


@cache
def cupy() -> Any:
    """CuPy; a RequestError if it cannot be used here."""
    lacking = no_device()
    if lacking is not None:
        raise RequestError(f"device='cuda' {lacking}")
    import cupy

    return cupy


def bytes_needed(n: int, n_rows: int, n_cols: int, form: Form, weighted: bool) -> int:
    """GPU memory at the peak of a fit.

    A rating takes 4 bytes in each orientation, and the same again in the nine tenths on which the
    settings are chosen; weights double both. While the nine tenths are sorted, before any row
    exists, a rating takes 46 bytes, with weights 80. A row takes its posterior three times (the
    choice may return to a saved state), its lines and its sums. The start takes four tables of
    double precision."""
    shape = Shape.of(form)
    row = 4 * (3 * form.width + shape.row_width + shape.line.sums + shape.line.width)
    start = 8 * 4 * (form.rank + 6)
    return max(
        n * (80 if weighted else 46),
        n * (32 if weighted else 16) + (n_rows + n_cols) * max(row, start),
    )


def usable_bytes() -> int:
    """GPU memory that a fit may use: what is free, and what CuPy's pool already holds in this
    process.
    """
    free, _ = cupy().cuda.runtime.memGetInfo()
    return int(SPARE * (free + cupy().get_default_memory_pool().total_bytes()))


def check_memory(n: int, n_rows: int, n_cols: int, form: Form, weighted: bool) -> None:
    needed = bytes_needed(n, n_rows, n_cols, form, weighted)
    there = usable_bytes()
    if needed > there:
        raise RequestError(
            f"device='cuda' cannot work: {n:,} ratings of {n_rows:,} rows and {n_cols:,} columns "
            "take about "
            f"{needed / 1e9:.1f} GB of GPU memory, and {there / 1e9:.1f} GB are free: choose "
            "device='cpu', a lower "
            "rank (or max_rank), or covariance='diagonal'"
        )


@cache
def cache_bytes() -> int:
    return int(cupy().cuda.Device().attributes["L2CacheSize"])


def kernel(source: str, name: str, macros: Mapping[str, int], shared_bytes: int = 0) -> Kernel:
    """A kernel of a .cu file of this folder, compiled with these macros.

    CuPy caches what it has compiled on disk.
    """
    return _function(source, name, tuple(sorted(macros.items())), shared_bytes)


@cache
def _function(
    source: str, name: str, macros: tuple[tuple[str, int], ...], shared_bytes: int
) -> Kernel:
    function = _compiling(source, macros).result().get_function(name)
    if shared_bytes > 48 * 1024:
        function.max_dynamic_shared_size_bytes = shared_bytes
    return function


def compile_soon(source: str, macros: Mapping[str, int]) -> None:
    """Start compiling a .cu file with these macros. ``kernel`` waits for the result."""
    _compiling(source, tuple(sorted(macros.items())))


@cache
def _compiling(source: str, macros: tuple[tuple[str, int], ...]) -> Future[Any]:
    return COMPILERS.submit(_compiled, source, macros)


def _compiled(source: str, macros: tuple[tuple[str, int], ...]) -> Any:
    module = cupy().RawModule(code=plain_text(source, macros), options=OPTIONS)
    module.compile()
    return module


def plain_text(source: str, macros: Iterable[tuple[str, int]]) -> str:
    """A .cu file after its macros, without the Greek letters of its comments.

    The macros are part of the text and not options: CuPy queries the compiler's version for every
    set of options.
    """
    defined = "".join(f"#define {name} {value}\n" for name, value in macros)
    return (defined + text_of(source)).encode("ascii", "ignore").decode()


def text_of(source: str) -> str:
    """A .cu file of this folder, with the files that it includes. The folder may be in a zip."""

    def text(name: str) -> str:
        plain = files(__package__).joinpath(name).read_text(encoding="utf-8")
        return INCLUDE.sub(lambda match: text(match[1]), plain)

    return text(f"{source}.cu")


THREADS = 256  # threads of a block
NULL = np.intp(0)  # a null pointer


def or_null(array: Array) -> Array:
    """An array as an argument of a kernel; a null pointer for None."""
    return NULL if array is None else array


def launch(function: Kernel, n: int, *arguments: object) -> None:
    """Run a kernel with one thread for each of n numbers."""
    function((max(1, -(-n // THREADS)),), (THREADS,), arguments)


# ---- transfers ---------------------------------------------------------------------------------

PIECE = 16 * 2**20  # bytes
MOST_THREADS = 8

_local = threading.local()


def upload(array: NDArray[Any]) -> Array:
    array = np.ascontiguousarray(array)
    out = cupy().empty(array.shape, array.dtype)
    _wait()  # a queued kernel may still read this memory, if it was freed a moment ago
    source = array.reshape(-1)
    target = out.reshape(-1)

    def work(part: slice, buffer: NDArray[Any], stream: Any) -> None:
        np.copyto(buffer, source[part])
        target[part].set(buffer, stream=stream)
        stream.synchronize()

    _in_pieces(source, work)
    return out


def download(array: Array) -> NDArray[Any]:
    array = cupy().ascontiguousarray(array)
    _wait()
    out = np.empty(array.shape, array.dtype)
    source = array.reshape(-1)
    target = out.reshape(-1)

    def work(part: slice, buffer: NDArray[Any], stream: Any) -> None:
        source[part].get(stream=stream, out=buffer)
        stream.synchronize()
        np.copyto(target[part], buffer)

    _in_pieces(target, work)
    return out


def _wait() -> None:
    """Wait for all kernels: the pieces are transferred on other streams."""
    cupy().cuda.get_current_stream().synchronize()


def with_arrays(posterior: RowPosterior, move: Callable[[Array], Array]) -> RowPosterior:
    """The posterior with all its arrays moved, to the device or from it."""
    implicit = None if posterior.implicit is None else move(posterior.implicit)
    return replace(
        posterior, location=move(posterior.location), scale=move(posterior.scale), implicit=implicit
    )


def _in_pieces(array: NDArray[Any], work: Callable[[slice, NDArray[Any], Any], None]) -> None:
    """Call ``work`` for every piece, with a pinned buffer and a stream."""
    length = max(1, PIECE // array.itemsize)
    pieces = [slice(lo, min(lo + length, len(array))) for lo in range(0, len(array), length)]

    def one(part: slice) -> None:
        if not hasattr(_local, "buffer"):
            import cupyx

            _local.buffer = cupyx.empty_pinned(PIECE, np.uint8)
            _local.stream = cupy().cuda.Stream(non_blocking=True)
        size = (part.stop - part.start) * array.itemsize
        work(part, _local.buffer[:size].view(array.dtype), _local.stream)

    if len(pieces) < 2:
        for part in pieces:
            one(part)
    else:
        with ThreadPoolExecutor(min(MOST_THREADS, available_cores(), len(pieces))) as pool:
            list(pool.map(one, pieces))
