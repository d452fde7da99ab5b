"""Grids, folds and the rule by which a setting is chosen."""

import re
from pathlib import Path

import numpy as np
import pytest

from onebit_spark import FitConfig, RequestError, fit_arrays
from onebit_spark.cli.tune_job import as_toml, in_words
from onebit_spark.simulate import simulate
from onebit_spark.tuning.folds import FoldedSample, Sample, Score, choose, fit_fold, limit, score
from onebit_spark.tuning.grid import read_grid, settings_of

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
    assert len(read_grid()) == 12


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


@pytest.fixture(scope="module")
def sample():
    data = simulate("B1", 2, (40, 30), 0.5, seed=1)
    return Sample.of(data.rows, data.cols, data.labels, (40, 30))


def test_a_fold_is_fitted_without_its_own_ratings(sample):
    fold = np.arange(len(sample), dtype=np.int32) % 4
    config = FitConfig(rank=2, max_iter=20, tol=0)
    found = fit_fold(FoldedSample(sample, fold), 1, config)
    train, test = sample.take(fold != 1), sample.take(fold == 1)
    fit = fit_arrays(train.rows, train.cols, train.labels, config, sample.shape)
    assert found["errors"] == np.count_nonzero(fit.predict(test.rows, test.cols) != test.labels)
    assert found["errors"] < 0.35 * found["n"]
    assert (found["n"], found["iterations"], found["converged"]) == (150, 20, False)


def test_the_choice_in_words_and_as_a_config_file():
    config = FitConfig(loss="hinge", rank=5, likelihood_weight=2.0, intercepts=False)
    assert in_words(config) == (
        "loss hinge, prior inverse-gamma, likelihood weight 2.0, rank 5, intercepts False, implicit features True"
    )
    lines = as_toml(config, settings=12).splitlines()
    assert lines[:4] == ['loss = "hinge"', 'prior = "inverse-gamma"', "likelihood-weight = 2.0", "rank = 5"]
    assert lines[-1] == "certificate-grid = 12"
