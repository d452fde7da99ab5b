"""foldIn and update: rows of a converged fit come out as the fit had them, and new ones can be
served.
"""

import dataclasses

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import functions as F
from support.modelfolders import info_of, model_of

from onebit_spark import FitConfig, OneBitCompletion, RequestError, fit_arrays
from onebit_spark.model_info import MEASURED, factor_table
from onebit_spark.simulate import simulate
from onebit_spark.spark.model import OneBitCompletionModel


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(8)
    user = rng.integers(0, 25, 500)
    item = rng.integers(0, 15, 500)
    taste = rng.normal(size=25)[user] * rng.normal(size=15)[item] + 0.5 * rng.normal(size=500)
    return pa.table({"user": user, "item": item, "label": np.where(taste > -0.2, 1, -1)})


@pytest.fixture(scope="module")
def fitted(spark, table):
    """A converged fit, made in this process."""
    config = FitConfig(rank=2, alpha=5.0, beta=1.0, tol=1e-11, max_iter=1000)
    fit = fit_arrays(*(table[name].to_numpy() for name in ("user", "item", "label")), config)
    info = dataclasses.replace(
        info_of(fit, {"user": "bigint", "item": "bigint"}), n_users=25, n_items=15
    )
    tables = (factor_table(pa.array(np.arange(side.n_rows)), side) for side in (fit.rows, fit.cols))
    return model_of(spark, info, *tables)


def factors(side):
    lines = {line["id"]: line for line in side.toArrow().to_pylist()}
    return {key: np.array([line["intercept"], *line["mean"]]) for key, line in lines.items()}


def test_many_newcomers_on_executors_are_those_of_the_driver(spark, table, fitted, monkeypatch):
    """As many lines per task as the ids: none is lost, and none stands there twice."""
    newcomers = spark.createDataFrame(table.set_column(0, "user", pc.add(table["user"], 100)))
    here = fitted.foldIn(newcomers)
    monkeypatch.setattr("onebit_spark.spark.scoring.MOST_BYTES", -1)
    there = fitted.foldIn(newcomers)
    assert there.users.count() == here.users.count() == 50
    expected = factors(here.users)
    found = factors(there.users)
    assert found.keys() == expected.keys()
    for key in expected:
        np.testing.assert_allclose(found[key], expected[key], atol=1e-5)


@pytest.mark.usefixtures("both_ways")
def test_who_rated_only_the_unknown_is_left_out_with_a_warning(spark, fitted, caplog):
    lines = [(100, 0, 1), (101, 999, 1), (101, 998, 0), (102, 0, 1), (102, 999, 1)]
    grown = fitted.foldIn(spark.createDataFrame(lines, "user bigint, item bigint, label int"))
    assert sorted(line.id for line in grown.users.where("id >= 100").collect()) == [100, 102]
    warning = (
        "1 of 3 users are not folded in: all their ratings are with items that the model "
        "does not know"
    )
    assert [record.getMessage() for record in caplog.records] == [warning]


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize(("who", "line"), [("user", (100, 999, 1)), ("item", (999, 100, 1))])
def test_ratings_of_unknown_partners_alone_change_nothing(spark, fitted, caplog, who, line):
    strangers = spark.createDataFrame([line], "user bigint, item bigint, label int")
    assert fitted.foldIn(strangers, who) is fitted
    assert f"1 of 1 {who}s are not folded in" in caplog.text


def test_what_cannot_be_folded_in(spark, fitted):
    with pytest.raises(RequestError, match="must be 'user' or 'item'"):
        fitted.foldIn(
            spark.createDataFrame([(1, 2, 1)], "user bigint, item bigint, label int"), "film"
        )
    with pytest.raises(RequestError, match="label outside"):
        fitted.foldIn(spark.createDataFrame([(1, 2, 5)], "user bigint, item bigint, label int"))


# ---- update: today's ratings on yesterday's model ----------------------------------------------


@pytest.fixture(scope="module")
def days():
    """Ratings of two groups of users: yesterday's, and today's with users and items that were not
    there.
    """
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
    """The factors by id. An updated model has no spreads of positions."""
    return {line["id"]: line for line in frame.drop(*MEASURED).toArrow().to_pylist()}


def test_both_ways_agree(spark, days, yesterday, monkeypatch, tmp_path):
    """On the driver, and with factors that stay with the executors; the order of the ratings does
    not matter.
    """
    today = spark.createDataFrame(days[1])
    here = yesterday.update(today)
    monkeypatch.setattr("onebit_spark.spark.scoring.SparkFactors.fit_driver", lambda *_: False)
    there = yesterday.update(today.orderBy("label", "item"))
    for one, other in ((here.users, there.users), (here.items, there.items)):
        expected = lines(other)
        for key, line in lines(one).items():
            for name in ("intercept", "mean", "covariance"):
                np.testing.assert_allclose(line[name], expected[key][name], atol=1e-4)
    there.save(str(tmp_path / "model"))
    assert OneBitCompletionModel.load(str(tmp_path / "model")).users.count() == 40


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
        yesterday.update(
            today, userFeatures=spark.createDataFrame([("u01", 1.0)], "user string, age double")
        )
    monkeypatch.setattr("onebit_spark.spark.fold_in.MOST_PAIRS", 10)
    with pytest.raises(
        RequestError, match=r"at most 10 ratings, not \d+: give them in parts, or fit again"
    ):
        yesterday.update(today)
