"""Checkpoints: a fit that was interrupted goes on and ends at the same bits; another fit's
checkpoint is refused.
"""

import json
import logging
from types import SimpleNamespace

import pandas as pd
import pytest
from support.modelfolders import save_small_model
from support.sparkfits import Interrupted, interrupt_after

from onebit_spark import RequestError
from onebit_spark.core import model_selection
from onebit_spark.fitting.checkpoints import HISTORY, CheckpointFolder, clear_checkpoints
from onebit_spark.spark.estimator import OneBitCompletion, SparkModels
from onebit_spark.spark.model import OneBitCompletionModel

LEVELS = ("_first_trial", "after")  # where a search is interrupted: a method of it, or after it


def estimator(folder, **params):
    defaults = {
        "rank": 2,
        "maxIter": 4,
        "tol": 0.0,
        "checkpointDir": str(folder),
        "checkpointInterval": 2,
    }
    return OneBitCompletion(exchange="driver", **{**defaults, **params})


def factors(model):
    lines = [
        tuple(line) for side in (model.users, model.items) for line in side.sort("id").collect()
    ]
    return json.dumps(lines)


@pytest.mark.slow
@pytest.mark.parametrize("choices", [{"loss": "hinge"}, {"implicitFeatures": False}], ids=str)
def test_it_ends_at_the_same_fit(once_rated, tmp_path, choices):
    """Interrupted in iteration 3, after the checkpoint of iteration 2; the hinge's floors depend on
    the iteration.
    """
    whole = estimator(tmp_path / "whole", **choices).fit(once_rated)
    folder = tmp_path / "kept"
    with pytest.raises(Interrupted):
        estimator(folder, **choices).setProgress(interrupt_after(3)).fit(once_rated)
    assert [place.name for place in folder.iterdir()] == ["iteration-000002"]
    seen = []
    again = estimator(folder, resume=True, **choices).setProgress(
        lambda step: seen.append(step.number)
    )
    resumed = again.fit(once_rated)
    assert seen[:2] == [3, 4]
    assert resumed.summary.objectiveHistory == whole.summary.objectiveHistory
    assert factors(resumed) == factors(whole)
    assert resumed.certificate == whole.certificate


@pytest.mark.usefixtures("quick_search")
@pytest.mark.parametrize(
    "where", [pytest.param(name, marks=pytest.mark.slow) for name in LEVELS] + ["_continued"]
)
def test_interrupted_while_it_chooses(once_rated, tmp_path, monkeypatch, where):
    """On the slice, on all ratings, and after the choice: the levels that were done are not
    searched again.
    """
    monkeypatch.setattr(model_selection, "FEWEST_IN_SLICE", 100)
    chosen = {"rank": "auto", "maxRank": 4}
    shares = {"_first_trial": [0.25, 1], "_continued": [1], "after": []}[where]
    whole = estimator(tmp_path / "whole", **chosen).fit(once_rated)
    with monkeypatch.context() as patched:
        if where != "after":
            patched.setattr(
                model_selection._Search,
                where,
                lambda *_: interrupt_after(1)(SimpleNamespace(number=1)),
            )
        with pytest.raises(Interrupted):
            estimator(tmp_path / "kept", **chosen).setProgress(interrupt_after(1)).fit(once_rated)
    assert len(list((tmp_path / "kept").glob("iteration-000000"))) == (where != "_first_trial")
    best = model_selection._Search.best
    searched = []
    monkeypatch.setattr(
        model_selection._Search,
        "best",
        lambda search, level, below: (
            searched.append(level.fraction if level else 1) or best(search, level, below)
        ),
    )
    resumed = estimator(tmp_path / "kept", resume=True, **chosen).fit(once_rated)
    assert searched == shares
    assert resumed.summary.objectiveHistory == whole.summary.objectiveHistory
    assert factors(resumed) == factors(whole)
    assert resumed.info.choice == whole.info.choice


