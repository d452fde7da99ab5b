"""Kernels compiled ahead: two processes share the work, and neither does the part of the other."""

import fcntl
import subprocess
import sys

import pytest

from onebit_spark import FitConfig
from onebit_spark.cli import compile_ahead
from onebit_spark.cli.compile_ahead import compile_others, compile_updates
from onebit_spark.core import compiled, spectral
from onebit_spark.engines.engine import BlockEngine

SETTINGS = {  # with and without weights
    "logistic": (FitConfig(), False),
    "hinge": (FitConfig(loss="hinge", implicit_features=False), True),
}


def forbidden(*_, **__):
    raise AssertionError("this is the other's part")


@pytest.mark.parametrize("name", SETTINGS)
def test_neither_does_the_part_of_the_other(name, monkeypatch):
    config, weighted = SETTINGS[name]
    with monkeypatch.context() as patch:
        patch.setattr(BlockEngine, "half_step", forbidden)
        compile_others(config, weighted)
        with pytest.raises(AssertionError, match="this is the other's part"):
            compile_updates(config, weighted)
    for name in ("gibbs_errors", "confidences", "holdout_loss", "apply"):
        monkeypatch.setattr(BlockEngine, name, forbidden)
    monkeypatch.setitem(spectral.STARTS, "spectral", forbidden)
    compile_updates(config, weighted)


FIT_AFTER = """
import gc, sys
import numpy as np
from numba.core.dispatcher import Dispatcher
from onebit_spark import FitConfig, Terms, fit_arrays
from onebit_spark.cli.compile_ahead import compile_others, compile_updates

def kernels():
    dispatchers = (one for one in gc.get_objects() if isinstance(one, Dispatcher))
    ours = (one for one in dispatchers if one.__module__.startswith("onebit_spark"))
    return {(one.__name__, str(form)) for one in ours for form in one.signatures}

config, weighted = eval(sys.argv[1])
compile_updates(config, weighted)
compile_others(config, weighted)
ahead, random = kernels(), np.random.default_rng(0)
rows, cols = random.integers(0, 60, 3000), random.integers(0, 50, 3000)
labels = np.where(random.normal(size=60)[rows] * random.normal(size=50)[cols] > 0, 1, -1)
fit_arrays(rows, cols, labels, config, weights=np.ones(3000, np.float32) if weighted else None, certify=Terms())
print(len(ahead), *sorted(kernels() - ahead))
"""


@pytest.mark.parametrize("name", SETTINGS)
def test_a_fit_compiles_nothing_more(name):
    """In a process of its own: this one may have compiled anything."""
    done = subprocess.run([sys.executable, "-c", FIT_AFTER, repr(SETTINGS[name])], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    known, *missed = done.stdout.split(" ", 1)
    assert missed == []
    assert int(known) > 10


def test_two_processes_where_nothing_is_compiled(monkeypatch):
    started = []
    real = compile_ahead._start_another_process
    monkeypatch.setattr(compile_ahead, "_start_another_process", lambda *given: started.append(real(*given)))
    config = FitConfig(rank=2)
    for nothing in (False, True):
        monkeypatch.setattr(compile_ahead, "nothing_is_compiled", lambda nothing=nothing: nothing)
        compile_ahead.compile_ahead(config, weighted=False)
        assert [process.wait(300) for process in started] == [0] * nothing


def test_whether_something_is_compiled(tmp_path, monkeypatch):
    monkeypatch.setattr(compiled, "cache_folder", lambda: tmp_path)
    assert compiled.nothing_is_compiled()
    (tmp_path / "kernel.nbi").touch()
    assert not compiled.nothing_is_compiled()
    monkeypatch.setattr(compiled, "cache_folder", lambda: None)
    assert not compiled.nothing_is_compiled()  # what is compiled by another process would be lost


def test_one_process_at_a_time_writes_to_the_cache(tmp_path):
    with compiled._locked(tmp_path), open(tmp_path / "lock") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with open(tmp_path / "lock") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with compiled._locked(None):
        pass
