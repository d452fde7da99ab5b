"""The GPU of this machine: whether there is one, what it can take, and its compiled kernels."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from onebit_spark.core.devices import missing
from onebit_spark.core.posterior import Form
from onebit_spark.engines.cuda.shapes import Shape
from onebit_spark.errors import RequestError

HEADER = "rows.cuh"
SPARE = 0.9  # share of the free memory that a fit may plan with


@cache
def cupy() -> Any:
    """CuPy. ``core.devices`` has looked before whether it is there."""
    lacking = missing()
    if lacking is not None:
        raise RequestError(f"device='cuda' {lacking}")
    import cupy

    return cupy


def bytes_needed(n: int, n_rows: int, n_cols: int, form: Form, weighted: bool) -> int:
    """Of GPU memory, at the peak of a fit.

    A fit holds a rating in 4 bytes in each orientation, and as many again for the nine tenths that make the choices;
    weights take as much. While the nine tenths are sorted, before there are any rows, a rating takes 40 bytes, with
    weights 72. A row has its posterior three times (a choice goes back to a saved state), its lines and its sums. The
    start has four tables of double precision.
    """
    shape = Shape.of(form, hinge=form.kind == "spread")  # the hinge's lines are the longer ones
    row = 4 * (3 * form.width + shape.own_width + shape.line.sums + shape.line.width)
    start = 8 * 4 * (form.rank + 6)
    return max(n * (72 if weighted else 40), n * (32 if weighted else 16) + (n_rows + n_cols) * max(row, start))


def room() -> int:
    """Bytes that a fit may plan with: what is free, and what this process holds."""
    free, _ = cupy().cuda.runtime.memGetInfo()
    return int(SPARE * (free + cupy().get_default_memory_pool().total_bytes()))


def check_memory(n: int, n_rows: int, n_cols: int, form: Form, weighted: bool) -> None:
    """Refuse what does not fit the memory of the device."""
    needed, there = bytes_needed(n, n_rows, n_cols, form, weighted), room()
    if needed > there:
        raise RequestError(
            f"device='cuda' cannot work: {n:,} ratings of {n_rows:,} rows and {n_cols:,} columns take about "
            f"{needed / 1e9:.1f} GB of GPU memory, and {there / 1e9:.1f} GB are free: choose device='cpu', a lower "
            "rank (or max_rank), or covariance='diagonal'"
        )


@cache
def cache_bytes() -> int:
    """The second-level cache of the device."""
    return int(cupy().cuda.Device().attributes["L2CacheSize"])


def kernel(source: str, name: str, macros: Mapping[str, int], shared_bytes: int = 0) -> Any:
    """A kernel of a .cu file of this folder, sized by these macros. CuPy keeps what it has compiled on disk."""
    return _kernel(source, name, tuple(sorted(macros.items())), shared_bytes)


@cache
def _kernel(source: str, name: str, macros: tuple[tuple[str, int], ...], shared_bytes: int) -> Any:
    found = _module(source, macros).get_function(name)
    if shared_bytes > 48 * 1024:
        found.max_dynamic_shared_size_bytes = shared_bytes
    return found


@cache
def _module(source: str, macros: tuple[tuple[str, int], ...]) -> Any:
    # macros as text, not as options: CuPy asks the compiler for its version once for every set of options
    defined = "".join(f"#define {name} {value}\n" for name, value in macros)
    text = (defined + text_of(source)).encode("ascii", "replace").decode()
    return cupy().RawModule(code=text, options=("-std=c++17",))


def text_of(source: str) -> str:
    """A .cu file of this folder, with the file that it includes. The folder may be in a zip."""
    text, shared = (files(__package__).joinpath(name).read_text(encoding="utf-8") for name in (f"{source}.cu", HEADER))
    return text.replace(f'#include "{HEADER}"', shared)


THREADS = 256  # of a block whose threads work alone
NULL = np.intp(0)  # a pointer to nothing


def launch(found: Any, n: int, *arguments: Any) -> None:
    """Run a kernel with one thread for each of n numbers."""
    found((max(1, -(-n // THREADS)),), (THREADS,), arguments)
