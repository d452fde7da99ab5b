"""Side features: columns as numbers, the weights' step against a ridge regression, and what new
rows get.
"""

import json
import warnings

import numpy as np
import pyarrow as pa
import pytest
from support.fitting import MONOTONE, simulated
from support.variants import config_of, half_of, name

from onebit_spark import FitConfig, NotConverged, Terms, fit_arrays
from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.features import FEATURE_RIDGE, FeatureRidge
from onebit_spark.core.losses import SIDES, HalfStep
from onebit_spark.core.priors import PRIORS
from onebit_spark.core.randomness import Split
from onebit_spark.core.setup import loss_of
from onebit_spark.core.solver import solve
from onebit_spark.data.features import (
    MOST_VALUES,
    FeatureCoding,
    SideFeatures,
    learn_coding,
    warn_of_unknown_values,
)
from onebit_spark.engines.threads import local_state


def coded(**columns):
    table = pa.table({"id": list(range(len(next(iter(columns.values()))))), **columns})
    coding, notes = learn_coding(table, "id")
    return coding, coding.coded(table), notes


def test_a_number_is_standardised():
    coding, lines, notes = coded(age=[20, 30, 40])
    assert coding.names == ["age"]
    np.testing.assert_allclose(
        lines[:, 0], np.array([-10, 0, 10]) / np.std([20, 30, 40]), rtol=1e-6
    )
    assert notes == []


@pytest.mark.parametrize("kind", [pa.bool_(), pa.int8(), pa.float32(), pa.decimal128(5, 2)])
def test_kinds_of_numbers_are_the_same_feature(kind):
    _, plain, _ = coded(flag=[0, 1, 1])
    values = (
        pa.array([False, True, True])
        if kind == pa.bool_()
        else pa.array([0, 1, 1]).cast(pa.float64()).cast(kind)
    )
    _, lines, _ = coded(flag=values)
    np.testing.assert_allclose(lines, plain)


def test_a_string_is_a_feature_per_value():
    coding, lines, _ = coded(sex=["f", "m", "m", None])
    assert coding.names == ["sex=f", "sex=m"]
    assert lines[0, 0] > 0 > lines[1, 0]
    assert not lines[3].any()  # missing: the mean
    np.testing.assert_allclose(lines.sum(axis=0), 0, atol=1e-6)


def test_arrays_of_numbers_and_of_strings():
    coding, lines, notes = coded(
        where=[[1.0, 2.0], [3.0, 5.0], [4.0]], genres=[["a", "b"], [], None]
    )
    assert coding.names == ["where[0]", "where[1]", "genres=a", "genres=b"]
    assert lines[2, 1] == 0  # the second element of the third array is missing
    assert lines[0, 2] > 0 > lines[1, 2]
    assert not lines[2, 2:].any()
    assert notes == [
        "where: 1 of 3 values are null, NaN or infinite and count as the mean",
        "genres: 1 of 3 values are null, NaN or infinite and count as the mean",
    ]


def test_columns_share_the_weight_evenly():
    rng = np.random.default_rng(0)
    _, lines, _ = coded(a=rng.normal(size=500), b=rng.choice(list("uvwxyz"), size=500))
    np.testing.assert_allclose(np.sum(lines[:, :1] ** 2), np.sum(lines[:, 1:] ** 2), rtol=1e-4)
    assert np.mean(np.sum(lines**2, axis=1)) == pytest.approx(1.0, rel=1e-4)


def test_columns_that_say_nothing_are_left_out_with_a_reason():
    n = MOST_VALUES + 1
    coding, lines, notes = coded(
        same=[1] * n,
        gone=pa.nulls(n, pa.float64()),
        name=[f"n{i}" for i in range(n)],
        day=pa.array([1] * n, pa.date32()),
        good=list(range(n)),
    )
    assert coding.names == ["good"]
    assert lines.shape == (n, 1)
    assert notes == [
        "same is left out: it has only one value",
        "gone is left out: all its values are missing",
        f"name is left out: it has {n:,} different values, and at most {MOST_VALUES:,} are used",
        "day is left out: a column of type date32[day] cannot be a feature; take numbers, "
        "booleans, strings or arrays "
        "of them",
    ]


def test_gaps_count_as_the_mean_and_are_told():
    _, lines, notes = coded(age=[1.0, float("nan"), 3.0, None, float("inf")])
    assert lines[1, 0] == lines[3, 0] == lines[4, 0] == 0
    assert notes == ["age: 3 of 5 values are null, NaN or infinite and count as the mean"]


def test_other_tables_are_coded_alike_and_unknown_values_are_missing():
    table = pa.table({"id": [1, 2, 3], "age": [10, 20, 30], "sex": ["f", "m", "m"]})
    coding, _ = learn_coding(table, "id")
    again = FeatureCoding.from_list(json.loads(json.dumps(coding.as_list())))
    assert again == coding
    np.testing.assert_array_equal(again.coded(table.slice(1, 1)), coding.coded(table)[1:2])
    other = pa.table({"id": [9], "sex": ["x"], "age": [20]})
    lines = coding.coded(other)
    assert lines[0, 0] == 0  # the mean of the ages
    assert lines[0, 1] != 0  # not f
    assert lines.shape == (1, 3)


