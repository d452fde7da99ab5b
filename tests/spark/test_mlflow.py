"""A model in a registry of MLflow, as a UDF of Spark."""

from pathlib import Path

import numpy as np
import pytest

from onebit_spark.model import OneBitCompletionModel

MODEL = Path(__file__).parent / "folders" / "logistic-4"


@pytest.mark.slow
@pytest.mark.classic
def test_a_registered_model_predicts_as_transform_does(spark, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    from onebit_spark import tracking

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a database would need more packages
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    with mlflow.start_run():
        tracking.log_model(MODEL, registered_model_name="films")
    model = OneBitCompletionModel.load(str(MODEL)).setRawPredictionCol("")
    pairs = spark.createDataFrame([("u0", 0), ("u1", 3), ("nobody", 3)], "user string, item bigint")
    predict = mlflow.pyfunc.spark_udf(spark, "models:/films/1", env_manager="local")
    found = pairs.select(predict("user", "item").alias("p")).select("p.*").toPandas()
    expected = model.transform(pairs).toPandas()
    assert sorted(found.columns) == sorted(expected.columns)
    for name in ("score", "std", "probability", "prediction"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-6)
