"""Positions on Spark: computed by the executors as on the driver, of a folder, of folded-in
users.
"""

import numpy as np
import pyarrow as pa
import pytest

from onebit_spark import OneBitCompletion, RequestError, load
from onebit_spark.cli.spark_runtime import SparkRuntime
from onebit_spark.spark.model import OneBitCompletionModel
from onebit_spark.spark.positions import draw as map_of

ENDS = np.argmin, np.argmax


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
        np.testing.assert_allclose(
            there[name].to_numpy(), wanted[name].to_numpy(), rtol=1e-6, atol=1e-9
        )
    assert model.positions(who).columns == here.positions(who).column_names
    with pytest.raises(RequestError, match="dimensions must be"):
        model.positions(who, 7)
    with pytest.raises(RequestError, match="anchors must map ids"):
        model.positions(who, anchors=[anchor])


@pytest.mark.usefixtures("on_executors")
def test_by_default_there_are_as_many_dimensions_as_the_model_has_up_to_two(spark):
    """One where answers depend on the user alone; none where each user answers each item in both
    ways.
    """
    i, j = np.divmod(np.arange(600) // 2, 15)
    one = ["slope1", "slope1_std", "difficulty", "difficulty_std"]
    for labels, columns in ((i % 2, one), (np.arange(600) % 2, [])):
        frame = spark.createDataFrame(pa.table({"user": i, "item": j, "label": labels}))
        model = OneBitCompletion(rank=1, maxIter=5, likelihoodWeight=1.0, fitIntercept=False).fit(
            frame
        )
        items = model.positions("item")
        assert items.columns == ["item", "n_ratings", "intercept", "intercept_std", *columns]
        assert items.count() == 15
        with pytest.raises(RequestError, match="a map needs two dimensions"):
            map_of(model.factors, {}, 9)
    with pytest.raises(RequestError, match="this model has no dimensions"):
        model.positions()


@pytest.mark.usefixtures("on_executors")
def test_of_users_that_were_folded_in(folder, ratings):
    mine = ratings.where("user = 'u003'").cache()
    model = OneBitCompletionModel.load(folder)
    before, after = (
        each.positions().where("user = 'u003'").first().asDict()
        for each in (model, model.foldIn(mine))
    )
    assert after["n_ratings"] == before["n_ratings"] == mine.count()
    assert after["dim1_std"] == pytest.approx(before["dim1_std"], rel=0.3)


def test_of_users_without_ratings(spark, ratings):
    """They are known by their side features alone."""
    kinds = spark.createDataFrame([(f"u{i:03}", float(i % 2)) for i in range(72)], ["user", "kind"])
    model = (
        OneBitCompletion(rank=2, maxIter=3, likelihoodWeight=1.0)
        .setUserFeatures(kinds)
        .fit(ratings)
    )
    lines = {line["user"]: line for line in model.positions(dimensions=1).collect()}
    unrated = [line for line in lines.values() if not line["n_ratings"]]
    assert {"u070", "u071"} <= {line["user"] for line in unrated}
    widest = max(line["dim1_std"] for line in lines.values() if line["n_ratings"])
    assert min(line["dim1_std"] for line in unrated) > widest
    assert lines["u070"]["dim1"] != lines["u071"]["dim1"]


@pytest.mark.usefixtures("on_executors")
def test_a_model_that_was_updated_keeps_the_spreads_of_its_fit(folder, ratings, caplog):
    model = OneBitCompletionModel.load(folder)
    table = model.update(ratings.where("user = 'u003'")).positions().toArrow().sort_by("user")
    assert "too small" in caplog.text
    assert table["n_ratings"].null_count == len(table)
    before = load(folder)
    std = before.factors.axes.spreads("rows", before.users.known)[:, 0]
    other = np.array(table["user"].to_pylist()) != "u003"
    np.testing.assert_allclose(table["dim1_std"].to_numpy()[other], std[other], rtol=1e-5)


def test_what_to_ask_next(spark, folder, ratings):
    here = load(folder)
    model = OneBitCompletionModel.load(folder)
    seen = ratings.where("user < 'u010'").select("user", "item")
    asking = spark.createDataFrame([["u003"], ["u050"], ["new"], ["u003"]], ["user"])
    there = model.nextQuestions(asking, np.int64(3), seen)
    assert there.columns == ["user", "rank", "item", "information"]
    pairs = seen.toArrow()
    wanted = here.next_questions(
        ["new", "u003", "u050", "u003"], 3, seen=(pairs["user"], pairs["item"])
    )
    found = there.toArrow().sort_by([("user", "ascending"), ("rank", "ascending")])
    for name in ("user", "rank", "item"):
        assert found[name].to_pylist() == wanted[name].to_pylist()
    np.testing.assert_allclose(
        found["information"].to_numpy(), wanted["information"].to_numpy(), rtol=1e-5
    )


@pytest.mark.usefixtures("on_executors")
def test_the_map_of_a_large_model(spark, folder, ratings):
    """The executors choose a sample, with the ends of both dimensions; the report has a map as
    well.
    """
    model = OneBitCompletionModel.load(folder)
    here = load(folder).positions()
    drawn = map_of(model.factors, {}, 8)
    assert drawn["count"] == len(here)
    assert len(drawn["items"]) == 8
    ends = {
        here["user"][int(end(here[name].to_numpy()))].as_py()
        for name in ("dim1", "dim2")
        for end in ENDS
    }
    assert ends <= {drawn["ids"][at] for at in drawn["named"]}
    diagnosed = model.diagnose(ratings).info.diagnostics["map"]
    assert len(diagnosed["ids"]) == len(here)
    features = spark.createDataFrame(
        [(user, user, user > "u030") for user in diagnosed["ids"]], ["USER", "name", "old"]
    )
    groups = SparkRuntime(spark).groups(features, "user", diagnosed)
    assert groups == {user: user > "u030" for user in diagnosed["ids"]}
    twice = features.union(features.limit(1).selectExpr("USER", "name", "not old"))
    with pytest.raises(RequestError, match="user features: 1 id with several lines"):
        SparkRuntime(spark).groups(twice, "user", diagnosed)
