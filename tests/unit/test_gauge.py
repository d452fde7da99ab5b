"""Gauge and centring: no score changes, the objective falls by what was predicted, and no map would
do better.
"""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize, minimize_scalar
from support import bruteforce, readable
from support.fitting import MONOTONE, image, simulated
from support.variants import VARIANTS, config_of, half_of, make_posterior, name, statistics

from onebit_spark import FitConfig, fit_arrays
from onebit_spark.core import gauge
from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.fit_state import FitState
from onebit_spark.core.gauge import Gauge, GaugeStep
from onebit_spark.core.hyper_posterior import HyperPosterior
from onebit_spark.core.losses import SIDES
from onebit_spark.core.posterior import RowMap, RowPosterior
from onebit_spark.core.priors import PRIORS
from onebit_spark.core.scores import compute_scores, compute_variances
from onebit_spark.core.solver import Start, solve
from onebit_spark.data.features import SideFeatures
from onebit_spark.engines.threads import ThreadEngine, local_state

M1 = 14
M2 = 11
KINDS = {"linear": "covariance", "scaling": "spread"}
ALPHA = 3.0
BETA = 2.0


def sides(kind, intercepts, seed=0):
    """Two posteriors with everything that a gauge can improve: correlated factors, off centre, of
    unequal sizes.
    """
    rng = np.random.default_rng(seed)
    rows, cols = (make_posterior(rng, m, kind, intercepts, np.float64) for m in (M1, M2))
    mixing = rng.normal(size=(rows.mean.shape[1],) * 2)
    rows.mean[:] = 2.0 * rows.mean @ mixing + 0.5
    cols.mean[:] = 0.3 * cols.mean - 0.2
    return rows, cols


def moments(posterior):
    log_volume = 0.5 * np.sum(np.linalg.slogdet(posterior.covariance)[1])
    found = statistics(posterior.location + 0.1, posterior)  # whatever the means were before
    return type(found.moments)(
        found.count, found.moments.means, found.covariance, log_volume, found.moments.locations
    )


def hierarchy(prior, intercepts, rank=5):
    pi = PRIORS[prior](ALPHA, BETA)
    factor = np.linspace(0.5, 3.0, rank)
    own = PRIORS[prior](1.5, 0.7) if intercepts else None
    return HyperPosterior(pi, own, factor, row_intercept=1.3, col_intercept=0.8, mean=0.2)


def scores_and_variances(rows, cols):
    i, j = (index.ravel() for index in np.indices((M1, M2)))
    pairs = rows.take(i), cols.take(j)
    return compute_scores(*pairs), compute_variances(*pairs)


# ---- a map of rows -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("intercepts", [False, True])
@pytest.mark.parametrize("kind", ["spread", "covariance"])
def test_rows_are_mapped_like_their_readable_twin(kind, intercepts, dtype):
    rng = np.random.default_rng(1)
    posterior = make_posterior(rng, 6, kind, intercepts, dtype)
    size = posterior.dimension
    matrix = (
        rng.normal(size=(size, size))
        if kind == "covariance"
        else np.diag(rng.normal(size=size))[rng.permutation(size)]
    )
    by = RowMap(matrix, rng.normal(size=size))
    before = posterior.copy()
    found = image(by, posterior)
    np.testing.assert_array_equal(posterior.packed(), before.packed())
    tolerance = {np.float64: 1e-14, np.float32: 1e-6}[dtype]
    for i in range(6):
        mean, covariance = readable.mapped_row(
            posterior.location[i], posterior.covariance[i], by.matrix, by.shift
        )
        np.testing.assert_allclose(found.location[i], mean, rtol=tolerance, atol=10 * tolerance)
        np.testing.assert_allclose(
            found.covariance[i], covariance, rtol=tolerance, atol=10 * tolerance
        )
    # A part of the rows gives the same bits: engines map rows in parts.
    part = posterior.take(np.array([4, 1]))
    by.apply_to(part, 0, 2)
    np.testing.assert_array_equal(part.packed(), found.packed()[[4, 1]])


