"""The jobs as processes and in this one, and tables on disk for them."""

import contextlib
import io
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from paper.job import reproduce

from onebit_spark import cli
from support.jvm import SHORT_LIVED

ROOT = Path(__file__).resolve().parents[2]
SPARK_SUBMIT = Path(sys.executable).with_name("spark-submit")
SUBMIT = [str(SPARK_SUBMIT), "--master", "local[2]", "--conf", "spark.ui.enabled=false"]
SUBMIT += [
    "--conf",
    "spark.sql.shuffle.partitions=2",
    "--conf",
    "spark.sql.codegen.wholeStage=false",
]
# As in the session of the other tests
SUBMIT += [
    "--conf",
    "spark.sql.codegen.factoryMode=NO_CODEGEN",
]


def environment(**more):
    """This process's, without what would lead Spark elsewhere."""
    elsewhere = ("SPARK_REMOTE", "SPARK_API_MODE", "HADOOP_CONF_DIR", "PYSPARK_SUBMIT_ARGS")
    clean = {name: value for name, value in os.environ.items() if name not in elsewhere}
    return {**clean, "PYSPARK_PYTHON": sys.executable, "SPARK_SUBMIT_OPTS": SHORT_LIVED, **more}


def run(command, env=None, cwd=None, patience=900):
    """Run to the end; stdout and stderr in one, as a terminal shows them. What takes longer in
    seconds hangs.
    """
    return subprocess.run(
        list(map(str, command)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=patience,
        env=environment(**(env or {})),
        cwd=cwd,
    )


@contextlib.contextmanager
def started(command, log, env=None, cwd=None):
    """A process in a session of its own, which writes to the log and does not outlive the block."""
    with log.open("w") as stream:
        process = subprocess.Popen(
            list(map(str, command)),
            stdout=stream,
            stderr=stream,
            env=environment(**(env or {})),
            cwd=cwd,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_for(event, process, log, patience=900):
    """Wait until the event is there, while the process runs. What takes longer in seconds hangs."""
    deadline = time.monotonic() + patience
    while not event():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.02)


def submit(job, *arguments, patience=900):
    return run([*SUBMIT, ROOT / "jobs" / f"{job}.py", *arguments], patience=patience)


def run_here(job, *arguments, runtime="spark"):
    """A job in this process, in the session that runs or without one: exit code, stdout, stderr
    with what it logged.

    Without the thread that warms up: where colorama is installed, numba puts the old stderr back
    while it compiles.
    """
    out = io.StringIO()
    err = io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        own_log(),
        pytest.MonkeyPatch.context() as m,
    ):
        m.setattr("onebit_spark.cli.running.in_background", lambda *_: None)
        flags = list(map(str, arguments))
        code = reproduce(flags) if job == "reproduce" else getattr(cli, job)(flags, runtime=runtime)
    return code, out.getvalue(), err.getvalue()


@contextlib.contextmanager
def own_log():
    """No handler yet, as in a new process: the job sets up its own, for its stderr."""
    root = logging.getLogger()
    handlers = root.handlers
    level = root.level
    root.handlers = []
    try:
        yield
    finally:
        root.handlers = handlers
        root.level = level


def write(path, table):
    """A table as Parquet, whatever is given as columns."""
    pq.write_table(table if isinstance(table, pa.Table) else pa.table(table), path)
    return path


# ---- tables of four ratings, and jobs on them --------------------------------------------------

FAST = ["--max-iter", "2", "--tol", "0", "--rank", "2"]
NO_HEADER = "a,x,1\na,y,0\nb,x,1\n"  # as CSV


def table(user=("a", "a", "b", "b"), item=("x", "y", "x", "y"), label=(1, -1, 1, 1), **more):
    return pa.table({"user": user, "item": item, "label": label, **more})


TABLES = {
    "good": table(),
    "one_class": table(label=(1, 1, 1, 1)),
    "stars": table(label=(5, 1, 4, 2)),
    "booleans": table(
        user=("a", "a", "b", "b"), item=("x", "x", "x", "y"), label=(True, False, True, True)
    ),
    "integers": table(user=(1, 1, 2, 2), item=(7, 8, 7, 8)),
}


def run_job(command, folder, runtime="spark"):
    """Run ``fit --ratings {}/good …``, where ``{}`` is the folder: exit code, stdout, stderr.

    Fits are short, and draw a report only with ``--report``. A job that names no output is given
    one, absent-0.
    """
    job, *arguments = (word.format(folder) for word in command.split())
    if job == "fit":
        arguments += FAST if "--report" in arguments else [*FAST, "--no-report"]
    if "--output" not in arguments and job != "evaluate":
        arguments += ["--output", f"{folder}/absent-0"]
    with pytest.MonkeyPatch.context() as patch:
        if runtime == "spark":
            # As under spark-submit: only Spark can tell what a path means
            patch.setenv("PYSPARK_GATEWAY_PORT", "0")
        return run_here(job, *arguments, runtime=runtime)
