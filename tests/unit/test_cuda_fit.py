"""Whole fits by the code of a GPU, with numpy in the place of CuPy and the kernels on the CPU (``cudaoncpu``)."""

import types

import cudaoncpu
import numpy as np
import pytest

from onebit_spark import FitConfig, Terms, fit_arrays
from onebit_spark.core import config as core_config
from onebit_spark.engines.cuda import device, half_step, ratings, runner

pytestmark = pytest.mark.skipif(cudaoncpu.COMPILER is None, reason="needs g++ to compile the kernels")

FUNCTIONS = (
    "empty", "zeros", "ones", "full", "asarray", "ascontiguousarray", "hstack", "diff", "sqrt", "vdot", "argsort",
    "empty_like",
)  # fmt: skip
FITS = {
    "certified": ({"implicit_features": False, "likelihood_weight": None}, {"certify": Terms()}),
    "side features": ({}, {"row_features": np.random.default_rng(1).normal(size=(14, 2))}),
    "weighted, diagonal": ({"covariance": "diagonal"}, {"weights": np.linspace(0.2, 2, 260, dtype=np.float32)}),
}


class Array(np.ndarray):
    """An array of the device."""

    def get(self):
        return np.array(self).view(np.ndarray)


@pytest.fixture
def device_of_numpy(monkeypatch):
    """Calls of CuPy and launches of kernels reach numpy and the CPU."""
    functions = {name: _of_arrays(getattr(np, name)) for name in FUNCTIONS}
    replaced = {
        "cupy": lambda: types.SimpleNamespace(**functions),
        "kernel": _kernel,
        "upload": lambda array: np.array(array).view(Array),
        "download": lambda array: np.array(array).view(np.ndarray),
        "compile_soon": lambda *_: None,
        "cache_bytes": lambda: 2**25,
        "usable_bytes": lambda: 10**9,
    }
    for module in (device, half_step, ratings, runner):
        for name, function in replaced.items():
            if hasattr(module, name):
                monkeypatch.setattr(module, name, function)
    monkeypatch.setattr(core_config, "no_device", lambda: None)


def _of_arrays(function):
    return lambda *given, **named: np.asarray(function(*given, **named)).view(Array)


def _kernel(source, name, macros, shared_bytes=0):
    def launched(grid, block, arguments, shared_mem=0):
        cudaoncpu.run(source, name, dict(macros), (*grid, 1)[:2], block[0], *arguments, shared=shared_mem)

    return launched


@pytest.mark.usefixtures("device_of_numpy")
@pytest.mark.parametrize(
    "name", [name if name == "side features" else pytest.param(name, marks=pytest.mark.slow) for name in FITS]
)
def test_the_same_fit_as_on_the_cpu(name):
    settings, given = FITS[name]
    rng, n, m, c = np.random.default_rng(0), 260, 14, 9
    rows, cols = rng.integers(0, m, n), rng.integers(0, c, n)
    labels = (rng.normal(size=(m, 2))[rows] * rng.normal(size=(c, 2))[cols]).sum(axis=1) > 0
    config = FitConfig(**{"rank": 2, "likelihood_weight": 1.0, "tol": 0, "max_iter": 4, **settings})
    here, there = (fit_arrays(rows, cols, labels, config, (m, c), device=place, **given) for place in ("cpu", "cuda"))
    np.testing.assert_allclose(there.objective_history, here.objective_history, rtol=1e-6)
    np.testing.assert_allclose(there.score(rows, cols), here.score(rows, cols), atol=1e-4)
    for who in ("user", "item"):
        one, two = (fit.positions(who, 1) for fit in (here, there))
        for name in (
            "n_ratings",
            *(column for column in one.column_names if column.endswith(("dim1", "slope1", "_std"))),
        ):
            np.testing.assert_allclose(two[name].to_numpy(), one[name].to_numpy(), rtol=1e-3, atol=1e-4)
    if "certify" in given:
        bounds = [[found.bound for found in fit.certificates] for fit in (here, there)]
        assert bounds[0] == pytest.approx(bounds[1], rel=1e-4)
