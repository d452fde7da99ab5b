"""Implicit features on Spark: every exchange as in process, and all that is done with a model afterwards."""

import json

import numpy as np
import pytest
from test_engine import assert_same, estimator, frame, in_process

from onebit_spark import RequestError
from onebit_spark.cli.fit_job import fit_summary
from onebit_spark.core.factor_tables import IMPLICIT
from onebit_spark.model import OneBitCompletionModel
from onebit_spark.simulate import simulate


@pytest.fixture(scope="module")
def data():
    return simulate("B2", rank=3, shape=(60, 45), fraction=0.4, seed=3)


@pytest.fixture(scope="module")
def ratings(spark, data):
    return frame(spark, data).cache()


@pytest.fixture(scope="module")
def model(ratings):
    return estimator(implicitFeatures=True, maxIter=4, exchange="driver").fit(ratings)


# Features are on by default, so the other tests of the exchanges and of checkpoints are about them, too.
@pytest.mark.parametrize(
    ("exchange", "loss", "intercepts"),
    [("driver", "logistic", True), pytest.param("shuffle", "hinge", True, marks=pytest.mark.slow)],
)
def test_equals_the_in_process_fit(spark, ratings, data, exchange, loss, intercepts):
    made = estimator(
        exchange=exchange, loss=loss, fitIntercept=intercepts, implicitFeatures=True, maxIter=2, numUserBlocks=3,
        numItemBlocks=2,
    ).fit(ratings)  # fmt: skip
    expected = in_process(data, loss=loss, intercepts=intercepts, implicit_features=True, max_iter=2)
    assert_same(made, expected, data, spark, loss)
    found = {int(line["id"]): line[IMPLICIT] for line in made.users.select("id", IMPLICIT).collect()}
    told = np.array([found[i] for i in range(len(found))])
    np.testing.assert_allclose(told, expected.rows.implicit, atol=1e-3 * np.abs(expected.rows.implicit).max())


def test_newcomers_have_the_prior_mean_of_what_they_rated(spark, ratings, model):
    """A user that is folded in again, from the same ratings, lands where it is; without the features it would not."""
    one = ratings.filter("user = '7'")
    folded = model.foldIn(one)
    before, after = (np.array(m.userFactors.filter("id = '7'").first()["features"]) for m in (model, folded))
    longer = estimator(implicitFeatures=True, maxIter=60, exchange="driver").fit(ratings)
    again = longer.foldIn(one)
    settled, found = (np.array(m.userFactors.filter("id = '7'").first()["features"]) for m in (longer, again))
    assert np.abs(found - settled).max() < 0.02
    assert np.isfinite(after).all()
    assert before.shape == after.shape
    assert folded.users.columns == model.users.columns


def test_a_model_is_saved_with_its_weights(spark, ratings, model, tmp_path):
    path = str(tmp_path / "model")
    model.write().save(path)
    assert json.loads((tmp_path / "model" / "metadata.json").read_text())["parameters"]["implicit_features"] is True
    loaded = OneBitCompletionModel.load(path)
    assert sorted(loaded.items.select("id", IMPLICIT).collect()) == sorted(model.items.select("id", IMPLICIT).collect())
    one = ratings.filter("user = '7'")
    expected, found = (m.foldIn(one).userFactors.filter("id = '7'").first() for m in (model, loaded))
    np.testing.assert_allclose(found["features"], expected["features"], rtol=1e-5)


def test_a_warm_start_goes_on(ratings, model):
    warm = estimator(implicitFeatures=True, maxIter=2, exchange="driver").setInitialModel(model).fit(ratings)
    assert warm.summary.objectiveHistory[0] < model.summary.objectiveHistory[-1]
    with pytest.raises(RequestError, match="implicitFeatures is True there and False here"):
        estimator(implicitFeatures=False, maxIter=2, exchange="driver").setInitialModel(model).fit(ratings)


def test_without_a_certificate_the_job_says_how_to_get_one(model):
    assert model.certificate == {"headline": None, "certificates": []}
    told = [line for line in fit_summary(model.info, model.certificate) if "ertificate" in line]
    advice = "--holdout 0.1 keeps some ratings out of the fit and certifies the model on them."
    assert told == [f"No certificate, because the prior depends on implicit features: {advice}"]
    featured = model.changed(side_features={"user": {"coding": [], "newcomers": 0}})
    told = [line for line in fit_summary(featured.info, featured.certificate) if "ertificate" in line]
    both = "implicit features and side features of the users"
    assert told == [f"No certificate, because the prior depends on {both}: {advice}"]
