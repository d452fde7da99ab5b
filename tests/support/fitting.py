"""Data to fit, random posteriors, and how two fits are compared: what several tests share."""

from functools import cache

import numpy as np

from onebit_spark.core.posterior import RowPosterior
from onebit_spark.simulate import simulate
from support.variants import VARIANTS

MONOTONE = [loss for loss in VARIANTS if getattr(loss, "solver", "mm") != "gradient"]


@cache
def simulated(kind, **options):
    simulation = simulate(kind, **options)
    return simulation.rows, simulation.cols, simulation.labels


def data_named(kind, request):
    return (
        request.getfixturevalue("movielens_100k") if kind == "MovieLens-100K" else simulated(kind)
    )


def random_posterior(rng, rows, form):
    """Normal means, and standard deviations from .1 to .9 or covariances of that size."""
    size = form.dimension
    location = rng.normal(size=(rows, size))
    scale = rng.uniform(0.1, 0.9, (rows, size))
    if form.kind == "covariance":
        root = 0.9 / np.sqrt(size) * rng.normal(size=(rows, size, size))
        scale = (root @ root.transpose(0, 2, 1) + 0.05 * np.eye(size))[:, *np.tril_indices(size)]
    arrays = location.astype(form.precision), np.ascontiguousarray(scale, form.precision)
    implicit = (
        rng.normal(size=(rows, form.vectors * form.rank)).astype(form.precision)
        if form.vectors
        else None
    )
    return RowPosterior(*arrays, form.kind, form.has_intercept, implicit)


def image(by, posterior):
    """The posterior after a RowMap."""
    mapped = posterior.copy()
    by.apply_to(mapped, 0, mapped.n_rows)
    return mapped


def assert_same_bits(fit, other):
    assert other.objective_history == fit.objective_history
    for side in ("rows", "cols"):
        np.testing.assert_array_equal(getattr(other, side).location, getattr(fit, side).location)
        np.testing.assert_array_equal(getattr(other, side).scale, getattr(fit, side).scale)
