"""Compiled kernels: what their cache is keyed on, what is compiled ahead, and whose seconds these
are.
"""

import fcntl
import importlib
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from numba.core.dispatcher import Dispatcher

import onebit_spark
from onebit_spark import FitConfig
from onebit_spark.cli.progress import Clock
from onebit_spark.kernels import jit as compiled
from onebit_spark.kernels.jit import digest_of, kernel_modules, sources

PACKAGE = {
    "p": b"from p.report import show\n",
    "p.compiled": b"def jit(function): ...\n",
    "p.inner": b"from p.compiled import jit\n@jit\ndef inner(): ...\n",
    "p.outer": b"from p import compiled, scale\nfrom p.inner import inner\n@compiled.jit\ndef "
    b"outer(): ...\n",
    "p.scale": b"from p.units import METRE\nSCALE = 3 * METRE\n",
    "p.units": b"import math\nMETRE = 1\n",
    "p.report": b"from p.outer import outer\ndef show(): ...\n",
}


def test_the_modules_with_kernels_and_what_these_import():
    assert kernel_modules(PACKAGE) == {"p.compiled", "p.inner", "p.outer", "p.scale", "p.units"}


@pytest.mark.parametrize("name", PACKAGE)
def test_an_edit_of_what_a_kernel_is_made_of_changes_the_key(name):
    edited = {**PACKAGE, name: PACKAGE[name] + b"# edited\n"}
    assert (digest_of(edited) != digest_of(PACKAGE)) is (name in kernel_modules(PACKAGE))


def test_the_compiler_may_be_renamed():
    """Its users name it otherwise then, and are found all the same: by ``jit``."""
    renamed = {
        name.replace("compiled", "compiler"): text.replace(b"compiled", b"compiler")
        for name, text in PACKAGE.items()
    }
    assert kernel_modules(renamed) == {"p.compiler", "p.inner", "p.outer", "p.scale", "p.units"}
    assert digest_of(renamed) != digest_of(PACKAGE)
    helper = {**renamed, "p.inner": renamed["p.inner"] + b"# edited\n"}
    assert digest_of(helper) != digest_of(renamed)


def test_no_kernel_of_the_package_is_missed():
    texts = {
        name: file.read_bytes() for name, file in sources(files("onebit_spark"), "onebit_spark")
    }
    covered = kernel_modules(texts)
    compiling = {
        kernel.py_func.__module__
        for name in texts
        if b"jit" in texts[name]
        for kernel in vars(importlib.import_module(name)).values()
        if isinstance(kernel, Dispatcher)
    }
    assert len(compiling) >= 8
    assert compiling <= covered
    assert len(covered) < len(texts) / 2  # an edit of a report does not compile everything again


def test_a_zip_has_the_key_of_the_folder(tmp_path):
    folder = Path(onebit_spark.__file__).parent
    archive = shutil.make_archive(str(tmp_path / "shipped"), "zip", folder.parent, folder.name)
    digests = [
        digest_of({name: file.read_bytes() for name, file in sources(place, "onebit_spark")})
        for place in (folder, zipfile.Path(archive, "onebit_spark/"))
    ]
    assert digests[0] == digests[1]


SETTINGS = {  # with and without weights
    "logistic": (FitConfig(), False),
    "hinge": (FitConfig(loss="hinge", implicit_features=False), True),
}
FIT_AFTER = """
import gc, sys
import numpy as np
from numba.core.dispatcher import Dispatcher
from onebit_spark import FitConfig, Terms, fit_arrays
from onebit_spark.kernels.ahead import forms_of
from onebit_spark.kernels.jit import _Cache

def kernels():
    dispatchers = (one for one in gc.get_objects() if isinstance(one, Dispatcher))
    ours = (one for one in dispatchers if isinstance(one._cache, _Cache))  # not the functions within them
    return {(one.__name__, str(form)) for one in ours for form in one.signatures}

config, weighted = eval(sys.argv[1])
ahead = {(name, str(types)) for _, name, types in forms_of(config, weighted)}
assert not kernels()  # these ran in Python
random = np.random.default_rng(0)
rows, cols = random.integers(0, 60, 6000), random.integers(0, 50, 6000)  # enough to choose the settings
labels = np.where(random.normal(size=60)[rows] * random.normal(size=50)[cols] > 0, 1, -1)
fit_arrays(rows, cols, labels, config, weights=np.ones(6000, np.float32) if weighted else None, certify=Terms())
print(len(kernels() & ahead), *sorted(kernels() - ahead))
"""


