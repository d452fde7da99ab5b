"""One thread for BLAS while a fit runs.

The driver's matrices are K × K. A thread of BLAS for each core costs more there than it brings: MovieLens-1M on a GPU
of a machine with 16 cores takes .5 instead of .8 s with one. And where our own threads call BLAS, its threads would
stand in their way.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Until the block ends. Nothing changes where threadpoolctl is missing, as it may be on a machine with a GPU."""
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        yield
        return
    with threadpool_limits(1, user_api="blas"):
        yield
