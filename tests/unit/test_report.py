"""report.html: whole in one file, right in its figures, and clean in a real browser."""

import dataclasses
import re
import shutil
import subprocess

import numpy as np
import pytest
from matplotlib.figure import Figure

from onebit_spark import FitConfig, Terms, fit_arrays
from onebit_spark.model_info import ModelInfo, scale_fields
from onebit_spark.predict.metrics import reliability
from onebit_spark.report.page import report
from onebit_spark.report.plots import plots

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)

CERTIFICATE = {
    "headline": "seeger",
    "certificates": [
        {
            "name": "seeger",
            "bound": 0.374,
            "vacuous": False,
            "delta": 0.05,
            "bounds": "Gibbs: predictions by fresh draws from the posterior",
            "statement": "At most 37.4% <on new ones>.",
        },
        {
            "name": "catoni",
            "bound": 0.61,
            "vacuous": True,
            "delta": 0.05,
            "statement": "At most 61%.",
        },
    ],
}


@pytest.fixture(scope="module")
def info():
    rng = np.random.default_rng(1)
    rows = rng.integers(0, 40, 900)
    cols = rng.integers(0, 30, 900)
    labels = np.where(rng.normal(size=40)[rows] * rng.normal(size=30)[cols] + 0.3 > 0, 1, -1)
    fit = fit_arrays(rows, cols, labels, FitConfig(rank=4, max_iter=8, tol=0), threads=1)
    score = fit.score(rows, cols)
    bins, place = np.unique(np.floor(score / 0.1), return_inverse=True)
    curve = reliability(labels, fit.probability(rows, cols))
    return ModelInfo(
        parameters=dataclasses.asdict(fit.config) | {"likelihood_weight": 1.0},
        n_ratings=900,
        n_users=40,
        n_items=30,
        n_positive=int(np.sum(labels > 0)),
        objective_history=fit.objective_history,
        iterations=8,
        converged=False,
        reason="max_iter = 8 reached",
        effective_rank=fit.effective_rank,
        **scale_fields(fit.scales),
        label_coding="signed",
        threshold=None,
        majority=1,
        columns={"user": "<who>", "item": "what", "label": "said"},
        id_types={"user": "int", "item": "int"},
        seconds={"survey": 0.25, "fit": 1.5},
        repeats={"repeated_cells": 7, "repeated": 12, "conflicting": 3},
        diagnostics={
            "source": "held-out ratings",
            "fitted": False,
            "n": 900,
            "error": 0.1234,
            "calibration_error": curve.error,
            "reliability": curve.as_dict(),
            "scores": {
                "width": 0.1,
                "low": (bins * 0.1).tolist(),
                "positive": np.bincount(place, weights=labels > 0).tolist(),
                "negative": np.bincount(place, weights=labels < 0).tolist(),
            },
            "risk_coverage": {"share": [0.1, 0.5, 1.0], "error": [0.02, 0.05, 0.1234]},
        },
    )


@pytest.fixture(scope="module")
def bare(info):
    """Only its objective and its factors are drawn."""
    return dataclasses.replace(info, diagnostics=None)


@pytest.fixture(scope="module")
def page(info):
    return report(info, CERTIFICATE)


@pytest.fixture
def undrawn(monkeypatch):
    """Plots take a third of a second each: here their words are tested."""
    monkeypatch.setattr("onebit_spark.report.plots.Plot.svg", lambda plot: "<svg")


def test_it_says_what_was_fitted(page):
    for text in (
        "900 ratings of 40 users on 30 items",
        "12.3%",
        "logistic loss",
        "&lt;who&gt;",
        "≤ 37.4%",
        "0.25",
    ):
        assert text in page
    assert "At most 37.4% &lt;on new ones&gt;." in page
    # The headline first
    assert page.index("<b>seeger, 0.374.</b>") < page.index("<b>catoni, 0.610.</b>")
    assert page.count("<svg") == 5
    assert "look better than they are" not in page


@pytest.mark.usefixtures("undrawn")
def test_error_and_majority_are_of_the_same_ratings(info):
    """90% of the fitted ratings are positive, and 40% of the held-out ones."""
    scores = {"width": 0.1, "low": [-0.1, 0.1], "positive": [100, 300], "negative": [500, 100]}
    shown = dataclasses.replace(
        info, n_positive=810, majority=1, diagnostics={**info.diagnostics, "scores": scores}
    )
    tile = (
        r"<b>60.0%</b><span>of the same ratings are predicted wrongly by the majority class "
        r"alone</span>"
    )
    assert tile in report(shown)
    assert tile.replace("60", "40") in report(dataclasses.replace(shown, majority=-1))


