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
