"""The notebooks of the documentation, cell by cell, with real data where they are and simulated
ones elsewhere.
"""

import contextlib
import io
import json
import os
from pathlib import Path

import matplotlib
import pytest
from support.guides import ROOT, assert_prints, snippets

NOTEBOOKS = Path(__file__).parents[2] / "docs" / "notebooks"


def cells(name):
    content = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in content["cells"] if cell["cell_type"] == "code"]


def run(name):
    """What the cells leave behind, and how many figures they have drawn."""
    matplotlib.use("Agg")
    left = {}
    for number, cell in enumerate(cells(name)):
        exec(compile(cell, f"{name}, cell {number}", "exec"), left)
    drawn = len(left["plt"].get_fignums())
    left["plt"].close("all")
    return left, drawn


def choose(data, file, monkeypatch, tmp_path):
    """Let a notebook find the real data, or none."""
    if data == "simulated":
        monkeypatch.setenv("ONEBIT_DATA", str(tmp_path))
    elif not (Path(os.environ.get("ONEBIT_DATA", "data")) / file).exists():
        pytest.skip(f"{file} is not in the folder ONEBIT_DATA")


@pytest.mark.slow
@pytest.mark.parametrize("data", ["real", "simulated"])
def test_films(spark, monkeypatch, tmp_path, data):
    choose(data, "ml-100k/u.data", monkeypatch, tmp_path)
    left, drawn = run("films")
    assert drawn == 1
    assert len(left["best"].recommendations) == 5
    error = ((left["predicted"].prediction > 0) != left["liked"]).mean()
    assert error < 0.3
    assert left["certified"].headline.startswith(
        "With 95% confidence, the model's predictions are wrong on at most"
    )


@pytest.mark.parametrize("data", [pytest.param("real", marks=pytest.mark.slow), "simulated"])
def test_roll_calls(monkeypatch, tmp_path, data):
    choose(data, "senate/votes.parquet", monkeypatch, tmp_path)
    left, drawn = run("rollcalls")
    assert drawn == 1
    assert left["places"].shape[1] == 2
    certificate = left["certificate"]
    assert certificate.inputs["errors"] == left["wrong"]
    assert left["wrong"] / left["kept_out"].sum() < certificate.bound < 0.3


# ---- README on Spark Connect; test_guides.py runs it on a classic session ----------------------


@pytest.mark.connect
def test_the_examples_print_what_the_readme_says(spark):
    known = {}
    found = []
    for snippet in snippets(ROOT / "README.md"):
        if snippet.kind == "python":
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(compile(snippet.text, "README.md", "exec"), known)
            found.append(printed.getvalue())
        elif snippet.kind == "output":
            assert_prints(found[-1], snippet.text)
    assert len(found) == 2
