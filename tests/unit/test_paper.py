"""The paper's experiments: the tasks they are made of, how settings are chosen, and the page that is written."""

import hashlib
import http.server
import json
import threading
import zipfile
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
from paper import experiments as paper
from paper import figures
from paper import reproduction_page as page
from paper.comparison import paired_comparison
from paper.methods import METHODS
from paper.movielens import download_movielens, read_movielens
from paper.published import PUBLISHED_ERRORS
from paper.samples import folds, split

from onebit_spark import RequestError
from onebit_spark.simulate import simulate
from onebit_spark.tuning import Sample

META = {
    "date": "2024-01-01", "commit": "abc", "machine": "m, 2 cores", "versions": "v", "draws": 2, "seeds": "0 to 1",
    "tuning_seeds": "7", "fits": 5, "task_seconds": 60.0, "slots": 2, "wall_seconds": 30.0,
}  # fmt: skip


class Recorder:
    """Runs tasks by a plain function, and keeps them."""

    def __init__(self, work):
        self.work, self.tasks = work, []

    def __call__(self, tasks):
        self.tasks += tasks
        return [self.work(task) for task in tasks]


def test_the_setting_with_the_fewest_errors_is_reported_and_tuned_on_other_draws():
    grid = METHODS["freq. Logit"].grid
    best = grid[3]

    def work(task):
        if task["do"] == "draw":
            return {"error": 0.25}
        return {"errors": [5, 4] if task["setting"] == best else [5, 5 + task["seed"] % 2], "sizes": [50, 50]}

    cases = tuple(paper.Case.of({"kind": kind}, "freq. Logit") for kind in ("A1", "B1"))
    experiment = paper.Experiment("x", cases, (0, 1, 2), (11, 12))
    recorder = Recorder(work)
    records = experiment.run(recorder)
    assert len(recorder.tasks) == experiment.n_tasks == 2 * (2 * len(grid) + 3)
    assert {task["seed"] for task in recorder.tasks if task["do"] == "tune"} == {11, 12}
    assert [(record["kind"], record["seed"]) for record in records] == [(k, s) for k in ("A1", "B1") for s in range(3)]
    assert all(record["setting"] == best and record["error"] == 0.25 for record in records)


def test_the_tables_hold_every_cell_of_the_paper():
    cases = paper.tables(1).cases
    cells = {(case.data["rank"], case.data["kind"], case.method) for case in cases}
    assert set(PUBLISHED_ERRORS) <= cells
    assert cells - set(PUBLISHED_ERRORS) == {(rank, "B3", f"known prior, K = {rank}") for rank in (3, 5)}


def test_no_reported_draw_has_had_a_say_in_a_setting():
    sample = Sample.of(np.arange(8), np.arange(8), np.ones(8), (8, 8))
    for experiment in (paper.tables(20), paper.noise(10), paper.movielens(sample, 10)):
        assert not set(experiment.seeds) & {*experiment.tuning_seeds, *range(240)}


@pytest.mark.slow
def test_tasks_are_json_and_every_setting_fits():
    """One tiny fit of every method under its first and last setting."""
    for name, method in METHODS.items():
        for setting in {json.dumps(setting) for setting in (method.grid[0], method.grid[-1])}:
            cell = {"kind": "B1", "rank": 2, "switch": 0.1, "size": 24}
            task = {"do": "draw", **cell, "method": name, "setting": json.loads(setting), "seed": 0}
            assert 0 <= paper.simulation_task(task)["error"] <= 1


def test_a_simulation_task_measures_all_cells_and_cross_validates_the_observed_ones():
    cell = {"kind": "A1", "rank": 2, "switch": 0.1, "size": 60, "method": "HL-IG", "seed": 3}
    setting = {"kappa": 2.0, "alpha": 0.25, "beta": 0.00025}
    drawn = paper.simulation_task({"do": "draw", **cell, "setting": setting})
    assert drawn["error"] < 0.1
    tuned = paper.simulation_task({"do": "tune", **cell, "setting": setting})
    assert sum(tuned["sizes"]) == 720  # 20% of 60 × 60
    assert sum(tuned["errors"]) < 0.15 * 720


# ---- MovieLens -------------------------------------------------------------------------------------------------------

LINES = "196\t242\t3\t881250949\n186\t302\t4\t891717742\n196\t302\t5\t878887116\n"


def test_u_data_is_read_and_so_is_the_archive(tmp_path):
    (tmp_path / "u.data").write_text(LINES)
    with zipfile.ZipFile(tmp_path / "ml-100k.zip", "w") as archive:
        archive.writestr("ml-100k/u.data", LINES)
    for name in ("u.data", "ml-100k.zip"):
        sample = read_movielens(tmp_path / name)
        assert sample.shape == (2, 2)
        assert [part.tolist() for part in (sample.rows, sample.cols, sample.labels)] == [
            [1, 0, 1],
            [0, 1, 1],
            [-1, 1, 1],
        ]


@pytest.fixture
def server(tmp_path):
    """An archive at http://…/ml-100k.zip; yields its folder and address."""
    served = tmp_path / "served"
    served.mkdir()
    with zipfile.ZipFile(served / "ml-100k.zip", "w") as archive:
        archive.writestr("ml-100k/u.data", LINES)

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=served)) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield served, f"http://127.0.0.1:{running.server_address[1]}/ml-100k.zip"
        running.shutdown()


