"""Data to fit, and how two fits are compared: what the tests of whole fits share."""

from functools import cache
from itertools import product

import numpy as np
import pytest
from test_kernels import VARIANTS

from onebit_spark.simulate import simulate

MONOTONE = [loss for loss in VARIANTS if getattr(loss, "solver", "mm") != "gradient"]


@cache
def simulated(kind, **options):
    simulation = simulate(kind, **options)
    return simulation.rows, simulation.cols, simulation.labels


def data_named(kind, request):
    return request.getfixturevalue("movielens_100k") if kind == "MovieLens-100K" else simulated(kind)


def half_of(*axes):
    """Combinations of two values per axis. Half of them show each value, of three axes each pair; the rest is slow."""
    marks = [[], [pytest.mark.slow]]  # the digits of a number are the places of the values
    return [pytest.param(*values, marks=marks[n.bit_count() % 2]) for n, values in enumerate(product(*axes))]


def assert_same_bits(fit, other):
    assert other.objective_history == fit.objective_history
    for side in ("rows", "cols"):
        np.testing.assert_array_equal(getattr(other, side).location, getattr(fit, side).location)
        np.testing.assert_array_equal(getattr(other, side).scale, getattr(fit, side).scale)
