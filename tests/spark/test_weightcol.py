"""weightCol on Spark: zero as absent, bad weights refused, and what follows a fit."""

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import functions as F
from support.sparkfits import Interrupted, interrupt_after

from onebit_spark import FitConfig, RequestError
from onebit_spark.core.setup import form_of
from onebit_spark.data.ratings import Columns, SizeEstimate
from onebit_spark.engines.decide import Exchange, driver_exchange
from onebit_spark.engines.spark.ratings import estimate_size
from onebit_spark.engines.spark.sessions import DriverLimits
from onebit_spark.simulate import simulate
from onebit_spark.spark.estimator import OneBitCompletion

SHAPE = (40, 30)
SLOW = pytest.mark.slow


@pytest.fixture(scope="module")
def data():
    made = simulate("B2", rank=3, shape=SHAPE, fraction=0.4, seed=3)
    weights = np.random.default_rng(0).integers(0, 4, len(made.rows))
    return made.rows, made.cols, made.labels, weights


@pytest.fixture(scope="module")
def ratings(spark, data):
    names = ("user", "item", "label", "w")
    table = pa.table(
        {name: np.asarray(part, np.int64) for name, part in zip(names, data, strict=True)}
    )
    return spark.createDataFrame(table).repartition(3).cache()


def estimator(**params):
    defaults = {"rank": 3, "tol": 0.0, "maxIter": 2, "exchange": "driver", "weightCol": "w"}
    return OneBitCompletion(**{**defaults, **params})


@pytest.fixture(scope="module")
def model(ratings):
    return estimator().fit(ratings)


def test_zero_is_absent(ratings, data, model):
    """Also a rating of weight 0 whose label or id could not be fitted."""
    info = model.info
    weights = data[3]
    assert (info.n_ratings, info.total_weight) == (np.count_nonzero(weights), weights.sum())
    assert info.columns["weight"] == "w"
    without = estimator().fit(ratings.where("w > 0"))
    bad = ratings.selectExpr("user", "item", "if(w = 0, 7, label) as label", "w")
    for other in (without, estimator().fit(bad)):
        assert other.info.fingerprint == model.info.fingerprint
        assert other.info.n_ratings == model.info.n_ratings
        assert other.summary.objectiveHistory == model.summary.objectiveHistory


@pytest.mark.slow
def test_zero_certifies_and_calibrates_nothing(spark, ratings, model):
    """Whatever judges a model does not see ratings of weight 0. The column need not be there."""
    pairs = ratings.select("user", "item").distinct()
    cells = (
        spark.range(SHAPE[0])
        .selectExpr("id as user")
        .crossJoin(spark.range(SHAPE[1]).selectExpr("id as item"))
    )
    fresh = model.transform(cells.join(pairs, ["user", "item"], "left_anti"))
    odd = F.pmod(F.col("user") * 7 + F.col("item"), F.lit(5)) == 0
    label = F.when(F.col("prediction") > 0, 1).otherwise(-1) * F.when(odd, -1).otherwise(1)
    good = fresh.select(
        "user", "item", label.cast("long").alias("label"), F.lit(1.0).alias("w")
    ).cache()
    both = good.unionByName(good.withColumns({"label": -F.col("label"), "w": F.lit(0.0)}))
    plain = good.drop("w")
    certificates = [model.certifySelective(frame, 0.3).certificate for frame in (both, plain)]
    assert certificates[0] == certificates[1]
    calibrated, expected = (model.calibrate(frame).info.calibration for frame in (both, plain))
    assert calibrated == expected
    assert model.diagnose(both).info.diagnostics["n"] == good.count()
    with pytest.raises(
        RequestError, match=r"1 rating with a weight that is negative, above 1e\+30, null"
    ):
        model.calibrate(good.unionByName(good.limit(1).withColumn("w", F.lit(-1.0))))


