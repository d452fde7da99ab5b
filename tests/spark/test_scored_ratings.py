"""Small tables scored on the driver: what transform says, whatever the ids, in few jobs and without a Python worker."""

import numpy as np
import pyarrow as pa
import pytest

from onebit_spark import RequestError
from onebit_spark.input.ratings import Columns
from onebit_spark.input.spark_ratings import check_ratings
from onebit_spark.ml.scoring import measure, predicted_pairs

USERS = np.array([0, 3, 27, 28, 99, 5, 99, 3, -1])
ITEMS = np.array([0, 17, 4, 2, 1, 19, 99, 17, 0])


@pytest.mark.parametrize(
    "choices",
    [{"loss": "logistic"}, {"loss": "hinge", "intercepts": False}, {"loss": "logistic", "covariance": "diagonal"}],
    ids=str,
)
def test_predictions_are_those_of_transform(spark, make_model, choices):
    pairs = spark.createDataFrame(pa.table({"user": USERS.astype(np.int32), "item": ITEMS.astype(np.int16)}))
    model = make_model(**choices).setRawPredictionCol("")
    found, expected = predicted_pairs(model.factors, pairs, 9).toPandas(), model.transform(pairs).toPandas()
    assert found.columns.tolist() == expected.columns.tolist()
    assert found.dtypes.tolist() == expected.dtypes.tolist()
    for name in expected.columns:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-12)


@pytest.mark.classic
def test_no_python_worker_and_few_jobs(spark, make_model, tmp_path):
    pairs = spark.createDataFrame(pa.table({"user": USERS, "item": ITEMS}))
    made = make_model()
    made.save(str(tmp_path / "model"))
    model = type(made).load(str(tmp_path / "model"))
    tracker = spark.sparkContext.statusTracker()
    known = set(tracker.getJobIdsForGroup())
    plan = predicted_pairs(model.factors, pairs, 9)._jdf.queryExecution().executedPlan().toString()
    assert "Python" not in plan
    assert len(set(tracker.getJobIdsForGroup()) - known) == 3  # both sides' factors, and the pairs
    known = set(tracker.getJobIdsForGroup())
    predicted_pairs(model.copy().factors, pairs, 9)  # a copy has the factors already
    assert len(set(tracker.getJobIdsForGroup()) - known) == 1
    known = set(tracker.getJobIdsForGroup())
    predicted_pairs(made.factors, pairs, 9)  # a model that was made here, too
    assert len(set(tracker.getJobIdsForGroup()) - known) == 1


def test_other_types_of_ids_are_refused(spark, make_model):
    pairs = spark.createDataFrame([("3", 4)], "user string, item bigint")
    with pytest.raises(RequestError, match="column 'user' is of type string"):
        predicted_pairs(make_model().factors, pairs, 1)


def test_size_decides(make_model, monkeypatch):
    model = make_model()
    assert model.factors.fit_driver(2_000_000)
    assert not model.factors.fit_driver(2_000_001)
    monkeypatch.setattr("onebit_spark.ml.scoring.MOST_BYTES", 46 * model.factors.bytes_per_row - 1)
    assert not model.factors.fit_driver(1)


def test_the_same_figures_wherever_they_are_scored(spark, make_model, monkeypatch):
    rng = np.random.default_rng(4)
    table = {"user": rng.integers(0, 30, 500), "item": rng.integers(0, 20, 500), "label": rng.choice([-1, 1], 500)}
    ratings = spark.createDataFrame(pa.table(table))
    counts, model = check_ratings(ratings, Columns()), make_model()
    here, counted = measure(model.factors, ratings, None, counts)
    monkeypatch.setattr("onebit_spark.ml.scoring.MOST_BYTES", -1)
    there, also = measure(model.factors, ratings, None, counts)
    assert here.keys() == there.keys()
    for name, value in here.items():
        assert value == (pytest.approx(there[name], rel=1e-9) if value is not None else None), name
    assert counted == also
    assert here["n_unknown_user"] == np.count_nonzero(table["user"] >= 28)
