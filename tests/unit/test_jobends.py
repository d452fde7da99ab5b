"""How a job ends when it cannot do its work: an exit code, and one last line with the telling reason."""

import logging
import signal
import socket
import time
from contextlib import nullcontext

import pytest
from test_cli import refusal

from onebit_spark import cli
from onebit_spark.cli import running as jobrun
from onebit_spark.cli.running import AGAIN_SECONDS
from onebit_spark.errors import RequestError


@pytest.fixture
def good_arguments(tmp_path, monkeypatch):
    monkeypatch.setattr(jobrun, "in_background", lambda *_: None)  # its thread would outlive the test
    (tmp_path / "in.parquet").touch()
    return ["--ratings", str(tmp_path / "in.parquet"), "--output", str(tmp_path / "out")]


@pytest.mark.parametrize("where", ["flag", "SPARK_REMOTE"])
def test_a_connect_server_that_does_not_answer(capsys, monkeypatch, good_arguments, where):
    """At once, and not after the minutes that Spark tries."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # no server listens there
        address = f"sc://127.0.0.1:{taken.getsockname()[1]}/;token=secret"
        if where == "flag":
            good_arguments += ["--remote", address]
        else:
            monkeypatch.setenv("SPARK_REMOTE", address)
        told = refusal(capsys, "fit", good_arguments)
    assert "no Spark Connect server answers at 127.0.0.1:" in told
    assert "secret" not in told


def test_what_needs_a_classic_session(capsys, good_arguments):
    grid = [*good_arguments, "--remote", "sc://host"]
    assert "this job needs a classic session" in refusal(capsys, "tune", grid)


JAVA = """An error occurred while calling o31.parquet.
: org.apache.spark.SparkException: [SOME_CONDITION] Something broke in file:/x.
And more of it. SQLSTATE: KD001
\tat org.apache.spark.Some.method(Some.scala:1)
"""
WORKER = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "x.py", line 9, in <lambda>
    1/0
    ~^~
ZeroDivisionError: division by zero

JVM stacktrace:
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
"""


class Py4JJavaError(Exception):
    pass


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Py4JJavaError(JAVA), "[SOME_CONDITION] Something broke in file:/x. And more of it."),
        (Py4JJavaError(JAVA + "Caused by: java.io.IOException: disk full\n\tat x"), "disk full"),
        (Py4JJavaError(JAVA + "Caused by: java.lang.OutOfMemoryError: Java heap space"), "Spark ran out of memory"),
        (RuntimeError(WORKER), "ZeroDivisionError: division by zero"),
        (RuntimeError(WORKER.replace("ZeroDivisionError", "onebit_spark.errors.FitFailed")), "division by zero"),
        (RuntimeError("[JAVA_GATEWAY_EXITED] Java gateway"), "Spark did not start"),
        (ConnectionRefusedError("x"), "Spark's driver ended unexpectedly"),
        (KeyError("a\nb"), r"KeyError: 'a\nb'"),
        (MemoryError(), "MemoryError"),
        (OSError("x" * 2000), "OSError: xxx"),
    ],
)
def test_the_telling_line_of_a_failure(error, reason):
    told = jobrun.reason_of(error)
    assert told.startswith(reason)
    assert "\n" not in told
    assert len(told) < 700


def run(monkeypatch, work, arguments, advice=""):
    """A fit that does this work on a session that is none."""
    monkeypatch.setattr(jobrun, "spark_session", lambda *_: nullcontext())
    monkeypatch.setattr("onebit_spark.cli.fit_job.fit", work)
    monkeypatch.setattr("onebit_spark.cli.fit_job.how_to_resume", lambda *_: advice)
    return cli.fit(arguments)


@pytest.mark.parametrize(
    ("failure", "code", "line"),
    [
        (RequestError("wrong:\n  column 'x'"), 2, "error: wrong: column 'x'"),
        (jobrun.FitFailed("diverged"), 1, "error: diverged"),
        (ZeroDivisionError("oops"), 1, "error: ZeroDivisionError: oops"),
        (
            OSError("[FAILED_READ_FILE.X] Error while reading file file:/a.b. SQLSTATE: 1"),
            2,
            "error: the file file:/a.b ",
        ),
        (KeyboardInterrupt(), 130, "interrupted."),
    ],
)
@pytest.mark.parametrize("debug", [False, True])
def test_how_a_job_ends(monkeypatch, capsys, good_arguments, failure, code, line, debug):
    def work(runtime, request):
        raise failure

    monkeypatch.setenv("ONEBIT_DEBUG", "1" if debug else "")
    assert run(monkeypatch, work, good_arguments) == code
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith(line)
    assert len(lines) == 1 or debug


def test_a_signal_counts_more_than_what_it_broke(monkeypatch, capsys, good_arguments):
    """The JVM of spark-submit has the signal too. A call that it does not answer is no failure of the fit."""

    def work(spark, request):
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            raise ConnectionRefusedError("the JVM is gone")

    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    advice = "Go on with --resume."
    assert run(monkeypatch, work, good_arguments, advice) == 128 + signal.SIGTERM
    assert capsys.readouterr().err == f"interrupted. {advice}\n"
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert logging.getLogger().isEnabledFor(logging.ERROR)


def test_a_signal_in_a_finaliser_is_not_lost(monkeypatch, capsys, good_arguments):
    """Python ignores what is raised there. py4j has many finalisers, so a signal often comes in one of them."""

    class Interrupted:
        def __del__(self):
            signal.raise_signal(signal.SIGTERM)

    def work(spark, request):
        Interrupted()
        began = time.monotonic()
        try:
            while time.monotonic() < began + 30:
                time.sleep(0.01)
        finally:
            time.sleep(2 * AGAIN_SECONDS)  # what is on its way out is left in peace
            tidied.append(time.monotonic() - began)

    tidied = []
    assert run(monkeypatch, work, good_arguments) == 128 + signal.SIGTERM
    assert tidied[0] < 20
    assert capsys.readouterr().err == "interrupted.\n"
