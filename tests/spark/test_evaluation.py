"""Ratings that are scored: on the driver as by transform, and their diagnostics and calibration."""

import numpy as np
import pyarrow as pa
import pytest

from onebit_spark import RequestError
from onebit_spark.core.calibration import Calibration
from onebit_spark.predict.figures import count_by_level, figures_of
from onebit_spark.predict.metrics import reliability
from onebit_spark.spark.model import OneBitCompletionModel
from onebit_spark.spark.scoring import KNOWN_PAIR, predicted_pairs

USERS = np.array([0, 3, 27, 28, 99, 5, 99, 3, -1])
ITEMS = np.array([0, 17, 4, 2, 1, 19, 99, 17, 0])


@pytest.mark.parametrize(
    "choices",
    [
        {"loss": "logistic"},
        pytest.param({"loss": "hinge", "intercepts": False}, marks=pytest.mark.slow),
        pytest.param({"loss": "logistic", "covariance": "diagonal"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_predictions_are_those_of_transform(spark, make_model, choices):
    pairs = spark.createDataFrame(
        pa.table({"user": USERS.astype(np.int32), "item": ITEMS.astype(np.int16)})
    )
    model = make_model(**choices).setRawPredictionCol("")
    found = predicted_pairs(model.factors, pairs, 9).toPandas()
    expected = model.transform(pairs).toPandas()
    known = found.pop(KNOWN_PAIR)
    np.testing.assert_array_equal(
        known, found["user"].between(0, 27) & found["item"].between(0, 17)
    )
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
    monkeypatch.setattr(
        "onebit_spark.spark.scoring.MOST_BYTES", 46 * model.factors.bytes_per_row - 1
    )
    assert not model.factors.fit_driver(1)


def test_the_same_figures_wherever_they_are_scored(spark, make_model, monkeypatch):
    rng = np.random.default_rng(4)
    table = {
        "user": rng.integers(0, 30, 500),
        "item": rng.integers(0, 20, 500),
        "label": rng.choice([-1, 1], 500),
    }
    ratings = spark.createDataFrame(pa.table(table))
    model = make_model()
    here = model.judge(ratings).sum_up()
    monkeypatch.setattr("onebit_spark.spark.scoring.MOST_BYTES", -1)
    there = model.judge(ratings).sum_up()
    one, other = (figures_of(model.info, sums, None) for sums in (here, there))
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert value == (pytest.approx(other[name], rel=1e-9) if value is not None else None), name
    first, second = (count_by_level(model.info, sums, None, True) for sums in (here, there))
    assert first == second
    assert one["n_unknown_user"] == np.count_nonzero(table["user"] >= 28)


# ---- diagnostics and calibration against numpy -------------------------------------------------


@pytest.fixture(scope="module")
def held_out():
    rng = np.random.default_rng(2)
    return rng.integers(0, 30, 800), rng.integers(0, 20, 800), rng.choice([-1, 1], 800)


@pytest.fixture
def frame(spark, held_out):
    return spark.createDataFrame(
        pa.table(dict(zip(("user", "item", "label"), held_out, strict=True)))
    )


@pytest.mark.usefixtures("both_ways")
def test_diagnostics_equal_numpys_and_make_a_report(
    frame, held_out, make_fit, make_model, tmp_path
):
    fit = make_fit()
    (users, items, labels) = held_out
    model = make_model().setScoreCol("utility").setColdStartStrategy("drop").diagnose(frame)
    diagnostics = model.info.diagnostics
    assert (diagnostics["source"], diagnostics["n"]) == ("held-out ratings", 800)
    assert diagnostics["error"] == pytest.approx(np.mean(fit.predict(users, items) != labels))
    curve = reliability(labels, fit.probability(users, items))
    assert diagnostics["calibration_error"] == pytest.approx(curve.error, abs=1e-6)
    np.testing.assert_allclose(diagnostics["reliability"]["frequency"], curve.frequency)
    scores = fit.score(users, items)
    below = [low < -0.5 for low in diagnostics["scores"]["low"]]
    assert np.dot(diagnostics["scores"]["positive"], below) == np.sum(
        (scores < -0.5) & (labels > 0)
    )
    assert sum(diagnostics["scores"]["negative"]) == np.sum(labels < 0)
    answered = diagnostics["risk_coverage"]
    wrong = fit.predict(users, items) != labels
    order = np.argsort(-fit.confidence(users, items))
    assert answered["share"][-1] == 1
    for share, error in zip(answered["share"], answered["error"], strict=True):
        assert error == pytest.approx(wrong[order[: round(share * 800)]].mean())
    model.save(str(tmp_path / "model"))
    assert (tmp_path / "model" / "report.html").read_text(encoding="utf-8").count("<svg") == 6
    assert OneBitCompletionModel.load(str(tmp_path / "model")).info == model.info


@pytest.mark.slow
def test_a_calibration_is_learnt_kept_and_used(
    spark, frame, held_out, make_fit, make_model, tmp_path
):
    fit = make_fit(loss="hinge")
    (users, items, labels) = held_out
    score = fit.score(users, items)
    variance = fit.std(users, items) ** 2
    exact = Calibration.fit(score, variance, (labels > 0).astype(float), (labels < 0).astype(float))
    make_model(loss="hinge").calibrate(frame).save(str(tmp_path / "model"))
    model = OneBitCompletionModel.load(str(tmp_path / "model"))
    table = model.transform(frame).toPandas()
    np.testing.assert_allclose(table["score"], score, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(table["probability"], exact.probability(score, variance), atol=0.02)
    (best,) = model.recommendForUserSubset(
        spark.createDataFrame([(3,)], "user bigint"), 4
    ).collect()
    pairs = spark.createDataFrame(
        [(3, one["item"]) for one in best["recommendations"]], "user bigint, item bigint"
    )
    expected = sorted(
        (line["probability"] for line in model.transform(pairs).collect()), reverse=True
    )
    np.testing.assert_allclose(
        [one["probability"] for one in best["recommendations"]], expected, rtol=1e-5
    )


def test_a_calibration_needs_both_classes(spark, make_model):
    one_class = spark.createDataFrame([(0, 0, 1), (1, 1, 1)], "user bigint, item bigint, label int")
    with pytest.raises(RequestError, match="both classes"):
        make_model().calibrate(one_class)
