"""What jobs write: tables of the catalog, and an old output, which stays until the new one is
complete.
"""

import errno
import json
import shutil
import tempfile
from contextlib import contextmanager
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
from support.modelfolders import save_small_model
from support.running import FAST, TABLES, run_here, write

from onebit_spark import load
from onebit_spark.data.locations import PREDICTIONS, Location

SLOW = pytest.mark.slow


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
    flags = [
        "--ratings",
        "films.ratings",
        "--predict",
        "films.ratings",
        "--output-table",
        "films.predicted",
    ]
    code, out, err = run_here("fit", *flags, "--output", model, *FAST)
    assert code == 0, err
    assert out.splitlines()[-1] == "table of predictions: films.predicted"
    return model


def test_predictions_are_a_table(spark, fitted):
    predicted = spark.table("films.predicted")
    assert predicted.columns == ["user", "item", "score", "std", "probability", "prediction"]
    assert predicted.count() == 4
    code, _, err = run_here(
        "predict", "--model", fitted, "--pairs", "films.ratings", "--output-table", "films.again"
    )
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
        (
            ["--ratings", "films.nothing"],
            "--ratings films.nothing does not exist, neither as a path nor as a table",
        ),
        (
            [
                "--ratings",
                "films.ratings",
                "--predict",
                "films.ratings",
                "--output-table",
                "nowhere.predicted",
            ],
            "--output-table nowhere.predicted cannot be made: there is no database nowhere",
        ),
        (
            ["--ratings", "films.ratings", "--predict", "films.ratings", "--output-table", "a/b"],
            "--output-table must be TABLE, DATABASE.TABLE or CATALOG.DATABASE.TABLE, not 'a/b'",
        ),
        (
            [
                "--ratings",
                "films.ratings",
                "--predict",
                "films.ratings",
                "--output-table",
                "films.ratings",
            ],
            "--predict and --output-table are the same table, films.ratings: choose another for "
            "the predictions",
        ),
    ],
)
def test_what_is_refused(films, tmp_path, flags, message):
    code, _, err = run_here("fit", *flags, "--output", tmp_path / "model", *FAST)
    assert code == 2
    assert message in err.splitlines()[-1]
    assert not (tmp_path / "model").exists()


# ---- an old output stays until the new one is complete -----------------------------------------

FULL = (
    "error: the disk is full: free some space on the disk of the output, or of temporary files "
    f"({tempfile.gettempdir()})"
)
OPEN = Location._open
PARQUET_WRITER = pq.ParquetWriter


def content(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def full_disk(*args, **kwargs):
    raise OSError(errno.ENOSPC, "No space left on device")


class FullDisk:
    """A file system of Arrow on which a file takes one byte."""

    def __init__(self, files):
        self._files = files

    def __getattr__(self, name):
        return getattr(self._files, name)

    @contextmanager
    def open_output_stream(self, path):
        with self._files.open_output_stream(path) as stream:

            def write(content):
                stream.write(content[:1])
                if len(content) > 1:
                    full_disk()

            yield SimpleNamespace(write=write)


def open_on_full_disk(location, path):
    OPEN(location, path)
    location._files = FullDisk(location._files)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A folder with a model and its predictions."""
    folder = tmp_path_factory.mktemp("small")
    save_small_model(folder / "model")
    (folder / "predictions").mkdir()
    PREDICTIONS.write_marker(Location(None, folder / "predictions"))
    pq.write_table(
        load(folder / "model").predictions(["u1", "u2", "u3"], [4, 5, 6]),
        folder / "predictions" / "part-0",
    )
    return folder


@pytest.mark.parametrize(
    ("job", "runtime"),
    [
        pytest.param("predict", "spark", marks=SLOW),
        pytest.param("evaluate", "spark", marks=SLOW),
        ("predict", "local"),
    ],
)
def test_a_full_disk_leaves_the_old_output(request, small, tmp_path, monkeypatch, job, runtime):
    if runtime == "spark":
        request.getfixturevalue("spark")
    pairs = small / "predictions"
    # Spark would read the columns from there
    table = pq.read_table(pairs).replace_schema_metadata(None)
    ratings = write(
        tmp_path / "ratings",
        table.select(["user", "item"]).append_column("label", table["prediction"]),
    )
    output = tmp_path / "output"
    if job == "predict":
        shutil.copytree(pairs, output)
    else:
        output.write_text(json.dumps({"n": 1, "error": 0, "majority_error": 1}))
    arguments = [
        "--model",
        small / "model",
        "--pairs" if job == "predict" else "--ratings",
        ratings,
    ]
    before = content(output) or output.read_text()
    with monkeypatch.context() as patch:
        if runtime == "local":
            patch.setattr(
                "pyarrow.parquet.ParquetWriter",
                lambda _, schema: PARQUET_WRITER("/dev/full", schema),
            )
        elif job == "predict":
            patch.setattr("pyspark.sql.DataFrameWriter.parquet", full_disk)
        else:
            patch.setattr(Location, "_open", open_on_full_disk)
        code, _, err = run_here(job, *arguments, "--output", output, "--overwrite", runtime=runtime)
    assert (code, err.splitlines()[-1]) == (1, FULL)
    assert (content(output) or output.read_text()) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["output", "ratings"]
    assert run_here(job, *arguments, "--output", output, "--overwrite", runtime=runtime)[0] == 0
    assert (content(output) or output.read_text()) != before
