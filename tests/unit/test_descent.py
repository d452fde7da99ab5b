"""Fits in this process descend: by every step, or on the whole where the method does not promise more."""

import numpy as np
import pytest
from fitting import MONOTONE, data_named, half_of, simulated
from test_kernels import VARIANTS, name
from test_objective import config_of

from onebit_spark import FitConfig, fit_arrays
from onebit_spark.core.priors import PRIORS

LARGEST_RISE = {"float64": 1e-9, "float32": 1e-6}  # of the objective, relative


@pytest.mark.parametrize("precision", LARGEST_RISE)
@pytest.mark.parametrize("intercepts", [False, True])
@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("loss", MONOTONE, ids=name)
@pytest.mark.parametrize(
    "kind", ["small", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("A2", "B3", "MovieLens-100K"))]
)
def test_objective_never_rises(kind, loss, prior, intercepts, precision, request):
    """40 iterations of the simulations, where logistic fits decrease by less than 1e−6 at the end; 12 of MovieLens."""
    data = simulated("A2", shape=(60, 50)) if kind == "small" else data_named(kind, request)
    iterations = 12 if kind == "MovieLens-100K" else 40
    config = config_of(loss, prior=prior, intercepts=intercepts, precision=precision, rank=10, max_iter=iterations)
    history = np.array(fit_arrays(*data, config).objective_history)
    assert np.max(np.diff(history) / np.abs(history[1:])) <= LARGEST_RISE[precision]
    assert history[-1] < history[0]


@pytest.mark.slow
@pytest.mark.parametrize("precision", LARGEST_RISE)
@pytest.mark.parametrize("loss", MONOTONE, ids=name)
def test_objective_does_not_rise_at_the_end_either(loss, precision):
    """300 iterations of a small matrix: the logistic fit has long stopped, and rounding alone moves it."""
    data = simulated("A2", shape=(40, 30), fraction=0.5)
    history = np.array(fit_arrays(*data, config_of(loss, precision=precision, max_iter=300)).objective_history)
    assert np.max(np.diff(history) / np.abs(history[1:])) <= LARGEST_RISE[precision]


@pytest.mark.parametrize(("prior", "intercepts"), half_of(PRIORS, [False, True]))
@pytest.mark.parametrize(
    "kind", ["A2", *(pytest.param(each, marks=pytest.mark.slow) for each in ("B3", "MovieLens-100K"))]
)
def test_mm_ends_no_higher_than_gradient_descent(kind, prior, intercepts, request):
    """The same number of iterations of each; Algorithm 1's gradient is the yardstick."""
    data, iterations = data_named(kind, request), 20 if kind == "MovieLens-100K" else 60
    ends = {
        loss.solver: fit_arrays(
            *data, config_of(loss, prior=prior, intercepts=intercepts, rank=10, max_iter=iterations)
        ).objective_history[-1]
        for loss in VARIANTS
        if loss.name == "hinge"
    }
    assert ends["mm"] <= ends["gradient"]


def test_gradient_descends_on_the_whole():
    """Not monotone, but 60 steps take the objective of A2 well below its first value, or the yardstick is broken."""
    config = FitConfig(loss="hinge", rank=10, solver="gradient", tol=0, max_iter=60)
    history = fit_arrays(*simulated("A2"), config).objective_history
    assert history[-1] < 0.9 * history[0]
