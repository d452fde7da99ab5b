"""Fits in this process: they descend, find the rank, end honestly, and do not depend on how the
input is written.
"""

import warnings
from itertools import product

import numpy as np
import pytest
from powerlaw import power_law_ratings
from support.fitting import MONOTONE, assert_same_bits, data_named, simulated
from support.variants import VARIANTS, config_of, half_of, name

from onebit_spark import FitConfig, NotConverged, Terms, fit_arrays
from onebit_spark.core.losses import LOSSES
from onebit_spark.core.posterior import RowPosterior, factors_in_use
from onebit_spark.core.priors import PRIORS

LARGEST_RISE = {"float64": 1e-9, "float32": 1e-6}  # of the objective, relative


@pytest.mark.parametrize(
    ("prior", "intercepts", "precision"), half_of(PRIORS, [False, True], LARGEST_RISE)
)
@pytest.mark.parametrize("loss", MONOTONE, ids=name)
@pytest.mark.parametrize(
    "kind",
    [
        "small",
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("A2", "B3", "MovieLens-100K")),
    ],
)
def test_objective_never_rises(kind, loss, prior, intercepts, precision, request):
    """40 iterations of the simulations, where logistic fits decrease by less than 1e−6 at the end;
    12 of MovieLens.
    """
    data = simulated("A2", shape=(60, 50)) if kind == "small" else data_named(kind, request)
    iterations = 12 if kind == "MovieLens-100K" else 40
    config = config_of(
        loss, prior=prior, intercepts=intercepts, precision=precision, rank=10, max_iter=iterations
    )
    history = np.array(fit_arrays(*data, config).objective_history)
    assert np.max(np.diff(history) / np.abs(history[1:])) <= LARGEST_RISE[precision]
    assert history[-1] < history[0]


@pytest.mark.slow
@pytest.mark.parametrize("precision", LARGEST_RISE)
@pytest.mark.parametrize("loss", MONOTONE, ids=name)
def test_objective_does_not_rise_at_the_end_either(loss, precision):
    """300 iterations of a small matrix: the logistic fit has long stopped, and rounding alone moves
    it.
    """
    data = simulated("A2", shape=(40, 30), fraction=0.5)
    history = np.array(
        fit_arrays(*data, config_of(loss, precision=precision, max_iter=300)).objective_history
    )
    assert np.max(np.diff(history) / np.abs(history[1:])) <= LARGEST_RISE[precision]


@pytest.mark.parametrize(("prior", "intercepts"), half_of(PRIORS, [False, True]))
@pytest.mark.parametrize(
    "kind",
    ["A2", *(pytest.param(each, marks=pytest.mark.slow) for each in ("B3", "MovieLens-100K"))],
)
def test_mm_ends_no_higher_than_gradient_descent(kind, prior, intercepts, request):
    """The same number of iterations of each; Algorithm 1's gradient, which descends on the whole,
    is the yardstick.
    """
    data = data_named(kind, request)
    iterations = 20 if kind == "MovieLens-100K" else 60
    choices = {"prior": prior, "intercepts": intercepts, "rank": 10, "max_iter": iterations}
    hinge = (loss for loss in VARIANTS if loss.name == "hinge")
    histories = {
        loss.solver: fit_arrays(*data, config_of(loss, **choices)).objective_history
        for loss in hinge
    }
    assert histories["mm"][-1] <= histories["gradient"][-1] < 0.9 * histories["gradient"][0]


