"""The numerical part never imports Spark."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import onebit_spark

PACKAGE = Path(onebit_spark.__file__).parent
NUMERICAL = [
    "blocks", "compiled", "config", "inprocess", "metrics", "posterior", "prediction", "priors", "simulate", "solver",
    "special", "spectral", "statistics", "hierarchy", "fixedpoint", "engines/local",
    *(f"experiments/{name}" for name in ("sample", "methods", "paper", "grid", "tuning", "comparison", "movielens")),
    "baselines/davenport", "baselines/simple",
]  # fmt: skip
FILES = [PACKAGE / f"{module}.py" for module in NUMERICAL] + [
    path for folder in ("losses", "certificate") for path in sorted((PACKAGE / folder).glob("*.py"))
]


def imported(path):
    """The modules that a file imports, at its top or anywhere inside."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_numerical_files_import_no_spark(path):
    modules = set(imported(path))
    assert modules
    assert not [m for m in modules if m.split(".")[0] in ("pyspark", "py4j") or m == "onebit_spark.engines.spark"]


def test_a_fit_imports_no_spark():
    """In a fresh interpreter, for pytest itself may have imported anything."""
    program = """
import sys
from onebit_spark import FitConfig, fit_arrays
fit = fit_arrays([0, 0, 1, 1], [0, 1, 0, 1], [1, 1, 1, 0], FitConfig(rank=1, tol=0, max_iter=20))
print(fit.predict([0, 1], [0, 0]).tolist(), sorted({"pyspark", "py4j"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[1, 1] []"
