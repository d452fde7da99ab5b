"""How deep the way to a kernel is: a reader steps through no more functions of the package than
these.
"""

import sys
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import onebit_spark
from onebit_spark import FitConfig, fit_table
from onebit_spark.__main__ import command
from onebit_spark.core.losses.logistic import Logistic

PACKAGE = str(Path(onebit_spark.__file__).parent)
FROM_FIT_TABLE = 9
FROM_COMMAND = 12  # that of the row update, which calls the kernel, included
WHILE_CHOOSING = 5  # more, while the settings are chosen by a tenth of the ratings


@pytest.fixture
def deepest(monkeypatch):
    """The names of the functions of the package on the deepest stack of a row update in the main
    thread.
    """
    found = []
    update = Logistic.update_rows

    def looked_at(*arguments, **named):
        if threading.current_thread() is threading.main_thread():
            names = ["update_rows"]
            frame = sys._getframe(1)
            while frame is not None:
                if frame.f_code.co_filename.startswith(PACKAGE):
                    names.append(frame.f_code.co_name)
                frame = frame.f_back
            if len(names) > len(found):
                found[:] = names
        return update(*arguments, **named)

    monkeypatch.setattr(Logistic, "update_rows", looked_at)
    monkeypatch.setattr("onebit_spark.engines.threads.available_cores", lambda: 1)
    return found


def table(n):
    rng = np.random.default_rng(0)
    users = rng.integers(0, 60, n)
    items = rng.integers(0, 40, n)
    return pa.table({"user": users, "item": items, "label": rng.integers(0, 2, n)})


def test_from_fit_table(deepest):
    fit_table(table(500), FitConfig(rank=2, max_iter=2, tol=0.0))
    assert deepest[-1] == "fit_table"
    assert len(deepest) <= FROM_FIT_TABLE, deepest


def test_while_settings_are_chosen(deepest):
    fit_table(table(6000), FitConfig(max_rank=2, max_iter=30, tol=0.0))
    assert deepest[-1] == "fit_table"
    assert len(deepest) <= FROM_FIT_TABLE + WHILE_CHOOSING, deepest


def test_from_the_command(deepest, tmp_path, monkeypatch):
    pq.write_table(table(500), tmp_path / "ratings.parquet")
    flags = [
        "--ratings",
        str(tmp_path / "ratings.parquet"),
        "--output",
        str(tmp_path / "model"),
        "--rank",
        "2",
    ]
    fixed = ["--max-iter", "2", "--tol", "0", "--runtime", "local", "--no-report", "--quiet"]
    monkeypatch.setattr(sys, "argv", ["onebit-spark", "fit", *flags, *fixed])
    assert command() == 0
    assert deepest[-1] == "command"
    assert len(deepest) <= FROM_COMMAND, " ".join(deepest)
