"""Column names as the session compares them, and DataFrames that are no table of ratings."""

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from onebit_spark import RequestError
from onebit_spark.cli.fit_job import read_features
from onebit_spark.cli.requests import FitRequest
from onebit_spark.cli.spark_runtime import SparkRuntime
from onebit_spark.spark.estimator import OneBitCompletion


@pytest.fixture(scope="module")
def ratings(spark):
    rng = np.random.default_rng(0)
    user = rng.integers(0, 20, 300)
    item = rng.integers(0, 15, 300)
    columns = {"User": user, "ITEM": item, "Label": (user + item) % 2, "W": np.ones(300)}
    return spark.createDataFrame(pa.table(columns)).cache()


@pytest.fixture
def case_counts(spark):
    spark.conf.set("spark.sql.caseSensitive", "true")
    yield
    spark.conf.unset("spark.sql.caseSensitive")


def estimator(**options):
    return OneBitCompletion(
        **{"rank": 2, "maxIter": 1, "tol": 0.0, "exchange": "driver", **options}
    )


def test_case_does_not_count(spark, ratings):
    model = estimator(weightCol="w").fit(ratings)
    assert model.info.n_ratings == ratings.count()
    assert model.transform(ratings).where("std > 0").count() == 300


@pytest.mark.slow
def test_case_does_not_count_in_what_follows_a_fit(spark, ratings):
    asked = estimator(weightCol="w").setUserFeatures(
        ratings.groupBy("User").agg(F.first("ITEM").alias("Age"))
    )
    model = asked.fit(ratings)
    fresh = spark.createDataFrame(
        [(77, 0, 1, 1.0), (77, 1, 0, 1.0)], "USER long, Item long, LABEL int, w double"
    )
    features = spark.createDataFrame([(77, 3)], "uSER long, AGE long")
    assert model.foldIn(fresh, features=features).info.n_users == model.info.n_users + 1
    certified = model.certifySelective(fresh, 0.4, by="user")
    assert certified.certificate["certificates"][-1]["group"]


@pytest.mark.slow
@pytest.mark.classic
def test_case_does_not_count_on_executors(ratings):
    assert estimator(exchange="broadcast").fit(ratings).info.id_types == {
        "user": "bigint",
        "item": "bigint",
    }


def test_case_does_not_count_in_the_tables_of_jobs(spark, tmp_path):
    table = tmp_path / "table.csv"
    table.write_text("USER,Item\n01,2\n")
    request = FitRequest(
        ratings=str(table), user_features=str(table), output="unused", format="csv"
    )
    assert SparkRuntime(spark).table(request, "ratings", ["user", "item"]).columns == [
        "user",
        "item",
    ]
    # An id stays text
    assert (
        read_features(SparkRuntime(spark), request, {"user": "user", "item": "item"})[
            "user"
        ].first()["USER"]
        == "01"
    )


@pytest.mark.usefixtures("case_counts")
def test_case_counts_where_the_session_says_so(ratings):
    with pytest.raises(
        RequestError,
        match=r"no column 'user' for the user \(columns: User, ITEM, .*no column 'item'",
    ):
        estimator().fit(ratings)
    both = ratings.withColumn("user", F.lit(1))
    assert estimator(userCol="User", itemCol="ITEM", labelCol="Label").fit(both).info.n_users == 20


def test_names_that_differ_by_case_alone(spark, ratings):
    doubled = ratings.select("*", F.lit(1).alias("user"))
    with pytest.raises(
        RequestError, match=r"there are 2 columns named 'user' for the user \(.*\): keep one"
    ):
        estimator().fit(doubled)
    with pytest.raises(RequestError, match="user, item and label must be three different columns"):
        estimator(itemCol="USER").fit(ratings)
    features = spark.createDataFrame([(1, 2, 3)], "user long, age long, Age long")
    with pytest.raises(RequestError, match="user features: there are 2 columns named 'age'"):
        estimator().setUserFeatures(features).fit(ratings)


@pytest.mark.parametrize("exchange", ["driver", "broadcast"])
def test_a_stream_is_not_fitted(spark, exchange):
    with pytest.raises(
        RequestError, match=r"the ratings are a stream, which has no end: .* \(docs/streaming\.md\)"
    ):
        estimator(exchange=exchange).fit(stream(spark))


@pytest.mark.slow
def test_what_a_model_does_with_a_stream(spark, make_model):
    model = make_model()
    arriving = stream(spark)
    for method in (model.update, model.foldIn, model.calibrate, model.diagnose):
        with pytest.raises(RequestError, match="the ratings are a stream"):
            method(arriving)
    with pytest.raises(RequestError, match="the users to recommend for are a stream"):
        model.recommendForUserSubset(arriving, 3)
    with pytest.raises(RequestError, match="the pairs to exclude are a stream"):
        model.recommendForAllUsers(3, excludeSeen=arriving)
    query = (
        model.transform(arriving)
        .writeStream.format("memory")
        .queryName("scored")
        .trigger(once=True)
        .start()
    )
    assert query.awaitTermination(60)


def stream(spark):
    ids = [F.col("value").alias(name) for name in ("user", "item")]
    return spark.readStream.format("rate").load().select(*ids, F.lit(1).alias("label"))
