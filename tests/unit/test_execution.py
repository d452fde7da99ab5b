"""Cores, memory and devices: what a machine has, and what a GPU cannot fit."""

import gc
import sys
import weakref

import numpy as np
import pytest

from onebit_spark import FitConfig, fit_arrays
from onebit_spark import settings as core_config
from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.posterior import RowPosterior
from onebit_spark.core.randomness import Split
from onebit_spark.core.setup import form_of
from onebit_spark.core.solver import solve
from onebit_spark.engines.cuda.device import bytes_needed
from onebit_spark.engines.cuda.runner import CudaEngine
from onebit_spark.engines.threads import local_state
from onebit_spark.errors import RequestError
from onebit_spark.settings import CUDA_MOST_RANK, Execution, device_problems


@pytest.fixture
def container(tmp_path, monkeypatch):
    monkeypatch.setattr(core_config, "CGROUP", tmp_path)
    monkeypatch.setattr(core_config, "MEMINFO", tmp_path / "meminfo")
    (tmp_path / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:    8000 kB\n")
    monkeypatch.setattr(core_config.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    return tmp_path


LIMITS = {  # the files of a container, and what is left of 8 cores and 8,000 kB
    "none": ({}, 8, 8000 * 1024),
    "version 2": (
        {
            "cpu.max": "250000 100000",
            "memory.max": "4000000",
            "memory.current": "3000000",
            "memory.stat": "anon 1\ninactive_file 500000\nactive_file 7\n",
        },
        2,
        1_500_000,
    ),
    "version 2 without limits": (
        {"cpu.max": "max 100000", "memory.max": "max", "memory.current": "3000000"},
        8,
        8000 * 1024,
    ),
    "version 1": (
        {
            "cpu/cpu.cfs_quota_us": "100000",
            "cpu/cpu.cfs_period_us": "100000",
            "memory/memory.limit_in_bytes": "2000000",
            "memory/memory.usage_in_bytes": "2500000",
            "memory/memory.stat": "total_inactive_file 100000\n",
        },
        1,
        0,
    ),
}


@pytest.mark.parametrize("name", LIMITS)
def test_limits_of_a_container(container, name):
    files, cores, memory = LIMITS[name]
    for file, content in files.items():
        (container / file).parent.mkdir(exist_ok=True)
        (container / file).write_text(content)
    assert (core_config.available_cores(), core_config.available_memory()) == (cores, memory)


def test_where_there_is_no_linux(container):
    (container / "meminfo").unlink()
    assert core_config.available_memory() > 2**20


CUDA = Execution(device="cuda")


@pytest.fixture
def with_a_gpu(monkeypatch):
    monkeypatch.setattr(core_config, "no_device", lambda: None)


def problems_of(config, execution=CUDA):
    return [str(problem) for problem in device_problems(config, execution)]


@pytest.mark.usefixtures("with_a_gpu")
def test_what_a_gpu_cannot_fit():
    assert problems_of(FitConfig()) == []
    assert problems_of(FitConfig(covariance="diagonal", prior="gamma")) == []
    assert problems_of(FitConfig(rank=CUDA_MOST_RANK)) == []
    assert problems_of(FitConfig(rank=65)) == [
        "device 'cuda' fits up to 64 factors, not 65: choose 'cpu'"
    ]
    assert problems_of(FitConfig(loss="hinge")) == [
        "device 'cuda' fits the logistic loss, not hinge: choose 'cpu'"
    ]
    assert problems_of(FitConfig(max_rank=100)) == [
        "device 'cuda' fits up to 64 factors, not 100: choose 'cpu'"
    ]
    assert problems_of(FitConfig(precision="float64")) == [
        "device 'cuda' keeps factors as float32, not float64: choose 'cpu'"
    ]
    assert problems_of(FitConfig(), Execution(device="cuda", exchange="shuffle")) == [
        "device 'cuda' needs exchange=driver, not shuffle"
    ]
    assert problems_of(FitConfig(rank=65), Execution()) == []


def test_a_start_with_too_many_factors_is_refused_by_name():
    start = RowPosterior(
        np.zeros((3, 81), np.float32), np.ones((3, 81), np.float32), "spread", True
    )
    with pytest.raises(
        RequestError,
        match=r"up to 64 factors, and the model .* starts from has 80: choose device='cpu'",
    ):
        CudaEngine.table(None, "rows", start)


def test_what_a_machine_lacks(monkeypatch):
    monkeypatch.setattr(core_config, "no_device", lambda: "finds no GPU: choose 'cpu'")
    assert problems_of(FitConfig()) == ["device 'cuda' finds no GPU: choose 'cpu'"]
    with pytest.raises(ValueError, match="cannot fit:\n- device 'cuda' finds no GPU: choose 'cpu'"):
        fit_arrays([0, 1], [0, 1], [0, 1], device="cuda")


def test_no_cupy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert (
        "needs CuPy, which is not installed: pip install '.[gpu]'"
        in core_config.no_device.__wrapped__()
    )


def test_an_unknown_device_is_refused():
    with pytest.raises(ValueError, match="device must be one of cpu, cuda, not 'tpu'"):
        fit_arrays([0, 1], [0, 1], [0, 1], device="tpu")


def test_memory_grows_with_ratings_rows_and_rank():
    size = 10**6, 10**5, 10**3
    small = bytes_needed(*size, form_of(FitConfig(rank=10)), False)
    assert small == 16 * 10**6 + 101_000 * 4 * (3 * 137 + 80 + 256 + 120)
    assert bytes_needed(*size, form_of(FitConfig(rank=10)), True) == small + 16 * 10**6
    assert bytes_needed(*size, form_of(FitConfig(rank=32)), False) > small
    assert bytes_needed(10**7, 100, 100, form_of(FitConfig(rank=10)), False) == 46 * 10**7
    assert bytes_needed(*size, form_of(FitConfig(rank=10, covariance="diagonal")), False) < small


def test_ratings_are_freed_without_the_garbage_collector():
    """Many fits in a row (tuning, the choice of κ) must not wait for it: two copies of the ratings
    each.
    """
    rng = np.random.default_rng(0)
    block = RatingBlock.from_coordinates(
        rng.integers(0, 9, 60), rng.integers(0, 7, 60), rng.random(60) > 0.5, (9, 7)
    )
    gc.collect()
    gc.disable()
    try:
        with local_state(block, 2).running() as state:
            solve(state, FitConfig(rank=1, max_iter=2, tol=0))
            with state.restricted(Split(1, 0.5)) as part:
                held = [weakref.ref(part.engine), weakref.ref(state.engine)]
            del part
            assert held[0]() is None
        del state
        assert held[1]() is None
    finally:
        gc.enable()
