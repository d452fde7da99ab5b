"""exchange=driver: how ratings are gathered on the driver, in which cases, and ids of every
type.
"""

import os
import warnings
from datetime import date
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.sql import functions as F
from support import idtypes

import onebit_spark
from onebit_spark import FitConfig, FitFailed, NotConverged, RequestError
from onebit_spark.core.setup import form_of
from onebit_spark.data import user_tables as user_data
from onebit_spark.data.files import ArrowTable
from onebit_spark.data.ratings import ArrowRatings, Columns, SizeEstimate
from onebit_spark.engines.spark import engine as spark_engine
from onebit_spark.engines.spark import frames
from onebit_spark.engines.spark.columns import positive
from onebit_spark.engines.spark.engine import load_ratings
from onebit_spark.engines.spark.ratings import check_ratings, estimate_size
from onebit_spark.engines.spark.sessions import DriverLimits, is_connect
from onebit_spark.settings import Terms
from onebit_spark.spark.estimator import OneBitCompletion, fit_ratings
from onebit_spark.spark.model import OneBitCompletionModel

SLOW = pytest.mark.slow


def fit(ratings, exchange="driver", **params):
    return OneBitCompletion(
        exchange=exchange, **{"rank": 3, "maxIter": 3, "tol": 0.0, **params}
    ).fit(ratings)


def factors(model):
    return [frame.orderBy("id").collect() for frame in (model.users, model.items)]


@pytest.fixture(scope="module")
def whole(ratings):
    """A fit of one iteration, whose ratings were collected at once."""
    return fit(ratings, maxIter=1)


@pytest.mark.classic
def test_order_parts_and_partitions_are_irrelevant_to_the_bit(spark, ratings, whole, monkeypatch):
    monkeypatch.setattr("onebit_spark.data.ratings.TABLE_BYTES", 3000)
    monkeypatch.setattr("onebit_spark.engines.spark.sessions.as_bytes", lambda _: 12_000)
    before = spark.sparkContext._jsc.getPersistentRDDs().size()
    for arranged in (ratings.orderBy(F.rand(1)), ratings.repartition(7)):
        again = fit(arranged, maxIter=1)
        assert again.summary.objectiveHistory == whole.summary.objectiveHistory
        assert factors(again) == factors(whole)
        np.testing.assert_array_equal(again.fitted.hashes, whole.fitted.hashes)
    assert spark.sparkContext._jsc.getPersistentRDDs().size() == before


def test_a_small_result_size_means_several_collects(ratings, whole, monkeypatch):
    """Text is weighed by its length: 4 bytes and an offset of 4 here. Each collect is over some of
    the partitions.

    On Spark Connect the number of partitions is not available.
    """
    asked = []
    monkeypatch.setattr("onebit_spark.engines.spark.sessions.as_bytes", lambda _: 8000)
    in_groups = frames.arrow_batches_by_groups

    def watched(frame, groups):
        batches = in_groups(frame, groups)
        asked.append((groups, batches is not None))
        return batches

    monkeypatch.setattr(frames, "arrow_batches_by_groups", watched)
    few = fit(ratings.coalesce(1), maxIter=1)
    many = fit(ratings.repartition(40), maxIter=1)
    assert [by_partitions for _, by_partitions in asked] == [
        False,
        not is_connect(ratings.sparkSession),
    ]
    assert all(groups >= 8 for groups, _ in asked)
    for found in (few, many):
        assert found.summary.objectiveHistory == whole.summary.objectiveHistory


def test_uneven_partitions_are_collected_in_parts(ratings, whole, monkeypatch):
    """One partition holds more than Spark lets a job return: then the ratings are cached and chosen
    by a hash.
    """
    monkeypatch.setattr("onebit_spark.engines.spark.sessions.as_bytes", lambda _: 8000)

    def refused(frame, groups):
        raise PySparkRuntimeError(
            "Total size of serialized results is bigger than spark.driver.maxResultSize"
        )

    monkeypatch.setattr(
        frames, "arrow_batches_by_groups", lambda frame, groups: iter_of(refused, frame, groups)
    )
    assert fit(ratings, maxIter=1).summary.objectiveHistory == whole.summary.objectiveHistory


def iter_of(work, *arguments):
    yield work(*arguments)


IDS = {
    "string": lambda k: f"ü{k}",
    "decimal(20,2)": lambda k: Decimal(k) / 4,
    "double": lambda k: k / 2 - 3.0,
    "date": lambda k: date(2020, 1, 1 + k),
    "binary": lambda k: bytes([k, 255]),
    "boolean": lambda k: k % 2 == 0,
}


