"""OneBitCompletion among pyspark.ml's own: Params, pipelines, searches, persistence, and code
written for ALS.
"""

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import SparkRuntimeException
from pyspark.ml import Pipeline
from pyspark.ml.evaluation import (
    BinaryClassificationEvaluator,
    MulticlassClassificationEvaluator,
    RegressionEvaluator,
)
from pyspark.ml.feature import SQLTransformer
from pyspark.ml.tuning import (
    CrossValidator,
    CrossValidatorModel,
    ParamGridBuilder,
    TrainValidationSplit,
)
from pyspark.sql import functions as F

from onebit_spark import RequestError
from onebit_spark.core.setup import kappa_of
from onebit_spark.spark.estimator import OneBitCompletion
from onebit_spark.spark.model import OneBitCompletionModel

QUICK = {"rank": 2, "maxIter": 2, "tol": 0.0, "exchange": "driver"}  # enough to beat guessing


@pytest.fixture(scope="module")
def ratings(spark):
    """400 ratings of 30 users on 20 items, with stars 1 … 5 and their sign."""
    rng = np.random.default_rng(3)
    user = rng.integers(0, 30, 400)
    item = rng.integers(0, 20, 400)
    taste = rng.normal(size=30)[user] * rng.normal(size=20)[item] + 0.7 * rng.normal(size=400)
    stars = np.clip(np.round(3.5 + 1.5 * taste), 1, 5).astype(np.float32)
    table = {
        "user": np.char.add("u", user.astype(str)),
        "item": np.char.add("i", item.astype(str)),
        "stars": stars,
        "label": np.where(stars > 3.5, 1.0, 0.0),
    }
    df = spark.createDataFrame(pa.table(table)).cache()
    yield df
    df.unpersist()


# ---- Params ------------------------------------------------------------------------------------


def test_all_that_is_wrong_is_said_at_once(ratings):
    estimator = OneBitCompletion(
        loss="square",
        rank=0,
        maxIter=0,
        likelihoodWeight=-1.0,
        numUserBlocks=0,
        labelCol="label",
        ratingCol="stars",
        coldStartStrategy="guess",
        itemCol="user",
    )
    with pytest.raises(RequestError) as refused:
        estimator.fit(ratings)
    for problem in (
        "loss must be one of hinge, logistic, not 'square'",
        "rank must be",
        "maxIter must be",
        "likelihoodWeight must",
        "numUserBlocks must",
        "ratingCol 'stars' and labelCol 'label' name the same thing",
        "coldStartStrategy must be one of prior, drop, nan",
        "three different columns",
    ):
        assert problem in str(refused.value)


# ---- ALS code ----------------------------------------------------------------------------------


def test_the_als_example_of_sparks_documentation(spark):
    """Its lines, with the class changed, ``regParam`` dropped and a ``threshold`` added."""
    rng = np.random.default_rng(0)
    columns = rng.integers(0, 12, 300), rng.integers(0, 15, 300), rng.integers(1, 6, 300)
    names = ("userId", "movieId", "rating")
    table = {name: values.astype(np.int32) for name, values in zip(names, columns, strict=True)}
    ratings = spark.createDataFrame(pa.table(table)).withColumn(
        "rating", F.col("rating").cast("float")
    )
    (training, test) = ratings.randomSplit([0.8, 0.2], seed=1)
    training = training.cache()

    als = OneBitCompletion(
        maxIter=5,
        userCol="userId",
        itemCol="movieId",
        ratingCol="rating",
        coldStartStrategy="drop",
        threshold=3,
        numUserBlocks=2,
        numItemBlocks=2,
        checkpointInterval=2,
    )
    assert als.copy().setNumBlocks(3).getNumItemBlocks() == 3
    model = als.fit(training)

    predictions = model.transform(test)
    evaluator = RegressionEvaluator(
        metricName="rmse", labelCol="rating", predictionCol="prediction"
    )
    assert evaluator.evaluate(predictions) < 5

    userRecs = model.recommendForAllUsers(10)
    movieRecs = model.recommendForAllItems(10)
    users = ratings.select(als.getUserCol()).distinct().limit(3)
    userSubsetRecs = model.recommendForUserSubset(users, 10)
    movies = ratings.select(als.getItemCol()).distinct().limit(3)
    movieSubSetRecs = model.recommendForItemSubset(movies, 10)

    assert (
        userRecs.select("userId", "recommendations.movieId", "recommendations.rating").first()
        is not None
    )
    assert movieRecs.columns == ["movieId", "recommendations"]
    assert (userSubsetRecs.count(), movieSubSetRecs.count()) == (3, 3)
    training.unpersist()


# ---- pipelines and searches --------------------------------------------------------------------


