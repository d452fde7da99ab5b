"""Fits in this process do not depend on how the input is written down, nor on the threads."""

import numpy as np
import pytest
from fitting import MONOTONE, assert_same_bits, data_named, half_of, simulated
from test_kernels import VARIANTS, name
from test_objective import config_of

from onebit_spark import FitConfig, fit_arrays
from onebit_spark.core.priors import PRIORS
from onebit_spark.simulate import power_law_ratings

SCORE_TOLERANCE = {"logistic": 1e-5, "hinge": 1e-3}  # of the largest |score|; the hinge is less smooth


@pytest.mark.parametrize(("prior", "intercepts", "precision"), half_of(PRIORS, [False, True], ["float64", "float32"]))
@pytest.mark.parametrize("loss", MONOTONE, ids=name)
@pytest.mark.parametrize("kind", ["small", pytest.param("MovieLens-100K", marks=pytest.mark.slow)])
def test_order_and_numbering_change_nothing(kind, loss, prior, intercepts, precision, request):
    """Ratings shuffled, rows and columns renumbered: 15 iterations end at the same objective and scores."""
    rows, cols, labels = simulated("A2", shape=(100, 80)) if kind == "small" else data_named(kind, request)
    rng = np.random.default_rng(0)
    order, new_row, new_col = (rng.permutation(size) for size in (len(rows), rows.max() + 1, cols.max() + 1))
    config = config_of(loss, prior=prior, intercepts=intercepts, precision=precision, rank=5, max_iter=15)
    fit = fit_arrays(rows, cols, labels, config)
    other = fit_arrays(new_row[rows[order]], new_col[cols[order]], labels[order], config)
    relative = {"float64": 1e-9, "float32": 1e-6}[precision]
    np.testing.assert_allclose(other.objective_history, fit.objective_history, rtol=relative)
    scores = fit.score(rows, cols)
    limit = SCORE_TOLERANCE[loss.name] * np.abs(scores).max()
    np.testing.assert_allclose(other.score(new_row[rows], new_col[cols]), scores, rtol=0, atol=limit)


@pytest.mark.parametrize("loss", VARIANTS, ids=name)
def test_order_of_the_ratings_changes_no_bit(loss):
    rows, cols, labels = simulated("B3", shape=(60, 50))
    order = np.random.default_rng(1).permutation(len(rows))
    config = config_of(loss, max_iter=10)
    assert_same_bits(
        fit_arrays(rows, cols, labels, config), fit_arrays(rows[order], cols[order], labels[order], config)
    )


@pytest.mark.parametrize("intercepts", [False, True])
@pytest.mark.parametrize("loss", VARIANTS, ids=name)
def test_declared_shape_changes_nothing(loss, intercepts):
    """Empty rows and columns, also between the others, change no bit and hold the prior, N(p, 1/g)."""
    rows, cols, labels = simulated("B3", shape=(30, 20))
    used = (rows != 7) & (cols != 11)
    rows, cols, labels = rows[used], cols[used], labels[used]
    config = config_of(loss, intercepts=intercepts, max_iter=10)
    fit, wide = fit_arrays(rows, cols, labels, config), fit_arrays(rows, cols, labels, config, shape=(40, 33))
    assert (wide.rows.n_rows, wide.cols.n_rows) == (40, 33)
    assert wide.objective_history == fit.objective_history
    np.testing.assert_array_equal(wide.rows.location[:30], fit.rows.location)
    np.testing.assert_array_equal(wide.cols.scale[:20], fit.cols.scale)
    for side, posterior, seen in (("rows", wide.rows, 7), ("cols", wide.cols, 11)):
        prior = wide.scales.row_prior(side)
        for empty in (seen, posterior.n_rows - 1):
            np.testing.assert_allclose(posterior.location[empty], prior.mean[0], rtol=1e-14)
            np.testing.assert_allclose(posterior.covariance[empty], np.diag(1 / prior.precision[0]), rtol=1e-14)
    # Compacted, with the two gaps closed, it is the same fit again.
    compact = fit_arrays(rows - (rows > 7), cols - (cols > 11), labels, config)
    np.testing.assert_allclose(compact.objective_history, fit.objective_history, rtol=1e-12)


@pytest.mark.parametrize("loss", VARIANTS, ids=name)
def test_threads_change_no_bit(loss):
    """120,000 ratings: four ranges of rows, shared by one, two or three threads."""
    data = power_law_ratings(3000, 400, 120_000)
    fits = [fit_arrays(*data, config_of(loss, max_iter=4), threads=threads) for threads in (1, 2, 3)]
    assert_same_bits(fits[0], fits[1])
    assert_same_bits(fits[0], fits[2])


@pytest.mark.parametrize("fits", [10, pytest.param(150, marks=pytest.mark.slow)])
def test_the_place_of_arrays_in_memory_changes_no_bit(fits):
    """Other arrays are allocated between the fits. A vectorised loop may test at run time whether arrays overlap."""
    rows, cols, labels = power_law_ratings(60, 40, 1500, seed=3)
    config = FitConfig(loss="hinge", rank=3, tol=0.0, intercepts=False, max_iter=15, implicit_features=False)
    between, found = [], set()
    for size in np.random.default_rng(0).integers(1, 5000, fits):
        between.append(np.empty(size, np.uint8))
        found.add(tuple(fit_arrays(rows, cols, labels, config).objective_history))
    assert len(found) == 1


def test_every_label_coding_gives_the_same_fit():
    rows, cols, labels = simulated("B3", shape=(30, 20))
    config = FitConfig(tol=0, max_iter=5)
    fit = fit_arrays(rows, cols, labels, config)
    positive = labels > 0
    for coded in (
        positive,
        positive.astype(int),
        positive.astype(np.uint8),
        positive * 1.0,
        labels * 1.0,
        list(labels),
    ):
        assert_same_bits(fit, fit_arrays(rows, cols, coded, config))
    assert set(fit.predict(rows, cols)) == {-1, 1}
