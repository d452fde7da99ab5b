"""Fits in this process: the rank, unknown cells, starts; and they end honestly."""

import warnings

import numpy as np
import pytest
from fitting import MONOTONE, half_of, simulated
from test_kernels import VARIANTS, name
from test_objective import config_of

from onebit_spark import FitConfig, NotConverged, fit_arrays
from onebit_spark.core.losses import LOSSES
from onebit_spark.core.posterior import RowPosterior, factors_in_use
from onebit_spark.core.priors import PRIORS


@pytest.mark.parametrize(("prior", "rank"), half_of(PRIORS, [3, 5]))
@pytest.mark.parametrize("loss", VARIANTS, ids=name)
def test_the_rank_is_found(loss, prior, rank):
    """B1 of rank 3 and 5, 200 × 200, K = 10, 100 iterations, default κ, α, β: the surplus is switched off."""
    config = config_of(loss, prior=prior, rank=10, intercepts=False, max_iter=100, precision="float32")
    fit = fit_arrays(*simulated("B1", rank=rank), config)
    assert fit.effective_rank == rank
    strength = np.linalg.norm(fit.rows.mean, axis=0) * np.linalg.norm(fit.cols.mean, axis=0)
    assert set(np.argsort(fit.inverse_gamma)[:rank]) == set(np.argsort(strength)[-rank:])


def coins(shape, share, seed=0):
    """Ratings of some cells by a fair coin."""
    rng = np.random.default_rng(seed)
    cells = rng.choice(shape[0] * shape[1], int(share * shape[0] * shape[1]), replace=False)
    return *np.divmod(cells, shape[1]), rng.choice([-1, 1], len(cells))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("prior", PRIORS)
def test_nothing_is_found_in_noise(loss, prior):
    """Ten coins a row and column: every factor is shrunk to nothing, though not all by as much."""
    fit = fit_arrays(*coins((200, 200), 0.05), FitConfig(loss=loss, prior=prior))
    strength = fit.rows.column_norms * fit.cols.column_norms
    assert strength.max() > 0
    assert fit.effective_rank == 0


def test_the_effective_rank_is_by_strength_alone():
    """Rows and columns without ratings do not count, nor do factors below .01 or below 1% of the strongest."""
    location = np.array([[3.0, 0.2, 0.02, 0.009]] * 4)
    rows = RowPosterior.isotropic(location, 0.1, "spread", False)
    assert len(factors_in_use(rows.column_norms, rows.column_norms, 4, 4)) == 1  # 9, .04, .0004, …
    weaker = RowPosterior.isotropic(location * [0.1, 1, 1, 1], 0.1, "spread", False)
    assert len(factors_in_use(weaker.column_norms, weaker.column_norms, 4, 4)) == 2  # .09, .04, .0004, …
    assert len(factors_in_use(weaker.column_norms, weaker.column_norms, 20, 20)) == 1  # .018, .008, …
    assert len(factors_in_use(weaker.column_norms, weaker.column_norms, 40, 40)) == 0


@pytest.mark.parametrize("loss", VARIANTS, ids=name)
def test_an_unknown_index_has_the_prior(loss):
    rows, cols, labels = simulated("B3", shape=(30, 20))
    fit = fit_arrays(rows, cols, labels, config_of(loss, max_iter=10))
    np.testing.assert_allclose(fit.score([30, 1000, -1], [4, 5, 6]), fit.scales.mean + fit.cols.intercept[4:7])
    np.testing.assert_allclose(fit.score([4, 5, 6], [20, 1000, -1]), fit.rows.intercept[4:7])
    assert fit.score([99], [99])[0] == pytest.approx(fit.scales.mean)
    # var u = 1/g_b + var d + Σ_k (R² + s_R²)/g_k
    spread = fit.cols.std[4]
    second = fit.cols.mean[4] ** 2 + spread[1:] ** 2
    variance = 1 / fit.scales.row_intercept + spread[0] ** 2 + np.sum(second / fit.inverse_gamma)
    assert fit.std([99], [4])[0] == pytest.approx(np.sqrt(variance))


