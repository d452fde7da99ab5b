"""Implicit features and side features on Spark: fold-in, ids without ratings, bad tables, and what
is saved.
"""

import logging
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from pyspark.ml import Pipeline
from pyspark.ml.linalg import Vectors
from pyspark.sql import functions as F

from onebit_spark import RequestError
from onebit_spark.cli.fit_job import fit_summary, read_features
from onebit_spark.cli.requests import FitRequest
from onebit_spark.cli.spark_runtime import SparkRuntime
from onebit_spark.simulate import simulate
from onebit_spark.spark.estimator import OneBitCompletion
from onebit_spark.spark.model import OneBitCompletionModel

N_USERS = 60
N_ITEMS = 45


@pytest.fixture(scope="module")
def data():
    return simulate("B2", rank=3, shape=(N_USERS, N_ITEMS), fraction=0.4, seed=3)


@pytest.fixture(scope="module")
def ratings(spark, data):
    """Text ids."""
    table = pa.table(
        {
            "user": data.rows.astype(str),
            "item": data.cols.astype(str),
            "label": data.labels.astype(int),
        }
    )
    return spark.createDataFrame(table).cache()


def estimator(**params):
    return OneBitCompletion(
        **{"rank": 4, "maxIter": 15, "tol": 0.0, "exchange": "driver", **params}
    )


@pytest.fixture(scope="module")
def plain(ratings):
    """A model with implicit features only."""
    return estimator(implicitFeatures=True, maxIter=4).fit(ratings)


