"""update: today's ratings on yesterday's model, also as a stream."""

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from onebit_spark import OneBitCompletion, RequestError
from onebit_spark.model import OneBitCompletionModel
from onebit_spark.simulate import simulate


@pytest.fixture(scope="module")
def days():
    """Ratings of two groups of users: yesterday's, and today's with users and items that were not there."""
    data = simulate("A1", rank=2, shape=(40, 30), fraction=0.8, seed=2)
    table = pa.table(
        {
            "user": [f"u{i:02}" for i in data.rows],
            "item": data.cols,
            "label": data.labels.astype(np.int32),
        }
    )
    old = (data.rows < 35) & (data.cols < 27) & (np.arange(len(data.rows)) % 5 > 0)
    return table.filter(pa.array(old)), table.filter(pa.array(~old))


@pytest.fixture(scope="module")
def yesterday(spark, days):
    return OneBitCompletion(rank=3, maxIter=20).fit(spark.createDataFrame(days[0]))


def lines(frame):
    return {line["id"]: line for line in frame.toArrow().to_pylist()}


def error(model, ratings):
    scored = model.transform(ratings)
    return scored.agg(F.avg((F.col("prediction") != F.col("label")).cast("double"))).first()[0]


@pytest.mark.usefixtures("both_ways")
def test_new_and_known_ids_move_and_no_others(spark, days, yesterday):
    today = days[1].slice(0, 100)
    rest = spark.createDataFrame(days[1].slice(100))
    narrow = spark.createDataFrame(today).repartition(3).withColumn("item", F.col("item").cast("int"))
    updated = yesterday.update(narrow)  # the model's items are of type bigint
    for who, column in (("users", "user"), ("items", "item")):
        before, after = (lines(getattr(model, who)) for model in (yesterday, updated))
        touched = set(today[column].to_pylist())
        assert set(after) == set(before) | touched
        assert {key for key in after if after[key] != before.get(key)} == touched
    assert (updated.info.n_users, updated.info.n_items) == (updated.users.count(), updated.items.count())
    assert error(updated, rest) < error(yesterday, rest) - 0.05
    assert updated.certificate["certificates"] == []
    assert yesterday.users.count() == 35  # the old model is as it was


def test_both_ways_agree(spark, days, yesterday, monkeypatch, tmp_path):
    """On the driver, and with factors that stay with the executors; the order of the ratings does not matter."""
    today = spark.createDataFrame(days[1])
    here = yesterday.update(today)
    monkeypatch.setattr("onebit_spark.ml.spark_factors.SparkFactors.fit_driver", lambda *_: False)
    there = yesterday.update(today.orderBy("label", "item"))
    for one, other in ((here.users, there.users), (here.items, there.items)):
        expected = lines(other)
        for key, line in lines(one).items():
            for name in ("intercept", "mean", "covariance"):
                np.testing.assert_allclose(line[name], expected[key][name], atol=1e-4)
    there.save(str(tmp_path / "model"))
    assert OneBitCompletionModel.load(str(tmp_path / "model")).users.count() == 40


def test_what_it_has_seen_certifies_nothing(spark, days, yesterday):
    today = spark.createDataFrame(days[1])
    updated = yesterday.update(today)
    with pytest.raises(RequestError, match="certify nothing"):
        updated.certifySelective(today)


@pytest.mark.parametrize("grow", ["update", "foldIn"])
def test_without_ratings_the_model_stays_as_it_is(spark, days, yesterday, grow):
    nothing = spark.createDataFrame(days[1]).limit(0)
    assert getattr(yesterday, grow)(nothing) is yesterday
    with pytest.raises(RequestError, match="there is no column 'label' for the label"):
        getattr(yesterday, grow)(nothing.drop("label"))


def test_what_is_refused(spark, days, yesterday, monkeypatch):
    today = spark.createDataFrame(days[1])
    with pytest.raises(RequestError, match="label outside"):
        yesterday.update(today.withColumn("label", F.lit(3)))
    with pytest.raises(RequestError, match="cast the column to bigint"):
        yesterday.update(today.withColumn("item", F.col("item").cast("string")))
    with pytest.raises(RequestError, match="fitted without user features"):
        yesterday.update(today, userFeatures=spark.createDataFrame([("u01", 1.0)], "user string, age double"))
    monkeypatch.setattr("onebit_spark.ml.fold_in.MOST_PAIRS", 10)
    with pytest.raises(RequestError, match=r"at most 10 ratings, not \d+: give them in parts, or fit again"):
        yesterday.update(today)