def test_two_maps_in_one():
    rng = np.random.default_rng(2)
    posterior = make_posterior(rng, 6, "covariance", True, np.float64)
    first, second = (RowMap(rng.normal(size=(6, 6)), rng.normal(size=6)) for _ in range(2))
    np.testing.assert_allclose(
        image(first.then(second), posterior).packed(),
        image(second, image(first, posterior)).packed(),
        atol=1e-12,
    )
    assert RowMap.linear(np.eye(6)).is_identity
    assert not first.is_identity
    assert not RowMap.shifting(np.ones(6)).is_identity


@pytest.mark.parametrize("intercepts", [False, True])
@pytest.mark.parametrize("kind", ["spread", "covariance"])
def test_the_moments_of_mapped_rows(kind, intercepts):
    rng = np.random.default_rng(3)
    posterior = make_posterior(rng, 9, kind, intercepts, np.float64)
    size = posterior.dimension
    matrix = (
        rng.normal(size=(size, size)) if kind == "covariance" else np.diag(rng.normal(size=size))
    )
    by = RowMap(matrix, rng.normal(size=size) * intercepts)
    found = moments(posterior).mapped(by)
    expected = moments(image(by, posterior))
    np.testing.assert_allclose(found.second, expected.second, atol=1e-12)
    np.testing.assert_allclose(found.means, expected.means, atol=1e-12)
    assert found.log_volume == pytest.approx(expected.log_volume, rel=1e-12)
    x = np.insert(posterior.location, 0, 1.0, axis=1) if intercepts else posterior.location
    covariance = np.pad(posterior.covariance, ((0, 0), (int(intercepts), 0), (int(intercepts), 0)))
    np.testing.assert_allclose(
        moments(posterior).second, np.einsum("ia,ib->ab", x, x) + covariance.sum(axis=0), atol=1e-12
    )


# ---- the moves ---------------------------------------------------------------------------------

MOVES = [
    ("linear", True, gauge.levelled),
    ("linear", True, gauge.centred),
    ("linear", True, gauge.rotated),
    ("linear", False, gauge.rotated),
    ("scaling", True, gauge.levelled),
    ("scaling", True, gauge.rescaled),
    ("scaling", False, gauge.rescaled),
]