@pytest.fixture(scope="module")
def numbers():
    """Two features per user and one per item, one line more than there are ids with ratings."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(N_USERS + 1, 2)), rng.normal(size=(N_ITEMS + 1, 1))


@pytest.fixture(scope="module")
def user_features(spark, numbers):
    lines = [(str(i), float(a), float(b)) for i, (a, b) in enumerate(numbers[0])]
    return (
        spark.createDataFrame(lines, "user string, a double, b double").orderBy(F.rand(1)).cache()
    )


@pytest.fixture(scope="module")
def item_features(spark, numbers):
    lines = [(str(j), float(value[0])) for j, value in enumerate(numbers[1])]
    return spark.createDataFrame(lines, "item string, year double").cache()


@pytest.fixture(scope="module")
def model(ratings, user_features, item_features):
    return fitted(ratings, user_features, item_features)


def fitted(ratings, users, items, **options):
    return (
        estimator(**{"maxIter": 5, **options})
        .setUserFeatures(users)
        .setItemFeatures(items)
        .fit(ratings)
    )


def test_ids_without_ratings_are_predicted_from_their_features(spark, model, numbers):
    pairs = spark.createDataFrame(
        [(str(N_USERS), "0"), ("unseen", "0")], "user string, item string"
    )
    known, unknown = (
        model.transform(pairs)
        .orderBy(F.desc("user"))
        .select("user", "score", "std")
        .collect()[::-1]
    )
    assert (known["user"], unknown["user"]) == (str(N_USERS), "unseen")
    line = model.users.filter(F.col("id") == str(N_USERS)).first()
    weights = np.array(model.info.side_features["user"]["weights"])
    coding = model.info.side_features["user"]["coding"]
    coded = [
        (z - one["centre"]) * one["scale"] for z, one in zip(numbers[0][-1], coding, strict=True)
    ]
    unseen = model.info.scales.unseen("rows").mean[0]
    location = unseen + coded @ weights
    np.testing.assert_allclose([line["intercept"], *line["mean"]], location, rtol=1e-4, atol=1e-5)
    item = model.items.filter("id = '0'").first()
    assert known["score"] == pytest.approx(
        location[0] + item["intercept"] + location[1:] @ item["mean"], rel=1e-4
    )
    assert known["score"] != unknown["score"]
    assert model.info.side_features["user"]["newcomers"] == 1


def test_later_ids_and_fold_in(spark, ratings, user_features, model, numbers, tmp_path, caplog):
    model.write().save(str(tmp_path / "model"))
    loaded = OneBitCompletionModel.load(str(tmp_path / "model"))
    first, second = map(float, numbers[0][-1])
    later = spark.createDataFrame(
        [("new", first, second), ("7", None, second)], user_features.schema
    )
    grown = loaded.foldInFeatures(later)
    assert "1 of 2 values are null, NaN or infinite and count as the mean" in caplog.text
    same = (
        grown.users.filter(F.col("id").isin("new", str(N_USERS)))
        .select("mean", "intercept", "covariance")
        .collect()
    )
    assert len(same) == 2
    assert same[0] == same[1]
    assert grown.info.n_users == loaded.info.n_users + 1
    old = loaded.users.filter("id = '7'").first()
    assert grown.users.filter("id = '7'").select(*loaded.users.columns).first() == old


@pytest.mark.usefixtures("both_ways")
def test_features_of_known_ids_keep_the_certificates_and_new_ids_drop_them_in_one_line(
    spark, model, user_features, caplog
):
    fresh = spark.createDataFrame(
        [("0", f"new {i}", 1) for i in range(60)], "user string, item string, label int"
    )
    certified = model.certify(fresh, maxError=0.4)
    assert certified.foldInFeatures(user_features) is certified
    grown = certified.foldInFeatures(
        spark.createDataFrame([("new", 1.0, 2.0)], user_features.schema)
    )
    assert caplog.messages == [
        "the model predicts 1 more user from features. Its certificates were about predictions "
        "without these "
        "features, so it drops them (holdout, selective) and the column answered: certify it on "
        "fresh ratings"
    ]
    assert grown.certificate["certificates"] == []


def test_what_was_learnt_is_readable(ratings, spark, data):
    """The feature decides the labels: its effect is large, that of noise is not."""
    rng = np.random.default_rng(1)
    decides = rng.choice(["yes", "no"], size=N_USERS)
    noise = rng.normal(size=N_USERS)
    rows = data.rows
    cols = data.cols
    labels = np.where(decides[rows] == "yes", 1, -1)
    lines = [(str(i), str(j), int(label)) for i, j, label in zip(rows, cols, labels, strict=True)]
    decided = spark.createDataFrame(lines, "user string, item string, label int")
    users = spark.createDataFrame(
        [(str(i), str(d), float(n)) for i, (d, n) in enumerate(zip(decides, noise, strict=True))],
        "user string, kind string, noise double",
    )
    made = estimator(maxIter=20).setUserFeatures(users).fit(decided)
    effects = {line["feature"]: line["effect"] for line in made.userFeatureWeights.collect()}
    assert set(effects) == {"kind=yes", "kind=no", "noise"}
    assert effects["kind=yes"] > 5 * abs(effects["noise"])
    assert effects["kind=no"] < -5 * abs(effects["noise"])
    with pytest.raises(RequestError, match="without item features"):
        made.itemFeatureWeights.collect()


@pytest.mark.slow
def test_vectors_and_arrays_are_the_same_features(spark, ratings, numbers):
    plain = [(str(i), [float(a), float(b)]) for i, (a, b) in enumerate(numbers[0])]
    arrays = spark.createDataFrame(plain, "user string, where array<double>")
    vectors = spark.createDataFrame([(i, Vectors.dense(x)) for i, x in plain], ["user", "where"])
    found = [estimator(maxIter=3).setUserFeatures(one).fit(ratings) for one in (arrays, vectors)]
    assert found[0].info.side_features == found[1].info.side_features


@pytest.mark.parametrize(
    ("lines", "schema", "message"),
    [
        ([("1", 2.0), ("1", 3.0)], "user string, a double", "1 id with several lines, such as 1"),
        ([(None, 2.0), ("1", 3.0)], "user string, a double", "1 line without user"),
        (
            [(1, 2.0)],
            "user int, a double",
            "column 'user' is of type int, but user ids are of type string",
        ),
        ([("1", 2.0)], "who string, a double", "there is no column 'user'"),
        (
            [("1", 2.0), ("2", 2.0)],
            "user string, a double",
            "no column is left: a is left out: it has only one value",
        ),
        ([("x", 2.0), ("y", 3.0)], "user string, a double", "none of the 2 ids has a rating"),
    ],
)
def test_bad_tables_are_refused(spark, ratings, lines, schema, message):
    with pytest.raises(RequestError, match="user features: ") as refused:
        estimator().setUserFeatures(spark.createDataFrame(lines, schema)).fit(ratings)
    assert message in str(refused.value)


def test_gaps_are_logged(spark, ratings, user_features, caplog):
    some = user_features.filter("cast(user as int) < 50").withColumn("same", F.lit(1))
    with caplog.at_level(logging.INFO, "onebit_spark"):
        estimator(maxIter=2).setUserFeatures(some).fit(ratings)
    assert "user features: same is left out: it has only one value" in caplog.text
    assert (
        f"user features: {N_USERS - 50} of {N_USERS} ids with ratings have no features"
        in caplog.text
    )


@pytest.mark.slow
def test_a_checkpoint_of_other_features_is_refused_and_a_resumed_fit_is_the_same(
    ratings, user_features, item_features, tmp_path
):
    options = {
        "checkpointDir": str(tmp_path / "whole"),
        "checkpointInterval": 3,
        "exchange": "driver",
        "tol": 0.0,
    }
    whole = fitted(ratings, user_features, item_features, **options)
    options["checkpointDir"] = str(tmp_path / "checkpoints")
    stopped = (
        estimator(maxIter=4, **options)
        .setUserFeatures(user_features)
        .setItemFeatures(item_features)
    )
    stopped.fit(ratings)  # leaves the checkpoint of iteration 3
    other = user_features.withColumn("a", F.col("a") * F.col("a"))
    with pytest.raises(RequestError, match="fingerprint of the user features"):
        fitted(ratings, other, item_features, resume=True, **options)
    resumed = fitted(ratings, user_features, item_features, resume=True, **options)
    assert resumed.info.objective_history == whole.info.objective_history
    assert resumed.info.side_features == whole.info.side_features


def test_features_are_saved_with_the_estimator(
    ratings, user_features, item_features, model, tmp_path, caplog
):
    """Also in a pipeline, by copies and by Param maps."""
    given = estimator(maxIter=5).setUserFeatures(user_features).setItemFeatures(item_features)
    path = str(tmp_path / "estimator")
    given.save(path)
    Pipeline(stages=[OneBitCompletion.load(path)]).save(str(tmp_path / "pipeline"))
    assert not caplog.records
    loaded = Pipeline.load(str(tmp_path / "pipeline"))
    (stage,) = loaded.getStages()
    made = loaded.fit(ratings, {stage.exchange: "driver"}).stages[0]  # fits a copy
    assert made.info.side_features == model.info.side_features
    with pytest.raises(
        RequestError, match="may still read its side features there: save it elsewhere"
    ):
        OneBitCompletion.load(path).write().overwrite().save(path)


def test_what_cannot_be_saved_is_said(make_model, tmp_path, caplog):
    given = estimator().setInitialModel(make_model()).setProgress(print)
    given.save(str(tmp_path / "estimator"))
    assert "not saved in" in caplog.text
    assert "the initial model and the progress callback (set again after loading)" in caplog.text


def test_a_csv_of_features_has_numbers_and_keeps_its_ids_as_text(spark, tmp_path):
    file = tmp_path / "users.csv"
    file.write_text("user,age,sex\n007,30,m\n8,40,f\n")
    request = FitRequest(ratings="r", output="o", user_features=str(file), format="csv")
    frame = read_features(SparkRuntime(spark), request, {"user": "user", "item": "item"})["user"]
    assert dict(frame.dtypes) == {"user": "string", "age": "int", "sex": "string"}
    assert sorted(line["user"] for line in frame.collect()) == ["007", "8"]
    with pytest.raises(RequestError, match=r"--user-features .* has no column 'who'"):
        read_features(SparkRuntime(spark), request, {"user": "who", "item": "item"})


# ---- implicit features -------------------------------------------------------------------------


def test_a_warm_start_goes_on(ratings, plain):
    warm = estimator(implicitFeatures=True, maxIter=2).setInitialModel(plain).fit(ratings)
    assert warm.summary.objectiveHistory[0] < plain.summary.objectiveHistory[-1]
    with pytest.raises(RequestError, match="implicitFeatures is True there and False here"):
        estimator(implicitFeatures=False, maxIter=2).setInitialModel(plain).fit(ratings)


def test_without_a_certificate_the_job_says_how_to_get_one(plain):
    assert plain.certificate == {"headline": None, "certificates": []}
    featured = plain.with_info(
        replace(plain.info, side_features={"user": {"coding": [], "newcomers": 0}})
    )
    both = "implicit features and side features of the users"
    advice = "--holdout 0.1 keeps some ratings out of the fit and certifies the model on them."
    for model, reason in ((plain, "implicit features"), (featured, both)):
        lines = [
            line for line in fit_summary(model.info, model.certificate) if "ertificate" in line
        ]
        assert lines == [f"No certificate, because the prior depends on {reason}: {advice}"]