def test_a_checkpoint_is_a_model(spark, once_rated, tmp_path):
    estimator(tmp_path, maxIter=2, checkpointInterval=1).fit(once_rated)
    (place,) = tmp_path.iterdir()
    assert OneBitCompletionModel.load(str(place)).transform(once_rated.limit(3)).count() == 3
    content = json.loads((place / HISTORY).read_text())
    content["history"][1]["decrease"] = 0.0  # a decrease of nothing is not infinite
    (place / HISTORY).write_text(json.dumps(content))
    folder = CheckpointFolder(SparkModels(spark), str(tmp_path), content["subject"])
    assert [step.decrease for step in folder.newest(resume=True).history] == [float("inf"), 0.0]
    (tmp_path / ".iteration-000008.writing-1234").mkdir()  # of a driver that was killed
    clear_checkpoints(spark, str(tmp_path))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_other_fits_are_refused_and_longer_ones_are_not(once_rated, tmp_path, caplog):
    caplog.set_level(logging.INFO, "onebit_spark")
    estimator(tmp_path, resume=True, maxIter=2).fit(once_rated)
    assert f"no checkpoint in file:{tmp_path}: the fit starts from the beginning" in caplog.messages
    with pytest.raises(RequestError, match="there is a checkpoint"):
        estimator(tmp_path).fit(once_rated)
    with pytest.raises(RequestError, match=r"of another fit: alpha was None and is 3\.0"):
        estimator(tmp_path, resume=True, alpha=3.0).fit(once_rated)
    with pytest.raises(RequestError, match="of another fit: ratings was"):
        estimator(tmp_path, resume=True).fit(once_rated.where("user > 3"))
    flipped = once_rated.selectExpr("user", "item", "if(user = 5, -label, label) as label")
    with pytest.raises(RequestError, match="fingerprint"):
        estimator(tmp_path, resume=True).fit(flipped)
    assert estimator(tmp_path, resume=True, maxIter=3).fit(once_rated).summary.totalIterations == 3
    assert (
        f"resuming after iteration 2, from the checkpoint file:{tmp_path}/iteration-000002"
        in caplog.messages
    )
    assert (
        json.loads(next(tmp_path.iterdir()).joinpath(HISTORY).read_text())["history"][0]["decrease"]
        is None
    )


@pytest.mark.slow
def test_a_rating_more_is_another_fit(once_rated, tmp_path):
    """One rating twice in the place of another twice: as many ratings, and an exclusive or would
    forget them.
    """
    first, second = once_rated.orderBy("user", "item").limit(2).collect()
    others = once_rated.where(
        f"not (user = {first['user']} and item in ({first['item']}, {second['item']}))"
    )

    def doubled(line):
        return others.unionAll(
            once_rated.sparkSession.createDataFrame([line, line], once_rated.schema)
        )

    assert first["user"] == second["user"]
    estimator(tmp_path, maxIter=2).fit(doubled(first))
    with pytest.raises(RequestError, match="of another fit: fingerprint of the ratings was"):
        estimator(tmp_path, resume=True).fit(doubled(second))


def test_only_spark_dataframes_are_taken(spark, tmp_path):
    model = OneBitCompletionModel.load(str(save_small_model(tmp_path / "model")))
    calls = (
        OneBitCompletion(rank=2).fit,
        model.transform,
        model.certify,
        model.foldIn,
        model.update,
        model.calibrate,
    )
    for call in (*calls, lambda frame: model.recommendForAllUsers(2, excludeSeen=frame)):
        for frame, kind in (
            (pd.DataFrame({"user": ["a"], "item": [2], "label": [1]}), "pandas DataFrame"),
            ({}, "dict"),
        ):
            with pytest.raises(
                RequestError, match=rf"a Spark DataFrame, not a {kind}: use spark\.createDataFrame"
            ):
                call(frame)


def test_an_initial_model_has_at_most_the_largest_rank(once_rated):
    large = OneBitCompletion(rank=5, maxIter=1, tol=0.0).fit(once_rated)
    with pytest.raises(RequestError, match="it has 5 factors, and maxRank is 4 here"):
        OneBitCompletion(rank="auto", maxRank=4).setInitialModel(large).fit(once_rated)


def test_what_does_not_go_together_is_refused(once_rated, tmp_path):
    with pytest.raises(RequestError, match="resume needs checkpointDir"):
        OneBitCompletion(resume=True).fit(once_rated)
    with pytest.raises(RequestError, match="checkpointInterval must be an integer of at least 1"):
        estimator(tmp_path, checkpointInterval=0).fit(once_rated)
    with pytest.raises(RequestError, match="checkpointDir does not go with an initial model"):
        estimator(tmp_path).setInitialModel(object()).fit(once_rated)
