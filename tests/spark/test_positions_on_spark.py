"""Positions on Spark: computed by the executors as on the driver, of a folder, of folded-in users."""

import numpy as np
import pytest

from onebit_spark import OneBitCompletion, RequestError, load
from onebit_spark.model import OneBitCompletionModel


@pytest.fixture(scope="module")
def folder(ratings, tmp_path_factory):
    path = str(tmp_path_factory.mktemp("positions") / "m")
    OneBitCompletion(rank=2, maxIter=3, likelihoodWeight=1.0).fit(ratings).save(path)
    return path


@pytest.mark.usefixtures("on_executors")
@pytest.mark.parametrize("who", ["user", "item"])
def test_the_executors_compute_what_this_process_computes(spark, folder, who):
    here = load(folder)
    anchor = here.users.ids[3].as_py()
    model = OneBitCompletionModel.load(folder)
    there = model.positions(who, 1, {anchor: -1}).toArrow().sort_by(who)
    wanted = here.positions(who, 1, {anchor: -1}).sort_by(who)
    assert there.column_names == wanted.column_names
    assert there[who].to_pylist() == wanted[who].to_pylist()
    for name in wanted.column_names[1:]:
        np.testing.assert_allclose(there[name].to_numpy(), wanted[name].to_numpy(), rtol=1e-6, atol=1e-9)
    with pytest.raises(RequestError, match="dimensions must be"):
        model.positions(who, 7)


@pytest.mark.usefixtures("on_executors")
def test_of_users_that_were_folded_in(folder, ratings):
    mine = ratings.where("user = 'u003'").cache()
    model = OneBitCompletionModel.load(folder)
    before, after = (each.positions().where("user = 'u003'").first().asDict() for each in (model, model.foldIn(mine)))
    assert after["n_ratings"] == before["n_ratings"] == mine.count()
    assert after["dim1_std"] == pytest.approx(before["dim1_std"], rel=0.3)
    with pytest.raises(RequestError, match="or it was updated"):
        model.update(mine).positions()


def test_what_to_ask_next(spark, folder, ratings):
    here, model = load(folder), OneBitCompletionModel.load(folder)
    seen = ratings.where("user < 'u010'").select("user", "item")
    there = model.nextQuestions(spark.createDataFrame([["u003"], ["u050"], ["new"]], ["user"]), 3, seen)
    assert there.columns == ["user", "rank", "item", "information"]
    pairs = seen.toArrow()
    wanted = here.next_questions(["new", "u003", "u050"], 3, seen=(pairs["user"], pairs["item"]))
    found = there.toArrow().sort_by([("user", "ascending"), ("rank", "ascending")])
    for name in ("user", "rank", "item"):
        assert found[name].to_pylist() == wanted[name].to_pylist()
    np.testing.assert_allclose(found["information"].to_numpy(), wanted["information"].to_numpy(), rtol=1e-5)
