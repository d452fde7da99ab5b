"""MLflow, with a tracking store in a folder: what is logged of a model, and its predictions without Spark."""

from pathlib import Path

import pandas as pd
import pytest

import onebit_spark
from onebit_spark import RequestError
from onebit_spark.core.solver import Iteration

MODEL = Path(__file__).parents[1] / "spark" / "folders" / "logistic-4"


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    """A run with the curve of three iterations, and a model. MLflow takes long to import: only where this runs."""
    mlflow = pytest.importorskip("mlflow")
    from onebit_spark import tracking

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a database would need more packages
        mlflow.set_tracking_uri((tmp_path_factory.mktemp("mlflow") / "runs").as_uri())
        with mlflow.start_run() as run:
            for number in (1, 2, 3):
                tracking.log_iteration(Iteration(number, 100.0 / number, 1.0, 0.1, 0.01 / number, 0.5))
            made = tracking.log_model(MODEL)
        yield mlflow.tracking.MlflowClient(), run.info.run_id, mlflow.pyfunc.load_model(made.model_uri)


def test_the_curve_is_logged(logged):
    client, run, _ = logged
    history = client.get_metric_history(run, "objective")
    assert [(point.step, point.value) for point in history] == [(1, 100.0), (2, 50.0), (3, pytest.approx(100 / 3))]


def test_settings_figures_and_files(logged):
    client, run, _ = logged
    found, info = client.get_run(run).data, onebit_spark.load(MODEL).info
    assert found.params["rank"] == str(info.config.rank)
    assert found.metrics["effective_rank"] == info.effective_rank
    assert found.metrics["bound_selective_0.45"] == 0.45
    assert "certificate.json" in {entry.path for entry in client.list_artifacts(run)}


def test_the_model_predicts_without_spark(logged):
    _, _, model = logged
    served = onebit_spark.load(MODEL)
    columns = served.info.columns
    users, items = (side.ids.to_pylist()[:3] for side in (served.users, served.items))
    expected = served.predictions(users, items).to_pandas()
    pairs = pd.DataFrame({columns["user"]: users, columns["item"]: items})
    pd.testing.assert_frame_equal(model.predict(pairs), expected)
    with pytest.raises(RequestError, match=f"no column '{columns['item']}'"):
        model.predict(pd.DataFrame({columns["user"]: users}))