@pytest.mark.parametrize("loss", VARIANTS, ids=name)
@pytest.mark.parametrize("flip", [1, -1])
def test_a_score_of_zero_is_predicted_as_the_majority(loss, flip):
    rows, cols, labels = simulated("A2", shape=(30, 20), seed=1)
    labels = flip * np.where(np.arange(len(labels)) % 4 == 0, -1, labels)
    fit = fit_arrays(rows, cols, labels, config_of(loss, intercepts=False, max_iter=3))
    assert fit.score([99], [0])[0] == 0
    assert fit.predict([99], [0])[0] == fit.majority == np.sign(labels.sum())
    assert fit.probability([99], [0])[0] == 0.5


@pytest.mark.parametrize("start", ["spectral", "random"])
@pytest.mark.parametrize("intercepts", [False, True])
@pytest.mark.parametrize("loss", MONOTONE, ids=name)
def test_more_factors_than_rows(loss, intercepts, start):
    """K = 12 on an 8 × 30 matrix of rank 2 without noise: the surplus columns start as noise and the fit holds.

    A random start gets stuck in worse optima, as alternating minimisation does; it must beat the majority, ½ here,
    all the same.
    """
    rows, cols, labels = simulated("A1", rank=2, shape=(8, 30), fraction=0.8)
    config = config_of(loss, rank=12, intercepts=intercepts, start=start, max_iter=60)
    fit = fit_arrays(rows, cols, labels, config)
    assert fit.rows.mean.shape == (8, 12)
    assert np.all(np.diff(fit.objective_history) <= 1e-9 * np.abs(fit.objective_history[1:]))
    assert np.mean(fit.predict(rows, cols) == labels) > (0.95 if start == "spectral" else 0.75)


@pytest.mark.parametrize("size", [4, 16, 20])
def test_columns_that_all_look_alike(size):
    """Two camps that like their own half: every row and column has ``size`` ratings, half of them positive.

    The start's random vectors are keyed by just these counts, so all are equal here and orthogonal to the signal;
    exactly so where √size is a power of two. Each rating weighs 4: with weight 1, sixteen ratings are too few to pay
    for any factor, and the better optimum is to have none.
    """
    rows, cols = np.divmod(np.arange(size**2), size)
    labels = np.where((rows < size // 2) == (cols < size // 2), 1, -1)
    fit = fit_arrays(rows, cols, labels, FitConfig(rank=2, tol=0, max_iter=30, likelihood_weight=4))
    np.testing.assert_array_equal(fit.predict(rows, cols), labels)


@pytest.mark.parametrize("loss", LOSSES)
def test_honest_end(loss):
    data = simulated("A2", shape=(60, 50))
    with pytest.warns(NotConverged, match="max_iter = 3 reached"):
        fit = fit_arrays(*data, FitConfig(loss=loss, max_iter=3))
    assert (fit.converged, len(fit.history)) == (False, 3)
    assert "max_iter = 3" in fit.reason
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit = fit_arrays(*data, FitConfig(loss=loss, max_iter=1000, tol=1e-4))
    assert fit.converged
    assert "tol = 0.0001" in fit.reason
    objective = np.array(fit.objective_history)
    falls = np.append(np.full(5, np.inf), np.abs(objective[:-5] - objective[5:]) / objective[5:])
    still = [max(fall, it.change) <= 1e-4 for fall, it in zip(falls, fit.history, strict=True)]
    assert still == [False] * (len(still) - 1) + [True]


@pytest.mark.parametrize("loss", VARIANTS, ids=name)
def test_without_tolerance_all_iterations_run(loss):
    seen = []
    data = simulated("A2", shape=(20, 15))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit = fit_arrays(*data, config_of(loss, max_iter=70), on_iteration=seen.append)
    assert [it.number for it in fit.history] == list(range(1, 71))
    assert seen == fit.history
    assert not fit.converged
    assert fit.objective_history == [it.objective for it in seen]


def test_no_pair_and_one_pair():
    """An empty list of pairs has no scores; two plain integers are one pair."""
    fit = fit_arrays(*simulated("B3", shape=(30, 20)), FitConfig(tol=0, max_iter=2))
    for method in (fit.score, fit.std, fit.probability, fit.predict):
        assert method([], []).shape == (0,)
        assert np.ravel(method(3, 4))[0] == method([3], [4])[0]
