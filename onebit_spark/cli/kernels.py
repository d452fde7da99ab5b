"""Compiles the kernels of a fit on several cores: ``python -m onebit_spark.cli.kernels '{"loss": "hinge"}' weighted``.

Numba compiles one kernel at a time in a process. So a fit of 16 ratings first runs its kernels as plain Python, which
takes a second and shows with which types each is called. Then several processes compile them, the longest first, into
the cache of kernels. ``compiled.py`` starts this in a process of its own, because it replaces numba's dispatch and
the intrinsics. All these processes end with the one that starts them, which logs what they print.
"""

from __future__ import annotations

import json
import operator
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from multiprocessing import get_context, parent_process
from typing import Any
from unittest.mock import patch

import numba
import numpy as np
from numba.core.dispatcher import Dispatcher

from onebit_spark.cli.progress import TaskProgress
from onebit_spark.cli.running import compile_ahead
from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.losses import batched_solve
from onebit_spark.core.randomness import Split
from onebit_spark.settings import FitConfig, available_cores

PROCESSES = 4  # more would wait for the longest kernel

Form = tuple[str, str, tuple[Any, ...]]  # module and name of a kernel, and numba's types of its arguments

INTRINSICS: dict[str, Callable[..., Any]] = {
    "load": lambda array, line: array[line].copy(),
    "store": operator.setitem,
    "zeros": lambda: np.zeros(batched_solve.LANES),
    "times": operator.mul,
    "minus_product": lambda s, x, y: s - x * y,
    "negative": operator.neg,
    "reciprocal": lambda x: 1.0 / x,
    "reciprocal_root": lambda x: 1.0 / np.sqrt(x),
}


def forms_of(config: FitConfig, weighted: bool) -> list[Form]:
    """The kernels that a fit calls: first those that others call, then the longest."""
    forms: dict[Form, tuple[bool, int]] = {}
    within: list[Dispatcher] = []

    def in_python(kernel: Dispatcher, *arguments: Any) -> Callable[..., Any]:
        function = kernel.py_func
        form = function.__module__, function.__name__, tuple(map(kernel.typeof_pyval, arguments))
        forms[form] = not within, -len(function.__code__.co_code)

        def run(*arguments: Any) -> Any:
            within.append(kernel)
            try:
                return function(*arguments)
            finally:
                within.pop()

        return run

    replaced = patch.object(Dispatcher, "_compile_for_args", in_python), patch.dict(vars(batched_solve), INTRINSICS)
    with replaced[0], replaced[1], warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy's about overflows, which hashes and random numbers mean
        compile_ahead(config, weighted)
        if config.implicit_features:  # the choice of the settings may drop them; such a fit has certificates of draws
            compile_ahead(replace(config, implicit_features=False), weighted)
        first, weights = np.zeros(1, np.int64), np.ones(1, np.float32) if weighted else None
        block = RatingBlock.from_coordinates(first, first, first > 0, (1, 1), weights)
        Split(0, 0.5).part_of(block, first, first)  # the tenth that the choice holds back
    return sorted(forms, key=forms.__getitem__)


def compile_form(form: Form) -> float:
    """Seconds that it took."""
    began, (module, name, types) = time.perf_counter(), form
    getattr(import_module(module), name).compile(types)
    return time.perf_counter() - began


def main(settings: str, weighted: bool) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the first one decides
    _end_after(partial(os.read, sys.stdin.fileno(), 1))
    forms = forms_of(FitConfig(**json.loads(settings)), weighted)
    numba.njit(lambda: 0).compile(())  # numba's own start, once for all processes
    context = get_context("fork" if sys.platform == "linux" else None)
    with (
        context.Pool(min(available_cores(), PROCESSES), _end_with_parent) as pool,
        TaskProgress(len(forms), "compiling kernels", "done", stream=sys.stdout) as progress,
    ):
        for seconds in pool.imap_unordered(compile_form, forms):
            progress.advance(1, seconds)


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    _end_after(parent.join)


def _end_after(event: Callable[[], object]) -> None:
    """End this process when the call returns, whatever else it does then."""

    def wait() -> None:
        event()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    with suppress(Exception):  # kernels that are not compiled here are compiled at their first call
        main(sys.argv[1], "weighted" in sys.argv[2:])