@pytest.mark.classic
@SLOW
@pytest.mark.parametrize(
    ("user", "item"), [("decimal(20,2)", "binary"), ("date", "double"), ("boolean", "string")]
)
def test_ids_of_any_type(spark, user, item):
    """``test_exchanges.py`` has text and integers."""
    rng = np.random.default_rng(1)
    lines = [
        (IDS[user](k), IDS[item](j), int(rng.integers(2))) for k in range(12) for j in range(6)
    ]
    ratings = spark.createDataFrame(lines, f"user {user}, item {item}, label int")
    found, expected = (
        fit(ratings, exchange, rank=1, maxIter=1) for exchange in ("driver", "broadcast")
    )
    assert found.summary.objectiveHistory == pytest.approx(
        expected.summary.objectiveHistory, rel=1e-9
    )
    for place, name in enumerate(("users", "items")):
        ids = [
            [line.id for line in getattr(model, name).orderBy("id").collect()]
            for model in (found, expected)
        ]
        assert ids[0] == ids[1] == sorted({line[place] for line in lines})


def of_spark(spark, ids, tmp_path):
    """Ratings with such ids. Only files hold some of the types."""
    ratings = idtypes.ratings_of(ids)
    if pa.types.is_duration(ids.type) or pa.types.is_time(ids.type):
        return spark.createDataFrame(ratings)
    pq.write_table(ratings, tmp_path / "ratings.parquet")
    return spark.read.parquet(str(tmp_path / "ratings.parquet"))


REFUSED = [each for each in idtypes.cells("Spark") if each.values[1] == "no"]
TAKEN = [each for each in idtypes.cells("Spark") if each.values[1] != "no"]


@pytest.mark.classic
@SLOW
@pytest.mark.parametrize(("ids", "cell"), TAKEN)
def test_the_guide_says_which_ids_spark_may_have(spark, ids, cell, tmp_path):
    ratings = of_spark(spark, ids, tmp_path)
    model = fit(ratings, rank=1, maxIter=1)
    assert model.info.id_types["user"] == idtypes.named(ids, cell)
    model.save(str(tmp_path / "model"))
    found = OneBitCompletionModel.load(str(tmp_path / "model")).transform(ratings).toArrow()
    expected = onebit_spark.load(tmp_path / "model").score(found["user"], found["item"])
    np.testing.assert_array_equal(found["score"], expected)


@pytest.mark.parametrize(("ids", "cell"), REFUSED)
def test_the_guide_says_which_ids_spark_may_not_have(spark, ids, cell, tmp_path):
    with pytest.raises(
        (RequestError, PySparkException), match=r"cannot be an id: cast it|TIME|time64"
    ):
        fit(of_spark(spark, ids, tmp_path), rank=1, maxIter=1)


def test_zero_is_one_id_whatever_its_sign(spark):
    lines = [(zero, float(j), j % 2) for zero in (0.0, -0.0) for j in range(4)]
    ratings = spark.createDataFrame([*lines, (1.5, 0.0, 1)], "user double, item double, label int")
    model = fit(ratings, rank=1, maxIter=1)
    assert (model.info.n_users, model.info.repeats["repeated"]) == (2, 4)
    assert model.users.count() == 2


def test_ids_that_look_alike_stay_apart(spark):
    """Case, blanks around, a composed and a decomposed é, a zero byte: each is an id of its own."""
    users = ["a", "A", "a ", " a", "caf\u00e9", "cafe\u0301", "a\u0000", ""]
    lines = [
        (user, item, 1 if (i + j) % 3 else -1)
        for i, user in enumerate(users)
        for j, item in enumerate("xyXY")
    ]
    lines += [("a", "x", 1), ("a", "x", -1)]  # both labels of a cell count
    model = fit(
        spark.createDataFrame(lines, "user string, item string, label int"), rank=1, maxIter=1
    )
    assert (model.info.n_users, model.info.n_items, model.info.n_ratings) == (8, 4, 34)
    assert model.info.repeats == {"repeated_cells": 1, "repeated": 2, "conflicting": 1}
    assert {line.id for line in model.userFactors.collect()} == set(users)


def test_fits_that_did_not_converge_warn(ratings):
    with pytest.warns(NotConverged, match="max_iter"):
        fit(ratings, tol=1e-9, maxIter=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotConverged)
        assert fit(ratings, tol=1e-2, maxIter=50).summary.converged


@pytest.mark.classic
def test_few_jobs_whatever_the_iterations(spark, ratings):
    def jobs_of(iterations, frame=ratings):
        known = set(spark.sparkContext.statusTracker().getJobIdsForGroup())
        fit(frame, maxIter=iterations)
        return len(set(spark.sparkContext.statusTracker().getJobIdsForGroup()) - known)

    assert jobs_of(1) == jobs_of(5) <= 3
    numbers = ratings.select(F.hash("user").alias("user"), "item", "label").cache()
    assert numbers.count() == 1500
    assert jobs_of(1, numbers) == 1  # Spark knows how many ratings its cache holds
    numbers.unpersist()


LABELS = {
    "double": [1.0, -1.0, 0.0, -0.0, 3.3, 3.5, float("nan"), None, 1e300],
    "float": [1.0, -1.0, 0.0, 3.3, 3.5, float("nan"), None],  # 3.3 as a float is not above 3.3
    "int": [1, -1, 0, 4, None],
    "bigint": [1, -1, 0, 2**53 + 1, None],
    "boolean": [True, False, None],
    "string": ["1", "-1", "0", "3.5", "x", "", None, "NaN"],
    "decimal(4,2)": [Decimal("1"), Decimal("-1"), Decimal("3.30"), Decimal("3.50"), None],
}


