"""Cross-validation on Spark: the same folds, and nearly the same errors, whichever way the fits are made."""

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from onebit_spark import FitConfig, RequestError
from onebit_spark.cli.progress import TaskProgress
from onebit_spark.input.ratings import Columns
from onebit_spark.simulate import simulate
from onebit_spark.tuning.cross_validation import CrossValidation
from onebit_spark.tuning.tasks import Ledger

pytestmark = pytest.mark.classic

CONFIGS = [FitConfig(loss=loss, rank=2, max_iter=4, tol=0) for loss in ("logistic", "hinge")]


@pytest.fixture(scope="module")
def table():
    """Text ids, labels 0/1."""
    data = simulate("B1", 2, (40, 30), 0.5, seed=4)
    users, items = (np.char.add(name, index.astype(str)) for name, index in (("u", data.rows), ("i", data.cols)))
    return pa.table({"user": users, "item": items, "label": (data.labels > 0).astype(np.int32)})


@pytest.fixture
def validation(spark, table):
    return CrossValidation.of(spark.createDataFrame(table), Columns(), 2, seed=1)


def test_all_ways_agree(spark, validation, tmp_path, monkeypatch):
    """In threads of this process, in Python workers, and one fit after the other on the whole cluster."""
    tasks = validation.tasks(CONFIGS)
    assert [(task["config"]["loss"], task["fold"]) for task in tasks] == [
        (loss, fold) for loss in ("logistic", "hinge") for fold in range(2)
    ]
    progress = TaskProgress(12, "test", quiet=True)
    kept = spark.sparkContext._jsc.getPersistentRDDs().size()
    alone = validation.in_workers(tasks, Ledger(spark, str(tmp_path / "a")), progress)
    together = validation.one_after_the_other(tasks, Ledger(spark, str(tmp_path / "b")), progress)
    monkeypatch.setattr("onebit_spark.tuning.cross_validation.driver_limits", lambda _: SimpleNamespace(local=False))
    apart = validation.in_workers(tasks, Ledger(spark, str(tmp_path / "c")), progress)
    assert progress.done == 12
    assert [without_seconds(result) for result in apart] == [without_seconds(result) for result in alone]
    assert sum(result["n"] for result in alone[:2]) == 600
    for one, other in zip(alone, together, strict=True):
        assert one["n"] == other["n"]
        assert abs(one["errors"] - other["errors"]) <= 2  # the last bits of a score near 0
        assert one["log_loss"] == pytest.approx(other["log_loss"], rel=1e-3)
        assert (one["iterations"], one["converged"]) == (other["iterations"], other["converged"]) == (4, False)
        assert one["errors"] < 0.35 * one["n"]
    assert spark.sparkContext._jsc.getPersistentRDDs().size() == kept


def without_seconds(result):
    return {name: value for name, value in result.items() if name != "seconds"}


def test_what_the_cluster_has_fitted_is_not_fitted_again(spark, validation, tmp_path):
    tasks = validation.tasks(CONFIGS[:1])[:1]
    ledger = Ledger(spark, str(tmp_path))
    made_up = {"errors": 1, "n": 2, "log_loss": 0.5, "seconds": 0.1}
    ledger.record(tasks, [made_up])
    assert validation.one_after_the_other(tasks, ledger, TaskProgress(1, "test", quiet=True)) == [made_up]


def test_folds_do_not_depend_on_where_the_ratings_lie(spark, table, validation):
    shuffled = table.take(np.random.default_rng(0).permutation(len(table)))
    other = CrossValidation.of(spark.createDataFrame(shuffled).repartition(5), Columns(), 2, seed=1)
    assert other.tasks(CONFIGS) == validation.tasks(CONFIGS)
    one, two = validation.collected(), other.collected()
    for name in ("rows", "cols", "labels"):
        np.testing.assert_array_equal(getattr(one.sample, name), getattr(two.sample, name))
    np.testing.assert_array_equal(one.fold, two.fold)
    assert np.bincount(one.fold).min() > 150  # thirds of 600
    reseeded = CrossValidation.of(spark.createDataFrame(table), Columns(), 2, seed=2)
    assert not np.array_equal(reseeded.collected().fold, one.fold)
    assert reseeded.tasks(CONFIGS) != validation.tasks(CONFIGS)


def test_all_ratings_of_a_cell_are_held_out_together(spark, table):
    """Whatever their labels: else the − of a cell would predict its +."""
    opposite = table.set_column(2, "label", pc.cast(pc.subtract(1, table["label"]), pa.int32()))
    folded = CrossValidation.of(spark.createDataFrame(pa.concat_tables([table, opposite])), Columns(), 5, seed=1)
    data = folded.collected()
    cells = set(zip(data.sample.rows, data.sample.cols, strict=True))
    assert len(cells) == len(table)
    assert len(set(zip(data.sample.rows, data.sample.cols, data.fold, strict=True))) == len(cells)


def test_ratings_that_occur_twice_are_seen(spark, table):
    """As many ratings of as many users, items and labels: only which of them are there twice differs."""
    tasks = []
    for twice in (0, 1):
        same = table.filter(pc.and_(pc.equal(table["label"], 1), pc.equal(table["user"], table["user"][0])))
        doubled = spark.createDataFrame(pa.concat_tables([table, same.slice(twice, 1)]))
        tasks.append(CrossValidation.of(doubled, Columns(), 2, seed=1).tasks(CONFIGS))
    assert tasks[0] != tasks[1]


def test_the_collected_ratings_are_those_that_came_in(table, validation):
    sample = validation.collected().sample
    users, items = (side.values.to_pylist() for side in (validation.surveyed.users, validation.surveyed.items))
    triples = {
        (users[i], items[j], int(y > 0)) for i, j, y in zip(sample.rows, sample.cols, sample.labels, strict=True)
    }
    assert triples == set(zip(*(table[name].to_pylist() for name in ("user", "item", "label")), strict=True))


def test_bad_ratings_are_refused(spark):
    bad = spark.createDataFrame(pa.table({"user": [1, 2], "item": [1, 2], "label": [1, 7]}))
    with pytest.raises(RequestError, match="1 ratings with label outside"):
        CrossValidation.of(bad, Columns(), 2, seed=1)