def test_chunks_and_dictionaries_make_no_difference():
    whole = pa.table({"id": [1, 2, 3], "sex": ["f", "m", "m"]})
    parts = pa.concat_tables([whole.slice(0, 1), whole.slice(1)])
    encoded = whole.set_column(1, "sex", whole["sex"].dictionary_encode())
    expected = learn_coding(whole, "id")[0].coded(whole)
    for table in (parts, encoded):
        np.testing.assert_array_equal(learn_coding(table, "id")[0].coded(table), expected)


def test_arrays_are_coded_by_their_rated_rows():
    rated = np.array([True, True, False])
    numbers = SideFeatures.of_rows([[0.0], [2.0], [100.0]], rated, "row_features")
    np.testing.assert_allclose(numbers.coded[:, 0], [-1, 1, 99])
    assert SideFeatures.over(pa.table({"sex": ["f", "m", "x"]}), rated).coding.names == [
        "sex=f",
        "sex=m",
    ]


def test_values_that_the_coding_cannot_use_are_named(caplog):
    """Of new lines: a null, an infinite number, a string that the fit has not seen."""
    coding, _ = learn_coding(
        pa.table({"id": [1, 2, 3], "age": [1.0, 2.0, 3.0], "town": ["a", "b", "a"]}), "id"
    )
    warn_of_unknown_values(
        coding, pa.table({"id": [4], "age": [2.0], "town": ["b"]}), "user features"
    )
    assert not caplog.messages
    lines = pa.table({"id": [4, 5, 6], "age": [float("inf"), 1.0, 1.0], "town": ["c", None, "a"]})
    warn_of_unknown_values(coding, lines, "user features")
    assert caplog.messages == [
        "user features: age: 1 of 3 values are null, NaN or infinite and count as the mean",
        "user features: town: 1 of 3 values are null, NaN or infinite and count as the mean",
        "user features: town: 1 of 3 values were not in the fit, such as 'c'",
    ]


P = 3
SHAPE = (40, 30)


def known_engine(seed=0):
    """An engine on simulated ratings with random side features of both sides."""
    rows, cols, labels = simulated("B3", shape=SHAPE)
    state = local_state(RatingBlock.from_coordinates(rows, cols, labels > 0, SHAPE))
    rng = np.random.default_rng(seed)
    for side in SIDES:
        given = rng.normal(size=(state.engine.ratings[side].n_rows, P))
        state.features[side] = SideFeatures.of_rows(
            given, state.engine.counts(side) > 0, "features"
        )
    return state


def test_a_step_without_implicit_features_is_the_ridge_regression():
    rng = np.random.default_rng(1)
    f = rng.normal(size=(20, P))
    means = rng.normal(size=(20, 4))
    weights = rng.normal(size=(P, 4))
    ridge = FeatureRidge.of(f.T @ f)
    exact = np.linalg.solve(f.T @ f + FEATURE_RIDGE * np.eye(P), f.T @ means)
    np.testing.assert_allclose(
        ridge.moved(weights, f.T @ (means - f @ weights), 1.0), exact, atol=1e-12
    )
    # Over-relaxed steps go past it, and still descend to it.
    for _ in range(200):
        weights = ridge.moved(weights, f.T @ (means - f @ weights), 1.85)
    np.testing.assert_allclose(weights, exact, atol=1e-10)


@pytest.mark.parametrize(
    ("prior", "intercepts", "implicit"), half_of(PRIORS, [False, True], [False, True])
)
@pytest.mark.parametrize("loss", MONOTONE, ids=name)
def test_the_objective_never_rises(loss, prior, intercepts, implicit):
    config = config_of(
        loss,
        prior=prior,
        intercepts=intercepts,
        implicit_features=implicit,
        max_iter=40,
        tol=0,
        rank=3,
    )
    history = [step.objective for step in solve(known_engine(), config).history]
    assert np.all(np.diff(history) <= 1e-9 * np.abs(history[1:]))