def applied(found, rows, cols):
    return image(found.row_map, rows), image(found.col_map, cols)


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize(("symmetry", "intercepts", "move"), MOVES)
def test_no_score_changes_and_the_objective_falls(symmetry, intercepts, move, prior):
    """Nor does a variance, nor the data term of either loss."""
    rows, cols = sides(KINDS[symmetry], intercepts)
    before = hierarchy(prior, intercepts)
    start = Gauge.of(moments(rows), moments(cols))
    updated, divergence = before.at(start.rows, start.cols)
    found = gauge.by_strength(move(start, updated))
    mapped = applied(found, rows, cols)
    for new, old in zip(
        scores_and_variances(*mapped), scores_and_variances(rows, cols), strict=True
    ):
        np.testing.assert_allclose(new, old, rtol=1e-12, atol=1e-12 * np.abs(old).max())
    ratings = (*(index.ravel() for index in np.indices((M1, M2))), np.tile([1, -1], M1 * M2 // 2))
    for loss in ("hinge", "logistic") if symmetry == "scaling" else ("logistic",):
        old, new = (bruteforce.data_term(loss, ratings, *pair) for pair in ((rows, cols), mapped))
        assert new == pytest.approx(old, rel=1e-12)
    assert before.at(found.rows, found.cols)[1] < divergence


@pytest.mark.parametrize("intercepts", [False, True])
@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("symmetry", KINDS)
def test_the_predicted_divergence_is_that_of_the_mapped_rows(symmetry, prior, intercepts):
    """By the long formula, γ integrated numerically: it falls by exactly what the sums said."""
    rows, cols = sides(KINDS[symmetry], intercepts)
    before = hierarchy(prior, intercepts)
    stats = [statistics(p.location, p) for p in (rows, cols)]
    stats = [
        type(s)(**{**vars(s), "log_volume": moments(p).log_volume})
        for s, p in zip(stats, (rows, cols), strict=True)
    ]
    plain = before.at(*(each.moments for each in stats))
    after, divergence, maps = GaugeStep(symmetry)(before, *stats)
    assert divergence < plain[1] - 1.0
    mapped = image(maps["rows"], rows), image(maps["cols"], cols)
    for (reached, predicted), pair in ((plain, (rows, cols)), ((after, divergence), mapped)):
        centre = (reached.mean, reached.mean_variance) if intercepts else (0.0, 1.0)
        scales = bruteforce.best_scales(before.prior, *pair, *centre, before.intercept_prior)
        assert predicted == pytest.approx(bruteforce.divergence(*pair, scales), rel=1e-9)
        np.testing.assert_allclose(
            reached.factor, [s.inverse_mean for s in scales.factors], rtol=1e-9
        )


@pytest.mark.parametrize("counts", [(M1, M2), (30, 30), (3, 500), (10**6, 10**3)])
@pytest.mark.parametrize("prior", PRIORS)
def test_the_best_stretch_is_the_minimum(prior, counts):
    m1, m2 = counts
    for alpha, beta in ((ALPHA, BETA), (0.1 * (m1 + m2), 0.03 * (m1 + m2)), (1.0, 1e-3)):
        pi = PRIORS[prior](alpha, beta)
        product = m1 * m2 * np.array([1e-6, 0.01, 1.0, 30.0])
        found = gauge.best_stretch(product, m1, m2, pi)
        for t, value in zip(found, product, strict=True):
            height = readable.stretch_height(pi, value, m1, m2)
            centre = 0.25 * np.log(value)
            best = minimize_scalar(
                height, bounds=(centre - 8, centre + 8), method="bounded", options={"xatol": 1e-10}
            )
            assert height(np.log(t)) <= best.fun + 1e-12 * abs(best.fun)
            # As near as a flat minimum can be found
            assert np.log(t) == pytest.approx(best.x, abs=1e-4)
    if prior == "inverse-gamma":  # the closed form
        root = np.sqrt((m1 - m2) ** 2 * beta**2 + 4 * (alpha + m1) * (alpha + m2) * product)
        np.testing.assert_allclose(
            found**2, ((m1 - m2) * beta + root) / (2 * (alpha + m2)), rtol=1e-9
        )


@pytest.mark.parametrize(("symmetry", "prior"), half_of(KINDS, PRIORS))
def test_no_other_turning_is_better(symmetry, prior):
    """BFGS over all A (or all diagonal A) from random starts finds nothing lower."""
    rows, cols = (moments(p) for p in sides(KINDS[symmetry], False))
    before = hierarchy(prior, False)
    move = gauge.rotated if symmetry == "linear" else gauge.rescaled
    best = move(Gauge.of(rows, cols), before)
    reached = before.at(best.rows, best.cols)[1]

    def height(x):
        a = x.reshape(5, 5) if symmetry == "linear" else np.diag(np.exp(x))
        turned = Gauge.of(rows, cols).turned(a, np.linalg.inv(a).T)
        return before.at(turned.rows, turned.cols)[1]

    rng = np.random.default_rng(4)
    for _ in range(1 if symmetry == "linear" else 3):
        start = rng.normal(size=25) if symmetry == "linear" else rng.normal(size=5)
        assert minimize(height, start, method="BFGS").fun >= reached - 1e-7 * abs(reached)


def test_centring_is_the_best_shift():
    """With γ and μ held, no other c, and after it no other e, makes the squares smaller; s is best
    where μ follows.
    """
    rows, cols = sides("covariance", True)
    scales = hierarchy("gamma", True)
    start = Gauge.of(moments(rows), moments(cols))
    found = gauge.centred(start, scales)

    def height(pair):
        return readable.weighted_squares(*pair, scales)

    reached = height(applied(found, rows, cols))
    assert reached < height((rows, cols))
    c = -found.row_map.shift[1:]
    first = (
        RowPosterior(rows.location - np.insert(c, 0, 0), rows.scale, "covariance", True),
        _sheared(cols, c),
    )
    for k in range(5):
        for step in (1e-3, -1e-3):
            move = np.insert(np.eye(5)[k] * step, 0, 0.0)
            shifted = RowPosterior(first[0].location - move, rows.scale, "covariance", True)
            assert height((shifted, _sheared(first[1], move[1:]))) > height(first)
            pair = applied(found, rows, cols)
            shifted = RowPosterior(pair[1].location - move, pair[1].scale, "covariance", True)
            assert height((_sheared(pair[0], move[1:]), shifted)) > reached


def _sheared(posterior, by):
    matrix = np.eye(6)
    matrix[1:, 0] = by
    return image(RowMap.linear(matrix), posterior)


def test_levelling_is_best_where_the_mean_follows():
    rows, cols = sides("spread", True)
    scales = hierarchy("gamma", True)
    found = gauge.levelled(Gauge.of(moments(rows), moments(cols)), scales)

    def height(s):
        """min over m of ½[g_b Σ(b + s − m)² + g_d Σ(d − s)² + m²]."""
        b = rows.intercept + s
        d = cols.intercept - s
        m = scales.row_intercept * b.sum() / (1 + M1 * scales.row_intercept)
        squares = scales.row_intercept * np.sum((b - m) ** 2) + scales.col_intercept * np.sum(d**2)
        return 0.5 * (squares + m**2)

    s = found.row_map.shift[0]
    assert s == pytest.approx(minimize_scalar(height).x, rel=1e-6)
    assert found.col_map.shift[0] == -s


# ---- in a fit ----------------------------------------------------------------------------------


def solved(data, config, gauge, start=None):
    """A fit with neither gauge nor relaxation, or with both."""
    rows, cols, labels = data
    block = RatingBlock.from_coordinates(
        rows, cols, labels > 0, (int(rows.max()) + 1, int(cols.max()) + 1)
    )
    with local_state(block).running() as state:
        outcome = solve(state, config, gauge=gauge, relaxed=gauge, start=start)
        return outcome, {side: state.posterior(side).copy() for side in SIDES}


@pytest.mark.parametrize("intercepts", [False, True])
@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("loss", MONOTONE, ids=name)
def test_a_fit_with_a_gauge_is_ahead(loss, prior, intercepts):
    """The first iteration's scores are those without a gauge; its objective is lower, and so are
    the next ones.
    """
    data = simulated("B3", shape=(60, 50), fraction=0.5)
    config = config_of(loss, prior=prior, intercepts=intercepts, rank=4, max_iter=1)
    (plain, unmapped), (turned, mapped) = (solved(data, config, gauge) for gauge in (False, True))
    i = data[0]
    j = data[1]
    old, new = (compute_scores(p["rows"].take(i), p["cols"].take(j)) for p in (unmapped, mapped))
    np.testing.assert_allclose(new, old, atol=1e-12 * np.abs(old).max())
    assert turned.history[0].objective < plain.history[0].objective
    assert turned.history[0].change == plain.history[0].change
    strengths = mapped["rows"].column_norms * mapped["cols"].column_norms
    assert np.all(np.diff(strengths) <= 0)


def test_algorithm_1_has_no_gauge():
    data = simulated("B3", shape=(60, 50), fraction=0.5)
    config = config_of(
        next(loss for loss in VARIANTS if getattr(loss, "solver", "") == "gradient"), max_iter=5
    )
    (plain, unmapped), (other, same) = (solved(data, config, gauge) for gauge in (False, True))
    assert [step.objective for step in plain.history] == [step.objective for step in other.history]
    np.testing.assert_array_equal(unmapped["rows"].packed(), same["rows"].packed())


@pytest.mark.parametrize("loss", MONOTONE, ids=name)
def test_saved_factors_do_not_permute_with_the_numbering(loss):
    """Order and signs of the factors in use follow from the ratings alone."""
    rows, cols, labels = simulated("B1", rank=3, shape=(80, 60), fraction=0.5)
    config = config_of(loss, rank=3, max_iter=15)
    new_row = np.random.default_rng(5).permutation(80)
    new_col = np.random.default_rng(6).permutation(60)
    fit = fit_arrays(rows, cols, labels, config)
    other = fit_arrays(new_row[rows], new_col[cols], labels, config)
    tolerance = {"logistic": 1e-6, "hinge": 1e-3}[loss.name]
    np.testing.assert_allclose(
        other.rows.mean[new_row], fit.rows.mean, atol=tolerance * np.abs(fit.rows.mean).max()
    )
    np.testing.assert_allclose(
        other.cols.mean[new_col], fit.cols.mean, atol=tolerance * np.abs(fit.cols.mean).max()
    )


class Eager(FitState):
    """Maps all rows after every iteration."""

    def apply(self, maps):
        super().apply(maps)
        assert self.posteriors


@pytest.mark.parametrize(
    "options", [{}, {"implicit_features": False}, {"intercepts": False}], ids=str
)
def test_a_map_may_wait(options):
    """The half steps of rows that wait for their maps are those of the mapped rows; side features
    go along.
    """
    rows, cols, labels = simulated("B3", shape=(60, 50), fraction=0.5)
    block = RatingBlock.from_coordinates(rows, cols, labels > 0, (60, 50))
    rng = np.random.default_rng(7)
    config = FitConfig(
        rank=4, likelihood_weight=1.0, tol=0, max_iter=12, precision="float64", **options
    )
    features = {side: rng.normal(size=(m, 2)) for side, m in zip(SIDES, (60, 50), strict=True)}
    found = []
    for state in (Eager(ThreadEngine(block)), local_state(block)):
        for side, given in features.items():
            state.features[side] = SideFeatures.of_rows(
                given, state.engine.counts(side) > 0, "features"
            )
        outcome = solve(state, config)
        waiting = dict(state._maps)
        found.append((waiting, outcome, {side: state.posterior(side).packed() for side in SIDES}))
    (none, eager, expected), (some, lazy, posteriors) = found
    assert not none
    assert set(some) == set(SIDES)
    for figure in ("objective", "divergence", "change"):
        values = [[getattr(step, figure) for step in outcome.history] for outcome in (lazy, eager)]
        np.testing.assert_allclose(*values, rtol=1e-8)
    for side in SIDES:
        np.testing.assert_allclose(
            posteriors[side], expected[side], atol=1e-8 * np.abs(expected[side]).max()
        )
        np.testing.assert_allclose(
            lazy.hierarchy.features[side], eager.hierarchy.features[side], atol=1e-8
        )


def test_a_map_that_would_magnify_rounding_does_not_wait(monkeypatch):
    data = simulated("B3", shape=(60, 50), fraction=0.5)
    config = FitConfig(rank=4, likelihood_weight=1.0, tol=0, max_iter=6)
    rows, cols, labels = data
    state = local_state(RatingBlock.from_coordinates(rows, cols, labels > 0, (60, 50)))
    solve(state, config)
    assert state._maps
    monkeypatch.setattr("onebit_spark.core.fit_state.MOST_STRETCH", 1.0 + 1e-6)
    solve(state, config)
    assert not state._maps


def test_a_fit_that_was_interrupted_goes_on_to_the_bit():
    """From the mapped rows, the scales and the history after 4 of 8 iterations, of a fit that
    looked at its rows there.

    That is what a fit with checkpoints does. One that does not look agrees to rounding.
    """
    rows, cols, labels = data = simulated("B3", shape=(60, 50), fraction=0.5)
    state = local_state(RatingBlock.from_coordinates(rows, cols, labels > 0, (60, 50)))
    config = FitConfig(tol=0, max_iter=8, implicit_features=False)
    whole = solve(state, config, lambda step: state.posteriors if step.number == 4 else None)
    half, reached = solved(data, replace(config, max_iter=4), True)
    resumed, again = solved(data, config, True, start=Start(reached, half.hierarchy, half.history))
    unseen, rounded = solved(data, config, True)
    assert [step.objective for step in resumed.history] == [
        step.objective for step in whole.history
    ]
    np.testing.assert_allclose(
        [step.objective for step in unseen.history],
        [step.objective for step in whole.history],
        rtol=1e-7,
    )
    for side in SIDES:
        np.testing.assert_array_equal(again[side].packed(), state.posterior(side).packed())
        expected = again[side].packed()
        np.testing.assert_allclose(
            rounded[side].packed(), expected, atol=1e-4 * np.abs(expected).max()
        )
