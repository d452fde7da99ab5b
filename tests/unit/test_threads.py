"""The engine of this process: what it holds goes with it."""

import gc
import weakref

import numpy as np

from onebit_spark import FitConfig
from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.randomness import Split
from onebit_spark.core.solver import solve
from onebit_spark.engines.threads import local_engine


def test_ratings_are_freed_without_the_garbage_collector():
    """Many fits in a row (tuning, the choice of κ) must not wait for it: two copies of the ratings each."""
    rng = np.random.default_rng(0)
    block = RatingBlock.from_coordinates(rng.integers(0, 9, 60), rng.integers(0, 7, 60), rng.random(60) > 0.5, (9, 7))
    gc.collect()
    gc.disable()
    try:
        with local_engine(block, 2).running() as engine:
            solve(engine, FitConfig(rank=1, max_iter=2, tol=0))
            with engine.restricted(Split(1, 0.5)) as part:
                held = [weakref.ref(part.runner), weakref.ref(engine.runner)]
            del part
            assert held[0]() is None
        del engine
        assert held[1]() is None
    finally:
        gc.enable()
