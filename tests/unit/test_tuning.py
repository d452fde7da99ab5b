"""Grids, folds, tasks that are done once, and the rule by which a setting is chosen."""

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from onebit_spark import FitConfig, RequestError, fit_arrays, tuning
from onebit_spark.cli.tune_job import as_toml, in_words
from onebit_spark.input.ratings import ArrowRatings, Columns
from onebit_spark.input.tables import ArrowTable
from onebit_spark.platform.files import Location
from onebit_spark.simulate import simulate
from onebit_spark.tuning import (
    Sample,
    Score,
    choose,
    fit_fold,
    folded_sample,
    limit,
    local_validation,
    read_grid,
    run_tasks,
    score,
    settings_of,
)

ROOT = Path(__file__).resolve().parents[2]


def test_a_grid_is_every_combination():
    text = "rank = [5, 10]\nintercepts = [true, false]\nlikelihood-weight = 2"
    assert settings_of(text, "x") == [
        {"rank": rank, "intercepts": intercepts, "likelihood_weight": 2}
        for rank in (5, 10)
        for intercepts in (True, False)
    ]


def test_grids_follow_each_other_and_nothing_is_tried_twice():
    text = '[[grid]]\nrank = [2, 3]\n[[grid]]\nloss = "hinge"\n[[grid]]\nrank = [3]\n'
    assert settings_of(text, "x") == [{"rank": 2}, {"rank": 3}, {"loss": "hinge"}]


def test_the_commented_grid_is_the_default():
    assert read_grid(str(ROOT / "conf" / "grid.toml")) == read_grid()
    assert len(read_grid()) == 8


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "rank = [0, 5]\nalpha = [-1.0]",
            "rank must be an integer of at least 1 or auto, not 0; alpha must be a positive",
        ),
        ('likelihood-weight = ["auto"]', "likelihood-weight must be a number here"),
        ("ranks = [5]", "unknown key 'ranks'; allowed keys: loss, prior, likelihood-weight"),
        ("rank = ", "g is not TOML"),
        ("", "it holds no setting"),
        ("rank = []", "it holds no setting"),
        ("grid = 3", "tables [[grid]]"),
        ("rank = 3\n[[grid]]\nrank = 4", "not both"),
    ],
)
def test_bad_grids_are_refused(text, words):
    with pytest.raises(RequestError, match=re.escape(words)):
        settings_of(text, "g")


def test_a_missing_grid_is_refused(tmp_path):
    with pytest.raises(RequestError, match="cannot be read: No such file"):
        read_grid(str(tmp_path / "none.toml"))


def scored(error, standard_error=0.01, **choices):
    return Score(FitConfig(**choices), error, standard_error, 0.5, 1.0)


def test_the_cheapest_within_a_standard_error_is_chosen():
    lowest = scored(0.20, rank=20)
    cheap = scored(0.209, 0.5, rank=5, intercepts=False)
    scores = [
        scored(0.2101, rank=2),  # beyond the limit, however small
        lowest,
        scored(0.205, rank=5),  # with intercepts
        scored(0.2095, rank=5, intercepts=False),
        cheap,
    ]
    assert limit(scores) == pytest.approx(0.21)
    assert choose(scores) is cheap
    assert choose([lowest]) is lowest


def test_the_score_is_over_folds_not_over_ratings():
    folds = [
        {"errors": 1, "n": 10, "log_loss": 1.0, "seconds": 1.0},
        {"errors": 9, "n": 30, "log_loss": 2.0, "seconds": 2.0},
    ]
    found = score(FitConfig(), folds)
    assert found.error == pytest.approx(0.2)
    assert found.standard_error == pytest.approx(0.1)  # sd √.02 over √2
    assert (found.log_loss, found.seconds) == (1.75, 3.0)


