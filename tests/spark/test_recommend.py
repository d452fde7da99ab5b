"""recommendFor… against the scores of all pairs, in both directions, whatever the blocks."""

import numpy as np
import pyarrow as pa
import pytest
from pyspark.ml.evaluation import RankingEvaluator
from pyspark.sql import functions as F
from support.sparkfits import ALL_ITEMS, ALL_USERS, table_of

from onebit_spark import RequestError
from onebit_spark.core.losses import LOSSES

HINGE = {"loss": "hinge", "intercepts": False}
LOGISTIC = {"loss": "logistic"}


def expected(fit, n, by="user", z=None, without=()):
    """The same by sorting every pair of the in-process fit."""
    score, std = (getattr(fit, name)(ALL_USERS, ALL_ITEMS) for name in ("score", "std"))
    probability = fit.probability(ALL_USERS, ALL_ITEMS)
    noise = LOSSES[fit.config.loss].score_noise  # a probability of 1 hides the order
    key = score / np.sqrt(noise + std**2) if z is None else score - z * std
    lists = {}
    for at in np.argsort(-key):
        who, other = (ALL_USERS, ALL_ITEMS) if by == "user" else (ALL_ITEMS, ALL_USERS)
        mine = lists.setdefault(int(who[at]), [])
        if len(mine) < n and (ALL_USERS[at], ALL_ITEMS[at]) not in without:
            mine.append((int(other[at]), score[at], std[at], probability[at]))
    return lists


