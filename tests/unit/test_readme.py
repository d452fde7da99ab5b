"""The README is short, and its links lead somewhere. ``tests/jobs/test_guides.py`` runs its snippets."""

import re

from guides import ROOT

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
    quoted = " ".join(line.removeprefix("> ") for line in text.splitlines() if line.startswith("> "))
    assert quoted.startswith("With 95% confidence")
    assert quoted in README.splitlines()
    measured = set(re.findall(r"[\d.,]+%", quoted))
    explained = text.partition("| part | how to read it |")[2].partition("\n\n")[0]
    assert set(re.findall(r'^\| "[^"]*?([\d.,]+%)', explained, re.MULTILINE)) == measured
