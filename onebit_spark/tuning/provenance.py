"""Where and with which code a figure was measured."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from collections.abc import Iterable
from datetime import date
from importlib.resources import files
from pathlib import Path

import numpy as np

from onebit_spark.core.compiled import sources


def provenance() -> dict[str, str]:
    """Date, git commit, kind of machine, versions."""
    command, here = ["git", "describe", "--always", "--dirty"], Path(__file__).parent
    answer = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False)
    return {
        "date": str(date.today()),
        "commit": answer.stdout.strip() or "unknown",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "versions": f"Python {platform.python_version()}, numpy {np.__version__}",
    }


def source_digest(packages: Iterable[str] = ("onebit_spark",)) -> str:
    """A hash of the source of some packages. It also works without git."""
    digest = hashlib.sha256()
    for package in packages:
        for name, source in sorted(sources(files(package), package), key=lambda pair: pair[0]):
            digest.update(name.encode() + source.read_bytes())
    return digest.hexdigest()[:16]