@pytest.mark.parametrize(("prior", "rank"), half_of(PRIORS, [3, 5]))
@pytest.mark.parametrize("loss", VARIANTS, ids=name)
def test_the_rank_is_found(loss, prior, rank):
    """B1 of rank 3 and 5, 200 × 200, K = 10, 100 iterations, default κ, α, β: the surplus is
    switched off.
    """
    config = config_of(
        loss, prior=prior, rank=10, intercepts=False, max_iter=100, precision="float32"
    )
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
    """Rows and columns without ratings do not count, nor do factors below .01 or below 1% of the
    strongest.
    """
    location = np.array([[3.0, 0.2, 0.02, 0.009]] * 4)
    rows = RowPosterior.isotropic(location, 0.1, "spread", False)
    # 9, .04, .0004, …
    assert factors_in_use(rows.column_norms, rows.column_norms, 4, 4).tolist() == [0]
    assert factors_in_use(np.array([3.0, 1e-3, 2.0]), np.array([2.0, 1.0, 4.0]), 4, 1).tolist() == [
        0,
        2,
    ]
    weaker = RowPosterior.isotropic(location * [0.1, 1, 1, 1], 0.1, "spread", False)
    # .09, .04, .0004, …
    assert len(factors_in_use(weaker.column_norms, weaker.column_norms, 4, 4)) == 2
    # .018, .008, …
    assert len(factors_in_use(weaker.column_norms, weaker.column_norms, 20, 20)) == 1
    assert len(factors_in_use(weaker.column_norms, weaker.column_norms, 40, 40)) == 0


@pytest.mark.parametrize("loss", VARIANTS, ids=name)
def test_an_unknown_index_has_the_prior(loss):
    rows, cols, labels = simulated("B3", shape=(30, 20))
    fit = fit_arrays(rows, cols, labels, config_of(loss, max_iter=10))
    np.testing.assert_allclose(
        fit.score([30, 1000, -1], [4, 5, 6]), fit.scales.mean + fit.cols.intercept[4:7]
    )
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
    assert fit.predict([99], [0])[0] == fit.info.majority == np.sign(labels.sum())
    assert fit.probability([99], [0])[0] == 0.5


@pytest.mark.parametrize(("intercepts", "start"), half_of([False, True], ["spectral", "random"]))
@pytest.mark.parametrize("loss", MONOTONE, ids=name)
def test_more_factors_than_rows(loss, intercepts, start):
    """K = 12 on an 8 × 30 matrix of rank 2 without noise: the surplus columns start as noise and
    the fit holds.

    A random start gets stuck in worse optima, as alternating minimisation does; it must beat the
    majority, ½ here, all the same.
    """
    rows, cols, labels = simulated("A1", rank=2, shape=(8, 30), fraction=0.8)
    config = config_of(loss, rank=12, intercepts=intercepts, start=start, max_iter=60)
    fit = fit_arrays(rows, cols, labels, config)
    assert fit.rows.mean.shape == (8, 12)
    assert np.all(np.diff(fit.objective_history) <= 1e-9 * np.abs(fit.objective_history[1:]))
    assert np.mean(fit.predict(rows, cols) == labels) > (0.95 if start == "spectral" else 0.75)


