"""Tables of the catalog as input and as output: ``--ratings films.ratings``, ``--output-table films.predicted``."""

import pytest
from running import run_here
from smalltables import FAST, TABLES


@pytest.fixture(scope="module")
def films(spark):
    """A database with a table of ratings."""
    spark.sql("CREATE DATABASE films")
    spark.createDataFrame(TABLES["good"]).write.saveAsTable("films.ratings")
    yield "films"
    spark.sql("DROP DATABASE films CASCADE")


@pytest.fixture(scope="module")
def fitted(spark, films, tmp_path_factory):
    """The folder of a model that was fitted to a table, and whose predictions went to another."""
    model = tmp_path_factory.mktemp("tables") / "model"
    flags = ["--ratings", "films.ratings", "--predict", "films.ratings", "--output-table", "films.predicted"]
    code, out, err = run_here("fit", *flags, "--output", model, *FAST)
    assert code == 0, err
    assert out.splitlines()[-1] == "table of predictions: films.predicted"
    return model


def test_predictions_are_a_table(spark, fitted):
    predicted = spark.table("films.predicted")
    assert predicted.columns == ["user", "item", "score", "std", "probability", "prediction"]
    assert predicted.count() == 4
    code, _, err = run_here("predict", "--model", fitted, "--pairs", "films.ratings", "--output-table", "films.again")
    assert code == 0, err
    assert sorted(spark.table("films.again").collect()) == sorted(predicted.collect())


def test_a_table_is_replaced_only_on_request(spark, fitted):
    flags = ["--model", fitted, "--top", 1, "--output-table", "films.best"]
    assert run_here("predict", *flags)[0] == 0
    code, _, err = run_here("predict", *flags)
    assert code == 2
    assert err.splitlines()[-1] == (
        "error: --output-table films.best exists already: choose another path or add --overwrite"
    )
    assert run_here("predict", *flags, "--overwrite")[0] == 0
    code, _, err = run_here("predict", *flags[:4], "--output-table", "films.ratings", "--overwrite")
    assert code == 2
    assert "--output-table films.ratings is not a table of predictions" in err.splitlines()[-1]
    assert spark.table("films.ratings").columns == ["user", "item", "label"]
    assert spark.table("films.best").count() == 2


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--ratings", "films.nothing"], "--ratings films.nothing does not exist, neither as a path nor as a table"),
        (
            ["--ratings", "films.ratings", "--predict", "films.ratings", "--output-table", "nowhere.predicted"],
            "--output-table nowhere.predicted cannot be made: there is no database nowhere",
        ),
        (
            ["--ratings", "films.ratings", "--predict", "films.ratings", "--output-table", "a/b"],
            "--output-table must be TABLE, DATABASE.TABLE or CATALOG.DATABASE.TABLE, not 'a/b'",
        ),
        (
            ["--ratings", "films.ratings", "--predict", "films.ratings", "--output-table", "films.ratings"],
            "--predict and --output-table are the same table, films.ratings: choose another for the predictions",
        ),
    ],
)
def test_what_is_refused(films, tmp_path, flags, message):
    code, _, err = run_here("fit", *flags, "--output", tmp_path / "model", *FAST)
    assert code == 2
    assert message in err.splitlines()[-1]
    assert not (tmp_path / "model").exists()
