"""Tasks on Spark: each is done once, whatever happens in between."""

import io
import re

import pytest

from onebit_spark.cli.progress import TaskProgress
from onebit_spark.tuning.tasks import Ledger, run_tasks

pytestmark = pytest.mark.classic


@pytest.fixture
def squared():
    """Made here, so that it is sent to the workers as code: they cannot import this file."""
    return lambda task: {"square": task["x"] ** 2}


@pytest.fixture
def quiet():
    return TaskProgress(100, "test", quiet=True)


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "tasks")


@pytest.mark.parametrize("here", [True, False])
def test_results_come_in_the_order_of_the_tasks(spark, path, squared, quiet, here):
    tasks = [{"x": x} for x in (5, 1, 3, 1, 2)]
    ledger = Ledger(spark, path)
    results = run_tasks(spark, tasks, squared, ledger, quiet, here)
    assert [result["square"] for result in results] == [25, 1, 9, 1, 4]
    assert all(result["seconds"] >= 0 for result in results)
    assert len(ledger) == 4  # the same task twice is one
    assert quiet.done == 5


def test_what_is_done_is_not_done_again(spark, path, squared, quiet):
    first = run_tasks(spark, [{"x": 1}, {"x": 2}], squared, Ledger(spark, path), quiet)

    def only_new(task):
        assert task["x"] == 3
        return squared(task)

    again = Ledger(spark, path)
    tasks = [{"x": 1}, {"x": 3}, {"x": 2}]
    results = run_tasks(spark, tasks, only_new, again, quiet)
    assert [result["square"] for result in results] == [1, 9, 4]
    assert (results[0], results[2]) == tuple(first)  # to the last digit of the seconds
    assert again.seconds == pytest.approx(sum(result["seconds"] for result in results))


def test_a_failure_ends_the_run_and_keeps_what_was_done(spark, path, squared, quiet):
    def fails_at_the_end(task):
        if task["x"] == 7:
            raise ValueError("seven")
        return squared(task)

    tasks = [{"x": x} for x in range(8)]
    with pytest.raises(Exception, match="seven"):
        run_tasks(spark, tasks, fails_at_the_end, Ledger(spark, path), quiet)
    kept = Ledger(spark, path)
    assert {"x": 0} in kept
    assert {"x": 7} not in kept
    results = run_tasks(spark, tasks, squared, kept, quiet)
    assert [result["square"] for result in results] == [x * x for x in range(8)]


def test_a_file_that_was_being_written_when_the_run_was_killed_does_not_count(spark, path, tmp_path, squared, quiet):
    run_tasks(spark, [{"x": 1}], squared, Ledger(spark, path), quiet)
    (file,) = (tmp_path / "tasks").rglob("*.jsonl")
    (file.parent / ".abc.jsonl.writing").write_text('{"task": {"x": 2}, "resu')
    ledger = Ledger(spark, path)
    assert len(ledger) == 1
    assert not list(file.parent.glob("*.crc"))


def test_results_of_other_code_do_not_count(spark, path, squared, quiet, monkeypatch):
    run_tasks(spark, [{"x": 1}], squared, Ledger(spark, path), quiet)
    monkeypatch.setattr("onebit_spark.tuning.tasks.source_digest", lambda _: "other")
    assert len(Ledger(spark, path)) == 0


def test_progress_is_over_all_tasks_and_says_how_long(monkeypatch):
    monkeypatch.setattr("onebit_spark.cli.progress.TASK_LINE_EVERY_SECONDS", 0.0)
    stream = io.StringIO()
    with TaskProgress(10, "tables", stream=stream) as progress:
        progress.advance(4, seconds=0.0)  # done in an earlier run: says nothing about the speed
        progress.advance(2, seconds=6.0)
        progress.advance(4, seconds=12.0)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "tables: 4 of 10 fits"
    assert lines[1] == "tables: 6 of 10 fits, about 12 s left"
    assert lines[2] == "tables: 10 of 10 fits"
    assert len(lines) == 3


def test_progress_on_a_terminal_is_one_bar():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    stream = Terminal()
    with TaskProgress(4, "noise", stream=stream) as progress:
        progress.advance(2, seconds=10.0)
    assert re.search(r"noise 2/4 \|.*about 10 s left", stream.getvalue())
    assert "\n" not in stream.getvalue().strip()
