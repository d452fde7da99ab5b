"""Where and with which code a figure was measured."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import date
from pathlib import Path

import numpy as np


def provenance() -> dict[str, str]:
    """Date, git commit, kind of machine, versions."""
    command = ["git", "describe", "--always", "--dirty"]
    here = Path(__file__).parent
    answer = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False)
    return {
        "date": str(date.today()),
        "commit": answer.stdout.strip() or "unknown",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "versions": f"Python {platform.python_version()}, numpy {np.__version__}",
    }