@pytest.mark.parametrize(
    ("kind", "threshold"),
    [
        pytest.param(
            kind,
            threshold,
            marks=() if (kind, threshold) in (("double", None), ("string", 3.3)) else SLOW,
        )
        for kind in LABELS
        for threshold in (None, 3.3)
        if kind != "boolean" or threshold is None
    ],
)
def test_labels_are_counted_here_as_by_spark(spark, kind, threshold):
    """The labels that are there, all together; those of a refusal, and each positive one as
    in SQL.
    """
    columns = Columns(threshold=threshold)
    labels = LABELS[kind]
    lines = [(k, 0, value) for k, value in enumerate(labels)]
    df = spark.createDataFrame(lines, f"user int, item int, label {kind}").coalesce(1)
    table = df.toArrow()
    with pytest.raises(RequestError) as here:
        ArrowRatings(ArrowTable.of(table), columns).kept()
    with pytest.raises(RequestError) as there:
        check_ratings(df, columns)
    assert str(there.value) == str(here.value)
    in_sql = (
        df.select("user", positive(df, "label", threshold).alias("positive"))
        .where("positive")
        .collect()
    )
    for k in range(len(labels)):
        try:
            one = ArrowRatings(ArrowTable.of(table.slice(k, 1)), columns).kept()
        except RequestError:
            continue
        assert bool(one.positive[0]) == (k in [line["user"] for line in in_sql]), labels[k]


@pytest.mark.parametrize("what", ["the sample", pytest.param("the labels", marks=SLOW)])
def test_a_nondeterministic_source_is_fitted_as_it_came(ratings, what):
    """Drawn anew whenever the source is read. What a caller has counted before must come again."""

    def flicker(batches):
        for batch in batches:
            drawn = np.frombuffer(os.urandom(batch.num_rows), np.uint8)
            if what == "the sample":
                yield batch.filter((drawn > 25).tolist())
            else:
                place = batch.schema.get_field_index("label")
                yield batch.set_column(
                    place, "label", pa.array(drawn % 2, batch.schema.field("label").type)
                )

    source = ratings.mapInArrow(flicker, ratings.schema)
    info = fit(source, maxIter=1).info
    assert info.n_ratings <= ratings.count()
    counted = SizeEstimate(info.n_ratings, 20.0, info.fingerprint)
    estimator = OneBitCompletion(rank=2, maxIter=1, exchange="driver")
    with pytest.raises(FitFailed, match="not deterministic"):
        fit_ratings(
            source,
            estimator.columns(),
            estimator.fitConfig(),
            estimator.execution(),
            Terms(),
            counted=counted,
        )
    # Nothing is left over for the next fit
    assert estimator.fit(source).info.n_ratings <= ratings.count()


@SLOW
def test_ids_too_long_for_32_bit_offsets(ratings, monkeypatch):
    """Every array of text is taken for one of more than 2 GiB."""
    some = ratings.where("item >= 3")
    expected = fit(some)
    monkeypatch.setattr(user_data, "MOST_TEXT", 0)
    found = fit(some)
    assert factors(found) == factors(expected)
    again = (
        OneBitCompletion(exchange="driver", rank=3, maxIter=1, tol=0.0)
        .setInitialModel(found)
        .fit(ratings)
    )
    assert again.info.n_users == 70


# ---- where it is taken; tests/unit/test_decide.py has the limits -------------------------------


def test_the_different_ids_that_are_text_are_counted_once(ratings):
    """70 users of 4 bytes and an offset; their number is an estimate."""
    assert estimate_size(ratings, Columns()).id_bytes == pytest.approx(70 * 8, rel=0.1)


@SLOW
@pytest.mark.classic
def test_none_on_the_driver(ratings):
    form = form_of(FitConfig(rank=3))
    for most, reason in ((0, "driverRatings = 0; the factors"), (1499, "1,500 ratings are more")):
        with load_ratings("auto", ratings, Columns(), form, most) as (found, _):
            assert found.exchange == "broadcast"
            assert found.reason.startswith(reason)
    with load_ratings("auto", ratings, Columns(), form) as (found, _):
        assert found.exchange == "driver"


def test_a_request_for_the_driver_comes_before_the_limit_of_auto(ratings, monkeypatch):
    """It is refused before the ratings are gathered."""
    exchange = fit(ratings, "driver", driverRatings=0, maxIter=1).info.exchange
    assert exchange["exchange"] == "driver"
    assert exchange["reason"].startswith("as requested; 1,500 ratings")
    monkeypatch.setattr(
        spark_engine, "driver_limits", lambda spark: DriverLimits(2**30, 2**30, 2**10, local=True)
    )
    monkeypatch.setattr(
        spark_engine, "collect_ratings", lambda *_: pytest.fail("they were gathered")
    )
    with pytest.raises(
        RequestError, match=r"exchange=driver cannot work: 1,500 ratings .* can take 0 MB: choose"
    ):
        fit(ratings, "driver", driverRatings=0)
