"""The GPU's kernels on the CPU: a .cu file behind ``cuda_on_cpu.h``, compiled by g++, called by
ctypes.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import types
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np

from onebit_spark import settings as core_config
from onebit_spark.engines.cuda import device, ratings, runner, shapes
from onebit_spark.engines.cuda.device import text_of
from support import cudasanitized

HEADER = Path(__file__).with_name("cuda_on_cpu.h")
# A tool of compute-sanitizer: then the kernels run on a GPU
SANITIZER = os.environ.get("ONEBIT_SANITIZER")
COMPILER = shutil.which("g++") or shutil.which("c++")
KERNEL = re.compile(
    r'extern "C" __global__ void\s+(?:__launch_bounds__\([^)]*\)\s+)?(\w+)\(([^)]*)\)'
)
LAUNCH_BOUNDS = re.compile(r"__launch_bounds__\((?:[^()]|\([^()]*\))*\)")


def _with_launcher(kernel: re.Match[str]) -> str:
    """A kernel behind a function that launches it, in the same place: it may be there for some
    macros only.
    """
    name, arguments = kernel.groups()
    names = ", ".join(argument.split()[-1].lstrip("*") for argument in arguments.split(","))
    return (
        f'extern "C" void {name}({arguments});\n'
        f'extern "C" void run_{name}(unsigned across, unsigned down, unsigned block, size_t '
        f"shared_bytes, {arguments}) "
        f"{{ host::launch({{across, down}}, block, shared_bytes, [=] {{ {name}({names}); }}); "
        f"}}\n{kernel.group()}"
    )


@cache
def _library(source: str, macros: tuple[tuple[str, int], ...]) -> ctypes.CDLL:
    text = LAUNCH_BOUNDS.sub("", text_of(source))
    text = re.sub(r"extern __shared__ (\w+) (\w+)\[\];", r"\1* \2 = (\1*)host::shared;", text)
    text = KERNEL.sub(_with_launcher, text)
    folder = Path(mkdtemp(prefix="onebit-cuda-"))
    code = folder / "kernels.cpp"
    library = folder / "kernels.so"
    code.write_text(f'#include "{HEADER}"\n{text}', encoding="utf-8")
    options = [f"-D{name}={value}" for name, value in macros]
    subprocess.run(
        [
            str(COMPILER),
            "-std=c++17",
            "-O0",
            "-w",
            "-shared",
            "-fPIC",
            *options,
            str(code),
            "-o",
            str(library),
        ],
        check=True,
    )
    return ctypes.CDLL(str(library))


def run(
    source: str,
    name: str,
    macros: dict[str, int],
    grid: int | tuple[int, int],
    block: int,
    *arguments: object,
    shared: int = 0,
):
    """Run a kernel.

    Arrays are changed in place; None is a null pointer; numbers are numpy's, of the kernel's type.
    """
    grid = (grid, 1) if isinstance(grid, int) else grid
    if SANITIZER:
        cudasanitized.run(SANITIZER, source, name, macros, grid, block, arguments, shared)
        return
    passed = [*map(ctypes.c_uint, grid), ctypes.c_uint(block), ctypes.c_size_t(shared)]
    for argument in arguments:
        if argument is None:
            passed.append(ctypes.c_void_p(None))
        elif isinstance(argument, np.ndarray):
            assert argument.flags.c_contiguous
            passed.append(ctypes.c_void_p(argument.ctypes.data))
        else:
            passed.append(np.ctypeslib.as_ctypes_type(argument.dtype)(argument.item()))
    getattr(_library(source, tuple(sorted(macros.items()))), f"run_{name}")(*passed)


FUNCTIONS = (
    "empty",
    "zeros",
    "ones",
    "full",
    "asarray",
    "ascontiguousarray",
    "hstack",
    "diff",
    "sqrt",
    "vdot",
    "argsort",
    "empty_like",
    "arange",
)


class Array(np.ndarray):
    """An array of the device."""

    def get(self):
        return np.array(self).view(np.ndarray)


def replace_device(monkeypatch):
    """Calls of CuPy and launches of kernels reach numpy and the CPU.

    Tasks are short, so several share a row.
    """
    functions = {name: _of_arrays(getattr(np, name)) for name in FUNCTIONS}
    replaced = {
        "cupy": lambda: types.SimpleNamespace(**functions),
        "kernel": _kernel,
        "upload": lambda array: np.array(array).view(Array),
        "download": lambda array: np.array(array).view(np.ndarray),
        "compile_soon": lambda *_: None,
        "cache_bytes": lambda: 2**25,
        "usable_bytes": lambda: 10**9,
        "TASK": 16,
        "MANY_TASKS": 3,
    }
    for module in (device, ratings, runner, shapes):
        for name, function in replaced.items():
            if hasattr(module, name):
                monkeypatch.setattr(module, name, function)
    monkeypatch.setitem(shapes.RATING_MACROS, "TASK", 16)
    monkeypatch.setattr(core_config, "no_device", lambda: None)


def _of_arrays(function):
    return lambda *given, **named: np.asarray(function(*given, **named)).view(Array)


def _kernel(source, name, macros, shared_bytes=0):
    def launched(grid, block, arguments, shared_mem=0):
        run(source, name, dict(macros), (*grid, 1)[:2], block[0], *arguments, shared=shared_mem)

    return launched
