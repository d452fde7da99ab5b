"""`sample`: draws of the certified predictor, through the model that a user has."""

import numpy as np
import pytest
from pyspark.sql import functions as F

from onebit_spark.spark.estimator import OneBitCompletion
from onebit_spark.spark.model import OneBitCompletionModel


@pytest.fixture(scope="module")
def model(once_rated):
    return OneBitCompletion(exchange="driver", rank=2, maxIter=4, tol=0.0).fit(once_rated)


def scores(sampled):
    return {(line.user, line.item): line.sampledScore for line in sampled.collect()}


def test_a_saved_model_draws_as_the_fitted_one(model, once_rated, tmp_path):
    model.save(str(tmp_path / "model"))
    loaded = OneBitCompletionModel.load(str(tmp_path / "model"))
    pairs = once_rated.select("user", "item").where("user < 20")
    assert scores(loaded.sample(pairs, seed=3)) == scores(model.sample(pairs, seed=3))
    table = loaded.sample(pairs).toPandas()
    assert (np.sign(table["sampledScore"]) == table["sampledPrediction"]).all()


def test_draws_follow_from_seed_and_ids_alone(model, spark):
    pairs = spark.createDataFrame(
        [(1, 2), (1, 900), (900, 2), (901, 902), (3, 4)], "user int, item long"
    )
    whole = scores(model.sample(pairs.coalesce(1), seed=1))
    assert scores(model.sample(pairs.repartition(4), seed=1)) == whole
    other = scores(model.sample(pairs, seed=2))
    assert all(other[pair] != score for pair, score in whole.items())


@pytest.mark.slow
def test_draws_are_as_wide_as_std_says(model, once_rated, spark):
    strangers = spark.range(2000).select(
        (F.col("id") + 1000).alias("user"), F.lit(2).cast("long").alias("item")
    )
    for pairs in (once_rated.select("user", "item"), strangers):
        table = model.sample(model.transform(pairs)).toPandas()
        away = (table["sampledScore"] - table["score"]) / table["std"]
        assert np.mean(away) == pytest.approx(0, abs=0.15)
        assert np.std(away) == pytest.approx(1, abs=0.15)
