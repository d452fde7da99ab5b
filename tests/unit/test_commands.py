"""Every snippet of README and guides is classified; every command is one that the job, make or pip takes.

``tests/jobs/test_guides.py`` runs those that can be run.
"""

import re
import tomllib

import pytest
from guides import GUIDES, ROOT, snippets

from onebit_spark.cli.requests import EvaluateRequest, FitRequest, PredictRequest, TuneRequest, parse
from onebit_spark.errors import RequestError

JOBS = {"fit": FitRequest, "predict": PredictRequest, "evaluate": EvaluateRequest, "tune": TuneRequest}
SUBMIT = {"--master", "--deploy-mode", "--conf", "--archives", "--py-files", "--properties-file"}  # Spark's own flags
SNIPPETS = [snippet for guide in GUIDES for snippet in snippets(guide)]
COMMANDS = [each for each in SNIPPETS if each.kind in ("run", "elsewhere") and each.job and each.job[0] != "simulate"]


def named(snippet):
    return f"{snippet.guide}:{snippet.line}"


def test_every_snippet_is_classified():
    unknown = [f"{named(each)}: {each.text}" for each in SNIPPETS if each.kind == "unknown"]
    assert not unknown, "tests/guides.py says what to run: add them there"


@pytest.mark.parametrize("command", COMMANDS, ids=named)
def test_the_job_takes_it(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert [problem for problem in problems_of(*command.job) if "does not exist" not in problem] == []


def problems_of(name, arguments):
    """What the job has against them, one by one."""
    try:
        parse(JOBS[name], name, arguments)
    except RequestError as error:
        return re.split(r"; \(\d+\) ", re.sub(r"^\d+ problems: \(1\) ", "", str(error)))
    return []


def test_wrong_flags_are_seen():
    assert any("no such flag" in one or "--raitngs" in one for one in problems_of("fit", ["--raitngs", "x"]))


@pytest.mark.parametrize("command", [each for each in COMMANDS if "spark-submit" in each.text], ids=named)
def test_spark_submit_takes_it(command):
    before = command.text.partition("spark-submit")[2].partition(".py ")[0]
    assert {word for word in before.split() if word.startswith("--")} <= SUBMIT


def test_make_targets():
    targets = set(re.findall(r"^([a-z%-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    asked = {
        re.sub(r"\d+$", "%", name)
        for guide in GUIDES
        for name in re.findall(r"(?:`|    )make ([a-z0-9-]+)", guide.read_text(encoding="utf-8"))
    }
    assert {"demo", "test"} <= asked <= targets


def test_extras():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    lists = re.findall(r"(?:\.|onebit_spark)\[([a-z,]+)\]", "".join(guide.read_text("utf-8") for guide in GUIDES))
    assert {"spark"} <= {name for names in lists for name in names.split(",")} <= set(extras)
