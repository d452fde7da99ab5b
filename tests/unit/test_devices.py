"""What a GPU cannot fit, and what a machine lacks for it, is said before any work."""

import sys

import numpy as np
import pytest

from onebit_spark import FitConfig, fit_arrays
from onebit_spark.core import config as core_config
from onebit_spark.core.config import CUDA_MOST_RANK, Execution, device_problems
from onebit_spark.core.posterior import RowPosterior
from onebit_spark.engines.cuda.device import bytes_needed
from onebit_spark.engines.cuda.runner import CudaRunner
from onebit_spark.errors import RequestError

CUDA = Execution(device="cuda")


@pytest.fixture
def with_a_gpu(monkeypatch):
    monkeypatch.setattr(core_config, "no_device", lambda: None)


def told(config, execution=CUDA):
    return [str(problem) for problem in device_problems(config, execution)]


@pytest.mark.usefixtures("with_a_gpu")
def test_what_a_gpu_cannot_fit():
    assert told(FitConfig()) == []
    assert told(FitConfig(covariance="diagonal", prior="gamma")) == []
    assert told(FitConfig(rank=CUDA_MOST_RANK)) == []
    assert told(FitConfig(rank=65)) == ["device 'cuda' fits up to 64 factors, not 65: choose 'cpu'"]
    assert told(FitConfig(loss="hinge")) == ["device 'cuda' fits the logistic loss, not hinge: choose 'cpu'"]
    assert told(FitConfig(max_rank=100)) == ["device 'cuda' fits up to 64 factors, not 100: choose 'cpu'"]
    assert told(FitConfig(precision="float64")) == ["device 'cuda' keeps factors as float32, not float64: choose 'cpu'"]
    assert told(FitConfig(), Execution(device="cuda", exchange="shuffle")) == [
        "device 'cuda' needs exchange=driver, not shuffle"
    ]
    assert told(FitConfig(rank=65), Execution()) == []


def test_a_start_with_too_many_factors_is_refused_by_name():
    start = RowPosterior(np.zeros((3, 81), np.float32), np.ones((3, 81), np.float32), "spread", True)
    with pytest.raises(
        RequestError, match=r"up to 64 factors, and the model .* starts from has 80: choose device='cpu'"
    ):
        CudaRunner.table(None, "rows", start)


def test_what_a_machine_lacks(monkeypatch):
    monkeypatch.setattr(core_config, "no_device", lambda: "finds no GPU: choose 'cpu'")
    assert told(FitConfig()) == ["device 'cuda' finds no GPU: choose 'cpu'"]
    with pytest.raises(ValueError, match="cannot fit:\n- device 'cuda' finds no GPU: choose 'cpu'"):
        fit_arrays([0, 1], [0, 1], [0, 1], device="cuda")


def test_no_cupy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert "needs CuPy, which is not installed: pip install '.[gpu]'" in core_config.no_device.__wrapped__()


def test_an_unknown_device_is_refused():
    with pytest.raises(ValueError, match="device must be one of cpu, cuda, not 'tpu'"):
        fit_arrays([0, 1], [0, 1], [0, 1], device="tpu")


def test_memory_grows_with_ratings_rows_and_rank():
    size = 10**6, 10**5, 10**3
    small = bytes_needed(*size, FitConfig(rank=10).form, False)
    assert small == 16 * 10**6 + 101_000 * 4 * (3 * 137 + 80 + 256 + 120)
    assert bytes_needed(*size, FitConfig(rank=10).form, True) == small + 16 * 10**6
    assert bytes_needed(*size, FitConfig(rank=32).form, False) > small
    assert bytes_needed(10**7, 100, 100, FitConfig(rank=10).form, False) == 46 * 10**7
    assert bytes_needed(*size, FitConfig(rank=10, covariance="diagonal").form, False) < small
