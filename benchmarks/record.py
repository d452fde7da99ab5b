"""Where and on what a figure was measured: every benchmark prints this line before its rows."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import date

import numpy as np


def provenance() -> str:
    """Date, git hash, machine: enough to know what a row means later."""
    root = os.path.dirname(os.path.abspath(__file__))
    answer = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=root, capture_output=True, text=True, check=False
    )
    return (
        f"# {date.today()}  commit {answer.stdout.strip() or 'unknown'}  {platform.machine()}, "
        f"{os.cpu_count()} cores, Python {platform.python_version()}, numpy {np.__version__}"
    )