@pytest.mark.parametrize(
    ("exchange", "kind"), [("driver", "string"), pytest.param("broadcast", "double", marks=SLOW)]
)
def test_bad_weights_are_refused_with_their_number(spark, exchange, kind):
    weights = [
        "1",
        "-1",
        "nan",
        "inf",
        None,
        "2.5",
        "1e39",
        "0",
        *(["many"] if kind == "string" else []),
    ]
    lines = [
        (i % 3, i, i % 2, weight if kind == "string" or weight is None else float(weight))
        for i, weight in enumerate(weights)
    ]
    bad = spark.createDataFrame(lines, f"user int, item int, label int, w {kind}")
    n = 5 + (kind == "string")
    with pytest.raises(
        RequestError,
        match=rf"^{n} ratings with a weight that is negative, above 1e\+30.* in column 'w', "
        r"such as",
    ):
        estimator(exchange=exchange).fit(bad)


def test_the_column_must_be_there_and_hold_numbers(ratings):
    with pytest.raises(RequestError, match="there is no column 'x' for the weight"):
        estimator(weightCol="x").fit(ratings)
    with pytest.raises(
        RequestError, match="column 'x' of the weights is of type boolean, not a number"
    ):
        estimator(weightCol="x").fit(ratings.withColumn("x", F.lit(True)))
    with pytest.raises(RequestError, match="there is no rating of positive weight"):
        estimator(weightCol="x").fit(ratings.withColumn("x", F.lit(0)))


@SLOW
def test_checkpoints_belong_to_the_weights(ratings, tmp_path):
    """A fit with other weights is refused; the same one goes on to the same bits."""
    folder = {"checkpointDir": str(tmp_path / "kept"), "checkpointInterval": 2, "maxIter": 4}
    with pytest.raises(Interrupted):
        estimator(**folder).setProgress(interrupt_after(3)).fit(ratings)
    for other in (
        ratings.withColumn("w", F.col("w") * 2),
        ratings.where("w > 0").withColumn("w", F.lit(1)),
    ):
        with pytest.raises(RequestError, match="of another fit: fingerprint of the ratings was"):
            estimator(**folder, resume=True).fit(other)
    resumed = estimator(**folder, resume=True).fit(ratings)
    whole = estimator(**{**folder, "checkpointDir": str(tmp_path / "whole")}).fit(ratings)
    assert resumed.summary.objectiveHistory == whole.summary.objectiveHistory


@pytest.mark.slow
@pytest.mark.usefixtures("both_ways")
def test_fold_in_takes_the_column(ratings, model):
    one = ratings.where("user = 7 and w > 0")
    repeated = one.withColumn("again", F.explode(F.sequence(F.lit(1), F.col("w")))).withColumn(
        "w", F.lit(1.0)
    )
    doubled, same, plain = (
        np.array(model.foldIn(frame).users.where("id = 7").first()["mean"])
        for frame in (repeated, ratings.where("user = 7"), one.withColumn("w", F.lit(1)))
    )
    np.testing.assert_allclose(same, doubled, atol=1e-5)
    assert np.abs(same - plain).max() > 1e-3
    with pytest.raises(RequestError, match="there is no column 'w' for the weight"):
        model.foldIn(ratings.drop("w"))


def test_the_memory_of_the_driver_counts_them(ratings):
    form = form_of(FitConfig(rank=2))
    n = 1_000_000
    plain, weighted = (estimate_size(ratings, Columns(weight=name)) for name in (None, "w"))
    # And a bit that it is there
    assert weighted.bytes_per_rating == plain.bytes_per_rating + 8 + 1 / 8
    limits = DriverLimits(2**40, 2**40, 2 * 30 * n + 2**28, local=True)
    assert isinstance(
        driver_exchange("auto", SizeEstimate(n, 0.0), 0, form, limits, None), Exchange
    )
    assert isinstance(
        driver_exchange("auto", SizeEstimate(n * 5, 0.0, weighted=True), 0, form, limits, None), str
    )
