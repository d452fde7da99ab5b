"""Where and on what a figure was measured: every benchmark prints this line before its rows."""

from __future__ import annotations

from paper import provenance as measured


def provenance() -> str:
    """Date, git hash, machine: enough to know what a row means later."""
    facts = measured.provenance()
    return f"# {facts['date']}  commit {facts['commit']}  {facts['machine']}, {facts['versions']}"
