"""Kernels compiled ahead: a fit compiles nothing more. The time it takes is booked, and processes share a cache."""

import fcntl
import subprocess
import sys

import numpy as np
import pytest

from onebit_spark import FitConfig
from onebit_spark.cli.progress import Clock
from onebit_spark.core import compiled

SETTINGS = {  # with and without weights
    "logistic": (FitConfig(), False),
    "hinge": (FitConfig(loss="hinge", implicit_features=False), True),
}
FIT_AFTER = """
import gc, sys
import numpy as np
from numba.core.dispatcher import Dispatcher
from onebit_spark import FitConfig, Terms, fit_arrays
from onebit_spark.cli import compile_ahead

def kernels():
    dispatchers = (one for one in gc.get_objects() if isinstance(one, Dispatcher))
    ours = (one for one in dispatchers if one.__module__.startswith("onebit_spark"))
    return {(one.__name__, str(form)) for one in ours for form in one.signatures}

config, weighted = eval(sys.argv[1])
compile_ahead(config, weighted)
ahead, random = kernels(), np.random.default_rng(0)
rows, cols = random.integers(0, 60, 3000), random.integers(0, 50, 3000)
labels = np.where(random.normal(size=60)[rows] * random.normal(size=50)[cols] > 0, 1, -1)
fit_arrays(rows, cols, labels, config, weights=np.ones(3000, np.float32) if weighted else None, certify=Terms())
print(len(ahead), *sorted(kernels() - ahead))
"""


@pytest.mark.parametrize("name", ["logistic", pytest.param("hinge", marks=pytest.mark.slow)])
def test_a_fit_compiles_nothing_more(name):
    """In a process of its own: this one may have compiled anything."""
    done = subprocess.run([sys.executable, "-c", FIT_AFTER, repr(SETTINGS[name])], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    known, *missed = done.stdout.split(" ", 1)
    assert missed == []
    assert int(known) > 10


def test_seconds_of_compiling_are_booked_by_their_name(monkeypatch):
    monkeypatch.setattr(compiled, "cache_folder", lambda: None)

    @compiled.jit
    def inner(x):
        return x.sum()

    @compiled.jit
    def outer(x):
        return inner(x) + 1.0

    before, clock = compiled.compile_seconds(), Clock()
    with clock("reading"):
        outer(np.ones(3))
    compiling = compiled.compile_seconds() - before
    assert compiling > 0.0
    assert clock.seconds["compiling"] == pytest.approx(compiling)
    assert clock.seconds["reading"] < compiling
    with clock("reading"):
        outer(np.ones(4))
    assert compiled.compile_seconds() - before == compiling


def test_one_process_at_a_time_writes_to_the_cache(tmp_path):
    with compiled._locked(tmp_path), open(tmp_path / "lock") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with open(tmp_path / "lock") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with compiled._locked(None):
        pass