def test_a_fold_is_fitted_without_its_own_ratings():
    data = simulate("B1", 2, (40, 30), 0.5, seed=1)
    sample, fold = Sample.of(data.rows, data.cols, data.labels, (40, 30)), np.arange(len(data.rows)) % 4
    config = FitConfig(rank=2, max_iter=20, tol=0)
    train, test = sample.take(fold != 1), sample.take(fold == 1)
    found = fit_fold(sample, fold == 1, config)
    fit = fit_arrays(train.rows, train.cols, train.labels, config, sample.shape)
    assert found["errors"] == np.count_nonzero(fit.predict(test.rows, test.cols) != test.labels)
    assert found["errors"] < 0.35 * found["n"]
    assert (found["n"], found["iterations"], found["converged"]) == (150, 20, False)


@pytest.fixture(scope="module")
def table():
    """Text ids, labels 0/1; every cell was rated twice, with opposite labels."""
    data = simulate("B1", 2, (40, 30), 0.5, seed=4)
    users, items = (np.char.add(name, index.astype(str)) for name, index in (("u", data.rows), ("i", data.cols)))
    labels = (data.labels > 0).astype(np.int32)
    return pa.table({"user": np.tile(users, 2), "item": np.tile(items, 2), "label": np.append(labels, 1 - labels)})


def folded(table, seed=1):
    ratings = ArrowRatings(ArrowTable.of(table), Columns()).divided().to_fit
    return ratings, *folded_sample(ratings, 5, seed)


def test_the_folded_ratings_are_those_that_came_in(table):
    ratings, sample, _ = folded(table)
    users, items = ratings.users.to_pylist(), ratings.items.to_pylist()
    lines = [(users[i], items[j], int(y > 0)) for i, j, y in zip(sample.rows, sample.cols, sample.labels, strict=True)]
    assert sorted(lines) == sorted(zip(*(table[name].to_pylist() for name in table.column_names), strict=True))


def test_folds_depend_on_the_cell_and_the_seed_only(table):
    _, sample, fold = folded(table)
    _, shuffled, other = folded(table.take(np.random.default_rng(0).permutation(len(table))))
    for name in ("rows", "cols"):
        np.testing.assert_array_equal(getattr(sample, name), getattr(shuffled, name))
    np.testing.assert_array_equal(fold, other)
    assert np.bincount(fold).min() > 150  # fifths of 1,200
    assert not np.array_equal(folded(table, seed=2)[2], fold)


def test_all_ratings_of_a_cell_are_held_out_together(table):
    """Otherwise the − of a cell would be used to predict its +."""
    _, sample, fold = folded(table)
    cells = set(zip(sample.rows, sample.cols, strict=True))
    assert 2 * len(cells) == len(sample)
    assert len(set(zip(sample.rows, sample.cols, fold, strict=True))) == len(cells)


def test_other_ratings_folds_seeds_and_settings_are_other_tasks(table):
    def keys(table=table, folds=2, seed=1, **settings):
        with local_validation(ArrowTable.of(table), Columns(), folds, seed, 10**6) as validation:
            return [str(task) for task in validation.tasks([FitConfig(**settings)])]

    assert len({*keys(), *keys(table.slice(1)), *keys(folds=3), *keys(seed=2), *keys(rank=3)}) == 2 + 2 + 3 + 2 + 2


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

    tasks = [{"x": x} for x in range(8)]
    with pytest.raises(ValueError, match="seven"):
        run_tasks(tasks, fails_at_the_end, folder, Progress(), at_once)
    progress = Progress()
    results = run_tasks(tasks, squared, folder, progress)
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
    monkeypatch.setattr(tuning, "source_digest", lambda _: "other")
    progress = Progress()
    run_tasks([{"x": 1}], squared, folder, progress)
    assert progress.worked == 1


def test_the_choice_in_words_and_as_a_config_file():
    config = FitConfig(loss="hinge", rank=5, likelihood_weight=2.0, intercepts=False)
    assert in_words(config) == (
        "loss hinge, prior inverse-gamma, likelihood weight 2.0, rank 5, intercepts False, implicit features True"
    )
    lines = as_toml(config, settings=12).splitlines()
    assert lines[:4] == ['loss = "hinge"', 'prior = "inverse-gamma"', "likelihood-weight = 2.0", "rank = 5"]
    assert lines[-1] == "certificate-grid = 12"