def test_the_archive_is_fetched_once_and_checked(tmp_path, server):
    served, url = server
    right = hashlib.sha256((served / "ml-100k.zip").read_bytes()).hexdigest()
    data = tmp_path / "data"
    with pytest.raises(RequestError, match=f"its SHA-256 is {right}, expected 0000"):
        download_movielens(data, url, "0000")
    assert list(data.iterdir()) == []  # nothing wrong is left to be found next time
    path = download_movielens(data, url, right)
    assert len(read_movielens(path)) == 3
    (served / "ml-100k.zip").unlink()
    assert download_movielens(data, url, right) == path  # it is there already
    path.write_bytes(b"damaged")
    with pytest.raises(RequestError, match=r"cannot be fetched: HTTP Error 404.*--movielens PATH"):
        download_movielens(data, url, right)


def test_a_movielens_task_tests_on_what_it_did_not_see():
    data = simulate("B1", 2, (60, 50), 0.5, seed=2)
    sample = Sample.of(data.rows, data.cols, data.labels, (60, 50))
    experiment = paper.movielens(sample, 2)
    only = replace(experiment, cases=tuple(case for case in experiment.cases if case.method == "majority class"))
    records = only.run(Recorder(partial(paper.movielens_task, sample=sample)))
    assert [record["seed"] for record in records] == [1000, 1001]
    for record in records:
        train, test = split(sample, 375, record["seed"])
        share = np.mean(test.labels != (1 if np.mean(train.labels) > 0 else -1))
        assert (record["error"], record["n_test"]) == (share, 375)


@pytest.fixture(scope="module")
def sample():
    data = simulate("B1", 2, (40, 30), 0.5, seed=1)
    return Sample.of(data.rows, data.cols, data.labels, (40, 30))


def test_folds_cut_a_sample_into_parts(sample):
    parts = list(folds(sample, 3, seed=5))
    cells = [set(zip(test.rows.tolist(), test.cols.tolist(), strict=True)) for _, test in parts]
    assert sum(map(len, cells)) == len(set.union(*cells)) == len(sample)
    assert all(len(train) + len(test) == len(sample) for train, test in parts)
    again = [test.rows for _, test in folds(sample, 3, seed=5)]
    assert all(np.array_equal(test.rows, rows) for (_, test), rows in zip(parts, again, strict=True))
    train, test = split(sample, 100, seed=5)
    assert (len(train), len(test)) == (500, 100)


# ---- the page --------------------------------------------------------------------------------------------------------


def table_records(errors, draws=(0, 1)):
    """Records of the tables with the given error in % (and ±.1 around it over two draws)."""
    return pd.DataFrame(
        [
            {**case.data, "method": case.method, "setting": "{}", "seed": seed, "error": (errors(case) + wobble) / 100}
            for case in paper.tables(1).cases
            for seed, wobble in zip(draws, (-0.1, 0.1), strict=True)
        ]
    )


def published(case):
    return PUBLISHED_ERRORS.get((case.data["rank"], case.data["kind"], case.method), 19.0)


def test_the_tables_stand_beside_the_papers():
    text = page.tables_section(table_records(published), META)
    assert "| A3 | 16.00 ± 0.10 (0.14) |" in text
    assert "| *paper* | *16* | *15.9* | *8.5* | *8.5* | *17.3* |" in text
    assert "Above the paper: no cell" in text
    assert "Below the paper: no cell" in text
    assert "in 0 of 12 cells" in text
    assert "has 19.00 ± 0.10 (0.14) on the same draws" in " ".join(text.split())


def test_differences_beyond_two_standard_deviations_are_named():
    def moved(case):
        cell = (case.data["rank"], case.data["kind"], case.method)
        return published(case) + {(3, "B3", "Logit-G"): 1.0, (5, "A3", "HL-IG"): -1.0, (3, "B1", "HL-G"): 0.3}.get(
            cell, 0
        )

    text = " ".join(page.tables_section(table_records(moved), META).split())
    assert "Above the paper: Logit-G on B3, rank 3 (17.00; paper 16)." in text
    assert "Below the paper: HL-IG on A3, rank 5 (25.70; paper 26.7)." in text


def test_the_noise_section_and_its_figure():
    records = pd.DataFrame(
        [
            {**case.data, "method": case.method, "setting": "{}", "seed": seed, "error": case.data["switch"] / 2.4}
            for case in paper.noise(1).cases
            for seed in (0, 1)
        ]
    )
    text = page.noise_section(records, META)
    assert "| 40% | 16.67 ± 0.00 (0.00) |" in text
    assert "less than 10% error at 0%, 5%, 10%, 15%, 20% noise" in text
    assert figures.noise(records).startswith(b"\x89PNG")


def test_the_corrected_comparison():
    """By hand: J = 4, s² = 5/3·1e−4, variance of the mean (1/4 + 1/9)·s²; t with 3 degrees of freedom."""
    found = paired_comparison([0.01, 0.02, 0.03, 0.04], 1 / 9)
    error = np.sqrt((1 / 4 + 1 / 9) * 5 / 3 * 1e-4)
    assert found.mean == pytest.approx(0.025)
    assert found.high - found.mean == pytest.approx(3.182446 * error, rel=1e-6)
    assert found.low == pytest.approx(2 * found.mean - found.high)
    assert 0.04 < found.p_value < 0.06
    assert paired_comparison([0.0, 0.0], 0.1).p_value == 1.0
