"""What a tenth of the ratings chooses: the same by every exchange, after an interruption, and from an initial model."""

import json

import numpy as np
import pytest
from test_checkpoint import Interrupted, factors, interrupt_after
from test_engine import SCORE_TOLERANCE, frame, scores

from onebit_spark import FitConfig, RequestError, fit_arrays
from onebit_spark.certificate import bounds
from onebit_spark.cli.summaries import fit_summary
from onebit_spark.core import model_selection
from onebit_spark.estimator import OneBitCompletion
from onebit_spark.simulate import simulate

PATIENT = [pytest.param(exchange, marks=pytest.mark.slow) for exchange in ("mixed", "shuffle")]
SETTINGS = "rank", "likelihood_weight", "implicit_features"


@pytest.fixture
def quick(monkeypatch):
    """A search that begins with two factors, on few ratings, in few iterations."""
    few = {
        "FEWEST_RATINGS": 100,
        "SHORTEST_FIT": 1,
        "START_RANK": 2,
        "FIRST_ITERATIONS": 2,
        "TRIAL_ITERATIONS": 1,
        "FINAL_ITERATIONS": 4,
    }
    for name, value in few.items():
        monkeypatch.setattr(model_selection, name, value)


@pytest.fixture(scope="module")
def data():
    return simulate("B1", rank=4, shape=(60, 45), fraction=0.8, seed=3)


@pytest.fixture(scope="module")
def ratings(spark, data):
    """Ids that sort as their numbers do, so that a fit in process numbers them alike."""
    return frame(spark, data, "{:03d}").cache()


def estimator(**params):
    defaults = {"maxRank": 4, "maxIter": 8, "tol": 0.0, "exchange": "driver", "numUserBlocks": 3, "numItemBlocks": 2}
    return OneBitCompletion(**{**defaults, **params})


def told(model):
    """The trail without its losses, and the losses."""
    trail = model.info.choice["trail"]
    return [{**entry, "loss": None} for entry in trail], [entry["loss"] for entry in trail]


@pytest.mark.parametrize("exchange", ["broadcast", *PATIENT])
def test_every_exchange_chooses_the_same(quick, ratings, exchange):
    """The coins belong to the numbers of the ids, which are the same whatever the exchange."""
    driver, other = estimator().fit(ratings), estimator(exchange=exchange).fit(ratings)
    steps, losses = told(driver)
    assert {entry["rank"] for entry in steps} == {2, 4}  # the search went through a growth
    assert told(other)[0] == steps
    assert told(other)[1] == pytest.approx(losses, rel=1e-5)
    for name in SETTINGS:
        assert other.info.parameters[name] == driver.info.parameters[name]
    assert (other.info.choice["planned"], other.info.reason) == (driver.info.choice["planned"], driver.info.reason)
    np.testing.assert_allclose(other.summary.objectiveHistory, driver.summary.objectiveHistory, rtol=1e-6)
    found, expected = (scores(model, ratings.select("user", "item")).to_numpy() for model in (other, driver))
    assert np.abs(found - expected).max() <= SCORE_TOLERANCE["logistic"] * np.abs(expected).max()
    limit = driver.info.nine_tenths
    assert {**other.info.nine_tenths, "statement": ""} == {**limit, "statement": ""}
    assert limit["bound"] == bounds.holdout(limit["errors"], limit["n"], limit["delta"] / limit["fits"])
    lines = [line for line in fit_summary(driver.info, {"certificates": []}) if "nine tenths" in line]
    assert lines[-1] == f"{limit['statement']} To certify the model itself: --holdout 0.1."


def test_the_driver_chooses_as_a_process_does(quick, ratings, data):
    model = estimator().fit(ratings)
    fit = fit_arrays(data.rows, data.cols, data.labels, FitConfig(max_rank=4, max_iter=8, tol=0.0))
    assert model.info.choice == fit.info.choice
    assert model.summary.objectiveHistory == fit.objective_history
    lines = list(fit_summary(model.info, model.certificate))
    assert any(line.startswith("Chosen by the loss of a tenth of the ratings: ") for line in lines)


@pytest.mark.parametrize("exchange", ["driver", pytest.param("shuffle", marks=pytest.mark.slow)])
@pytest.mark.parametrize("stopped", [1, 3], ids=["after no checkpoint", "after a checkpoint"])
def test_an_interrupted_fit_ends_at_the_same_fit(quick, ratings, tmp_path, exchange, stopped):
    """Before the first checkpoint the choice is made again; after it the fit goes on as planned."""
    shared = {"exchange": exchange, "checkpointInterval": 2}
    whole = estimator(checkpointDir=str(tmp_path / "whole"), **shared).fit(ratings)
    folder = tmp_path / "kept"
    with pytest.raises(Interrupted):
        estimator(checkpointDir=str(folder), **shared).setProgress(interrupt_after(stopped)).fit(ratings)
    assert len(list(folder.glob("iteration-*"))) == (stopped > 2)
    resumed = estimator(checkpointDir=str(folder), resume=True, **shared).fit(ratings)
    assert resumed.summary.objectiveHistory == whole.summary.objectiveHistory
    assert factors(resumed) == factors(whole)
    assert resumed.certificate == whole.certificate
    for name in ("parameters", "choice", "weight_losses", "calibration", "converged", "reason"):
        assert json.dumps(getattr(resumed.info, name)) == json.dumps(getattr(whole.info, name)), name


def test_an_interruption_during_the_choice(quick, ratings, tmp_path, monkeypatch):
    whole = estimator(checkpointDir=str(tmp_path / "whole")).fit(ratings)
    grown = model_selection._Search._grown
    with monkeypatch.context() as patched:

        def interrupted(*_):
            raise Interrupted

        patched.setattr(model_selection._Search, "_grown", interrupted)
        with pytest.raises(Interrupted):
            estimator(checkpointDir=str(tmp_path / "kept")).fit(ratings)
    assert model_selection._Search._grown is grown
    resumed = estimator(checkpointDir=str(tmp_path / "kept"), resume=True).fit(ratings)
    assert resumed.summary.objectiveHistory == whole.summary.objectiveHistory
    assert factors(resumed) == factors(whole)


def test_an_initial_model_says_what_is_not_given(quick, ratings):
    """Rank, κ and features of the model, whatever they were; a rank that is given must be the same."""
    first = OneBitCompletion(rank=3, likelihoodWeight=0.8, implicitFeatures=False, maxIter=3, tol=0.0).fit(ratings)
    again = estimator(maxIter=2).setInitialModel(first).fit(ratings)
    assert [again.info.parameters[name] for name in SETTINGS] == [3, 0.8, False]
    assert again.info.choice is None
    assert again.summary.objectiveHistory[0] < first.summary.objectiveHistory[-1]
    with pytest.raises(RequestError, match="rank is 3 there and 4 here"):
        estimator(rank=4).setInitialModel(first).fit(ratings)