@pytest.mark.parametrize("size", [4, 16, 20])
def test_columns_that_all_look_alike(size):
    """Two camps that like their own half: every row and column has ``size`` ratings, half of them
    positive.

    The start's random vectors are keyed by just these counts, so all are equal here and orthogonal
    to the signal; exactly so where √size is a power of two. Each rating weighs 4: with weight 1,
    sixteen ratings are too few to pay for any factor, and the better optimum is to have none.
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


def test_scores_that_are_zero_but_for_rounding_have_converged():
    """Each cell has both labels, so every score is 0, and what is left of it changes by a large
    share of itself.
    """
    rows, cols = np.divmod(np.tile(np.arange(400), 2), 20)
    labels = np.repeat([1, -1], 400)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit = fit_arrays(rows, cols, labels, FitConfig(loss="hinge", rank=2, intercepts=False))
    assert np.abs(fit.score(rows, cols)).max() < 1e-6
    assert fit.converged
    assert len(fit.history) < 20


@pytest.mark.parametrize("loss", VARIANTS, ids=name)
def test_without_tolerance_all_iterations_run(loss):
    seen = []
    data = simulated("A2", shape=(20, 15))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit = fit_arrays(*data, config_of(loss, max_iter=20), on_iteration=seen.append)
    assert [it.number for it in fit.history] == list(range(1, 21))
    assert seen == fit.history
    assert not fit.converged
    assert fit.objective_history == [it.objective for it in seen]


def test_no_pair_and_one_pair():
    """An empty list of pairs has no scores; two plain integers are one pair."""
    fit = fit_arrays(*simulated("B3", shape=(30, 20)), FitConfig(tol=0, max_iter=2))
    for method in (fit.score, fit.std, fit.probability, fit.predict):
        assert method([], []).shape == (0,)
        assert np.ravel(method(3, 4))[0] == method([3], [4])[0]


# Of the largest |score|; the hinge is less smooth
SCORE_TOLERANCE = {
    "logistic": 1e-5,
    "hinge": 1e-3,
}


@pytest.mark.parametrize(
    ("prior", "intercepts", "precision"), half_of(PRIORS, [False, True], ["float64", "float32"])
)
@pytest.mark.parametrize("loss", MONOTONE, ids=name)
@pytest.mark.parametrize("kind", ["small", pytest.param("MovieLens-100K", marks=pytest.mark.slow)])
def test_order_and_numbering_change_nothing(kind, loss, prior, intercepts, precision, request):
    """Ratings shuffled, rows and columns renumbered: 15 iterations end at the same objective and
    scores.
    """
    rows, cols, labels = (
        simulated("A2", shape=(100, 80)) if kind == "small" else data_named(kind, request)
    )
    rng = np.random.default_rng(0)
    order, new_row, new_col = (
        rng.permutation(size) for size in (len(rows), rows.max() + 1, cols.max() + 1)
    )
    config = config_of(
        loss, prior=prior, intercepts=intercepts, precision=precision, rank=5, max_iter=15
    )
    fit = fit_arrays(rows, cols, labels, config)
    other = fit_arrays(new_row[rows[order]], new_col[cols[order]], labels[order], config)
    relative = {"float64": 1e-9, "float32": 1e-6}[precision]
    np.testing.assert_allclose(other.objective_history, fit.objective_history, rtol=relative)
    scores = fit.score(rows, cols)
    limit = SCORE_TOLERANCE[loss.name] * np.abs(scores).max()
    np.testing.assert_allclose(
        other.score(new_row[rows], new_col[cols]), scores, rtol=0, atol=limit
    )


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("loss", VARIANTS, ids=name)
def test_order_of_the_ratings_changes_no_bit(loss, weighted):
    """Cells are rated several times with the same label, and different weights: they are summed in
    one order.
    """
    ratings = [np.tile(part, 2) for part in simulated("B3", shape=(60, 50))]
    order = np.random.default_rng(1).permutation(len(ratings[0]))
    weights = random_weights(len(order)) if weighted else None
    config = config_of(loss, max_iter=6, implicit_features=True)
    fit = fit_arrays(*ratings, config, weights=weights)
    shuffled = [part[order] for part in ratings]
    assert_same_bits(
        fit, fit_arrays(*shuffled, config, weights=weights[order] if weighted else None)
    )


@pytest.mark.parametrize("intercepts", [False, True])
@pytest.mark.parametrize("loss", VARIANTS, ids=name)
def test_declared_shape_changes_nothing(loss, intercepts):
    """Empty rows and columns, also between the others, change no bit and hold the prior,
    N(p, 1/g).
    """
    rows, cols, labels = simulated("B3", shape=(30, 20))
    used = (rows != 7) & (cols != 11)
    rows = rows[used]
    cols = cols[used]
    labels = labels[used]
    config = config_of(loss, intercepts=intercepts, max_iter=10)
    fit = fit_arrays(rows, cols, labels, config)
    wide = fit_arrays(rows, cols, labels, config, shape=(40, 33))
    assert (wide.rows.n_rows, wide.cols.n_rows) == (40, 33)
    assert wide.objective_history == fit.objective_history
    np.testing.assert_array_equal(wide.rows.location[:30], fit.rows.location)
    np.testing.assert_array_equal(wide.cols.scale[:20], fit.cols.scale)
    for side, posterior, seen in (("rows", wide.rows, 7), ("cols", wide.cols, 11)):
        prior = wide.scales.row_prior(side)
        for empty in (seen, posterior.n_rows - 1):
            np.testing.assert_allclose(posterior.location[empty], prior.mean[0], rtol=1e-14)
            np.testing.assert_allclose(
                posterior.covariance[empty], np.diag(1 / prior.precision[0]), rtol=1e-14
            )
    # Compacted, with the two gaps closed, it is the same fit again.
    compact = fit_arrays(rows - (rows > 7), cols - (cols > 11), labels, config)
    np.testing.assert_allclose(compact.objective_history, fit.objective_history, rtol=1e-12)


@pytest.mark.parametrize("loss", VARIANTS, ids=name)
def test_threads_change_no_bit(loss):
    """120,000 ratings: four ranges of rows, shared by one, two or three threads."""
    data = power_law_ratings(3000, 400, 120_000)
    fits = [
        fit_arrays(*data, config_of(loss, max_iter=4), threads=threads) for threads in (1, 2, 3)
    ]
    assert_same_bits(fits[0], fits[1])
    assert_same_bits(fits[0], fits[2])


@pytest.mark.parametrize("fits", [10, pytest.param(150, marks=pytest.mark.slow)])
def test_the_place_of_arrays_in_memory_changes_no_bit(fits):
    """Other arrays are allocated between the fits.

    A vectorised loop may test at run time whether arrays overlap.
    """
    rows, cols, labels = power_law_ratings(60, 40, 1500, seed=3)
    config = FitConfig(
        loss="hinge", rank=3, tol=0.0, intercepts=False, max_iter=15, implicit_features=False
    )
    between = []
    found = set()
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


SHAPE = (40, 30)
ITERATIONS = 12


def data():
    return simulated("A2", shape=SHAPE, fraction=0.4)


def whole_weights(n, seed=0):
    return np.random.default_rng(seed).integers(1, 4, n)


def random_weights(n, seed=0):
    return np.exp(np.random.default_rng(seed).normal(size=n))


def assert_equal_fits(fit, other, tolerance=1e-9):
    np.testing.assert_allclose(fit.objective_history, other.objective_history, rtol=tolerance)
    for side in ("rows", "cols"):
        mine = getattr(fit, side)
        theirs = getattr(other, side)
        np.testing.assert_allclose(mine.location, theirs.location, rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(mine.scale, theirs.scale, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(fit.inverse_gamma, other.inverse_gamma, rtol=tolerance)


def choices():
    """prior, intercepts, implicit features, start: every pair of values of two of them; half of
    these are slow.
    """
    for number, combination in enumerate(
        product(PRIORS, [False, True], [False, True], ["spectral", "random"])
    ):
        if number.bit_count() % 2 == 0:
            yield pytest.param(
                *combination, marks=[] if number in (0, 3, 12, 15) else pytest.mark.slow
            )


@pytest.mark.parametrize(("prior", "intercepts", "implicit", "start"), list(choices()))
@pytest.mark.parametrize("loss", VARIANTS, ids=name)
def test_a_weight_of_two_equals_the_rating_twice(loss, prior, intercepts, implicit, start):
    """The start as well: its keys, D and the scale t are sums of weights."""
    rows, cols, labels = data()
    weights = whole_weights(len(rows))
    config = config_of(
        loss,
        prior=prior,
        intercepts=intercepts,
        implicit_features=implicit,
        start=start,
        max_iter=ITERATIONS,
        likelihood_weight=1.0,
    )
    weighted = fit_arrays(rows, cols, labels, config, SHAPE, weights=weights)
    again = np.repeat(np.arange(len(rows)), weights)
    assert_equal_fits(weighted, fit_arrays(rows[again], cols[again], labels[again], config, SHAPE))


@pytest.mark.parametrize("loss", VARIANTS, ids=name)
def test_halves_that_make_up_a_rating(loss):
    """Two ratings of weight ½ are one: sums of weights that are no whole numbers in between."""
    rows, cols, labels = data()
    config = config_of(loss, max_iter=ITERATIONS, likelihood_weight=1.0)
    twice = np.tile(np.arange(len(rows)), 2)
    halved = fit_arrays(
        rows[twice], cols[twice], labels[twice], config, SHAPE, weights=np.full(len(twice), 0.5)
    )
    assert_equal_fits(halved, fit_arrays(rows, cols, labels, config, SHAPE))


def test_a_weight_of_zero_is_an_absent_rating():
    """It counts nowhere: neither a row of its own, nor a bad label, nor the numbers of a
    certificate.
    """
    rows, cols, labels = data()
    extra = (
        np.append(rows, [SHAPE[0] + 5, 0]),
        np.append(cols, [0, SHAPE[1] + 2]),
        np.append(labels, [1, -1]),
    )
    config = FitConfig(max_iter=5, tol=0, implicit_features=False)
    weights = random_weights(len(rows))
    fit = fit_arrays(*extra, config, weights=np.append(weights, [0.0, 1e-60]), certify=Terms())
    other = fit_arrays(rows, cols, labels, config, weights=weights, certify=Terms())
    assert_same_bits(fit, other)
    assert fit.certificates == other.certificates
    assert fit.certificates[0].n == len(rows)
    assert fit.rows.n_rows == rows.max() + 1


@pytest.mark.parametrize("implicit", [False, True])
@pytest.mark.parametrize("loss", MONOTONE, ids=name)
def test_the_objective_falls_with_random_weights(loss, implicit):
    config = config_of(loss, implicit_features=implicit, max_iter=40)
    history = fit_arrays(*data(), config, weights=random_weights(len(data()[0]))).objective_history
    assert np.max(np.diff(history) / np.abs(history[1:])) <= 1e-9


@pytest.mark.parametrize("loss", LOSSES)
def test_theorem1_is_not_certified_with_weights(loss):
    """Its bound is about the objective; the others are about draws, and count every rating once."""
    config = FitConfig(loss=loss, max_iter=3, tol=0, implicit_features=False)
    plain = fit_arrays(*data(), config, certify=Terms())
    weighted = fit_arrays(*data(), config, weights=random_weights(len(data()[0])), certify=Terms())
    first = ["theorem1"] if loss == "hinge" else []
    assert [item.name for item in plain.certificates] == [*first, "catoni", "seeger"]
    assert [item.name for item in weighted.certificates] == ["catoni", "seeger"]
    assert {item.n for item in weighted.certificates} == {len(data()[0])}


def test_bad_weights_are_refused_with_their_number():
    rows, cols, labels = data()
    weights = random_weights(len(rows))
    weights[:6] = np.nan, -1.0, np.inf, 1e39, -np.inf, 0.0
    with pytest.raises(
        ValueError, match=r"weights must be numbers from 0 to 1e\+30: 5 found, such as"
    ):
        fit_arrays(rows, cols, labels, weights=weights)
    with pytest.raises(
        ValueError, match=r"rows, cols, labels and weights differ in length: .*weights 3"
    ):
        fit_arrays(rows, cols, labels, weights=[1, 2, 3])
    with pytest.raises(ValueError, match="weights must be numbers"):
        fit_arrays(rows, cols, labels, weights=["1"] * len(rows))
    with pytest.raises(ValueError, match="there is no rating of positive weight"):
        fit_arrays(rows, cols, labels, weights=np.zeros(len(rows)))
    with pytest.raises(ValueError, match="both classes are needed"):
        fit_arrays(rows, cols, labels, weights=labels > 0)
