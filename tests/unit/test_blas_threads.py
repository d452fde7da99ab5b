"""BLAS has one thread while a fit runs, and as many as before afterwards."""

import sys

import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits

from onebit_spark import FitConfig, fit_arrays
from onebit_spark.core.blas_threads import one_blas_thread


def threads():
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


def test_a_fit_uses_one():
    rng, seen = np.random.default_rng(0), []
    ratings = rng.integers(0, 30, 500), rng.integers(0, 20, 500), rng.integers(0, 2, 500)
    with threadpool_limits(2, user_api="blas"):
        fit_arrays(*ratings, FitConfig(rank=2, max_iter=2, tol=0), on_iteration=lambda _: seen.append(threads()))
        assert seen == [{1}, {1}]
        assert threads() == {2}


def test_a_fit_without_threadpoolctl_goes_on(monkeypatch):
    monkeypatch.setitem(sys.modules, "threadpoolctl", None)
    with one_blas_thread():
        reached = True
    assert reached
