"""Cross-validation on Spark: the same folds, and nearly the same errors, whichever way the fits are made."""

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from onebit_spark import FitConfig, RequestError, tuning
from onebit_spark.input.ratings import Columns
from onebit_spark.input.tables import ArrowTable
from onebit_spark.platform.files import Location
from onebit_spark.simulate import simulate
from onebit_spark.tuning import local_validation, on_workers, run_tasks, spark_validation

pytestmark = pytest.mark.classic

CONFIGS = [FitConfig(loss=loss, rank=2, max_iter=4, tol=0) for loss in ("logistic", "hinge")]
SMALL = 10**6


@pytest.fixture(scope="module")
def table():
    """Text ids, labels 0/1."""
    data = simulate("B1", 2, (40, 30), 0.5, seed=4)
    users, items = (np.char.add(name, index.astype(str)) for name, index in (("u", data.rows), ("i", data.cols)))
    return pa.table({"user": users, "item": items, "label": (data.labels > 0).astype(np.int32)})


def results(validation, folder):
    """The results of all tasks, without their seconds."""
    done = run_tasks(validation.tasks(CONFIGS), validation.work, folder, lambda *_: None, validation.at_once)
    return [{name: value for name, value in result.items() if name != "seconds"} for result in done]


@pytest.mark.slow
def test_all_ways_agree(spark, table, tmp_path, monkeypatch):
    """Without Spark, in threads of the driver, in Python workers, and one fit after the other on the whole cluster."""
    frame = spark.createDataFrame(table)
    kept = spark.sparkContext._jsc.getPersistentRDDs().size()
    with local_validation(ArrowTable.of(table), Columns(), 2, 1, SMALL) as validation:
        tasks, plain = validation.tasks(CONFIGS), results(validation, Location(None, tmp_path / "plain"))
    with spark_validation(frame, Columns(), 2, 1, SMALL) as validation:
        assert validation.tasks(CONFIGS) == tasks
        threads = results(validation, Location(spark, tmp_path / "threads"))
    with spark_validation(frame, Columns(), 2, 1, worker_limit=10) as validation:
        assert validation.tasks(CONFIGS) == tasks
        together = results(validation, Location(spark, tmp_path / "together"))
    limits = SimpleNamespace(local=False, result=2**30, heap=2**30)
    monkeypatch.setattr(tuning, "driver_limits", lambda _: limits)
    with spark_validation(frame, Columns(), 2, 1, SMALL) as validation:
        workers = results(validation, Location(spark, tmp_path / "workers"))
    assert plain == threads == workers
    assert sum(result["n"] for result in plain[:2]) == 600
    for one, other in zip(plain, together, strict=True):
        assert one["n"] == other["n"]
        assert abs(one["errors"] - other["errors"]) <= 2  # the last bits of a score near 0
        assert one["log_loss"] == pytest.approx(other["log_loss"], rel=1e-3)
        assert (one["iterations"], one["converged"]) == (other["iterations"], other["converged"]) == (4, False)
        assert one["errors"] < 0.35 * one["n"]
    assert spark.sparkContext._jsc.getPersistentRDDs().size() == kept


def test_a_failure_in_a_worker_ends_the_run_and_keeps_what_was_done(spark, tmp_path):
    def square(task):
        if task["x"] == 3:
            raise ValueError("three")
        return {"square": task["x"] ** 2}

    folder, tasks = Location(spark, tmp_path / "tasks"), [{"x": x} for x in range(4)]
    with pytest.raises(Exception, match="three"):
        run_tasks(tasks, on_workers(spark, square), folder, lambda *_: None)
    assert len(list((tmp_path / "tasks").rglob("*.json"))) == 3
    assert not list((tmp_path / "tasks").rglob("*.crc"))
    again = run_tasks(tasks, lambda task: {"square": task["x"] + 6}, folder, lambda *_: None)
    assert [result["square"] for result in again] == [0, 1, 4, 9]


@pytest.mark.parametrize("worker_limit", [SMALL, pytest.param(1, marks=pytest.mark.slow)])
def test_ratings_that_occur_twice_are_seen(spark, table, worker_limit):
    """As many ratings of as many users, items and labels: only which of them are there twice differs."""
    same = table.filter(pc.and_(pc.equal(table["label"], 1), pc.equal(table["user"], table["user"][0])))
    tasks = []
    for twice in (0, 1):
        doubled = spark.createDataFrame(pa.concat_tables([table, same.slice(twice, 1)]))
        with spark_validation(doubled, Columns(), 2, 1, worker_limit) as validation:
            tasks.append(validation.tasks(CONFIGS))
    assert tasks[0] != tasks[1]


def test_bad_ratings_are_refused(spark):
    bad = spark.createDataFrame(pa.table({"user": [1, 2], "item": [1, 2], "label": [1, 7]}))
    with pytest.raises(RequestError, match="1 rating with label outside"), spark_validation(bad, Columns(), 2, 1, 10):
        pass
