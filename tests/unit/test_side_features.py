"""Side features: the weights' step against a ridge regression, the statistics by hand, and what new rows get."""

import warnings

import numpy as np
import pytest
from fitting import MONOTONE, half_of, simulated
from test_kernels import name
from test_objective import config_of

from onebit_spark import FitConfig, NotConverged, Terms, fit_arrays
from onebit_spark.certificate.certified_fit import SPLIT_STREAM
from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.features import (
    FEATURE_RIDGE,
    FeatureRidge,
    SideFeatures,
)
from onebit_spark.core.losses import SIDES, HalfStep
from onebit_spark.core.priors import PRIORS
from onebit_spark.core.randomness import Split
from onebit_spark.core.solver import solve
from onebit_spark.engines.threads import local_engine

P, SHAPE = 3, (40, 30)


def known_engine(seed=0):
    """An engine on simulated ratings with random side features of both sides."""
    rows, cols, labels = simulated("B3", shape=SHAPE)
    engine = local_engine(RatingBlock.from_coordinates(rows, cols, labels > 0, SHAPE))
    rng = np.random.default_rng(seed)
    for side in SIDES:
        given = rng.normal(size=(engine.runner.ratings[side].n_rows, P))
        engine.features[side] = SideFeatures.of_rows(given, engine.counts(side) > 0, "features")
    return engine


def test_a_step_without_implicit_features_is_the_ridge_regression():
    rng = np.random.default_rng(1)
    f, means, weights = rng.normal(size=(20, P)), rng.normal(size=(20, 4)), rng.normal(size=(P, 4))
    ridge = FeatureRidge.of(f.T @ f)
    exact = np.linalg.solve(f.T @ f + FEATURE_RIDGE * np.eye(P), f.T @ means)
    np.testing.assert_allclose(ridge.moved(weights, f.T @ (means - f @ weights), 1.0), exact, atol=1e-12)
    # Over-relaxed steps go past it, and still descend to it.
    for _ in range(200):
        weights = ridge.moved(weights, f.T @ (means - f @ weights), 1.85)
    np.testing.assert_allclose(weights, exact, atol=1e-10)


@pytest.mark.parametrize(("prior", "intercepts", "implicit"), half_of(PRIORS, [False, True], [False, True]))
@pytest.mark.parametrize("loss", MONOTONE, ids=name)
def test_the_objective_never_rises(loss, prior, intercepts, implicit):
    config = config_of(
        loss, prior=prior, intercepts=intercepts, implicit_features=implicit, max_iter=40, tol=0, rank=3
    )  # fmt: skip
    history = [step.objective for step in solve(known_engine(), config).history]
    assert np.all(np.diff(history) <= 1e-9 * np.abs(history[1:]))


def test_the_statistics_by_hand():
    """Of one half step with given weights: Σ f(x − p)ᵀ, X' = [1, x − Wᵀf − p], and the ridge."""
    config = FitConfig(rank=2, likelihood_weight=1.0, max_iter=3, tol=0)
    engine, loss, rng = known_engine(), config.make_loss(), np.random.default_rng(3)
    hierarchy = solve(engine, config).hierarchy
    weights = rng.normal(size=(P, config.dimension))
    told_by = engine.posteriors["cols"].implicit[:, :2].copy()
    step = HalfStep(
        side="rows", iteration=0, kappa=1.0, prior=hierarchy.row_prior("rows"), ratings_per_row=1.0,
        feature_coef=weights,
    )  # fmt: skip
    found = engine.half_step(loss, step)
    block, rows = engine.runner.ratings["rows"], engine.posteriors["rows"]
    rated = np.zeros((block.n_rows, block.n_columns))
    rated[np.repeat(np.arange(block.n_rows), block.row_counts), block.codes >> 1] = 1.0
    active = block.row_counts > 0
    told = (rated / np.sqrt(np.maximum(rated.sum(axis=1, keepdims=True), 1.0))) @ told_by
    known = engine.features["rows"].coded @ weights
    known[:, 1:] += told
    distance = rows.location - known
    centre = np.zeros(config.dimension)
    centre[0] = hierarchy.mean
    f = engine.features["rows"].coded[active]
    counts = np.sqrt(block.distinct_counts)[:, None]
    directions = (counts * rows.implicit[:, 8:])[active]
    lines = np.hstack([(distance - centre)[active], directions])
    np.testing.assert_allclose(found.feature_cross, f.T @ lines, rtol=1e-4, atol=1e-4)
    augmented = np.insert(distance[active], 0, 1.0, axis=1)
    np.testing.assert_allclose(found.distance_gram, augmented.T @ augmented, rtol=1e-4, atol=1e-4)
    both = np.hstack([augmented, directions])
    np.testing.assert_allclose(found.direction_gram, directions.T @ both, rtol=1e-4, atol=1e-4)
    lines = np.insert(told[active], 0, 1.0, axis=1)
    counts = block.row_counts[active][:, None]
    np.testing.assert_allclose(found.implicit_gram, (counts * lines).T @ lines, rtol=1e-5, atol=1e-5)
    gram = np.eye(6)
    ridge = found.with_ridge(gram, weights).distance_gram - found.with_ridge(gram, None).distance_gram
    np.testing.assert_allclose(ridge[1:, 1:], FEATURE_RIDGE * weights.T @ weights)
    assert not ridge[0].any()


