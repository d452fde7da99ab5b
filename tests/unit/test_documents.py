"""What the documents name is there, and every command in them is one that the job, make or pip
takes.
"""

import doctest
import importlib
import re
import tomllib

import pages
import pytest
from support.guides import GUIDES, ROOT, snippets

import onebit_spark
from onebit_spark.cli.flags import parse
from onebit_spark.cli.requests import EvaluateRequest, FitRequest, PositionsRequest, PredictRequest
from onebit_spark.errors import RequestError

PLACES = [
    ROOT,
    ROOT / "onebit_spark",
    ROOT / "onebit_spark" / "core",
    ROOT / "tests" / "unit",
    ROOT / "tests" / "spark",
]


@pytest.mark.parametrize("document", ["docs/ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_every_file_that_is_named_exists(document):
    named = set(
        re.findall(r"`([\w/.-]+\.(?:py|md|toml|cu))`", (ROOT / document).read_text("utf-8"))
    )
    # To be made by the reader
    written = {
        "onebit_spark/core/losses/yours.py",
        "onebit_spark/core/priors/your_prior.py",
    }
    absent = [
        name
        for name in sorted(named - written)
        if not any((place / name).exists() for place in PLACES)
    ]
    assert len(named) > 8
    assert not absent


def test_documents_that_the_code_cites_exist():
    """A path from the root of the project or from the file itself, or the name of a document in
    ``docs``.
    """
    written = {"OUTPUT/REPRODUCTION.md"}  # by a job
    absent = []
    for folder in ("onebit_spark", "jobs", "tests", "benchmarks"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            cited = set(re.findall(r"[\w./-]*\b[A-Za-z][\w-]*\.md\b", path.read_text("utf-8")))
            places = ROOT, ROOT / "docs", path.parent
            missing = [
                name for name in cited - written if not any((at / name).exists() for at in places)
            ]
            absent += [f"{path.name} cites {name}" for name in missing]
    assert not absent


README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_its_words_are_few():
    assert len(README.split()) <= 900


def test_its_links_lead_somewhere():
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", README)
    assert links
    assert not [link for link in links if "://" not in link and not (ROOT / link).exists()]


def test_the_guide_to_certificates_quotes_what_the_example_prints():
    """The tests of the guides run the example, and compare what it prints with README."""
    text = (ROOT / "docs" / "certificates.md").read_text(encoding="utf-8")
    quoted = " ".join(
        line.removeprefix("> ") for line in text.splitlines() if line.startswith("> ")
    )
    assert quoted.startswith("With 95% confidence")
    assert quoted in README.splitlines()
    measured = set(re.findall(r"[\d.,]+%", quoted))
    explained = text.partition("| part | how to read it |")[2].partition("\n\n")[0]
    assert set(re.findall(r'^\| "[^"]*?([\d.,]+%)', explained, re.MULTILINE)) == measured


JOBS = {
    "fit": FitRequest,
    "predict": PredictRequest,
    "positions": PositionsRequest,
    "evaluate": EvaluateRequest,
}
# Spark's own flags
SUBMIT = {
    "--master",
    "--deploy-mode",
    "--conf",
    "--archives",
    "--py-files",
    "--properties-file",
}
SNIPPETS = [snippet for guide in GUIDES for snippet in snippets(guide)]
COMMANDS = [
    each
    for each in SNIPPETS
    if each.kind in ("run", "elsewhere") and each.job and each.job[0] != "simulate"
]


def named(snippet):
    return f"{snippet.guide}:{snippet.line}"


def test_every_snippet_is_classified():
    unknown = [f"{named(each)}: {each.text}" for each in SNIPPETS if each.kind == "unknown"]
    assert not unknown, "tests/support/guides.py says what to run: add them there"


@pytest.mark.parametrize("command", COMMANDS, ids=named)
def test_the_job_takes_it(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert [
        problem for problem in problems_of(*command.job) if "does not exist" not in problem
    ] == []


def problems_of(name, arguments):
    """What the job has against them, one by one."""
    try:
        parse(JOBS[name], name, arguments)
    except RequestError as error:
        return re.split(r"; \(\d+\) ", re.sub(r"^\d+ problems: \(1\) ", "", str(error)))
    return []


def test_wrong_flags_are_seen():
    assert any(
        "no such flag" in one or "--raitngs" in one
        for one in problems_of("fit", ["--raitngs", "x"])
    )


@pytest.mark.parametrize(
    "command", [each for each in COMMANDS if "spark-submit" in each.text], ids=named
)
def test_spark_submit_takes_it(command):
    before = command.text.partition("spark-submit")[2].partition(".py ")[0]
    assert {word for word in before.split() if word.startswith("--")} <= SUBMIT


def test_hints_do_not_install_from_an_index():
    """The package is not published: a hint names the clone."""
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "onebit_spark").rglob("*.py")]
    asked = {word for text in sources for word in re.findall(r"pip install '(.*?)'", text)}
    assert asked
    assert all(word.startswith(".[") for word in asked)


def test_the_pages_show_what_was_measured():
    """benchmarks/pages.py writes them."""
    found = pages.results()
    for page in pages.PAGES:
        text = page.read_text(encoding="utf-8")
        assert pages.rendered(text, found) == text, page.name


def test_a_figure_is_the_same_on_all_pages():
    found = pages.results()
    found["peers"]["senate"]["onebit_spark"]["correct"] = 0.5
    texts = {page.name: page.read_text(encoding="utf-8") for page in pages.PAGES}
    quoting = {name for name, text in texts.items() if pages.rendered(text, found) != text}
    assert quoting == {"README.md", "benchmarks.md", "from-als.md", "settings.md"}


def test_other_libraries_stand_beside_ours_on_all_data():
    """MLlib's ALS is measured by a script of its own, perhaps later; a figure that no method has is
    no column.
    """
    ours = {"onebit_spark": {"correct": 0.95, "auc": 0.98}}
    found = {
        "peers": {"senate": ours | {"myFM": {"correct": 0.96, "seconds": 43.0}}, "congress": ours},
        "als": {
            "congress": {"ALS": {"correct": 0.93, "auc": 0.97}},
            "senate": {"six": {"correct": 0.9}},
        },
    }
    assert list(pages.others(found)) == [
        "| data | | correct | AUC | seconds |",
        "| --- | --- | --- | --- | --- |",
        "| US Senate roll calls | myFM | .9600 |  | 43 |",
        "|  | onebit_spark | .9500 | .9800 |  |",
        "| US Congress roll calls | onebit_spark | .9500 | .9800 |  |",
        "|  | MLlib ALS | .9300 | .9700 |  |",
    ]


def test_readme_and_the_site_lead_to_every_guide():
    site = (ROOT / "conf" / "mkdocs.yml").read_text(encoding="utf-8")
    guides = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert not [guide for guide in guides if f": {guide}\n" not in site]
    assert not [guide for guide in guides - {"api.md"} if f"](docs/{guide}" not in README]


@pytest.mark.parametrize(
    "page", ["README.md", "docs/from-als.md", "docs/benchmarks.md", "docs/SCALING.md"]
)
def test_no_accuracy_is_typed_in_by_hand(page):
    unmarked = pages.MARKED.sub("", (ROOT / page).read_text(encoding="utf-8"))
    assert not re.findall(r"\.\d{4}\b", unmarked)


def test_make_targets():
    targets = set(re.findall(r"^([a-z%-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    asked = {
        re.sub(r"\d+$", "%", name)
        for guide in GUIDES
        for name in re.findall(r"(?:`|    )make ([a-z0-9-]+)", guide.read_text(encoding="utf-8"))
    }
    assert {"demo", "test"} <= asked <= targets


def test_extras():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    lists = re.findall(
        r"(?:\.|onebit_spark)\[([a-z,]+)\]", "".join(guide.read_text("utf-8") for guide in GUIDES)
    )
    assert {"spark"} <= {name for names in lists for name in names.split(",")} <= set(extras)


def test_citation_and_recipe_agree_with_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    recipe = (ROOT / "conf" / "conda" / "recipe.yaml").read_text(encoding="utf-8")
    assert f"\nversion: {onebit_spark.__version__}\n" in citation
    assert project["urls"]["Paper"].endswith(re.search(r"\n  doi: (.*)\n", citation)[1])
    assert f'  version: "{onebit_spark.__version__}"\n' in recipe
    runs = re.search(r"\n  run:\n(.*?)\n  \w", recipe, re.DOTALL)[1]
    wanted = {f"python{project['requires-python']}", *project["dependencies"]}
    assert {line.strip(" -").replace(" ", "") for line in runs.splitlines()} == wanted


@pytest.mark.parametrize("name", ["in_process", "predict.metrics", "core.calibration", "sklearn"])
def test_examples(name):
    result = doctest.testmod(
        importlib.import_module(f"onebit_spark.{name}"), optionflags=doctest.NORMALIZE_WHITESPACE
    )
    assert result.attempted > 0
    assert result.failed == 0
