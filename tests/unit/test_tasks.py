"""Tasks of the experiments, each of which is done once."""

import pytest
from paper import tasks
from paper.tasks import run_tasks

from onebit_spark.data.locations import Location


def squared(task):
    return {"square": task["x"] ** 2}


class Progress:
    """Counts what it is called with."""

    def __init__(self):
        self.before = self.worked = 0

    def __call__(self, tasks, seconds):
        if seconds:
            self.worked += tasks
        else:
            self.before += tasks


@pytest.fixture
def folder(tmp_path):
    return Location(None, tmp_path / "tasks")


@pytest.mark.parametrize("at_once", [1, 3])
def test_results_come_in_the_order_of_the_tasks(folder, tmp_path, at_once):
    progress = Progress()
    results = run_tasks([{"x": x} for x in (5, 1, 3, 1, 2)], squared, folder, progress, at_once)
    assert [result["square"] for result in results] == [25, 1, 9, 1, 4]
    assert all(result["seconds"] > 0 for result in results)
    assert len(list(tmp_path.rglob("*.json"))) == 4  # the same task twice is one
    assert (progress.before, progress.worked) == (1, 4)


def test_what_is_done_is_not_done_again(folder):
    first = run_tasks([{"x": 1}, {"x": 2}], squared, folder, Progress())

    def only_new(task):
        assert task["x"] == 3
        return squared(task)

    progress = Progress()
    results = run_tasks([{"x": 1}, {"x": 3}, {"x": 2}], only_new, folder, progress)
    assert [result["square"] for result in results] == [1, 9, 4]
    assert [results[0], results[2]] == first  # to the last digit of the seconds
    assert (progress.before, progress.worked) == (2, 1)


@pytest.mark.parametrize("at_once", [1, 3])
def test_a_failure_ends_the_run_and_keeps_what_was_done(folder, at_once):
    def fails_at_the_end(task):
        if task["x"] == 7:
            raise ValueError("seven")
        return squared(task)

    eight = [{"x": x} for x in range(8)]
    with pytest.raises(ValueError, match="seven"):
        run_tasks(eight, fails_at_the_end, folder, Progress(), at_once)
    progress = Progress()
    results = run_tasks(eight, squared, folder, progress)
    assert [result["square"] for result in results] == [x * x for x in range(8)]
    assert 0 < progress.before < 8


def test_half_a_file_of_a_killed_run_does_not_count(folder, tmp_path):
    """A file is written under a hidden name, and renamed."""
    run_tasks([{"x": 1}], squared, folder, Progress())
    (file,) = tmp_path.rglob("*.json")
    whole = file.read_text()
    file.unlink()
    (file.parent / f".{file.name}.writing").write_text(whole[:20])
    progress = Progress()
    assert run_tasks([{"x": 1}], squared, folder, progress)[0]["square"] == 1
    assert progress.worked == 1


def test_results_of_other_code_do_not_count(folder, monkeypatch):
    run_tasks([{"x": 1}], squared, folder, Progress())
    monkeypatch.setattr(tasks, "source_digest", lambda: "other")
    progress = Progress()
    run_tasks([{"x": 1}], squared, folder, progress)
    assert progress.worked == 1
