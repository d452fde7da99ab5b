"""tune.py and reproduce.py from end to end: small data, killed on the way, and started again."""

import json
import sys
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
from paper import experiments, reproduction_page
from paper.methods import METHODS
from running import ROOT, run, run_here, started, wait_for, write

from onebit_spark.simulate import simulate

GRIDS = {  # of two settings, and of eight
    "few": "rank = [2]\nintercepts = true\nlikelihood-weight = [0.5, 1.0]\nimplicit-features = false\n",
    "many": "rank = [2, 3]\nintercepts = [false, true]\nlikelihood-weight = [0.5, 1.0]\nimplicit-features = false\n",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("experiments")
    data = simulate("B1", 2, (40, 30), 0.5, seed=3)
    stars = np.where(data.labels > 0, 5, 2)
    write(folder / "ratings", {"user": data.rows, "item": data.cols, "stars": stars})
    lines = zip(data.rows + 1, data.cols + 1, stars, data.rows, strict=True)
    (folder / "u.data").write_text("".join("\t".join(map(str, line)) + "\n" for line in lines))
    for name, grid in GRIDS.items():
        (folder / f"{name}.toml").write_text(grid)
    return folder


def killed_half_way(log, tasks, *command):
    """Start a job, and kill it once there are a few results. How many."""
    with started(command, log) as process:
        wait_for(lambda: len(list(tasks.rglob("*.json"))) >= 3, process, log)
    return len(list(tasks.rglob("*.json")))


def lines_of(tasks):
    return [json.loads(file.read_text()) for file in tasks.rglob("*.json")]


def tuning(folder, output, grid="few"):
    """The command that tunes into a folder, in three folds."""
    return [
        sys.executable, ROOT / "jobs" / "tune.py", "--ratings", folder / "ratings", "--label-col", "stars",
        "--threshold", "3.5", "--grid", folder / f"{grid}.toml", "--folds", "3", "--max-iter", "20", "--output", output,
    ]  # fmt: skip


@pytest.fixture(scope="module")
def tuned(spark, folder):
    """A folder with an uninterrupted tuning, and what it printed."""
    code, out, err = run_here("tune", *tuning(folder, folder / "tuned")[2:])
    assert code == 0, err
    return folder / "tuned", out


def check_tuned(output, printed, n_settings):
    assert f"{n_settings} settings, 3 folds of 600 ratings: {3 * n_settings} fits, one worker each." in printed
    assert len(lines_of(output / "tasks")) == 3 * n_settings
    folds, settings = pq.read_table(output / "folds").to_pylist(), pq.read_table(output / "settings").to_pylist()
    assert len(folds) == 3 * n_settings
    assert sum(line["n"] for line in folds) == n_settings * 600
    (chosen,) = [line for line in settings if line["chosen"]]
    lowest = min(settings, key=lambda line: line["error"])
    assert chosen["error"] <= lowest["error"] + lowest["standard_error"]
    assert (output / "tuning.png").read_bytes().startswith(b"\x89PNG")
    model = json.loads((output / "model" / "metadata.json").read_text())
    assert model["n_ratings"] == 600
    assert {name: model["parameters"][name] for name in ("rank", "intercepts", "likelihood_weight")} == {
        name: chosen[name] for name in ("rank", "intercepts", "likelihood_weight")
    }
    assert not list(output.glob(".*"))


def test_tuning(tuned):
    """The certificates of the winner say that two settings were compared, now and wherever its settings are read."""
    output, printed = tuned
    check_tuned(output, printed, n_settings=2)
    certificates = json.loads((output / "model" / "certificate.json").read_text())["certificates"]
    assert {item["grid"] for item in certificates} == {2}
    assert "certificate-grid = 2" in (output / "best.toml").read_text().splitlines()


@pytest.mark.slow
def test_tuning_where_it_was_killed(folder):
    output = folder / "killed"
    command = tuning(folder, output, "many")
    assert 3 <= killed_half_way(folder / "killed.log", output / "tasks", *command) < 24
    assert not (output / "model").exists()
    before = {json.dumps(line) for line in lines_of(output / "tasks")}
    done = run(command)
    assert done.returncode == 0, done.stdout
    check_tuned(output, done.stdout, n_settings=8)
    assert before < {json.dumps(line) for line in lines_of(output / "tasks")}  # none was done again: the same seconds


def test_a_tuned_folder_is_not_replaced(folder, tuned):
    output, _ = tuned
    code, _, err = run_here("tune", *tuning(folder, output)[2:])
    assert code == 2
    assert err.splitlines()[-1].startswith(f"error: --output {output} exists already")


@pytest.mark.slow
def test_the_best_settings_are_a_config_file(folder, tuned):
    output, _ = tuned
    model = json.loads((output / "model" / "metadata.json").read_text())
    flags = ["--label-col", "stars", "--threshold", "3.5", "--config", output / "best.toml", "--no-report"]
    code, _, err = run_here("fit", "--ratings", folder / "ratings", *flags, "--output", folder / "refit")
    assert code == 0, err
    assert json.loads((folder / "refit" / "metadata.json").read_text())["parameters"] == model["parameters"]


@pytest.fixture
def few_settings(monkeypatch):
    """Two of the methods are tuned, among their first two settings and on one draw."""
    tuned = ("Logit-IG", "row + column intercepts")
    few = {name: replace(method, grid=method.grid[: 1 + (name in tuned)]) for name, method in METHODS.items()}
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


@pytest.mark.slow
def test_all_tables_of_small_matrices(spark, folder, few_settings):
    """Every cell and method, so that nothing is missing on the page; the figures mean little at this size."""
    flags = ["--size", "40", "--replicates", "1", "--output", folder / "tables"]
    code, _, err = run_here("reproduce", "tables", *flags)
    assert code == 0, err
    text = (folder / "tables" / "REPRODUCTION.md").read_text()
    assert text.count("| *paper* |") == 12
    assert "What the true prior gives on B3, rank 5" in text
