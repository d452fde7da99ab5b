"""The contract of engines (``tests/support/engine_contract.py``): threads, and a GPU with its
kernels on the CPU.
"""

import pytest
from support import cudaoncpu
from support.engine_contract import (  # noqa: F401
    FORMS,
    Both,
    made,
    test_growth,
    test_half_steps_and_maps,
    test_positions,
    test_rows,
    test_rows_of_a_slice,
    test_rows_without_idle_factors,
    test_start,
    test_steps_over_all_ratings,
)

from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.fit_state import FitState
from onebit_spark.core.setup import form_of
from onebit_spark.engines.cuda.runner import CudaEngine
from onebit_spark.engines.threads import local_state
from onebit_spark.settings import FitConfig

NO_COMPILER = pytest.mark.skipif(
    cudaoncpu.COMPILER is None, reason="needs g++ to compile the kernels"
)


def param(engine, form):
    marks = [] if engine == "threads" else [pytest.mark.slow, NO_COMPILER]
    return pytest.param((engine, form), id=f"{engine}, {form}", marks=marks)


CASES = [
    param(engine, form)
    for engine in ("threads", "cuda")
    for form in FORMS
    if form != "many spreads"
]


@pytest.fixture(params=CASES)
def both(request, monkeypatch):
    engine, name = request.param
    form = {"rank": 4, **FORMS[name]}
    rows, cols, positive, shape, weights = made(0, form.pop("weighted", False))
    config = FitConfig(**{"tol": 0, "likelihood_weight": 0.9, **form})
    block = RatingBlock.from_coordinates(rows, cols, positive, shape, weights)
    if engine == "cuda":
        cudaoncpu.replace_device(monkeypatch)
        yield Both(
            local_state(block, 1), FitState(CudaEngine.of_block(block, form_of(config))), config
        )
        return
    with local_state(block, 3).running() as there:
        yield Both(local_state(block, 1), there, config)
