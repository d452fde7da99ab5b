"""The example of the README runs, and prints what the README says."""

import contextlib
import io
import re
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[2] / "README.md"


def test_the_example_prints_what_the_readme_says(spark):
    """Numbers to a few units of their last place: another processor may round otherwise."""
    code, told = re.search(
        r"```python\n(.+?)```\n\n```\n(.+?)```", README.read_text(encoding="utf-8"), re.DOTALL
    ).groups()
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {})
    found, expected = printed.getvalue().splitlines(), told.splitlines()
    assert len(found) == len(expected)
    number = re.compile(r"-?\d+(?:\.\d+)?")
    for one, other in zip(found, expected, strict=True):
        assert number.sub("#", one).split() == number.sub("#", other).split()
        values = [[float(text) for text in number.findall(line)] for line in (one, other)]
        assert values[0] == pytest.approx(values[1], abs=0.05, rel=0.05)


def test_its_words_are_few():
    assert len(README.read_text(encoding="utf-8").split()) <= 900


def test_its_links_lead_somewhere():
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", README.read_text(encoding="utf-8"))
    assert links
    assert not [link for link in links if "://" not in link and not (README.parent / link).exists()]