def test_rows_without_ratings_have_the_mean_that_their_features_explain():
    (rows, cols, labels), extra = simulated("B3", shape=SHAPE), 4
    features = np.random.default_rng(4).normal(size=(SHAPE[0] + extra, P))
    shape = (SHAPE[0] + extra, SHAPE[1])
    config = FitConfig(rank=2, likelihood_weight=1.0, max_iter=30, tol=0)
    fit = fit_arrays(rows, cols, labels, config, shape, row_features=features)
    weights, unseen = fit.scales.features["rows"], fit.scales.unseen("rows")
    rated = features[np.unique(rows)]
    coded = (features[-extra:] - rated.mean(axis=0)) / rated.std(axis=0) / np.sqrt(P)
    np.testing.assert_allclose(fit.rows.location[-extra:], unseen.mean + coded @ weights, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(fit.rows.std[-extra:] ** -2.0, np.tile(unseen.precision, (extra, 1)), rtol=1e-4)


@pytest.mark.parametrize("implicit", [False, True])
def test_new_rows_are_predicted_from_what_decides_their_labels(implicit):
    rng = np.random.default_rng(6)
    m, n_cols, n_new = 300, 60, 60
    feature = rng.normal(size=(m, 1))
    rows, cols = rng.integers(m, size=9_000), rng.integers(n_cols, size=9_000)
    labels = rng.random(9_000) < 1 / (1 + np.exp(-3 * feature[rows, 0]))
    fitted = rows >= n_new
    config = FitConfig(rank=2, implicit_features=implicit, likelihood_weight=1.0)
    right = {}
    for given in (None, feature):
        fit = fit_arrays(rows[fitted], cols[fitted], labels[fitted], config, (m, n_cols), row_features=given)
        right[given is None] = np.mean((fit.predict(rows[~fitted], cols[~fitted]) > 0) == labels[~fitted])
    assert right[True] < 0.6 < 0.75 < right[False]


def test_an_id_without_ratings_gets_the_mean_of_what_implicit_features_say():
    """New rows are predicted as well with implicit features as without: their prior mean is not 0 then."""
    rng = np.random.default_rng(7)
    m, n_cols, n_new, n = 200, 40, 40, 8_000
    popularity = rng.normal(size=n_cols)
    rows, cols = rng.integers(m, size=n), rng.integers(n_cols, size=n)
    labels = rng.random(n) < 1 / (1 + np.exp(-2 * popularity[cols]))
    fitted = rows >= n_new
    losses = []
    for implicit in (False, True):
        config = FitConfig(rank=3, implicit_features=implicit, likelihood_weight=1.0)
        fit = fit_arrays(rows[fitted], cols[fitted], labels[fitted], config, (m, n_cols))
        p = fit.probability(rows[~fitted], cols[~fitted])
        losses.append(-np.mean(np.log(np.where(labels[~fitted], p, 1 - p))))
    assert losses[1] <= losses[0] + 0.005
    assert np.abs(fit.scales.unseen("rows").mean[0, 1:]).max() > 0


@pytest.mark.parametrize("share", ["prior split", "nine tenths"])
def test_what_is_fitted_to_a_part_does_not_depend_on_the_features_of_the_rest(share):
    """Rows that have ratings only outside the part get other features: the coding and its weights stay."""
    rows, cols, labels = simulated("B3", shape=(200, 150), fraction=0.3)
    kept = (rows < 100) | (np.random.default_rng(3).random(len(rows)) < 0.02)  # many rows with one rating or two
    ratings = rows[kept], cols[kept], labels[kept]
    config = FitConfig(rank=1, likelihood_weight=1.0, max_iter=3, tol=0)
    block = RatingBlock.from_coordinates(*ratings[:2], ratings[2] > 0, (200, 150))
    split = Split(config.seed ^ SPLIT_STREAM, 0.5) if share == "prior split" else Split(5, 0.9)
    outside = (block.row_counts > 0) & (split.part_of(block, np.arange(200)).row_counts == 0)
    assert np.any(outside)
    features = np.random.default_rng(0).normal(size=(200, 2))
    other = np.where(outside[:, None], 50.0, features)
    found = []
    for given in (features, other):
        if share == "prior split":
            fit = fit_arrays(*ratings, config, (200, 150), certify=Terms(prior_split=0.5), row_features=given)
            found.append((fit.info.side_features["user"]["coding"], fit.scales.features["rows"].tolist()))
        else:
            engine = local_engine(block)
            engine.features["rows"] = SideFeatures.of_rows(given, block.row_counts > 0, "features")
            with engine.restricted(split) as part:
                found.append(part.features["rows"].coding)
    assert found[0] == found[1]


def test_refused_shapes_and_certificates():
    ratings = simulated("B3", shape=SHAPE)
    with pytest.raises(ValueError, match="row_features must have"):
        fit_arrays(*ratings, FitConfig(rank=1), row_features=np.zeros((SHAPE[0] + 1, 2)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConverged)
        config = FitConfig(rank=1, implicit_features=False, likelihood_weight=1.0, max_iter=3)
        features = np.random.default_rng(0).normal(size=(SHAPE[0], 2))
        assert not fit_arrays(*ratings, config, certify=Terms(), row_features=features).certificates
        assert fit_arrays(*ratings, config, certify=Terms()).certificates
        split = fit_arrays(*ratings, config, certify=Terms(prior_split=0.5), row_features=features).certificates
    assert [item.name for item in split] == ["prior_split"]
