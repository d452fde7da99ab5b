"""A fit that is interrupted from outside: what it says, with which code it ends, what it leaves, how it goes on."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest
from running import ROOT, environment, run_here, write
from smalltables import TABLES


@pytest.fixture
def workers_apart(tmp_path_factory):
    """A Python for Spark's workers whose stderr is a file: a worker that is killed may leave half a traceback."""
    folder = tmp_path_factory.mktemp("workers")
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@" 2>>{folder}/stderr\n')
    python.chmod(0o755)
    return {"PYSPARK_PYTHON": str(python)}


@pytest.mark.parametrize(
    ("send", "number", "code"),
    [(os.killpg, signal.SIGINT, 130), pytest.param(os.kill, signal.SIGTERM, 143, marks=pytest.mark.slow)],
    ids=["Ctrl-C", "kill"],
)
def test_interrupted_and_resumed(spark, tmp_path, workers_apart, send, number, code):
    """Ctrl-C reaches all processes of a terminal, Java too; ``kill`` reaches one."""
    kept, log = tmp_path / "checkpoints", tmp_path / "log"
    flags = ["--ratings", write(tmp_path / "ratings.parquet", TABLES["good"]), "--output", tmp_path / "model"]
    flags += ["--rank", 2, "--tol", 0, "--no-report", "--checkpoint-dir", kept, "--checkpoint-interval", 1]
    command = [sys.executable, ROOT / "jobs" / "fit.py", *flags, "--max-iter", 100_000]
    with log.open("w") as stream:
        process = subprocess.Popen(
            list(map(str, command)),
            stdout=stream,
            stderr=stream,
            env=environment(**workers_apart),
            start_new_session=True,
        )
        try:
            deadline = time.monotonic() + 120
            while not list(kept.glob("iteration-*")) and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
            send(process.pid, number)
            assert process.wait(60) == code, log.read_text()
        finally:
            process.kill()
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
