"""Fixtures shared by all tests."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from support.jvm import SHORT_LIVED

HERE = Path(__file__).parent
CONNECT = os.environ.get("ONEBIT_TEST_SESSION") == "connect"  # make test-connect

# The first example of a test may compile a kernel: no deadline. The same examples in every run.
settings.register_profile("onebit", deadline=None, derandomize=True, max_examples=30)
# Make test-all
settings.register_profile("thorough", deadline=None, derandomize=True, max_examples=200)
settings.load_profile("onebit")


def pytest_collection_modifyitems(items):
    """On Spark Connect, leave out what needs a SparkContext, looks into Spark's driver, or
    broadcasts.
    """
    for item in items:
        choices = item.callspec.params.values() if hasattr(item, "callspec") else ()
        named = [
            choice.get("exchange") if isinstance(choice, dict) else choice for choice in choices
        ]
        broadcasts = any(isinstance(name, str) and name in ("broadcast", "mixed") for name in named)
        if CONNECT and (broadcasts or item.get_closest_marker("classic")):
            item.add_marker(pytest.mark.skip(reason="needs a classic session"))
        if not CONNECT and item.get_closest_marker("connect"):
            item.add_marker(pytest.mark.skip(reason="needs Spark Connect: make test-connect"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """The files that start Spark run in two processes: a JVM takes 8 s of CPU, and more until it is
    warm.

    One has most files of spark/. The other has those of jobs/ and the last of spark/, so that both
    take as long.
    """
    from xdist.scheduler import LoadFileScheduling

    class TwoSessions(LoadFileScheduling):
        def _split_scope(self, nodeid):
            _, folder, file = nodeid.split("/", 2)
            if folder == "spark" and file < "test_notebooks":
                return folder
            return "jobs" if folder in ("spark", "jobs") else super()._split_scope(nodeid)

    return TwoSessions(config, log)


@pytest.fixture(scope="session")
def movielens_100k():
    """rows, cols, labels of MovieLens-100K (943 × 1,682, 100,000 ratings); +1 is a rating above
    3.5, as in the paper.

    Read from ``$ONEBIT_DATA/ml-100k/u.data`` (default ``./data``), never copied into the project.
    """
    path = Path(os.environ.get("ONEBIT_DATA", "data")) / "ml-100k" / "u.data"
    if not path.exists():
        pytest.skip(
            f"MovieLens-100K is not at {path}; set ONEBIT_DATA to the folder that holds ml-100k/"
        )
    user, item, rating, _ = np.loadtxt(path, dtype=np.int64).T
    return user - 1, item - 1, np.where(rating > 3.5, 1, -1)


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    """The one Spark session of all tests that do not start a process of their own: classic, or
    Spark Connect.
    """
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_SUBMIT_OPTS", SHORT_LIVED)
    settings = {
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
    }
    if not CONNECT:
        settings |= {
            "spark.ui.enabled": "false",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",  # where large results of tasks are fetched from
            "spark.python.daemon.module": "support.workerdaemon",
            "spark.executorEnv.PYTHONPATH": os.pathsep.join(
                map(str, (HERE, HERE.parent, HERE.parent / "benchmarks"))
            ),
        }
    start = SparkSession.builder.remote if CONNECT else SparkSession.builder.master
    session = start("local[2]").appName("onebit_spark tests").config(map=settings).getOrCreate()
    if not CONNECT:
        session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
