"""reproduce.py from end to end, on small data; and its tasks, of which one fails in a worker."""

from dataclasses import replace

import numpy as np
import pytest
from paper import experiments, reproduction_page
from paper.methods import METHODS
from paper.tasks import on_workers, run_tasks
from support.running import run_here

from onebit_spark.data.locations import Location
from onebit_spark.simulate import simulate


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("experiments")
    data = simulate("B1", 2, (40, 30), 0.5, seed=3)
    stars = np.where(data.labels > 0, 5, 2)
    lines = zip(data.rows + 1, data.cols + 1, stars, data.rows, strict=True)
    (folder / "u.data").write_text("".join("\t".join(map(str, line)) + "\n" for line in lines))
    return folder


def results_in(folder):
    return sorted(file.read_text() for file in (folder / "tasks").rglob("*.json"))


@pytest.fixture
def few_settings(monkeypatch):
    """Two of the methods are tuned, among their first two settings and on one draw."""
    tuned = ("Logit-IG", "row + column intercepts")
    few = {
        name: replace(method, grid=method.grid[: 1 + (name in tuned)])
        for name, method in METHODS.items()
    }
    monkeypatch.setattr(experiments, "METHODS", few)
    monkeypatch.setattr(experiments, "TUNING", experiments.TUNING[:1])


def check_movielens(output, n_methods):
    text = (output / "REPRODUCTION.md").read_text()
    assert "| Logit-IG, intercepts |" in text
    assert "on 150 held-out ratings of 600, over 1 splits" in " ".join(text.split())
    assert len((output / "movielens.csv").read_text().splitlines()) == 1 + n_methods


@pytest.mark.slow
def test_movielens_on_small_data(spark, folder, few_settings, monkeypatch):
    methods = ("Logit-IG, intercepts", "row + column intercepts")
    for module in (experiments, reproduction_page):
        monkeypatch.setattr(module, "MOVIELENS_METHODS", methods)
    flags = ["--movielens", folder / "u.data", "--replicates", "1", "--output", folder / "few"]
    code, _, err = run_here("reproduce", "movielens", *flags)
    assert code == 0, err
    check_movielens(folder / "few", len(methods))
    results = results_in(folder / "few")
    assert run_here("reproduce", "movielens", *flags)[0] == 0
    assert results_in(folder / "few") == results  # no task was done again: the same seconds
    assert run_here("reproduce", "movielens", *flags, "--overwrite")[0] == 0
    assert not set(results_in(folder / "few")) & set(results)


@pytest.mark.slow
def test_all_tables_of_small_matrices(spark, folder, few_settings):
    """Every cell and method, so that nothing is missing on the page; the figures mean little at
    this size.
    """
    flags = ["--size", "40", "--replicates", "1", "--output", folder / "tables"]
    code, _, err = run_here("reproduce", "tables", *flags)
    assert code == 0, err
    text = (folder / "tables" / "REPRODUCTION.md").read_text()
    assert text.count("| *paper* |") == 12
    assert "What the true prior gives on B3, rank 5" in text


@pytest.mark.classic
def test_a_failure_in_a_worker_ends_the_run_and_keeps_what_was_done(spark, tmp_path):
    def square(task):
        if task["x"] == 3:
            raise ValueError("three")
        return {"square": task["x"] ** 2}

    folder = Location(spark, tmp_path / "tasks")
    tasks = [{"x": x} for x in range(4)]
    with pytest.raises(Exception, match="three"):
        run_tasks(tasks, on_workers(spark, square), folder, lambda *_: None)
    assert len(list((tmp_path / "tasks").rglob("*.json"))) == 3
    assert not list((tmp_path / "tasks").rglob("*.crc"))
    again = run_tasks(tasks, lambda task: {"square": task["x"] + 6}, folder, lambda *_: None)
    assert [result["square"] for result in again] == [0, 1, 4, 9]