def test_plots_have_titles_words_for_axes_and_a_text_for_those_who_do_not_see_them(info, page):
    titles = ["Convergence", "Factors", "Probabilities", "Scores", "Answering only confident pairs"]
    assert re.findall(r"<figure><h3>(.*?)</h3>", page) == titles
    alts = re.findall(r'<svg role="img" aria-label="(.*?)"', page)
    assert len(alts) == len(titles)
    assert f"the objective fell from {info.objective_history[0]:,.6g} to" in alts[0]
    assert "12.3% are on the wrong side of 0" in alts[3]
    axes = [Figure().add_subplot() for _ in titles]
    for plot, where in zip(plots(info), axes, strict=True):
        plot.draw(where)
    assert [where.get_ylabel() for where in axes[:2]] == [
        "objective above its last value",
        "scale of a factor",
    ]
    assert all(where.get_xlabel() and where.get_ylabel() for where in axes)


@pytest.mark.usefixtures("undrawn")
def test_orange_bars_are_explained_where_there_are_some(info):
    some, none = (dataclasses.replace(info, effective_rank=rank) for rank in (3, 4))
    assert "switched off the orange ones" in report(some)
    assert "orange" not in report(none).split("</style>", 1)[1].replace("var(--orange)", "")


@pytest.mark.usefixtures("undrawn")
def test_the_job_and_its_seconds(info, page):
    assert "survey" in page  # without a job: the seconds of the fit
    job = {
        "date": "2024-05-06 07:08 UTC",
        "version": "9.8",
        "input": "a<b.parquet",
        "command": "onebit-spark fit --ratings 'a<b.parquet'",
        "seconds": {"reading": 1.25, "iterations": 3.5},
    }
    shown = report(dataclasses.replace(info, diagnostics={**info.diagnostics, "job": job}))
    assert "2024-05-06 07:08 UTC, onebit_spark 9.8, from a&lt;b.parquet" in shown
    assert "<code>onebit-spark fit --ratings &#x27;a&lt;b.parquet&#x27;</code>" in shown
    assert "<th>reading</th><td>1.25</td>" in shown
    assert "survey" not in shown


def test_dark_screens_have_colours_of_their_own(page):
    style, body = page.split("</style>", 1)
    assert "prefers-color-scheme: dark" in style
    for name in set(re.findall(r"var\((--\w+)\)", page)):
        assert style.count(f"{name}:") == 2  # bright and dark
    assert not re.search(r"(?:fill|stroke): #(?!000000)", body)


