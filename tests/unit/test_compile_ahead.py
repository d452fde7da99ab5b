"""Kernels compiled ahead: two processes share the work, and neither does the part of the other."""

import fcntl

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
    for name in ("gibbs_errors", "confidences", "left_out_loss", "apply"):
        monkeypatch.setattr(BlockEngine, name, forbidden)
    monkeypatch.setitem(spectral.STARTS, "spectral", forbidden)
    compile_updates(config, weighted)


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
