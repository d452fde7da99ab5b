"""Input that bites: skew, strange partitions, ids that look alike. The right result, every time."""

import numpy as np
import pytest

from onebit_spark import FitConfig, fit_arrays
from onebit_spark.estimator import OneBitCompletion
from onebit_spark.simulate import simulate

PARAMS = {"rank": 2, "tol": 0.0, "seed": 0}
ITERATIONS = 2  # a block that was built wrongly shows in the first


def objective(ratings, **params):
    model = OneBitCompletion(maxIter=ITERATIONS, exchange="broadcast", **PARAMS, **params).fit(ratings)
    return model.summary.objectiveHistory[-1]


def frame(spark, rows, cols, labels):
    lines = list(zip(rows.tolist(), cols.tolist(), labels.tolist(), strict=True))
    return spark.createDataFrame(lines, "user long, item long, label int")


@pytest.fixture(scope="module")
def data():
    made = simulate("B2", rank=2, shape=(70, 30), fraction=0.3, seed=4)
    return made.rows, made.cols, made.labels


@pytest.fixture(scope="module")
def expected(data):
    return fit_arrays(*data, FitConfig(max_iter=ITERATIONS, **PARAMS)).objective_history[-1]


@pytest.mark.classic
@pytest.mark.parametrize(
    "arranged",
    [
        lambda ratings: ratings.coalesce(1),
        lambda ratings: ratings.repartition(40, "label"),  # most of them empty
        lambda ratings: ratings.repartitionByRange(5, "label"),  # all negatives, then all positives
    ],
    ids=["one partition", "empty partitions", "by label"],
)
def test_however_the_input_is_partitioned(spark, data, expected, arranged):
    assert objective(arranged(frame(spark, *data))) == pytest.approx(expected, rel=1e-6)


@pytest.mark.slow
def test_thousands_of_empty_partitions(spark, data, expected):
    assert objective(frame(spark, *data).repartition(3000, "user")) == pytest.approx(expected, rel=1e-6)


@pytest.mark.classic
def test_an_item_with_a_third_of_all_ratings(spark):
    """More blocks than the item's share allows to balance: it has a block, the others share the rest."""
    rng = np.random.default_rng(0)
    n = 3000
    rows, cols = rng.integers(80, size=n), np.where(rng.random(n) < 0.33, 7, rng.integers(40, size=n))
    labels = np.where(rng.random(n) < 0.4 + 0.4 * (rows % 2), 1, -1)
    found = objective(frame(spark, rows, cols, labels), numUserBlocks=4, numItemBlocks=5)
    reference = fit_arrays(rows, cols, labels, FitConfig(max_iter=ITERATIONS, **PARAMS)).objective_history[-1]
    assert found == pytest.approx(reference, rel=1e-6)


def test_ids_that_look_alike_stay_apart(spark):
    """Case, blanks around, a composed and a decomposed é, a zero byte: each is an id of its own."""
    users = ["a", "A", "a ", " a", "caf\u00e9", "cafe\u0301", "a\u0000", ""]
    lines = [(user, item, 1 if (i + j) % 3 else -1) for i, user in enumerate(users) for j, item in enumerate("xyXY")]
    ratings = spark.createDataFrame(lines, "user string, item string, label int")
    model = OneBitCompletion(maxIter=1, **PARAMS).fit(ratings)
    assert (model.info.n_users, model.info.n_items) == (8, 4)
    assert {line.id for line in model.userFactors.collect()} == set(users)
    assert model.transform(ratings).count() == len(lines)
