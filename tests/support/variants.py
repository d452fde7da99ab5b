"""Every registered loss under every combination of its options, and random inputs for its
kernels.
"""

from dataclasses import fields
from itertools import product
from typing import get_args, get_type_hints

import numpy as np
import pytest

from onebit_spark import FitConfig
from onebit_spark.core.losses import LOSSES, HalfStep, RowPrior, RowSums
from onebit_spark.core.posterior import RowPosterior
from onebit_spark.core.statistics import SideStatistics

RATINGS_PER_ROW = 30.0


RANK = 5  # sums go by fours: 5, and 7 with the intercepts, leave a remainder


def variants():
    """Every registered loss under every combination of its declared options."""
    for loss in LOSSES.values():
        hints = get_type_hints(loss)
        names = [field.name for field in fields(loss)]
        for options in product(*(get_args(hints[name]) for name in names)):
            yield loss(**dict(zip(names, options, strict=True)))


def half_of(*axes):
    """Combinations of two values per axis.

    Half of them show each value, of three axes each pair; the rest is slow.
    """
    marks = [[], [pytest.mark.slow]]  # the digits of a number are the places of the values
    return [
        pytest.param(*values, marks=marks[n.bit_count() % 2])
        for n, values in enumerate(product(*axes))
    ]


VARIANTS = list(variants())


def name(loss):
    return "-".join(key(loss))


def key(loss):
    return (loss.name, *(getattr(loss, field.name) for field in fields(loss)))


def make_posterior(rng, rows, kind, intercepts, dtype):
    dimension = RANK + intercepts
    location = rng.normal(scale=0.7, size=(rows, dimension)).astype(dtype)
    if kind == "spread":
        return RowPosterior(
            location, rng.uniform(0.05, 0.5, (rows, dimension)).astype(dtype), kind, intercepts
        )
    root = rng.normal(scale=0.3, size=(rows, dimension, dimension))
    covariance = root @ root.transpose(0, 2, 1) + 0.02 * np.eye(dimension)
    i, j = np.tril_indices(dimension)
    return RowPosterior(
        location, np.ascontiguousarray(covariance[:, i, j], dtype), kind, intercepts
    )


def make_prior(rng, rows, dimension, mean_lines, precision_lines):
    """mean_lines and precision_lines: "one" line for all, or one "per row"; or the precision is a
    "matrix".
    """
    lines = {"one": 1, "per row": rows, "matrix": 1}
    mean = rng.normal(scale=0.5, size=(lines[mean_lines], dimension))
    precision = rng.uniform(0.3, 4.0, (lines[precision_lines], dimension))
    if precision_lines != "matrix":
        return RowPrior(mean, precision)
    root = rng.normal(size=(dimension, dimension))
    whole = root @ root.T + np.diag(precision[0])
    return RowPrior(mean, np.diag(whole)[None, :].copy(), coupling=whole - np.diag(np.diag(whole)))


def half_step(side, kappa, prior, move, want_data=True, relaxation=1.0):
    return HalfStep(
        side=side,
        iteration=4,
        kappa=kappa,
        prior=prior,
        ratings_per_row=RATINGS_PER_ROW,
        move_means=move.means,
        move_covariances=move.covariances,
        want_data=want_data,
        relaxation=relaxation,
    )


# The model of the paper with intercepts; implicit features have tests of their own.
PLAIN = {"rank": 3, "tol": 0, "precision": "float64", "implicit_features": False}


def config_of(loss, **options):
    """The configuration whose loss is ``loss``, a variant of a registered one."""
    extra = {"solver": loss.solver} if loss.name == "hinge" else {"covariance": loss.structure}
    return FitConfig(loss=loss.name, **extra, **PLAIN | options)


def statistics(old, posterior, prior=None, active=None):
    prior = prior or RowPrior(np.zeros((1, posterior.dimension)), np.ones((1, posterior.dimension)))
    active = np.ones(posterior.n_rows, bool) if active is None else active
    return SideStatistics.of_rows(old, posterior, prior, active, RowSums(1.5, 2.5))
