"""`sample`: draws of the certified predictor, through the model that a user has."""

import numpy as np
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

from onebit_spark.estimator import OneBitCompletion
from onebit_spark.model import OneBitCompletionModel


@pytest.fixture(scope="module")
def split(once_rated):
    settings = {"rank": 2, "maxIter": 4, "tol": 0.0, "certificatePriorSplit": 0.5}
    return OneBitCompletion(exchange="driver", **settings).fit(once_rated)


def scores(sampled):
    return {(line.user, line.item): line.sampledScore for line in sampled.collect()}


def test_a_prior_split_saves_the_spreads_of_its_draws(split, once_rated, tmp_path):
    """The saved model draws as the fitted one does: closely around the score, far within ``std``."""
    split.save(str(tmp_path / "model"))
    for name in ("users", "items"):
        assert "certified_spread" in pq.read_table(tmp_path / "model" / name).column_names
    loaded = OneBitCompletionModel.load(str(tmp_path / "model"))
    pairs = once_rated.select("user", "item").where("user < 20")
    assert scores(loaded.sample(pairs, seed=3)) == scores(split.sample(pairs, seed=3))
    table = loaded.sample(loaded.transform(pairs)).toPandas()
    away = np.abs(table["sampledScore"] - table["score"]) / table["std"]
    assert 0.001 < np.sqrt(np.mean(away**2)) < 0.25
    assert (np.sign(table["sampledScore"]) == table["sampledPrediction"]).all()
    assert "certified_spread" not in loaded.foldIn(once_rated.where("user < 3")).users.columns


def test_draws_follow_from_seed_and_ids_alone(split, spark):
    pairs = spark.createDataFrame([(1, 2), (1, 900), (900, 2), (901, 902), (3, 4)], "user int, item long")
    whole = scores(split.sample(pairs.coalesce(1), seed=1))
    assert scores(split.sample(pairs.repartition(4), seed=1)) == whole
    other = scores(split.sample(pairs, seed=2))
    assert all(other[pair] != score for pair, score in whole.items())


@pytest.mark.slow
def test_a_plain_fit_draws_as_widely_as_std_says(once_rated, spark):
    model = OneBitCompletion(rank=2, maxIter=4, tol=0.0).fit(once_rated)
    strangers = spark.range(2000).select((F.col("id") + 1000).alias("user"), F.lit(2).cast("long").alias("item"))
    for pairs in (once_rated.select("user", "item"), strangers):
        table = model.sample(model.transform(pairs)).toPandas()
        away = (table["sampledScore"] - table["score"]) / table["std"]
        assert np.mean(away) == pytest.approx(0, abs=0.15)
        assert np.std(away) == pytest.approx(1, abs=0.15)


def test_alpha_after_a_split_is_the_one_that_was_used(split):
    """m is counted on the ratings that the prior was learnt from, here all 50 users and 40 items."""
    assert split.info.parameters["alpha"] == pytest.approx(0.1 * (split.info.scale_moments["rows"] + 40))