@pytest.mark.slow
def test_cross_validation_in_a_pipeline_saved_and_loaded(ratings, tmp_path):
    completion = OneBitCompletion(**QUICK)
    pipeline = Pipeline(
        stages=[SQLTransformer(statement="SELECT user, item, label FROM __THIS__"), completion]
    )
    settings = (2, 0.01), (1, 1.0)
    grid = [
        {completion.rank: rank, completion.likelihoodWeight: weight} for rank, weight in settings
    ]
    search = CrossValidator(
        estimator=pipeline,
        estimatorParamMaps=grid,
        evaluator=BinaryClassificationEvaluator(),
        numFolds=2,
        seed=1,
    )
    search.save(str(tmp_path / "search"))
    found = CrossValidator.load(str(tmp_path / "search")).fit(ratings)
    assert len(found.avgMetrics) == 2
    assert max(found.avgMetrics) > 0.6
    best = found.bestModel.stages[-1]
    assert isinstance(best, OneBitCompletionModel)
    chosen = grid[int(np.argmax(found.avgMetrics))]
    assert best.rank == chosen[completion.rank]
    assert kappa_of(best.info.config) == chosen[completion.likelihoodWeight]
    found.save(str(tmp_path / "found"))
    again = CrossValidatorModel.load(str(tmp_path / "found"))
    assert again.avgMetrics == found.avgMetrics
    want, have = (
        model.transform(ratings).agg(F.sum("score")).first()[0] for model in (found, again)
    )
    assert have == pytest.approx(want, rel=1e-9)


@pytest.mark.slow
def test_param_maps_and_train_validation_split(ratings, tmp_path):
    completion = OneBitCompletion(ratingCol="stars", threshold=3.5, **QUICK)
    models = completion.fit(ratings, [{completion.loss: "hinge"}, {completion.rank: 1}])
    assert [(model.info.config.loss, model.rank) for model in models] == [
        ("hinge", 2),
        ("logistic", 1),
    ]
    grid = ParamGridBuilder().addGrid(completion.rank, [1, 2]).build()
    # Where a column "probability" is, this evaluator wants a Vector in it.
    accuracy = MulticlassClassificationEvaluator(metricName="accuracy", probabilityCol="none")
    search = TrainValidationSplit(
        estimator=completion, estimatorParamMaps=grid, evaluator=accuracy, seed=2
    )
    # On 57 ratings: a standard error of .07
    assert max(search.fit(ratings).validationMetrics) > 0.5


# ---- persistence -------------------------------------------------------------------------------


def test_the_estimator_is_saved_and_loaded(spark, make_model, tmp_path):
    estimator = OneBitCompletion(rank=4, ratingCol="stars", threshold=3.5, coldStartStrategy="drop")
    path = str(tmp_path / "estimator")
    estimator.save(path)
    estimator.write().overwrite().save(path)
    loaded = OneBitCompletion.load(path)
    assert loaded.uid == estimator.uid
    assert loaded.extractParamMap() == {
        loaded.getParam(p.name): v for p, v in estimator.extractParamMap().items()
    }
    Pipeline(stages=[estimator]).save(str(tmp_path / "pipeline"))
    (stage,) = Pipeline.load(str(tmp_path / "pipeline")).getStages()
    assert (type(stage), stage.getThreshold()) == (OneBitCompletion, 3.5)
    with pytest.raises(
        RequestError,
        match=r"holds an estimator, not a fitted model: load it with OneBitCompletion\.",
    ):
        OneBitCompletionModel.load(path)
    with pytest.raises(RequestError, match="holds a Pipeline, not an OneBitCompletion"):
        OneBitCompletion.load(str(tmp_path / "pipeline"))
    with pytest.raises(RequestError, match=r"holds nothing that pyspark\.ml saved"):
        OneBitCompletion.load(str(tmp_path / "nothing"))
    make_model().save(str(tmp_path / "model"))
    with pytest.raises(RequestError, match=r"load it with OneBitCompletionModel\.load"):
        OneBitCompletion.load(str(tmp_path / "model"))


# ---- pairs that were never rated ---------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["drop", "nan"])
def test_a_null_id_is_no_cold_start(spark, make_model, strategy):
    pairs = spark.createDataFrame([(0, 0), (None, 0), (None, 1)], "user bigint, item bigint")
    with pytest.raises(SparkRuntimeException, match="column 'user' holds 2 null or NaN ids"):
        make_model().setColdStartStrategy(strategy).transform(pairs).collect()


def test_problems_name_the_param():
    estimator = OneBitCompletion(
        seed=2**63, certificateGrid=0, delta=1.5, maxIter=0, fitIntercept=True
    )
    named = [problem.split()[0] for problem in estimator.problems()]
    assert named == ["maxIter", "seed", "delta", "certificateGrid"]
