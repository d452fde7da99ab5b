"""exchange=shuffle on Spark Connect: the same fit as in a classic session, to the bit, and nothing left behind."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from estimators import estimator_with

from onebit_spark import OneBitCompletion, OneBitCompletionModel, RequestError
from onebit_spark.core.config import FitConfig
from onebit_spark.engines.spark_engine import on_executors
from onebit_spark.engines.tables import InFiles
from onebit_spark.input.ratings import Columns
from onebit_spark.input.survey import survey_ratings
from onebit_spark.platform.files import Location
from onebit_spark.platform.sessions import parallelism
from onebit_spark.simulate import power_law_ratings

pytestmark = pytest.mark.connect

SETTINGS = {"rank": 3, "maxIter": 2, "tol": 0.0, "numUserBlocks": 3, "numItemBlocks": 2}
CLASSIC = """
import sys
from pyspark.sql import SparkSession
from onebit_spark import OneBitCompletion
ratings, model = sys.argv[1:]
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
OneBitCompletion(exchange="shuffle", **{settings}).fit(spark.read.parquet(ratings)).save(model)
spark.stop()
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Ratings by a power law, so that some rows are heavy; text ids on one side."""
    rows, cols, labels = power_law_ratings(70, 40, 1500, seed=2)
    table = pa.table({"user": [f"u{i}" for i in rows], "item": pa.array(cols), "label": pa.array(labels)})
    path = tmp_path_factory.mktemp("ratings") / "ratings.parquet"
    pq.write_table(table, path)
    return path


@pytest.fixture(scope="module")
def classic(file):
    """The folder of the model that another process fits in a classic session."""
    folder = file.with_name("classic")
    program = CLASSIC.replace("{settings}", repr(SETTINGS))
    # Without what Spark tells the children of a process with a Connect session.
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    subprocess.run([sys.executable, "-c", program, str(file), str(folder)], check=True, timeout=900, env=clean)
    return folder


@pytest.mark.parametrize("storage", ["files", "executors"])  # the latter without a folder
def test_the_same_fit_as_in_a_classic_session(spark, file, classic, tmp_path, monkeypatch, storage):
    """``auto`` takes shuffle for ratings that the driver may not hold."""
    if storage == "executors":
        monkeypatch.setattr("onebit_spark.engines.exchange.work_folder", lambda *_: None)
    estimator = estimator_with(driverRatings=100, work_dir=str(tmp_path / "work"), **SETTINGS)
    fitted = estimator.fit(spark.read.parquet(str(file)))
    assert fitted.info.exchange["exchange"] == "shuffle"
    assert fitted.users.count() == 70  # the engine is gone
    assert (tmp_path / "work").exists() is (storage == "files")
    fitted.save(str(tmp_path / "model"))
    one, other = (OneBitCompletionModel.load(str(folder)) for folder in (tmp_path / "model", classic))
    assert one.info.objective_history == other.info.objective_history
    assert one.certificate == other.certificate
    assert one.info.confidence_thresholds == other.info.confidence_thresholds
    for side in ("users", "items"):
        lines = [sorted(getattr(model, side).collect(), key=lambda line: line["id"]) for model in (one, other)]
        assert lines[0] == lines[1]


def test_ratings_stay_and_nothing_stays_behind(spark, file, tmp_path):
    """A half step sends factor lines and no rating, whatever the settings of the user's session."""
    config = FitConfig(rank=3, tol=0.0, max_iter=1, start="random")
    before, place = dict(spark.conf.getAll), InFiles(Location(spark, str(tmp_path / "work")))
    with (
        survey_ratings(spark.read.parquet(str(file)), Columns()) as counted,
        on_executors(spark, counted, (3, 2), config.form, place, frozenset()) as engine,
    ):
        engine.start(config, config.make_loss())
        own, partners = (engine.posterior(side) for side in ("rows", "cols"))
        plan = engine.runner._results("rows", lambda *_: None, (own,), partners)._explain_string()
        assert _views(spark)
    assert plan.count("InMemoryRelation") == 2  # the blocks of rows and the routes of columns, and not their sources
    assert "ENSURE_REQUIREMENTS" not in plan
    assert not _views(spark)
    assert dict(spark.conf.getAll) == before
    assert not list(Path(tmp_path).iterdir())


def test_nothing_is_broadcast(spark, file):
    ratings = spark.read.parquet(str(file))
    for exchange in ("broadcast", "mixed"):
        with pytest.raises(RequestError, match="not Spark Connect: choose exchange=driver or exchange=shuffle"):
            OneBitCompletion(exchange=exchange).fit(ratings)


def test_the_number_of_cores(spark):
    assert parallelism(spark) == 2


def _views(spark):
    return [table.name for table in spark.catalog.listTables() if table.name.startswith("onebit_")]