@pytest.mark.parametrize("name", ["logistic", pytest.param("hinge", marks=pytest.mark.slow)])
def test_a_fit_compiles_nothing_more(name):
    """In a process of its own: this one may have compiled anything."""
    done = subprocess.run(
        [sys.executable, "-c", FIT_AFTER, repr(SETTINGS[name])], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    known, *missed = done.stdout.split(" ", 1)
    assert missed == []
    assert int(known) > 10


LOADED_AFTER = """
import gc
import numpy as np
from onebit_spark import FitConfig, Terms, fit_arrays
from onebit_spark.kernels.ahead import compile_kernels
from onebit_spark.kernels.jit import _Cache
from numba.core.dispatcher import Dispatcher

config = FitConfig(loss="hinge", solver="gradient", covariance="diagonal", implicit_features=False, max_iter=2)
compile_kernels(config, weighted=False)
rows, cols = np.divmod(np.arange(64), 8)
fit_arrays(rows, cols, np.where((rows + cols) % 3 > 0, 1, -1), config, certify=Terms())
kernels = [one for one in gc.get_objects() if isinstance(one, Dispatcher) and isinstance(one._cache, _Cache)]
print(sum(len(one.stats.cache_hits) for one in kernels), *(one.__name__ for one in kernels if one.stats.cache_misses))
"""


def test_a_fit_loads_what_was_compiled_ahead(tmp_path):
    """Compiling ahead hides its own errors, because a fit can do without it. Here they show."""
    environment = os.environ | {"ONEBIT_CACHE": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", LOADED_AFTER], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    loaded, *missed = done.stdout.split()
    assert missed == []
    assert int(loaded) > 5


@pytest.mark.parametrize("empty", ["ONEBIT_CACHE", "XDG_CACHE_HOME"])
def test_an_empty_variable_names_no_folder_for_kernels(tmp_path, empty):
    home = tmp_path / "home"
    here = tmp_path / "here"
    home.mkdir()
    here.mkdir()
    others = {
        name: value
        for name, value in os.environ.items()
        if name not in ("ONEBIT_CACHE", "XDG_CACHE_HOME")
    }
    environment = others | {"HOME": str(home), empty: ""}
    subprocess.run(
        [sys.executable, "-c", "from onebit_spark import fit_arrays"],
        env=environment,
        cwd=here,
        check=True,
    )
    assert list(here.iterdir()) == []
    assert list((home / ".cache" / "onebit_spark").glob("kernels-*"))


def test_seconds_of_compiling_are_booked_by_their_name(monkeypatch):
    monkeypatch.setattr(compiled, "cache_folder", lambda: None)

    @compiled.jit
    def inner(x):
        return x.sum()

    @compiled.jit
    def outer(x):
        return inner(x) + 1.0

    before = compiled.compile_seconds()
    clock = Clock()
    with clock("reading"):
        outer(np.ones(3))
    compiling = compiled.compile_seconds() - before
    assert compiling > 0.0
    assert clock.seconds["compiling"] == pytest.approx(compiling)
    assert clock.seconds["reading"] < compiling
    with clock("reading"):
        outer(np.ones(4))
    assert compiled.compile_seconds() - before == compiling


def total(x):
    return x.sum()


WAITING = """
import logging, sys
from onebit_spark import FitConfig
from onebit_spark.kernels.ahead import compile_kernels

logging.basicConfig(level="INFO", format="%(message)s", stream=sys.stdout)
compile_kernels(FitConfig(), weighted=False)
"""


def test_who_waits_for_the_kernels_of_another_process_says_so(tmp_path):
    folder = tmp_path / compiled.cache_folder().name
    folder.mkdir()
    with compiled.locked(folder, "compiling"):
        process = subprocess.Popen(
            [sys.executable, "-c", WAITING],
            env=os.environ | {"ONEBIT_CACHE": str(tmp_path)},
            stdout=subprocess.PIPE,
            text=True,
        )
        patience = threading.Timer(60, process.kill)
        patience.start()
        line = process.stdout.readline()
        patience.cancel()
        process.kill()
        process.communicate()
    assert line == "waiting for another process, which compiles kernels on this machine\n"


def test_who_waits_for_a_thread_of_its_own_process_says_nothing(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(compiled, "PATIENCE", 0.01)
    caplog.set_level("INFO", logger="onebit_spark")

    def wait():
        with compiled.locked(tmp_path, "compiling"):
            pass

    with compiled.locked(tmp_path, "compiling"):
        waiting = threading.Thread(target=wait)
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()
    waiting.join()
    assert not caplog.messages


def test_another_machine_loads_what_was_compiled(tmp_path, monkeypatch):
    def on(machine):
        """The kernel with the cache of a machine, after a call."""
        (tmp_path / machine).mkdir(exist_ok=True)
        monkeypatch.setattr(compiled, "cache_folder", lambda: tmp_path / machine)
        kernel = compiled.jit(total)
        return lambda: (kernel(np.ones(3)), sum(kernel.stats.cache_misses.values()))

    assert on("driver")() == (3.0, 1)
    kernels = compiled.compiled_kernels()
    assert {Path(name).suffix for name in kernels} == {".nbi", ".nbc"}
    executor = on("executor")
    compiled.adopt_kernels(kernels)
    assert executor() == (3.0, 0)
    assert compiled.compiled_kernels() == kernels
    compiled.adopt_kernels(dict.fromkeys(kernels, b"of another driver"))
    assert compiled.compiled_kernels() == kernels


def test_one_process_at_a_time_writes_to_the_cache(tmp_path):
    with compiled.locked(tmp_path), open(tmp_path / "lock") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with open(tmp_path / "lock") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with compiled.locked(None):
        pass