def assert_same(found, wanted):
    assert found.keys() == wanted.keys()
    for who in wanted:
        assert [one[0] for one in found[who]] == [one[0] for one in wanted[who]]
        np.testing.assert_allclose(found[who], wanted[who], rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize(
    "choices", [HINGE, pytest.param(LOGISTIC, marks=pytest.mark.slow)], ids=["hinge", "logistic"]
)
def test_for_all_users_by_probability(make_fit, make_model, choices):
    found = make_model(**choices).recommendForAllUsers(5)
    assert found.dtypes == [
        ("user", "bigint"),
        ("recommendations", "array<struct<item:bigint,rating:float,std:float,probability:float>>"),
    ]
    assert_same(table_of(found, "user", "item"), expected(make_fit(**choices), 5))


@pytest.mark.usefixtures("on_executors")
def test_for_all_items_by_a_lower_limit_over_many_blocks(make_fit, make_model, monkeypatch):
    monkeypatch.setattr("onebit_spark.spark.recommend.BLOCK_BYTES", 1200)  # several blocks per side
    found = make_model().setItemCol("what").recommendForAllItems(4, z=1.5)
    assert found.columns == ["what", "recommendations"]
    assert_same(table_of(found, "what", "user"), expected(make_fit(), 4, by="item", z=1.5))


@pytest.mark.usefixtures("on_executors")
def test_numbers_of_numpy_are_numbers(make_model, monkeypatch):
    monkeypatch.setattr("onebit_spark.spark.recommend.BLOCK_BYTES", 1200)
    model = make_model()
    found, expected = (
        model.recommendForAllUsers(n).orderBy("user").collect() for n in (np.int64(2), 2)
    )
    assert found == expected


def test_seen_pairs_are_left_out(spark, make_fit, make_model, monkeypatch):
    monkeypatch.setattr("onebit_spark.spark.recommend.BLOCK_BYTES", 1200)
    without = {
        (u, i)
        for u, i in zip(ALL_USERS, ALL_ITEMS, strict=True)
        if (u + i) % 3 == 0 or (u == 4 and i > 0)
    }
    users, items = np.array(sorted(without)).T
    seen = spark.createDataFrame(
        pa.table({"user": np.append(users, 999), "item": np.append(items, 0)})
    )
    found = table_of(make_model().recommendForAllUsers(18, excludeSeen=seen), "user", "item")
    assert_same(found, expected(make_fit(), 18, without=without))
    assert len(found[4]) == 1


def test_subsets_and_string_ids(spark, make_fit, make_model):
    users, items = (
        pa.array([f"{kind}{i:02}" for i in range(n)]) for kind, n in (("u", 28), ("i", 18))
    )
    model = make_model(users, items, id_types={"user": "string", "item": "string"})
    asked = spark.createDataFrame([("u03",), ("u03",), ("u11",), ("unseen",)], "user string")
    found = table_of(model.recommendForUserSubset(asked, 2), "user", "item")
    wanted = expected(make_fit(), 2)
    assert {who: [one[0] for one in found[who]] for who in found} == {
        f"u{who:02}": [f"i{one[0]:02}" for one in wanted[who]] for who in (3, 11)
    }
    asked = spark.createDataFrame([("i07",)], "item string")
    found = table_of(model.recommendForItemSubset(asked, 100), "item", "user")
    assert [one[0] for one in found["i07"]] == [
        f"u{one[0]:02}" for one in expected(make_fit(), 100, by="item")[7]
    ]


@pytest.mark.classic
@pytest.mark.usefixtures("on_executors")
def test_nothing_passes_the_driver(make_model):
    plan = make_model().recommendForAllUsers(3)._jdf.queryExecution().executedPlan().toString()
    assert "CartesianProduct" in plan
    assert "Broadcast" not in plan


def test_what_cannot_be_asked(spark, make_model):
    model = make_model()
    with pytest.raises(RequestError, match="at least 1, not 0"):
        model.recommendForAllUsers(0)
    with pytest.raises(RequestError, match=r"z must be a number of at least 0, not -1.0"):
        model.recommendForAllUsers(1, z=-1.0)
    with pytest.raises(RequestError, match="cast the column to bigint"):
        model.recommendForUserSubset(spark.createDataFrame([("a",)], "user string"), 1)
    holes = spark.createDataFrame([(None,), (1,)], "user bigint")
    with pytest.raises(Exception, match="column 'user' holds 1 null or NaN ids"):
        model.recommendForUserSubset(holes, 1).collect()


@pytest.mark.slow
@pytest.mark.classic
def test_rankings_are_those_of_the_evaluator_of_spark(spark, make_fit, make_model):
    """And those of the model in one process, with popularity, unknown users, and an unknown
    item.
    """
    rng = np.random.default_rng(6)
    columns = [np.append(rng.integers(0, high, 330), more) for high, more in ((30, 3), (18, 99))]
    labels = np.append(rng.choice([-1, 1], 330), 1)
    table = pa.table({"user": columns[0], "item": columns[1], "label": labels})
    seen = table[:180]
    held_out = table[180:]
    model = make_model()
    here = make_fit()
    frames = [spark.createDataFrame(part) for part in (seen, held_out)]
    found = model.ranking(frames[1], 4, excludeSeen=frames[0])
    expected = here.ranking(held_out, n=4, seen=seen)
    assert found.keys() == expected.keys() >= {"model", "popularity"}
    assert found.pop("n_unknown_user") == expected["n_unknown_user"] == 2
    for name, figures in found.items():
        assert figures == pytest.approx(expected[name]), name
    wanted = frames[1].where("label > 0").join(frames[0], ["user", "item"], "left_anti")
    relevant = wanted.groupBy("user").agg(
        F.collect_set(F.col("item").cast("double")).alias("label")
    )
    lists = model.recommendForUserSubset(wanted, 4, excludeSeen=frames[0])
    listed = lists.select(
        "user", F.expr("transform(recommendations, one -> double(one.item))").alias("prediction")
    )
    both = listed.join(relevant, "user").cache()
    for name, value in found["model"].items():
        assert RankingEvaluator(metricName=name, k=4).evaluate(both) == pytest.approx(value)


def test_rankings_without_the_seen_ratings(spark, make_fit, make_model):
    ratings = pa.table({"user": [0, 0, 5, 7], "item": [1, 2, 3, 4], "label": [1, -1, 1, 1]})
    frame = spark.createDataFrame(ratings)
    found = make_model().ranking(frame, 4)
    assert "popularity" not in found
    assert found["model"] == pytest.approx(make_fit().ranking(ratings, n=4)["model"])
    with pytest.raises(
        RequestError, match="no user that the model knows has a positive rating that was not seen"
    ):
        make_model().ranking(frame, 4, excludeSeen=frame)
    with pytest.raises(RequestError, match="excludeSeen has no rating: leave it out"):
        make_model().ranking(frame, 4, excludeSeen=frame.limit(0))