def test_the_statistics_by_hand():
    """Of one half step with given weights: Σ f(x − p)ᵀ, X' = [1, x − Wᵀf − p], and the ridge."""
    config = FitConfig(rank=2, likelihood_weight=1.0, max_iter=3, tol=0)
    state = known_engine()
    loss = loss_of(config)
    rng = np.random.default_rng(3)
    hierarchy = solve(state, config).hierarchy
    weights = rng.normal(size=(P, config.dimension))
    implicit_coef = state.posteriors["cols"].implicit[:, :2].copy()
    step = HalfStep(
        side="rows",
        iteration=0,
        kappa=1.0,
        prior=hierarchy.row_prior("rows"),
        ratings_per_row=1.0,
        feature_coef=weights,
    )
    found = state.half_step(loss, step)
    block = state.engine.ratings["rows"]
    rows = state.posteriors["rows"]
    rated = np.zeros((block.n_rows, block.n_columns))
    rated[np.repeat(np.arange(block.n_rows), block.row_counts), block.codes >> 1] = 1.0
    active = block.row_counts > 0
    implicit_mean = (
        rated / np.sqrt(np.maximum(rated.sum(axis=1, keepdims=True), 1.0))
    ) @ implicit_coef
    known = state.features["rows"].coded @ weights
    known[:, 1:] += implicit_mean
    distance = rows.location - known
    centre = np.zeros(config.dimension)
    centre[0] = hierarchy.mean
    f = state.features["rows"].coded[active]
    counts = np.sqrt(block.distinct_counts)[:, None]
    directions = (counts * rows.implicit[:, 8:])[active]
    lines = np.hstack([(distance - centre)[active], directions])
    np.testing.assert_allclose(found.feature_cross, f.T @ lines, rtol=1e-4, atol=1e-4)
    augmented = np.insert(distance[active], 0, 1.0, axis=1)
    np.testing.assert_allclose(found.distance_gram, augmented.T @ augmented, rtol=1e-4, atol=1e-4)
    both = np.hstack([augmented, directions])
    np.testing.assert_allclose(found.direction_gram, directions.T @ both, rtol=1e-4, atol=1e-4)
    lines = np.insert(implicit_mean[active], 0, 1.0, axis=1)
    counts = block.row_counts[active][:, None]
    np.testing.assert_allclose(
        found.implicit_gram, (counts * lines).T @ lines, rtol=1e-5, atol=1e-5
    )
    gram = np.eye(6)
    ridge = (
        found.with_ridge(gram, weights).distance_gram - found.with_ridge(gram, None).distance_gram
    )
    np.testing.assert_allclose(ridge[1:, 1:], FEATURE_RIDGE * weights.T @ weights)
    assert not ridge[0].any()


def test_rows_without_ratings_have_the_mean_that_their_features_explain():
    (rows, cols, labels) = simulated("B3", shape=SHAPE)
    extra = 4
    features = np.random.default_rng(4).normal(size=(SHAPE[0] + extra, P))
    shape = (SHAPE[0] + extra, SHAPE[1])
    config = FitConfig(rank=2, likelihood_weight=1.0, max_iter=30, tol=0)
    fit = fit_arrays(rows, cols, labels, config, shape, row_features=features)
    weights = fit.scales.features["rows"]
    unseen = fit.scales.unseen("rows")
    rated = features[np.unique(rows)]
    coded = (features[-extra:] - rated.mean(axis=0)) / rated.std(axis=0) / np.sqrt(P)
    np.testing.assert_allclose(
        fit.rows.location[-extra:], unseen.mean + coded @ weights, rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(
        fit.rows.std[-extra:] ** -2.0, np.tile(unseen.precision, (extra, 1)), rtol=1e-4
    )


@pytest.mark.parametrize("implicit", [False, True])
def test_new_rows_are_predicted_from_what_decides_their_labels(implicit):
    rng = np.random.default_rng(6)
    m = 300
    n_cols = 60
    n_new = 60
    feature = rng.normal(size=(m, 1))
    rows = rng.integers(m, size=9_000)
    cols = rng.integers(n_cols, size=9_000)
    labels = rng.random(9_000) < 1 / (1 + np.exp(-3 * feature[rows, 0]))
    fitted = rows >= n_new
    config = FitConfig(rank=2, implicit_features=implicit, likelihood_weight=1.0)
    right = {}
    for given in (None, feature):
        fit = fit_arrays(
            rows[fitted], cols[fitted], labels[fitted], config, (m, n_cols), row_features=given
        )
        right[given is None] = np.mean(
            (fit.predict(rows[~fitted], cols[~fitted]) > 0) == labels[~fitted]
        )
    assert right[True] < 0.6 < 0.75 < right[False]


def test_an_id_without_ratings_gets_the_mean_of_what_implicit_features_say():
    """New rows are predicted as well with implicit features as without: their prior mean is not 0
    then.
    """
    rng = np.random.default_rng(7)
    m = 200
    n_cols = 40
    n_new = 40
    n = 8_000
    popularity = rng.normal(size=n_cols)
    rows = rng.integers(m, size=n)
    cols = rng.integers(n_cols, size=n)
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


def test_what_is_fitted_to_a_part_does_not_depend_on_the_features_of_the_rest():
    """Rows that have ratings only outside the part get other features: the coding stays."""
    rows, cols, labels = simulated("B3", shape=(200, 150), fraction=0.3)
    # Many rows with one rating or two
    kept = (rows < 100) | (np.random.default_rng(3).random(len(rows)) < 0.02)
    ratings = rows[kept], cols[kept], labels[kept]
    block = RatingBlock.from_coordinates(*ratings[:2], ratings[2] > 0, (200, 150))
    split = Split(5, 0.9)
    outside = (block.row_counts > 0) & (
        split.part_of(block, np.arange(200), np.arange(150)).row_counts == 0
    )
    assert np.any(outside)
    features = np.random.default_rng(0).normal(size=(200, 2))
    other = np.where(outside[:, None], 50.0, features)
    found = []
    for given in (features, other):
        state = local_state(block)
        state.features["rows"] = SideFeatures.of_rows(given, block.row_counts > 0, "features")
        with state.restricted(split) as part:
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
