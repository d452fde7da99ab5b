"""How a job runs: arguments, then a Spark session, then the work; and how it ends: an exit code and one last line."""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from onebit_spark.cli.flags import Checked, parse
from onebit_spark.cli.interrupts import Interrupts
from onebit_spark.cli.requests import under_spark_submit
from onebit_spark.core.solver import NotConverged
from onebit_spark.errors import FitFailed, RequestError
from onebit_spark.platform.sessions import (
    NOT_ON_CONNECT,
    check_reachable,
    is_connect,
    log_nothing,
    logging_is_configured,
    ship,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DONE, FAILED, REFUSED = 0, 1, 2
LONGEST_REASON = 600  # characters of a failure that are shown

_PACKAGE = Path(__file__).parents[1]
_LOG4J = Path(__file__).with_name("log4j2.properties")


class Quietable(Checked, Protocol):
    """A request that says how much the job, and Spark, are to print."""

    @property
    def quiet(self) -> bool: ...

    @property
    def log_level(self) -> str | None: ...

    @property
    def remote(self) -> str | None: ...


Request = TypeVar("Request", bound=Quietable)


def run_job(
    name: str,
    request_type: type[Request],
    work: Callable[[SparkSession, Request], None],
    argv: Sequence[str] | None = None,
    ship_package: bool = False,
    meanwhile: Callable[[Request], None] | None = None,
    needs_classic: bool = False,
    when_interrupted: Callable[[SparkSession, Request], str] = lambda *_: "",
) -> int:
    """Run a job and return its exit code. What went wrong is the last line on stderr, printed after Spark stopped.

    ``when_interrupted`` says how to go on after an interruption.
    """
    code, last_line = DONE, ""
    with Interrupts() as interrupts:
        try:
            request = parse(request_type, name, argv)
            logging.basicConfig(format="%(message)s")
            logging.getLogger("onebit_spark").setLevel(logging.WARNING if request.quiet else logging.INFO)
            for talkative in ("py4j", "matplotlib"):
                logging.getLogger(talkative).setLevel(logging.ERROR)
            if meanwhile is not None:
                threading.Thread(target=meanwhile, args=(request,), name="meanwhile", daemon=True).start()
            remote = request.remote or os.environ.get("SPARK_REMOTE")
            if needs_classic and (remote or os.environ.get("SPARK_API_MODE") == "connect"):
                raise RequestError(
                    f"this job {NOT_ON_CONNECT}: drop --remote, and unset SPARK_REMOTE and SPARK_API_MODE"
                )
            with (
                spark_session(f"onebit_spark {name}", ship_package, request.log_level, remote) as spark,
                _interruption_in_words(interrupts, lambda: when_interrupted(spark, request)),
                _failures_in_words(),
            ):
                interrupts.listen(lambda: _hush(spark))
                work(spark, request)
        except RequestError as error:
            code, last_line = REFUSED, f"error: {error}"
        except FitFailed as error:
            code, last_line = FAILED, f"error: {error}"
        except KeyboardInterrupt as stop:
            interrupts.notice()
            code, last_line = interrupts.exit_code, f"interrupted. {stop}"
        except Exception as error:
            _debug()
            code, last_line = FAILED, f"error: {reason_of(error)}"
        if last_line:
            print(" ".join(last_line.split()), file=sys.stderr, flush=True)
    return code


@contextmanager
def spark_session(
    name: str, ship_package: bool = False, log_level: str | None = None, remote: str | None = None,
    java_options: str = "",
) -> Iterator[SparkSession]:  # fmt: skip
    """The session that runs already, left running; or a new one, stopped at the end.

    Under spark-submit all settings are the caller's. As plain Python the master is local[*] unless configured, and the
    workers run this interpreter. Spark logs warnings only, unless ``log_level`` or the user's own settings say more.
    ``remote`` is the address of a Spark Connect server.
    """
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is not None and (is_connect(running) or not remote):
        yield running
        return
    builder = SparkSession.builder.appName(name)
    if remote:
        check_reachable(remote)
        builder = builder.remote(remote)
    elif not under_spark_submit():
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        if _LOG4J.is_file():
            options = f"-Dlog4j2.configurationFile={_LOG4J.as_uri()} {java_options}".strip()
            os.environ.setdefault("PYSPARK_SUBMIT_ARGS", f"--driver-java-options '{options}' pyspark-shell")
        builder = builder.config("spark.ui.showConsoleProgress", "false")
        # Over TCP a delayed acknowledgement costs each Python task some 40 ms.
        builder = builder.config("spark.python.unix.domain.socket.enabled", "true")
    if log_level is None and under_spark_submit() and not remote and not logging_is_configured():
        log_level = "warn"
    if log_level is not None and not remote:
        builder = builder.config("spark.log.level", log_level.upper())
    with tempfile.TemporaryDirectory() as folder:
        spark = builder.getOrCreate()
        try:
            if ship_package:  # the workers do not share this process's sys.path
                archive = shutil.make_archive(f"{folder}/onebit_spark", "zip", _PACKAGE.parent, _PACKAGE.name)
                ship(spark, archive)
            yield spark
        finally:
            _hush(spark)  # what it logs at its end would come after our last line
            with suppress(Exception):  # a JVM that died cannot be stopped
                spark.stop()


def _hush(spark: SparkSession) -> None:
    """From now on, Spark logs nothing, if its JVM is ours and still runs."""
    with suppress(Exception):
        if not is_connect(spark):
            log_nothing(spark)


# ---- failures in words -----------------------------------------------------------------------------------------------


@contextmanager
def _interruption_in_words(interrupts: Interrupts, advice: Callable[[], str]) -> Iterator[None]:
    """Give the KeyboardInterrupt the advice while the JVM, which sees the files, still runs.

    If it ended with the signal too, as under spark-submit, any exception may come first.
    """
    try:
        yield
    except BaseException as error:
        if interrupts.received is None and not isinstance(error, KeyboardInterrupt):
            raise
        interrupts.notice()
        words = ""
        with suppress(Exception):
            words = advice()
        raise KeyboardInterrupt(words) from error


@contextmanager
def _failures_in_words() -> Iterator[None]:
    """Turn Spark's exceptions into ours while the JVM that holds their messages still runs."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NotConverged)  # the summary says so
            yield
    except (RequestError, FitFailed):
        _debug()
        raise
    except Exception as error:
        _debug()
        reason = reason_of(error)
        if "FAILED_READ_FILE" in str(error):
            file = re.search(r"reading file (\S+?)\.?\s", str(error))
            raise RequestError(f"the file {file[1] if file else ''} cannot be read, is it damaged? {reason}") from error
        raise FitFailed(reason) from error


def reason_of(error: BaseException) -> str:
    """The telling line of an exception: of a worker's traceback or of a Java stack, the cause at its root."""
    name, text = type(error).__name__, str(error).split("\n\nJVM stacktrace:")[0]
    if name == "Py4JNetworkError" or isinstance(error, ConnectionError):
        return "Spark's driver ended unexpectedly, perhaps out of memory: see its log, and raise --driver-memory"
    if "JAVA_GATEWAY_EXITED" in text:
        return "Spark did not start: see the lines above; it needs Java 17 or newer (set JAVA_HOME)"
    if "java.lang.OutOfMemoryError" in text:
        return "Spark ran out of memory: raise --driver-memory and --executor-memory, or --row-blocks and --col-blocks"
    if "No space left on device" in text:
        return (
            "the disk is full: free some space on the disk of the output, or on that of spark.local.dir, where Spark "
            "keeps its own files"
        )
    if "Traceback (most recent call last):" in text:
        trace = text.rpartition("Traceback (most recent call last):")[2]
        raised = re.search(r"^[^\s].*$", trace, re.MULTILINE)
        reason = raised[0] if raised else text
        reason = re.sub(r"^onebit_spark\.errors\.\w+: ", "", reason)
    elif "\n\tat " in text or name == "Py4JJavaError":
        causes = re.findall(r"^Caused by: (.+)$", text, re.MULTILINE)
        reason = causes[-1] if causes else re.split(r"^\s+at ", text, maxsplit=1, flags=re.MULTILINE)[0]
        reason = re.sub(r"An error occurred while calling \S+\s+: ", "", reason)
        reason = re.sub(r"^(?:[\w$]+\.)+[\w$]+: ", "", reason.strip())
    elif hasattr(error, "getCondition"):
        reason = text
    else:
        reason = f"{name}: {text}" if text else name
    reason = " ".join(re.sub(r"\s*SQLSTATE: \w+.*", "", reason, flags=re.DOTALL).split())
    return reason if len(reason) <= LONGEST_REASON else reason[:LONGEST_REASON] + " …"


def _debug() -> None:
    """The whole traceback, for those who ask for it."""
    if os.environ.get("ONEBIT_DEBUG") == "1":
        traceback.print_exc()
