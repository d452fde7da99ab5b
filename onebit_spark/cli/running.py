"""How a job runs: arguments, then a runtime, then the work; and how it ends: an exit code and one last line."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from onebit_spark.cli.choose_runtime import LOCAL, SPARK, Chosen, choose
from onebit_spark.cli.failures import Interrupts, failures_in_words, print_traceback, reason_of
from onebit_spark.cli.flags import parse
from onebit_spark.cli.requests import SessionRequest, under_spark_submit
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
PACKAGE = Path(__file__).parents[1]

log = logging.getLogger("onebit_spark")

_LOG4J = Path(__file__).with_name("log4j2.properties")

Request = TypeVar("Request", bound=SessionRequest)


@dataclass(frozen=True)
class Job(Generic[Request]):
    """What a job is called, which flags it takes, and what it does: "module:function", imported when it is needed."""

    name: str
    request: type[Request]  # the dataclass of its flags
    work: str  # work(runtime, request)
    when_interrupted: str | None = None  # when_interrupted(runtime, request) says how to go on
    # meanwhile(request, name of the runtime), in a thread: while Spark starts, or a file is read
    meanwhile: str | None = None
    needs_classic: bool = False  # refuses Spark Connect
    packages: tuple[Path, ...] = ()  # folders of Python packages that the workers do not have

    def __call__(
        self, argv: Sequence[str] | None = None, *, ship_package: bool = False, name: str | None = None,
        runtime: str = SPARK,
    ) -> int:  # fmt: skip
        """Run the job and return its exit code. What went wrong is the last line on stderr, after Spark stopped.

        ``runtime`` is where it runs if the request does not say. ``ship_package``: the workers lack this package.
        """
        job = replace(self, name=name or self.name, packages=self.packages + (PACKAGE,) * ship_package)
        code, last_line = DONE, ""
        with Interrupts() as interrupts:
            try:
                request = parse(job.request, job.name, argv)
                _set_up_logging(request.quiet)
                chosen = choose(request, runtime)
                if chosen.name == LOCAL or runtime != SPARK:
                    log.info("runtime: %s (%s)", *chosen)
                if job.meanwhile is not None:
                    warm_up, arguments = resolve_name(job.meanwhile), (request, chosen.name)
                    threading.Thread(target=warm_up, args=arguments, name="meanwhile", daemon=True).start()
                with (
                    job._runtime(request, chosen, interrupts) as there,
                    interrupts.in_words(partial(job._advice, there, request)),
                    failures_in_words(),
                ):
                    resolve_name(job.work)(there, request)
            except RequestError as error:
                code, last_line = REFUSED, f"error: {error}"
            except FitFailed as error:
                code, last_line = FAILED, f"error: {error}"
            except KeyboardInterrupt as stop:
                interrupts.notice()
                code, last_line = interrupts.exit_code, f"interrupted. {stop}"
            except Exception as error:
                print_traceback()
                code, last_line = FAILED, f"error: {reason_of(error)}"
            if last_line:
                print(" ".join(last_line.split()), file=sys.stderr, flush=True)
        return code

    @contextmanager
    def _runtime(self, request: Request, chosen: Chosen, interrupts: Interrupts) -> Iterator[Any]:
        """The Runtime that was chosen."""
        if chosen.name == LOCAL:
            from onebit_spark.cli.local_runtime import LocalRuntime

            yield LocalRuntime(chosen.reason)
            return
        remote = request.remote or os.environ.get("SPARK_REMOTE")
        if self.needs_classic and (remote or os.environ.get("SPARK_API_MODE") == "connect"):
            raise RequestError(f"this job {NOT_ON_CONNECT}: drop --remote, and unset SPARK_REMOTE and SPARK_API_MODE")
        with spark_session(f"onebit_spark {self.name}", self.packages, request.log_level, remote) as spark:
            from onebit_spark.cli.spark_runtime import SparkRuntime

            interrupts.listen(lambda: _hush(spark))
            yield SparkRuntime(spark)

    def _advice(self, runtime: Any, request: Request) -> str:
        return "" if self.when_interrupted is None else str(resolve_name(self.when_interrupted)(runtime, request))


def _set_up_logging(quiet: bool) -> None:
    logging.basicConfig(format="%(message)s")
    logging.getLogger("onebit_spark").setLevel(logging.WARNING if quiet else logging.INFO)
    for talkative in ("py4j", "matplotlib"):
        logging.getLogger(talkative).setLevel(logging.ERROR)


@contextmanager
def spark_session(
    name: str, packages: Sequence[Path] = (), log_level: str | None = None, remote: str | None = None,
    java_options: str = "",
) -> Iterator[SparkSession]:  # fmt: skip
    """The session that runs already, left running; or a new one, stopped at the end.

    Under spark-submit all settings are the caller's. As plain Python the master is local[*] unless configured, and the
    workers run this interpreter. Spark logs warnings only, unless ``log_level`` or the user's own settings say more.
    ``remote`` is the address of a Spark Connect server. The workers of a new session get the ``packages``.
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
        if _LOG4J.is_file() and log_level is None:
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
            for package in packages:  # the workers do not share this process's sys.path
                ship(spark, shutil.make_archive(f"{folder}/{package.name}", "zip", package.parent, package.name))
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
