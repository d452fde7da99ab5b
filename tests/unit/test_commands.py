"""Every command of a job in README and guides is one that the job takes, and every make target is there."""

import re
import shlex
from pathlib import Path

import pytest

from onebit_spark.cli.experimentrequests import TuneRequest
from onebit_spark.cli.flags import parse
from onebit_spark.cli.requests import EvaluateRequest, FitRequest, PredictRequest
from onebit_spark.errors import RequestError

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
JOBS = {"fit": FitRequest, "predict": PredictRequest, "evaluate": EvaluateRequest, "tune": TuneRequest}
JOB = re.compile(r"(?:\bjobs/|/)(\w+)\.py\s(.*)|\bonebit-spark (\w+)\s(.*)")
ALLOWED = ("does not exist", "exists already", "is required")  # the reader's files, and what "…" stands for


def commands():
    """(page, job, its arguments) of every line of a code block, continuation lines joined."""
    for page in PAGES:
        text = re.sub(r"\\\n\s*", " ", page.read_text(encoding="utf-8"))
        for line in text.splitlines():
            found = JOB.search(line) if line.startswith("    ") and "`" not in line else None
            if found:
                name, arguments = (found[1], found[2]) if found[1] else (found[3], found[4])
                arguments = arguments.rpartition(" -- ")[2]  # before it, those of a service's own command
                if name in JOBS:
                    yield pytest.param(name, arguments, id=f"{page.name}: {name} {arguments[:60]}")


@pytest.mark.parametrize(("name", "arguments"), list(commands()))
def test_the_job_takes_it(name, arguments):
    problems = problems_of(name, [word for word in shlex.split(arguments, comments=True) if word != "…"])
    assert [problem for problem in problems if not any(words in problem for words in ALLOWED)] == []


def problems_of(name, arguments):
    """What the job has against them, one by one."""
    try:
        parse(JOBS[name], name, arguments)
    except RequestError as error:
        return re.split(r"; \(\d+\) ", re.sub(r"^\d+ problems: \(1\) ", "", str(error)))
    return []


def test_wrong_flags_are_seen():
    assert any("no such flag" in one or "--raitngs" in one for one in problems_of("fit", ["--raitngs", "x"]))


def test_there_are_some():
    assert len(list(commands())) >= 8


def test_make_targets():
    targets = set(re.findall(r"^([a-z%-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        re.sub(r"\d+$", "%", name)
        for page in PAGES
        for name in re.findall(r"(?:`|    )make ([a-z0-9-]+)", page.read_text(encoding="utf-8"))
    }
    assert {"demo", "test"} <= named <= targets
