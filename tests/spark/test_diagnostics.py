"""Diagnostics and calibration in Spark against the same by numpy, and the report in the saved folder."""

import numpy as np
import pyarrow as pa
import pytest

from onebit_spark import RequestError
from onebit_spark.core import metrics
from onebit_spark.core.calibration import Calibration
from onebit_spark.model import OneBitCompletionModel


@pytest.fixture(scope="module")
def held_out():
    rng = np.random.default_rng(2)
    return rng.integers(0, 30, 800), rng.integers(0, 20, 800), rng.choice([-1, 1], 800)


@pytest.fixture
def frame(spark, held_out):
    return spark.createDataFrame(pa.table(dict(zip(("user", "item", "label"), held_out, strict=True))))


@pytest.mark.usefixtures("both_ways")
def test_diagnostics_equal_numpys_and_make_a_report(frame, held_out, make_fit, make_model, tmp_path):
    fit, (users, items, labels) = make_fit(), held_out
    model = make_model().setScoreCol("utility").setColdStartStrategy("drop").diagnose(frame)
    diagnostics = model.info.diagnostics
    assert (diagnostics["source"], diagnostics["n"]) == ("held-out ratings", 800)
    assert diagnostics["error"] == pytest.approx(np.mean(fit.predict(users, items) != labels))
    curve = metrics.reliability(labels, fit.probability(users, items))
    assert diagnostics["calibration_error"] == pytest.approx(curve.error, abs=1e-6)
    np.testing.assert_allclose(diagnostics["reliability"]["frequency"], curve.frequency)
    scores = fit.score(users, items)
    below = [low < -0.5 for low in diagnostics["scores"]["low"]]
    assert np.dot(diagnostics["scores"]["positive"], below) == np.sum((scores < -0.5) & (labels > 0))
    assert sum(diagnostics["scores"]["negative"]) == np.sum(labels < 0)
    answered, wrong = diagnostics["risk_coverage"], fit.predict(users, items) != labels
    order = np.argsort(-fit.confidence(users, items))
    assert answered["share"][-1] == 1
    for share, error in zip(answered["share"], answered["error"], strict=True):
        assert error == pytest.approx(wrong[order[: round(share * 800)]].mean())
    model.save(str(tmp_path / "model"))
    assert (tmp_path / "model" / "report.html").read_text(encoding="utf-8").count("<svg") == 5
    assert OneBitCompletionModel.load(str(tmp_path / "model")).info == model.info


def test_a_calibration_is_learnt_kept_and_used(spark, frame, held_out, make_fit, make_model, tmp_path):
    fit, (users, items, labels) = make_fit(loss="hinge"), held_out
    score, variance = fit.score(users, items), fit.std(users, items) ** 2
    exact = Calibration.fit(score, variance, (labels > 0).astype(float), (labels < 0).astype(float))
    make_model(loss="hinge").calibrate(frame).save(str(tmp_path / "model"))
    model = OneBitCompletionModel.load(str(tmp_path / "model"))
    table = model.transform(frame).toPandas()
    np.testing.assert_allclose(table["score"], score, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(table["probability"], exact.probability(score, variance), atol=0.02)
    (best,) = model.recommendForUserSubset(spark.createDataFrame([(3,)], "user bigint"), 4).collect()
    pairs = spark.createDataFrame([(3, one["item"]) for one in best["recommendations"]], "user bigint, item bigint")
    expected = sorted((line["probability"] for line in model.transform(pairs).collect()), reverse=True)
    np.testing.assert_allclose([one["probability"] for one in best["recommendations"]], expected, rtol=1e-5)


def test_a_calibration_needs_both_classes(spark, make_model):
    one_class = spark.createDataFrame([(0, 0, 1), (1, 1, 1)], "user bigint, item bigint, label int")
    with pytest.raises(RequestError, match="both classes"):
        make_model().calibrate(one_class)
