"""Where and on what a figure was measured, and the file of the figures that pages quote
(``pages.py``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paper import provenance as measured

RESULTS = Path(__file__).with_name("results.json")


def results() -> dict[str, Any]:
    """script ─► data ─► method ─► figure ─► value."""
    return json.loads(RESULTS.read_text(encoding="utf-8"))


def save(script: str, data: str, method: str, figures: Mapping[str, float | str]) -> None:
    """Put the figures into the file, in the place of what this script measured before."""
    found = results()
    rounded = {
        name: value if isinstance(value, int | str) else float(f"{value:.6g}")
        for name, value in figures.items()
    }
    found.setdefault(script, {}).setdefault(data, {})[method] = rounded | {
        "measured": provenance().removeprefix("# ")
    }
    RESULTS.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def provenance() -> str:
    """Date, git hash, machine: enough to know what a row means later."""
    facts = measured.provenance()
    return f"# {facts['date']}  commit {facts['commit']}  {facts['machine']}, {facts['versions']}"
