"""A model in a registry of MLflow, as a UDF of Spark."""

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import functions as F
from support import idtypes
from support.modelfolders import save_small_model

from onebit_spark import FitConfig, fit_table
from onebit_spark.spark.model import OneBitCompletionModel


@pytest.mark.slow
@pytest.mark.classic
def test_a_registered_model_predicts_as_transform_does(spark, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    from onebit_spark import mlflow as tracking

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a database would need more packages
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    folder = save_small_model(tmp_path / "model")
    with mlflow.start_run():
        tracking.log_model(folder, registered_model_name="films")
    model = OneBitCompletionModel.load(str(folder)).setRawPredictionCol("")
    pairs = spark.createDataFrame([("u0", 0), ("u1", 3), ("nobody", 3)], "user string, item bigint")
    predict = mlflow.pyfunc.spark_udf(spark, "models:/films/1", env_manager="local")
    found = pairs.select(predict("user", "item").alias("p")).select("p.*").toPandas()
    expected = model.transform(pairs).toPandas()
    assert sorted(found.columns) == sorted(expected.columns)
    for name in ("score", "std", "probability", "prediction"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-6)


@pytest.mark.slow
@pytest.mark.classic
@pytest.mark.filterwarnings("ignore::onebit_spark.NotConverged")
def test_ids_without_a_type_in_mlflow(spark, tmp_path, monkeypatch):
    """Decimals and times without a zone as they are; times with a zone as text, as docs/mlflow.md
    has it.
    """
    mlflow = pytest.importorskip("mlflow")
    from onebit_spark import mlflow as tracking

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    kinds = "decimals of up to 38 digits", "times without a zone", "times with a zone"
    decimals, plain, zoned = (idtypes.ratings_of(idtypes.IDS[kind][0])["user"] for kind in kinds)
    labels = [place % 2 for place in range(len(plain))]
    text = F.date_format("item", "yyyy-MM-dd HH:mm:ss.SSSSSSXXX")
    for items, item in ((plain, F.col("item")), (zoned, text)):
        ratings = pa.table({"user": decimals, "item": items, "label": labels})
        model = fit_table(ratings, FitConfig(rank=1, max_iter=2, likelihood_weight=1.0))
        model.save(tmp_path / "model", overwrite=True)
        with mlflow.start_run():
            logged = tracking.log_model(tmp_path / "model")
        predict = mlflow.pyfunc.spark_udf(spark, logged.model_uri, env_manager="local")
        found = (
            spark.createDataFrame(ratings)
            .select("user", predict("user", item).alias("p"))
            .toPandas()
        )
        of_item = sorted((str(line["user"]), line["score"]) for line in found["p"])
        known = zip(
            map(str, decimals.to_pylist()), model.score(decimals, items).tolist(), strict=True
        )
        np.testing.assert_allclose(
            [score for _, score in of_item], [score for _, score in sorted(known)]
        )
