"""The snippets of README, CONTRIBUTING and the guides: which are run, which are only parsed, and
why.

A Python block is run. A line of shell is run if it starts a job or simulates data, parsed if it
starts a job on another machine (``ELSEWHERE``), and left alone if ``LEFT_ALONE`` says why. Anything
else is refused: classify it here.
"""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GUIDES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

# What a command contains ─► what it needs. Its flags are parsed, and nothing is started.
ELSEWHERE = {
    "--master spark://": "a standalone cluster",
    "--master yarn": "YARN",
    "--master k8s://": "Kubernetes",
    "--remote sc://": "a server of Spark Connect",
    "aws emr": "Amazon EMR",
    "gcloud dataproc jobs": "Google Dataproc",
}
# How a line begins ─► why it is not run.
LEFT_ALONE = {
    "make ": "test_documents.py looks for the target",
    "pip install ": "installs; test_documents.py looks for the extra",
    ".venv/bin/pip install pre-commit ": "installs hooks",
    "python -m venv ": "makes an environment to ship",
    "venv-pack ": "packs that environment",
    "%pip install /Volumes": "installs, in a notebook of Databricks",
    "gcloud dataproc clusters create ": "starts a cluster",
}
# Pages whose indented blocks are no code.
DRAWN = {"MATH.md": "formulas", "ARCHITECTURE.md": "drawings"}

JOB_FILE = re.compile(r"(?:\S*/)?(fit|predict|positions|evaluate|reproduce)\.py")
CODE = re.compile(r"(from|import) \w")
SHELL = re.compile(r"\S*(spark-submit|onebit-spark|python3?|pip|make) ")


@dataclass(frozen=True)
class Snippet:
    """A Python block, what is printed below one, or one line of shell, with its
    continuation lines.
    """

    guide: str
    line: int
    kind: str  # python, output, run, elsewhere, alone or unknown
    text: str

    @property
    def words(self):
        """Of a line of shell, as the shell splits it.

        The arguments of a step of EMR are one word there.
        """
        text = re.sub(
            r"'[^']*Args=\[(.*)\]'",
            lambda found: found[1].replace(",", " "),
            self.text,
            flags=re.DOTALL,
        )
        return split(text)

    @property
    def job(self):
        """(job, its flags) of ``spark-submit jobs/fit.py …`` or ``onebit-spark fit …``; None of
        another command.
        """
        words = self.words
        for at, word in enumerate(words):
            after = words[at + 1 :]
            if word == "onebit-spark":
                return after[0], after[1:]
            if word == "onebit_spark.simulate":
                return "simulate", after
            if found := JOB_FILE.fullmatch(word):
                return found[1], after[after.index("--") + 1 :] if "--" in after else after
        return None


def snippets(guide):
    """All snippets of a guide, in its order."""
    before = None
    for language, line, text in blocks(guide.read_text(encoding="utf-8")):
        if language == "python" or (language == "indented" and CODE.match(text)):
            before = Snippet(guide.name, line, "python", text)
            yield before
        elif language == "" and before is not None and before.kind == "python":
            before = Snippet(guide.name, line, "output", text)
            yield before
        elif language != "indented":
            yield Snippet(guide.name, line, "unknown", text)
        elif guide.name not in DRAWN or any(map(SHELL.match, text.splitlines())):
            before = None
            for number, command in commands(text):
                yield Snippet(guide.name, line + number, kind_of(command), command)


def kind_of(command):
    """Of a line of shell."""
    if any(needed in command for needed in ELSEWHERE):
        return "elsewhere"
    if any(map(command.startswith, LEFT_ALONE)):
        return "alone"
    ours = command.startswith("export ") or Snippet("", 0, "", command).job
    return "run" if ours else "unknown"


def blocks(text):
    """(language, number of its first line, text) of each fenced block, and of each that is
    indented.

    In an item of a list or in a note, the text itself is indented by four, and a block by eight.
    """
    lines = [*text.splitlines(), ""]
    at = 0
    inside = 0
    while at < len(lines):
        line = lines[at]
        if fence := re.match(r"```(\w*)", line):
            end = lines.index("```", at + 1)
            yield fence[1], at + 2, "".join(f"{each}\n" for each in lines[at + 1 : end])
            at = end + 1
            inside = 0
            continue
        if line and not line.startswith(" "):
            inside = 4 if re.match(r"(-|\d+\.|!!!) ", line) else 0
        margin = " " * (inside + 4)
        if line.startswith(margin) and (at == 0 or not lines[at - 1].strip()):
            end = next(i for i in range(at, len(lines)) if not lines[i].startswith(margin))
            yield "indented", at + 1, "".join(f"{each[len(margin) :]}\n" for each in lines[at:end])
            at = end
            continue
        at += 1


def commands(block):
    """(number of its line, text) of each command in a block: lines are joined after a backslash and
    within quotes.
    """
    start = 0
    text = ""
    for number, line in enumerate(block.splitlines()):
        start, text = (start, f"{text}\n{line}") if text else (number, line)
        try:
            words = split(text)
        except ValueError:  # a quote or a backslash at the end: the command goes on
            continue
        if words:
            yield start, re.sub(r"\\\n\s*", "", text)
        text = ""
    if text:
        yield start, text


def split(command):
    """In words, as a shell does. For ``shlex``, a # within a word would begin a comment as well."""
    return shlex.split(re.sub(r"(^|\s)#.*", "", command))


def assert_prints(found, expected):
    """Numbers to a few units of their last place: another processor may round otherwise."""
    number = re.compile(r"-?\d+(?:\.\d+)?")
    assert number.sub("#", found).split() == number.sub("#", expected).split()
    values = [[float(each) for each in number.findall(text)] for text in (found, expected)]
    assert values[0] == pytest.approx(values[1], abs=0.05, rel=0.05)
