"""The contract of engines (``support.engine_contract``) for Spark: tables that the driver holds,
and stored ones.
"""

import numpy as np
import pyarrow as pa
import pytest
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
from onebit_spark.core.setup import form_of
from onebit_spark.data.ratings import Columns
from onebit_spark.engines.spark.blocking import Storage
from onebit_spark.engines.spark.engine import executor_state
from onebit_spark.engines.spark.survey import survey_ratings
from onebit_spark.engines.threads import local_state
from onebit_spark.settings import FitConfig

pytestmark = pytest.mark.classic
HELD = {"broadcast": ["rows", "cols"], "mixed": ["cols"], "shuffle": []}


def param(exchange, form):
    marks = [] if (exchange, form) == ("broadcast", "default") else [pytest.mark.slow]
    return pytest.param((exchange, form), id=f"{exchange}, {form}", marks=marks)


@pytest.fixture(
    params=[
        param(exchange, form) for exchange in HELD for form in ("default", "weighted", "spreads")
    ]
)
def both(request, spark):
    exchange, name = request.param
    form = {"rank": 3, **FORMS[name]}
    weighted = form.pop("weighted", False)
    rows, cols, positive, _, weights = made(0, weighted)
    config = FitConfig(**{"tol": 0, "likelihood_weight": 0.9, **form})
    shape = len(np.unique(rows)), len(np.unique(cols))  # Spark numbers the ids with ratings
    assert shape == (rows.max() + 1, cols.max() + 1)
    block = RatingBlock.from_coordinates(rows, cols, positive, shape, weights)
    table = {"user": rows, "item": cols, "label": positive}
    if weighted:
        table["w"] = weights.astype(np.float64)
    frame = spark.createDataFrame(pa.table(table))
    columns = Columns(weight="w" if weighted else None)
    with (
        survey_ratings(frame, columns) as survey,
        executor_state(
            spark, survey, (3, 2), form_of(config), Storage(), frozenset(HELD[exchange])
        ) as there,
    ):
        yield Both(local_state(block, 1), there, config)
