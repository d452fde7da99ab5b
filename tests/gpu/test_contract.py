"""The contract of engines on a GPU: see ``tests/support/engine_contract.py``."""

import pytest
from support.engine_contract import (  # noqa: F401
    FORMS,
    Both,
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


@pytest.fixture(params=FORMS)
def both(request, ratings):
    form = dict(FORMS[request.param])
    rows, cols, positive, shape, weights = ratings(0, weighted=form.pop("weighted", False))
    config = FitConfig(**{"rank": 10, "tol": 0, "likelihood_weight": 0.9, **form})
    block = RatingBlock.from_coordinates(rows, cols, positive, shape, weights)
    return Both(
        local_state(block, 1), FitState(CudaEngine.of_block(block, form_of(config))), config
    )
