"""MLflow, with a tracking store in a folder: what is logged of a model, and its predictions without
Spark.
"""

from dataclasses import replace

import pandas as pd
import pyarrow as pa
import pytest
from support import idtypes
from support.modelfolders import save_small_model

import onebit_spark
from onebit_spark import FitConfig, RequestError, fit_table
from onebit_spark.core.solver import Iteration


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_small_model(tmp_path_factory.mktemp("model") / "model", max_error=0.45)


@pytest.fixture(scope="module")
def mlflow(tmp_path_factory):
    """MLflow takes long to import: only where this runs."""
    found = pytest.importorskip("mlflow")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a database would need more packages
        found.set_tracking_uri((tmp_path_factory.mktemp("mlflow") / "runs").as_uri())
        yield found


@pytest.fixture(scope="module")
def logged(mlflow, folder):
    """A run with the curve of three iterations, and a model."""
    from onebit_spark import mlflow as tracking

    with mlflow.start_run() as run:
        for number in (1, 2, 3):
            tracking.log_iteration(Iteration(number, 100.0 / number, 1.0, 0.1, 0.01 / number, 0.5))
        tracking.log_model(folder, registered_model_name="films")
    return (
        mlflow.tracking.MlflowClient(),
        run.info.run_id,
        mlflow.pyfunc.load_model("models:/films/1"),
    )


def test_the_curve_is_logged(logged):
    client, run, _ = logged
    history = client.get_metric_history(run, "objective")
    assert [(point.step, point.value) for point in history] == [
        (1, 100.0),
        (2, 50.0),
        (3, pytest.approx(100 / 3)),
    ]


def test_settings_figures_and_files(logged, folder):
    client, run, _ = logged
    found = client.get_run(run).data
    model = onebit_spark.load(folder)
    assert found.params["rank"] == str(model.config.rank)
    assert found.metrics["effective_rank"] == model.effective_rank
    holdout, selective = model.certificates
    assert found.metrics["bound_holdout"] == holdout.bound
    assert found.metrics["bound_selective_0.45"] == selective.bound
    assert "certificate.json" in {entry.path for entry in client.list_artifacts(run)}


def test_the_model_predicts_without_spark(logged, folder):
    from onebit_spark import mlflow as tracking

    _, _, model = logged
    served = onebit_spark.load(folder)
    columns = served.info.columns
    users, items = (side.ids.to_pylist()[:3] for side in (served.users, served.items))
    expected = served.predictions(users, items).to_pandas()
    pairs = pd.DataFrame({columns["user"]: users, columns["item"]: items})
    pd.testing.assert_frame_equal(model.predict(pairs), expected)
    # MLflow's, by the signature
    with pytest.raises(Exception, match=f"missing inputs .*{columns['item']}"):
        model.predict(pairs[[columns["user"]]])
    # Of a model that has none
    with pytest.raises(RequestError, match=f"no column '{columns['item']}'"):
        tracking.ServedPairs(served).predict(pd.DataFrame({columns["user"]: users}))


def test_the_signature_and_the_example(logged, folder):
    """A registry such as Unity Catalog takes no model without a signature."""
    _, _, model = logged
    columns = onebit_spark.load(folder).info.columns
    signature = model.metadata.signature
    assert [(each.name, each.type.name) for each in signature.inputs] == [
        (columns["user"], "string"),
        (columns["item"], "long"),
    ]
    example = model.input_example
    answer = model.predict(model.input_example)
    assert list(example.columns) == signature.inputs.input_names()
    assert list(answer.columns) == signature.outputs.input_names()
    assert len(answer) == len(example) == 3


def test_every_pair_has_a_line(folder):
    """Also where the model leaves out unknown ids: a UDF of Spark returns as many lines as it is
    given.
    """
    pytest.importorskip("mlflow")
    from onebit_spark import mlflow as tracking

    model = replace(onebit_spark.load(folder), cold_start="drop")
    user, item = (side.ids[0].as_py() for side in (model.users, model.items))
    pairs = pd.DataFrame({"user": [user, "nobody"], "item": [item, item]})
    assert len(model.predictions(pairs["user"], pairs["item"])) == 1
    found = tracking.ServedPairs(model).predict(pairs)
    assert found["probability"].isna().tolist() == [False, True]


# ---- types of ids ------------------------------------------------------------------------------


@pytest.fixture
def fitted_and_served(mlflow, tmp_path):
    """The model of a table, and what MLflow loads after it was logged."""
    from onebit_spark import mlflow as tracking

    def made(ratings):
        model = fit_table(ratings, FitConfig(rank=1, max_iter=2, likelihood_weight=1.0))
        model.save(tmp_path / "model", overwrite=True)
        with mlflow.start_run():
            logged = tracking.log_model(tmp_path / "model")
        return model, mlflow.pyfunc.load_model(logged.model_uri)

    return made


@pytest.mark.filterwarnings("ignore::onebit_spark.NotConverged")
@pytest.mark.parametrize(("ids", "cell"), idtypes.cells("MLflow"))
def test_the_guide_says_which_ids_a_logged_model_takes(fitted_and_served, ids, cell):
    ratings = idtypes.ratings_of(ids)
    if cell == "no":
        with pytest.raises(RequestError, match="cannot be an id"):
            fitted_and_served(ratings)
        return
    model, served = fitted_and_served(ratings)
    example = served.input_example
    n = len(served.input_example)
    known = model.users.ids.slice(0, n)
    answer = served.predict(example)
    assert answer["score"].tolist() == model.score(known, model.items.ids.slice(0, n)).tolist()
    assert (
        answer["user"].tolist()
        == (known.cast(pa.string()) if cell == "text" else known).to_pylist()
    )
    pairs = ratings.select(["user", "item"]).to_pandas()
    scores = model.score(ratings["user"], ratings["item"])
    if not pa.types.is_dictionary(ids.type):  # MLflow takes no categories of pandas
        assert served.predict(pairs)["score"].tolist() == scores.tolist()
    if cell == "text":
        assert served.predict(pairs.astype(str))["score"].tolist() == scores.tolist()


@pytest.mark.filterwarnings("ignore::onebit_spark.NotConverged")
def test_text_that_is_no_id_is_refused(fitted_and_served):
    times, dates = (
        idtypes.ratings_of(idtypes.IDS[name][0])["user"] for name in ("times with a zone", "dates")
    )
    labels = [place % 2 for place in range(len(times))]
    _, served = fitted_and_served(pa.table({"user": times, "item": dates, "label": labels}))
    with pytest.raises(
        RequestError, match=r"the user ids are no text of type timestamp: .* zone offset"
    ):
        served.predict(pd.DataFrame({"user": ["2024-02-29 01:02:03"], "item": ["2024-02-29"]}))
    with pytest.raises(RequestError, match=r"the item ids are no text of type date: .*'tomorrow'"):
        served.predict(pd.DataFrame({"user": ["2024-02-29 01:02:03Z"], "item": ["tomorrow"]}))
