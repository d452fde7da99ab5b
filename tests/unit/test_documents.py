"""What the documents for developers name is there."""

import re
from pathlib import Path

import pytest

from onebit_spark.core.losses import LOSSES

ROOT = Path(__file__).parents[2]
PLACES = [
    ROOT,
    ROOT / "onebit_spark",
    ROOT / "onebit_spark" / "core",
    ROOT / "tests" / "unit",
    ROOT / "tests" / "spark",
]


@pytest.mark.parametrize("document", ["docs/ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_every_file_that_is_named_exists(document):
    named = set(re.findall(r"`([\w/.-]+\.(?:py|md|toml|cu))`", (ROOT / document).read_text("utf-8")))
    written = {"core/losses/yours.py", "metadata.json"}  # to be made by the reader
    absent = [name for name in sorted(named - written) if not any((place / name).exists() for place in PLACES)]
    assert len(named) > 8
    assert not absent


@pytest.mark.parametrize("folder", ["core", "predictor", "engines/cuda"])
def test_the_table_of_a_folder_names_its_files(folder):
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text("utf-8")
    table = text.partition(f"### {folder}/\n")[2].partition("\n#")[0]
    files = {path.stem for path in (ROOT / "onebit_spark" / folder).rglob("*.py")} - {"__init__", "base", *LOSSES}
    assert len(files) > 3
    assert files <= set(re.findall(r"`(\w+)`", table)), folder


def test_the_folders_say_what_is_in_them():
    """The first lines of a folder name its modules; each of these names is one."""
    for folder in ("core", "engines", "input", "ml"):
        text = (ROOT / "onebit_spark" / folder / "__init__.py").read_text("utf-8")
        drawn = "\n".join(line for line in text.splitlines()[1:] if "◄" in line)
        words = set(re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", re.sub(r"\([^)]*\)", "", drawn)))
        modules = {path.stem for path in (ROOT / "onebit_spark" / folder).rglob("*.py")}
        assert words, folder
        assert words <= modules, folder
