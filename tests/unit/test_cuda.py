"""Whole fits on a GPU, with the kernels on the CPU (``cudaoncpu``).

Single steps: ``test_engine_contract.py``.
"""

import numpy as np
import pytest
from support import cudaoncpu
from support.engine_contract import COLUMNS, ROWS, N, made

from onebit_spark import FitConfig, Terms, fit_arrays
from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.fit_state import FitState
from onebit_spark.core.randomness import Split
from onebit_spark.core.setup import form_of, loss_of
from onebit_spark.engines.cuda.runner import CudaEngine
from onebit_spark.engines.cuda.shapes import MOST_MOMENTS, LineShape, Shape
from onebit_spark.settings import CUDA_MOST_RANK

pytestmark = pytest.mark.skipif(
    cudaoncpu.COMPILER is None, reason="needs g++ to compile the kernels"
)

FITS = {
    "certified": ({"implicit_features": False, "likelihood_weight": None}, {"certify": Terms()}),
    "side features": ({}, {"row_features": np.random.default_rng(1).normal(size=(ROWS + 1, 2))}),
    "weighted, diagonal": (
        {"covariance": "diagonal"},
        {"weights": np.linspace(0.2, 2, N, dtype=np.float32)},
    ),
}


def slow(names):
    return [pytest.param(name, marks=pytest.mark.slow) for name in sorted(names)]


@pytest.fixture(autouse=True)
def device_of_numpy(monkeypatch):
    cudaoncpu.replace_device(monkeypatch)


@pytest.mark.parametrize("unit", [1e-9, 0.25, 1e9])
def test_no_weight_is_lost_among_the_margins(unit):
    rows, cols, positive, shape, weights = made(0, weighted=True, unit=unit)
    config = FitConfig(rank=2, tol=0, likelihood_weight=0.9)
    block = RatingBlock.from_coordinates(rows, cols, positive, shape, weights)
    state = FitState(CudaEngine.of_block(block, form_of(config)))
    state.start(config, loss_of(config))
    left = state.holdout_loss(config.loss, state.posteriors, Split(3, 0.7))
    assert left.total_weight > 0
    assert left.margins.sum() == pytest.approx(left.total_weight, rel=1e-6)


@pytest.mark.parametrize("name", ["side features", *slow(FITS.keys() - {"side features"})])
def test_the_same_fit_as_on_the_cpu(name):
    settings, given = FITS[name]
    rng = np.random.default_rng(0)
    rows = rng.integers(0, ROWS, N)
    cols = rng.integers(0, COLUMNS, N)
    labels = (rng.normal(size=(ROWS, 2))[rows] * rng.normal(size=(COLUMNS, 2))[cols]).sum(
        axis=1
    ) > 0
    config = FitConfig(**{"rank": 2, "likelihood_weight": 1.0, "tol": 0, "max_iter": 4, **settings})
    here, there = (
        fit_arrays(rows, cols, labels, config, (ROWS + 1, COLUMNS), device=place, **given)
        for place in ("cpu", "cuda")
    )
    np.testing.assert_allclose(there.objective_history, here.objective_history, rtol=1e-6)
    # The last row has no rating
    cells = [index.ravel() for index in np.indices((ROWS + 1, COLUMNS))]
    np.testing.assert_allclose(there.score(*cells), here.score(*cells), atol=1e-4)
    for who in ("user", "item"):
        one, two = (fit.positions(who, 1) for fit in (here, there))
        for name in one.column_names[1:6]:
            np.testing.assert_allclose(
                two[name].to_numpy(), one[name].to_numpy(), rtol=1e-3, atol=1e-4
            )
    if "certify" in given:
        bounds = [[found.bound for found in fit.certificates] for fit in (here, there)]
        assert bounds[0] == pytest.approx(bounds[1], rel=1e-4)


@pytest.mark.parametrize("fixed", [0, 1])
@pytest.mark.parametrize("implicit", [True, False])
def test_lines_of_every_rank_fit_the_device(fixed, implicit):
    for rank in range(1, CUDA_MOST_RANK + 1):
        shape = Shape(rank + fixed, fixed, implicit)
        line = shape.line
        (down, across) = shape.grid
        assert line.moments <= MOST_MOMENTS
        assert line.moments % 4 == 0
        assert line.implicit % 4 != 3
        assert line.width % 4 == 0  # lines begin at 16 bytes
        assert down % across == 0  # a line of a system has its place in all columns of threads
        assert max(shape.root_bytes, shape.map_bytes) <= 227 * 1024  # shared memory of a block
    for columns in (1, 5, 16, 17, 38, 70):
        line = LineShape.of_columns(columns)
        assert columns <= line.width <= line.sums
