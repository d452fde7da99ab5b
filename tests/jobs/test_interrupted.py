"""A fit that is interrupted from outside: what it says, with which code it ends, what it leaves, how it goes on."""

import os
import re
import signal
import sys

import pytest
from running import ROOT, run_here, started, wait_for, write
from smalltables import TABLES


@pytest.fixture
def workers_apart(tmp_path_factory):
    """A Python for Spark's workers whose stderr is a file: a worker that is killed may leave half a traceback."""
    folder = tmp_path_factory.mktemp("workers")
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@" 2>>{folder}/stderr\n')
    python.chmod(0o755)
    return {"PYSPARK_PYTHON": str(python)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("send", "number", "code"),
    [(os.killpg, signal.SIGINT, 130), (os.kill, signal.SIGTERM, 143)],
    ids=["Ctrl-C", "kill"],
)
def test_interrupted_and_resumed(spark, tmp_path, workers_apart, send, number, code):
    """Ctrl-C reaches all processes of a terminal, Java too; ``kill`` reaches one."""
    kept, log = tmp_path / "checkpoints", tmp_path / "log"
    flags = ["--ratings", write(tmp_path / "ratings.parquet", TABLES["good"]), "--output", tmp_path / "model"]
    flags += ["--rank", 2, "--tol", 0, "--no-report", "--checkpoint-dir", kept, "--checkpoint-interval", 1]
    command = [sys.executable, ROOT / "jobs" / "fit.py", *flags, "--max-iter", 100_000]
    with started(command, log, env=workers_apart) as process:
        wait_for(lambda: list(kept.glob("iteration-*")), process, log)
        send(process.pid, number)
        assert process.wait(900) == code, log.read_text()
    *before, last = log.read_text().splitlines()
    assert all(re.match("iteration|exchange: |compiling kernels|WARNING: Using incubator", line) for line in before), (
        before
    )
    newest = max(kept.glob("iteration-*"))
    assert last == (
        f"interrupted. The checkpoint file:{newest} is complete: to go on from it, run the same command with --resume."
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints", "log", "ratings.parquet"]
    reached = int(newest.name[-6:])
    code, _, err = run_here("fit", *flags, "--resume", "--max-iter", reached + 1)
    assert code == 0, err
    assert f"resuming after iteration {reached}, from the checkpoint file:{newest}\n" in err
    assert f"iteration {reached + 1} of {reached + 1}: " in err
