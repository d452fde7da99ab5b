"""Compiles the kernels of a fit on several cores: ``python -m onebit_spark.kernels.ahead '{"loss":
"hinge"}' weighted``.

Numba compiles one kernel at a time in a process. So a fit of 16 ratings first runs its kernels as
plain Python, which takes a second and shows with which types each is called. Then several processes
compile them, the longest first, into the cache of kernels. ``compile_kernels`` starts this in a
process of its own, because it replaces numba's dispatch and the intrinsics. All these processes end
with the one that starts them, which logs what they print.
"""

from __future__ import annotations

import hashlib
import json
import logging
import operator
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping
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

from onebit_spark.certify.draw_certificates import certify_draws
from onebit_spark.core import batched_solve
from onebit_spark.core.blocks import RatingBlock, repeats_of
from onebit_spark.core.model_selection import select_model
from onebit_spark.core.randomness import Split
from onebit_spark.core.solver import solve
from onebit_spark.engines.threads import local_state
from onebit_spark.fitting.finish import finish
from onebit_spark.kernels.jit import book_compiling, cache_folder, locked, say_compiling
from onebit_spark.settings import FitConfig, Terms, available_cores

log = logging.getLogger("onebit_spark")

PROCESSES = 4  # more would be idle while the longest kernel compiles
LINE_EVERY_SECONDS = 10.0

IN_PYTHON = (
    "ONEBIT_KERNELS_IN_PYTHON"  # the environment of the process that runs the kernels in Python
)

# The settings that decide which kernels a fit calls
OF_KERNELS = ("loss", "intercepts", "implicit_features", "solver", "covariance", "precision")


def compile_kernels(config: FitConfig, weighted: bool) -> None:
    """Compile the kernels of a fit with these settings on several cores, once on a machine.

    Kernels that this does not compile, for whatever reason, are compiled at their first call.
    """
    folder = cache_folder()
    if folder is None or not sys.executable or IN_PYTHON in os.environ:
        return
    settings = {name: getattr(config, name) for name in OF_KERNELS} | {"rank": 1}
    form = [json.dumps(settings, sort_keys=True), *["weighted"] * weighted]
    done = folder / f"compiled-{hashlib.sha256(repr(form).encode()).hexdigest()[:16]}"
    if done.exists():
        return
    with locked(folder, "compiling"):
        if done.exists():  # another process or thread has compiled them in the meantime
            return
        began = time.perf_counter()
        if not any(folder.glob("*.nbi")):
            say_compiling()
        path = os.pathsep.join(filter(None, sys.path))
        environment = os.environ | {"PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1", IN_PYTHON: "1"}
        with suppress(OSError):
            run_logged(
                [sys.executable, "-P", "-m", "onebit_spark.kernels.ahead", *form], environment
            )
        done.touch()
        book_compiling(time.perf_counter() - began)


def run_logged(command: list[str], environment: Mapping[str, str]) -> None:
    """Run a command, and log the lines that it prints.

    Its standard input ends with this process, in whatever way that ends: only this process can
    write to the pipe.
    """
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, env=environment, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
    ) as child:
        assert child.stdout is not None
        for line in child.stdout:
            log.info(line.rstrip())


# ---- in the process of its own -----------------------------------------------------------------

# Module and name of a kernel, and numba's types of its arguments
Form = tuple[str, str, tuple[Any, ...]]

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


def main(settings: str, weighted: bool) -> None:
    # Ctrl-C reaches all processes of a terminal; the first one decides
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_after(partial(os.read, sys.stdin.fileno(), 1))
    forms = forms_of(FitConfig(**json.loads(settings)), weighted)
    numba.njit(lambda: 0).compile(())  # numba's own start, once for all processes
    context = get_context("fork" if sys.platform == "linux" else None)
    with context.Pool(min(available_cores(), PROCESSES), end_with_parent) as pool:
        shown_at = time.monotonic()
        for done, _ in enumerate(pool.imap_unordered(compile_form, forms), 1):
            if done == len(forms) or time.monotonic() - shown_at >= LINE_EVERY_SECONDS:
                print(f"compiling kernels: {done} of {len(forms)} done", flush=True)
                shown_at = time.monotonic()


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

    dispatch = patch.object(Dispatcher, "_compile_for_args", in_python)
    intrinsics = patch.dict(vars(batched_solve), INTRINSICS)
    with dispatch, intrinsics, warnings.catch_warnings():
        # Numpy's about overflows, which hashes and random numbers mean
        warnings.simplefilter("ignore")
        run_fit(config, weighted)
        # The choice of the settings may drop them; then draws are certified
        if config.implicit_features:
            run_fit(replace(config, implicit_features=False), weighted)
    return sorted(forms, key=forms.__getitem__)


def run_fit(config: FitConfig, weighted: bool) -> None:
    """Call every kernel of a fit: from 16 ratings to what a model keeps."""
    rows, cols = np.divmod(np.arange(16), 4)
    weights = np.ones(16, np.float32) if weighted else None
    block = RatingBlock.from_coordinates(rows, cols, (rows + cols) % 3 > 0, (4, 4), weights)
    repeats_of(block)
    Split(0, 0.5).part_of(block, np.arange(4), np.arange(4))  # the tenth that the choice holds back
    state = local_state(block, 1)
    with state.running():
        choice = select_model(state, replace(config, max_iter=2, tol=0.0))
        outcome = solve(state, choice.config)
        certificates = certify_draws(state, choice, outcome, Terms(), positives=10)
        finish(state, choice, outcome, certificates)


def compile_form(form: Form) -> None:
    module, name, types = form
    getattr(import_module(module), name).compile(types)


def end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    end_after(parent.join)


def end_after(event: Callable[[], object]) -> None:
    """End this process when the call returns, whatever else it does then."""

    def wait() -> None:
        event()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    with suppress(Exception):  # kernels that are not compiled here are compiled at their first call
        main(sys.argv[1], "weighted" in sys.argv[2:])