@pytest.mark.usefixtures("undrawn")
def test_names_in_backticks_are_code(tmp_path):
    """Sentences of certificates have such names."""
    config = FitConfig(rank=1, implicit_features=False, likelihood_weight=1.0)
    rng = np.random.default_rng(1)
    i, j = np.nonzero(rng.random((40, 30)) < 0.5)
    fit = fit_arrays(i, j, rng.random(len(i)) < 0.8, config, certify=Terms())
    fit.report(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "random draws from the model (<code>sample</code>)" in page
    assert "`" not in page


@pytest.mark.usefixtures("undrawn")
def test_a_full_rank_promises_nothing(bare):
    """More factors help some data and not others, and trying several is a comparison of
    settings.
    """
    full, spare = (report(dataclasses.replace(bare, effective_rank=rank), {}) for rank in (4, 3))
    assert "a larger rank may or may not predict better" in full
    assert "--certificate-grid" in full
    assert "Every factor is in use" not in spare


@pytest.mark.usefixtures("undrawn")
def test_a_vacuous_headline_is_no_headline(info):
    only = {"headline": "catoni", "certificates": CERTIFICATE["certificates"][1:]}
    assert "certified" not in report(info, only)


@pytest.mark.usefixtures("undrawn")
def test_certified_points_are_on_the_curve(info):
    common = {"name": "selective", "delta": 0.05, "statement": "It answers.", "group": None}
    met = {**common, "bound": 0.08, "request": 0.08, "threshold": 0.5, "vacuous": False}
    met |= {"answered_share": 0.66, "n_answered": 594, "errors": 37}
    unmet = {
        **common,
        "bound": 1.0,
        "request": 0.01,
        "threshold": None,
        "vacuous": True,
        "answered_share": 0.0,
    }
    ours, bare = (
        report(info, {"headline": None, "certificates": found})
        for found in ([met, unmet, {**met, "group": {}}], [])
    )
    assert "Orange points: certified" in ours
    assert "Orange points: certified" not in bare
    assert "<b>selective, 0.080.</b> It answers." in ours
    assert "<b>selective, not met.</b> It answers." in ours
    in_group = {**CERTIFICATE["certificates"][0], "group": {"column": "age", "value": "1"}}
    assert "≤ 37.4%" not in report(info, {"headline": "seeger", "certificates": [in_group]})


def test_a_rare_class_has_its_own_figures_and_curve(info):
    figures = {"precision": 0.8, "recall": 0.25, "average_precision": 0.5}
    figures |= {
        "negative_precision": None,
        "negative_recall": 0.0,
        "negative_average_precision": 0.99,
    }
    scores = info.diagnostics["scores"]
    few = {**scores, "positive": [value * 0.05 for value in scores["positive"]]}
    calls = {"positive": [1, 2, 10, 40], "negative": [500, 300, 60, 10]}
    seen = info.diagnostics | figures | {"scores": few, "calls": calls}
    skewed = dataclasses.replace(info, diagnostics=seen, majority=-1)
    common = {
        "name": "precision",
        "class": "positive",
        "delta": 0.05,
        "statement": "It calls.",
        "group": None,
    }
    met = {
        **common,
        "bound": 0.7,
        "request": 0.7,
        "threshold": -0.5,
        "vacuous": False,
        "majority_error": 0.05,
    }
    met |= {
        "answered_share": 0.1,
        "n_answered": 60,
        "errors": 15,
        "found_share": 0.85,
        "found_limit": 0.6,
    }
    unmet = {
        **common,
        "bound": 0.0,
        "request": 0.99,
        "threshold": None,
        "vacuous": True,
        "found_share": 0.0,
        "found_limit": 0.0,
    }
    holdout = {**CERTIFICATE["certificates"][0], "name": "holdout", "majority_error": 0.05}
    certificate = {"headline": "holdout", "certificates": [holdout, met, unmet]}
    page = report(skewed, certificate)
    balanced = report(info, certificate)
    assert "average precision for positives, in random order" in page
    assert "predicted positive: precision 80.0%, recall 25.0%" in page
    assert (
        "<b>≥ 70.0%</b><span>of the pairs called positive are positive, at least 60.0% of all "
        "positives: " in page
    )
    assert page.count("<svg") == balanced.count("<svg") + 1
    assert "<h3>Calling pairs positive</h3>" in page
    assert "Orange points: certified." in page
    assert "<b>precision, 0.700.</b> It calls." in page
    assert "<b>precision, not met.</b> It calls." in page
    assert "average precision" not in balanced


@pytest.mark.usefixtures("undrawn")
def test_less_is_shown_where_less_is_known(info, bare):
    page = report(bare)
    assert page.count("<svg") == 2
    assert "limits on its errors" not in page
    trained = dataclasses.replace(info, diagnostics=info.diagnostics | {"fitted": True})
    assert "look better than they are" in report(trained)


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("name", "whose"),
    [
        ("seeger", "errors of draws from the posterior, not predictions: "),
        ("holdout", "errors of the model&#x27;s predictions: certified"),
    ],
)
def test_the_tile_says_whose_errors_are_certified(bare, name, whose):
    certificate = {**CERTIFICATE["certificates"][0], "name": name, "delta": 0.001}
    page = report(bare, {"headline": name, "certificates": [certificate]})
    tile = re.search(r"<b>≤ 37.4%</b><span>([^<]*)</span>", page)[1]
    assert tile.startswith(whose)
    assert tile.endswith("with confidence 99.9%")


def test_nothing_is_fetched(page):
    assert re.findall(r'(?:src|href)="(?!#|data:)', page) == []
    assert "url(http" not in page
    assert "<script" not in page


@pytest.mark.skipif(BROWSER is None, reason="no chromium or chrome to open the report with")
def test_in_a_real_browser(page, tmp_path):
    """Rendered without a complaint, figures and all: the picture has the plots' blue and orange in
    many places.
    """
    path = tmp_path / "report.html"
    picture = tmp_path / "report.png"
    path.write_text(page, encoding="utf-8")
    done = subprocess.run(
        [
            BROWSER,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--enable-logging=stderr",
            "--window-size=1100,1600",
            f"--user-data-dir={tmp_path / 'profile'}",
            f"--screenshot={picture}",
            path.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "CONSOLE" not in done.stderr
    from matplotlib.image import imread

    pixels = imread(picture)[:, :, :3]
    for colour in ((0x2B, 0x6C, 0xB0), (0xC0, 0x56, 0x21)):
        near = np.all(np.abs(pixels - np.array(colour) / 255) < 0.02, axis=2)
        assert near.sum() > 300
    assert picture.stat().st_size > 50_000
