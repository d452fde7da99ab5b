"""The engine's contract for a GPU (``tests/gpu``), and whole fits, with the kernels on the CPU (``cudaoncpu``)."""

import types
from functools import partial

import cudaoncpu
import numpy as np
import pytest
from test_engine_contract import (  # noqa: F401
    FORMS,
    Both,
    test_growth,
    test_half_steps_and_maps,
    test_positions,
    test_rows,
    test_rows_without_idle_factors,
    test_start,
    test_steps_over_all_ratings,
)

from onebit_spark import FitConfig, Terms, fit_arrays
from onebit_spark.core import config as core_config
from onebit_spark.core.config import CUDA_MOST_RANK
from onebit_spark.core.randomness import Split
from onebit_spark.engines.cuda import device, ratings, runner, shapes
from onebit_spark.engines.cuda.shapes import MOST_MOMENTS, LineShape, Shape

pytestmark = pytest.mark.skipif(cudaoncpu.COMPILER is None, reason="needs g++ to compile the kernels")

FUNCTIONS = (
    "empty", "zeros", "ones", "full", "asarray", "ascontiguousarray", "hstack", "diff", "sqrt", "vdot", "argsort",
    "empty_like", "arange",
)  # fmt: skip
ROWS, COLUMNS, N = 14, 9, 260
FITS = {
    "certified": ({"implicit_features": False, "likelihood_weight": None}, {"certify": Terms()}),
    "side features": ({}, {"row_features": np.random.default_rng(1).normal(size=(ROWS + 1, 2))}),
    "weighted, diagonal": ({"covariance": "diagonal"}, {"weights": np.linspace(0.2, 2, N, dtype=np.float32)}),
}


def slow(names):
    return [pytest.param(name, marks=pytest.mark.slow) for name in sorted(names)]


class Array(np.ndarray):
    """An array of the device."""

    def get(self):
        return np.array(self).view(np.ndarray)


@pytest.fixture(autouse=True)
def device_of_numpy(monkeypatch):
    """Calls of CuPy and launches of kernels reach numpy and the CPU. Tasks are short, so several share a row."""
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
        cudaoncpu.run(source, name, dict(macros), (*grid, 1)[:2], block[0], *arguments, shared=shared_mem)

    return launched


@pytest.fixture(params=slow(FORMS.keys() - {"many spreads"}))
def both(request):
    return Both(made, **{"rank": 4, **FORMS[request.param]})


def made(seed, weighted, unit=0.25):
    """Repeated cells, rows of several tasks and of more than ``join_few`` takes, and rows without ratings."""
    rng = np.random.default_rng(seed)
    rows, cols = rng.integers(0, ROWS, N), rng.integers(0, COLUMNS, N)
    rows[:90], cols[60:120] = 5, 3
    weights = rng.integers(1, 9, N).astype(np.float32) * np.float32(unit) if weighted else None
    return rows, cols, rng.random(N) < 0.6, (ROWS + 3, COLUMNS + 2), weights


@pytest.mark.parametrize("unit", [1e-9, 0.25, 1e9])
def test_no_weight_is_lost_among_the_margins(unit):
    both = Both(partial(made, unit=unit), rank=2, weighted=True).disturb()
    left = both.there.holdout_loss(both.config.loss, both.there.posteriors, Split(3, 0.7))
    assert left.total_weight > 0
    assert left.margins.sum() == pytest.approx(left.total_weight, rel=1e-6)


@pytest.mark.parametrize("name", ["side features", *slow(FITS.keys() - {"side features"})])
def test_the_same_fit_as_on_the_cpu(name):
    settings, given = FITS[name]
    rng = np.random.default_rng(0)
    rows, cols = rng.integers(0, ROWS, N), rng.integers(0, COLUMNS, N)
    labels = (rng.normal(size=(ROWS, 2))[rows] * rng.normal(size=(COLUMNS, 2))[cols]).sum(axis=1) > 0
    config = FitConfig(**{"rank": 2, "likelihood_weight": 1.0, "tol": 0, "max_iter": 4, **settings})
    here, there = (
        fit_arrays(rows, cols, labels, config, (ROWS + 1, COLUMNS), device=place, **given) for place in ("cpu", "cuda")
    )
    np.testing.assert_allclose(there.objective_history, here.objective_history, rtol=1e-6)
    cells = [index.ravel() for index in np.indices((ROWS + 1, COLUMNS))]  # the last row has no rating
    np.testing.assert_allclose(there.score(*cells), here.score(*cells), atol=1e-4)
    for who in ("user", "item"):
        one, two = (fit.positions(who, 1) for fit in (here, there))
        for name in one.column_names[1:6]:
            np.testing.assert_allclose(two[name].to_numpy(), one[name].to_numpy(), rtol=1e-3, atol=1e-4)
    if "certify" in given:
        bounds = [[found.bound for found in fit.certificates] for fit in (here, there)]
        assert bounds[0] == pytest.approx(bounds[1], rel=1e-4)


@pytest.mark.parametrize("fixed", [0, 1])
@pytest.mark.parametrize("implicit", [True, False])
def test_lines_of_every_rank_fit_the_device(fixed, implicit):
    for rank in range(1, CUDA_MOST_RANK + 1):
        shape = Shape(rank + fixed, fixed, implicit)
        line, (down, across) = shape.line, shape.grid
        assert line.moments <= MOST_MOMENTS
        assert line.moments % 4 == 0
        assert line.implicit % 4 != 3
        assert line.width % 4 == 0  # lines begin at 16 bytes
        assert down % across == 0  # a line of a system has its place in all columns of threads
        assert max(shape.root_bytes, shape.map_bytes) <= 227 * 1024  # shared memory of a block
    for columns in (1, 5, 16, 17, 38, 70):
        line = LineShape.of_columns(columns)
        assert columns <= line.width <= line.sums
