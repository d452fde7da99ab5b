"""Arrays on their way between this machine's memory and the GPU's: many small pieces, several at a time.

The device reads and writes only memory that is pinned. A copy of other memory goes through a buffer of the driver, at
1 or 2 GB/s. Here threads copy pieces into pinned buffers of their own, while others are on their way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core.machine import available_cores
from onebit_spark.core.posterior import RowPosterior
from onebit_spark.engines.cuda.device import cupy

PIECE = 16 * 2**20  # bytes
MOST_THREADS = 8

_own = threading.local()


def upload(array: NDArray[Any]) -> Any:
    """The array on the device."""
    array = np.ascontiguousarray(array)
    out = cupy().empty(array.shape, array.dtype)
    cupy().cuda.get_current_stream().synchronize()  # a kernel may still use memory that was free for this array
    given, made = array.reshape(-1), out.reshape(-1)

    def work(part: slice, buffer: NDArray[Any], stream: Any) -> None:
        np.copyto(buffer, given[part])
        made[part].set(buffer, stream=stream)
        stream.synchronize()

    _in_pieces(given, work)
    return out


def download(array: Any) -> NDArray[Any]:
    """An array of the device, here."""
    array = cupy().ascontiguousarray(array)
    cupy().cuda.get_current_stream().synchronize()
    out = np.empty(array.shape, array.dtype)
    given, made = array.reshape(-1), out.reshape(-1)

    def work(part: slice, buffer: NDArray[Any], stream: Any) -> None:
        given[part].get(stream=stream, out=buffer)
        stream.synchronize()
        np.copyto(made[part], buffer)

    _in_pieces(made, work)
    return out


def uploaded(posterior: RowPosterior) -> RowPosterior:
    """A posterior whose arrays are on the device."""
    return _with_arrays(posterior, lambda array: upload(array.astype(np.float32, copy=False)))


def downloaded(posterior: RowPosterior) -> RowPosterior:
    """The inverse."""
    return _with_arrays(posterior, download)


def _with_arrays(posterior: RowPosterior, move: Callable[[Any], Any]) -> RowPosterior:
    implicit = None if posterior.implicit is None else move(posterior.implicit)
    return replace(posterior, location=move(posterior.location), scale=move(posterior.scale), implicit=implicit)


def _in_pieces(array: NDArray[Any], work: Callable[[slice, NDArray[Any], Any], None]) -> None:
    """``work`` for every piece, with a pinned buffer and a stream."""
    length = max(1, PIECE // array.itemsize)
    pieces = [slice(lo, min(lo + length, len(array))) for lo in range(0, len(array), length)]

    def one(part: slice) -> None:
        if not hasattr(_own, "buffer"):
            import cupyx

            _own.buffer, _own.stream = cupyx.empty_pinned(PIECE, np.uint8), cupy().cuda.Stream(non_blocking=True)
        size = (part.stop - part.start) * array.itemsize
        work(part, _own.buffer[:size].view(array.dtype), _own.stream)

    if len(pieces) == 1:
        one(pieces[0])
    else:
        with ThreadPoolExecutor(min(MOST_THREADS, available_cores(), len(pieces))) as pool:
            list(pool.map(one, pieces))
