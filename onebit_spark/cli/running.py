"""How a job runs: arguments, then a runtime, then the work; and how it ends: an exit code and one
last line.

A job runs in this process, unless something needs Spark. The choice is printed with its reason.

Ctrl-C and SIGTERM end a job in order, with the exit code that shells expect.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from onebit_spark.cli import requests
from onebit_spark.cli.flags import as_flag, parse
from onebit_spark.engines.spark.failures import reason_of
from onebit_spark.errors import FitFailed, RequestError
from onebit_spark.settings import FitConfig, Terms, available_memory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DONE = 0
FAILED = 1
REFUSED = 2
LOCAL = "local"
SPARK = "spark"
PACKAGE = Path(__file__).parents[1]
NO_SPARK = "Spark, which is not installed: pip install '.[spark]' in a clone of onebit_spark"

log = logging.getLogger("onebit_spark")

_LOG4J = Path(__file__).with_name("log4j2.properties")

Request = TypeVar("Request", bound=requests.SessionRequest)


@dataclass(frozen=True)
class Job(Generic[Request]):
    name: str
    request: type[Request]  # the dataclass of its flags
    # Gives the function work(runtime, request). It is imported when the arguments have been
    # checked.
    work: Callable[[], Callable[[Any, Request], None]]
    # How to go on after an interrupt
    advice: Callable[[Any, Request], str] = lambda runtime, request: ""
    # warm_up(request, name of the runtime): runs in a thread while Spark starts or a file is read
    warm_up: Callable[[Request, str], None] | None = None
    needs_classic: bool = False  # refuses Spark Connect
    packages: tuple[Path, ...] = ()  # folders of Python packages that the workers do not have

    def __call__(
        self,
        argv: Sequence[str] | None = None,
        *,
        ship_package: bool = False,
        name: str | None = None,
        runtime: str = SPARK,
    ) -> int:
        """Run the job and return its exit code.

        The last line on stderr, after Spark stopped, says what went wrong.

        ``runtime`` is where it runs if the request names none. ``ship_package``: the workers lack
        this package.
        """
        job = replace(
            self, name=name or self.name, packages=self.packages + (PACKAGE,) * ship_package
        )
        with Interrupts() as interrupts:
            request = parse(job.request, job.name, argv)
            log_plainly(logging.WARNING if request.quiet else logging.INFO)
            chosen = choose(request, runtime)
            if chosen.name == LOCAL or runtime != SPARK:
                log.info("runtime: %s (%s)", *chosen)
            if job.warm_up is not None:
                in_background(job.warm_up, request, chosen.name)
            with job._runtime(request, chosen) as place:
                spark = place.session
                interrupts.install(None if spark is None else lambda: _silence(spark))
                with (
                    interrupts.with_advice(lambda: job.advice(place, request)),
                    explained_failures(),
                ):
                    job.work()(place, request)
        return interrupts.code

    @contextmanager
    def _runtime(self, request: Request, chosen: Chosen) -> Iterator[Any]:
        if chosen.name == LOCAL:
            from onebit_spark.cli.local_runtime import LocalRuntime

            yield LocalRuntime(chosen.reason)
            return
        remote = request.remote or os.environ.get("SPARK_REMOTE")
        if self.needs_classic and (remote or os.environ.get("SPARK_API_MODE") == "connect"):
            from onebit_spark.engines.spark.sessions import NOT_ON_CONNECT

            raise RequestError(
                f"this job {NOT_ON_CONNECT}: drop --remote, and unset SPARK_REMOTE and "
                "SPARK_API_MODE"
            )
        with spark_session(
            f"onebit_spark {self.name}", self.packages, request.log_level, remote
        ) as spark:
            from onebit_spark.cli.spark_runtime import SparkRuntime

            yield SparkRuntime(spark)


def log_plainly(level: int) -> None:
    logging.basicConfig(format="%(message)s")
    log.setLevel(level)
    for talkative in ("py4j", "matplotlib"):
        logging.getLogger(talkative).setLevel(logging.ERROR)


def in_background(task: Callable[..., None], *arguments: Any) -> None:
    threading.Thread(target=task, args=arguments, name="warm-up", daemon=True).start()


# ---- where a job runs --------------------------------------------------------------------------

BYTES_IN_TRANSFER = 24.0  # of a rating on its way: two ids and a label
INPUTS = ("ratings", "predict", "pairs", "exclude_seen", "user_features", "item_features")
LOCAL_ONLY = ("model", "output", "predictions")  # paths that must be on this machine without Spark


class Chosen(NamedTuple):
    name: str
    reason: str


def choose(request: requests.SessionRequest, default: str) -> Chosen:
    """The runtime of a request, or the ``default`` if it names none.

    Refuses a runtime that cannot work.
    """
    wanted = getattr(request, "runtime", None) or default
    if wanted == SPARK or not isinstance(request, requests.JobRequest):
        if find_spec("pyspark") is None:
            raise RequestError(f"this job needs {NO_SPARK}; --runtime local does without")
        return Chosen(SPARK, "as requested")
    if wanted == LOCAL:
        if obstacles := [*needs_spark(request), *too_large(request, "driver")]:
            raise RequestError(f"--runtime local cannot work: {'; '.join(obstacles)}")
        return Chosen(LOCAL, "as requested")
    obstacle = next(chain(cluster_named(), needs_spark(request), too_large(request, "auto")), None)
    if obstacle is None:
        return Chosen(
            LOCAL, "the input is read by Arrow and fits this machine, and no cluster is named"
        )
    if find_spec("pyspark") is None:
        raise RequestError(f"{obstacle}: that needs {NO_SPARK}")
    return Chosen(SPARK, obstacle)


def cluster_named() -> Iterator[str]:
    if requests.under_spark_submit():
        yield "spark-submit started this process"
    for name in ("SPARK_REMOTE", "HADOOP_CONF_DIR"):
        if os.environ.get(name):
            yield f"{name} is set"
    if os.environ.get("SPARK_API_MODE") == "connect":
        yield "SPARK_API_MODE is connect"
    master = re.search(r"--master[ =](\S+)", os.environ.get("PYSPARK_SUBMIT_ARGS", ""))
    if master and not master[1].startswith("local"):
        yield f"PYSPARK_SUBMIT_ARGS names the master {master[1]}"


def needs_spark(request: requests.JobRequest) -> Iterator[str]:
    """What of a request only Spark can do, in words."""
    from onebit_spark.model_folder import REMOTE

    if request.remote:
        yield f"--remote {request.remote} names a Spark Connect server"
    for name, path in request.paths(name for name in INPUTS if hasattr(request, name)).items():
        yield from _unreadable(request, name, path)
    here = request.paths(name for name in LOCAL_ONLY if hasattr(request, name))
    if isinstance(request, requests.FitRequest) and request.checkpoint_dir:
        here["--checkpoint-dir"] = request.checkpoint_dir
    for name, path in here.items():
        if REMOTE.match(path):
            yield f"{name} {path} is not on this machine"
    if isinstance(request, requests.FitRequest | requests.PredictRequest) and request.output_table:
        yield f"--output-table {request.output_table} is a table of a catalog"
    if not isinstance(request, requests.FitRequest):
        return
    execution = request.execution
    if execution.exchange not in ("auto", "driver"):
        yield f"--exchange {execution.exchange} fits on executors"
    for name in ("row_blocks", "col_blocks"):
        if getattr(execution, name) is not None:
            yield f"{as_flag(name)} divides the ratings for executors"
    if execution.driver_ratings == 0:
        yield "--driver-ratings 0 fits on executors"


def _unreadable(request: requests.JobRequest, name: str, path: str) -> Iterator[str]:
    from onebit_spark.data.files import format_of, option_problems
    from onebit_spark.model_folder import REMOTE

    if requests.is_table_name(path) and not Path(path).exists():
        yield f"{name} {path} is a table of a catalog"
        return
    if re.search(r"\{.*\}", path) or (REMOTE.match(path) and re.search(r"[*?\[]", path)):
        yield f"{name} {path} is a pattern that Spark expands"
    format = request.format or format_of(path).name
    if format in requests.TABLE_FORMATS:
        yield f"--format {format} is read by Spark"
    elif request.format is not None or request.option:
        yield from option_problems(format, request.option)


def too_large(request: requests.JobRequest, wanted: str) -> Iterator[str]:
    """Why the ratings do not fit the memory.

    Whatever else is wrong with them is left to the job.
    """
    if not isinstance(request, requests.FitRequest):
        return
    from onebit_spark.data.files import count_rows, format_of, id_text_bytes, open_table
    from onebit_spark.data.ratings import SizeEstimate
    from onebit_spark.engines.decide import driver_exchange
    from onebit_spark.engines.spark.sessions import NO_LIMIT, DriverLimits

    rows = None
    ids = 0.0
    with suppress(Exception):
        rows = count_rows(request.ratings, request.format, request.option)
        # The types of JSON lines are known only after reading them all: the job checks the ids of
        # these.
        if rows is not None and (request.format or format_of(request.ratings).name) != "json":
            # Inferring the types would read the whole file.
            options = {
                key: value for key, value in request.option.items() if key.lower() != "inferschema"
            }
            table = open_table(request.ratings, request.format, options)
            ids = id_text_bytes(table, (request.user_col, request.item_col), rows)
    if rows is None:
        return
    size = SizeEstimate(
        rows, BYTES_IN_TRANSFER, weighted=request.weight_col is not None, id_bytes=ids
    )
    limits = DriverLimits(NO_LIMIT, NO_LIMIT, available_memory(), local=True)
    try:
        from onebit_spark.core.setup import form_of

        answer = driver_exchange(
            wanted, size, 0, form_of(request.fit_config), limits, request.execution.driver_ratings
        )
    except RequestError as error:
        yield str(error)
        return
    if isinstance(answer, str):
        yield answer


# ---- Spark sessions ----------------------------------------------------------------------------


@contextmanager
def spark_session(
    name: str,
    packages: Sequence[Path] = (),
    log_level: str | None = None,
    remote: str | None = None,
    java_options: str = "",
) -> Iterator[SparkSession]:
    """The session that runs already, left running; or a new one, stopped at the end.

    Under spark-submit all settings are the caller's. As plain Python the master is local[*] unless
    configured, and the workers run this interpreter. Spark logs warnings only, unless ``log_level``
    or the user's own settings say more. ``remote`` is the address of a Spark Connect server. The
    workers of a new session get the ``packages``.
    """
    from pyspark.sql import SparkSession

    from onebit_spark.engines.spark.sessions import (
        check_reachable,
        is_connect,
        logging_is_configured,
        ship,
    )

    running = SparkSession.getActiveSession()
    if running is not None and (is_connect(running) or not remote):
        yield running
        return
    builder = SparkSession.builder.appName(name)
    if remote:
        check_reachable(remote)
        builder = builder.remote(remote)
    elif not requests.under_spark_submit():
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        if _LOG4J.is_file() and log_level is None:
            options = f"-Dlog4j2.configurationFile={_LOG4J.as_uri()} {java_options}".strip()
            os.environ.setdefault(
                "PYSPARK_SUBMIT_ARGS", f"--driver-java-options '{options}' pyspark-shell"
            )
        builder = builder.config("spark.ui.showConsoleProgress", "false")
        # Over TCP a delayed acknowledgement costs each Python task some 40 ms.
        builder = builder.config("spark.python.unix.domain.socket.enabled", "true")
    if (
        log_level is None
        and requests.under_spark_submit()
        and not remote
        and not logging_is_configured()
    ):
        log_level = "warn"
    if log_level is not None and not remote:
        builder = builder.config("spark.log.level", log_level.upper())
    with tempfile.TemporaryDirectory() as folder:
        spark = builder.getOrCreate()
        try:
            for package in packages:  # the workers do not share this process's sys.path
                ship(
                    spark,
                    shutil.make_archive(
                        f"{folder}/{package.name}", "zip", package.parent, package.name
                    ),
                )
            yield spark
        finally:
            _silence(spark)  # what it logs at its end would come after our last line
            with suppress(Exception):  # a JVM that died cannot be stopped
                spark.stop()


def _silence(spark: SparkSession) -> None:
    """Stop Spark's logging, if its JVM is ours and still runs."""
    from onebit_spark.engines.spark.sessions import log_nothing

    with suppress(Exception):  # Spark Connect has no SparkContext
        log_nothing(spark)


# ---- failures ----------------------------------------------------------------------------------


@contextmanager
def explained_failures() -> Iterator[None]:
    """Turn Spark's exceptions into ours while the JVM that holds their messages still runs."""
    from onebit_spark.core.solver import NotConverged

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NotConverged)  # the summary says so
            yield
    except (RequestError, FitFailed):
        print_traceback()
        raise
    except Exception as error:
        print_traceback()
        reason = reason_of(error)
        if "FAILED_READ_FILE" in str(error):
            raise RequestError(_unread_file(str(error), reason)) from error
        if "onebit_spark.errors.RequestError: " in str(error):  # of a task in Python
            raise RequestError(reason) from error
        raise FitFailed(reason) from error


def _unread_file(error: str, reason: str) -> str:
    from onebit_spark.data.files import WRONG_HEADER, WRONG_QUOTES, wrong_line

    found = re.search(r"reading file (\S+?)\.?\s", error)
    file = re.sub("^file:/+", "file:/", found[1]) if found else ""
    if "CSV header does not conform" in error:
        return WRONG_HEADER.format(file)
    if "Unescaped quote character" in error:
        return WRONG_QUOTES.format(file)
    if line := re.search(r"Malformed CSV record: (.*?)(?: SQLSTATE|$)", error, re.MULTILINE):
        return wrong_line(file, line[1])
    return f"the file {file} cannot be read, is it damaged? {reason}"


@contextmanager
def failures_after(success: str) -> Iterator[None]:
    """If the body fails, the message first says what was done before."""
    try:
        yield
    except RequestError as error:
        raise RequestError(f"{success}: {error}") from error
    except Exception as error:
        raise FitFailed(f"{success}: {reason_of(error)}") from error


def print_traceback() -> None:
    """Print the whole traceback if the environment variable ONEBIT_DEBUG is 1."""
    if os.environ.get("ONEBIT_DEBUG") == "1":
        traceback.print_exc()


# ---- how a job ends ----------------------------------------------------------------------------

SIGNALS = (signal.SIGINT, signal.SIGTERM)
AGAIN_SECONDS = 0.3
SILENCE_SECONDS = 2.0  # the longest wait for a busy or dead JVM


class Interrupts:
    """SIGINT and SIGTERM raise KeyboardInterrupt in the body; a second signal ends the process at
    once.

    The exit code says how the body ended, and a last line on stderr, if it did not succeed, why.
    """

    def __init__(self) -> None:
        self.code = DONE
        self.received: int | None = None
        self._before = {number: signal.getsignal(number) for number in (*SIGNALS, signal.SIGALRM)}
        self._hook = sys.unraisablehook
        self._silence: Callable[[], None] | None = None

    def install(self, silence: Callable[[], None] | None = None) -> None:
        """Install the handlers; again, with what ends its logging, after a Spark session has
        installed its own.
        """
        self._silence = silence
        if threading.current_thread() is threading.main_thread() and self.received is None:
            for number in SIGNALS:
                signal.signal(number, self._interrupt)

    def __enter__(self) -> Interrupts:
        self.install()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if isinstance(error, Exception | KeyboardInterrupt):
            print(" ".join(self._last_line(error).split()), file=sys.stderr, flush=True)
        self.restore()
        return not isinstance(error, SystemExit)  # of --help

    def _last_line(self, error: Exception | KeyboardInterrupt) -> str:
        if self.received is not None or isinstance(error, KeyboardInterrupt):
            self.code = 128 + (self.received or signal.SIGINT)
            return f"interrupted. {error if isinstance(error, KeyboardInterrupt) else ''}"
        if isinstance(error, RequestError):
            self.code = REFUSED
            return f"error: {error}"
        self.code = FAILED
        if isinstance(error, FitFailed):
            return f"error: {error}"
        print_traceback()
        return f"error: {reason_of(error)}"

    def restore(self) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.setitimer(signal.ITIMER_REAL, 0)
            logging.disable(logging.NOTSET)
            sys.unraisablehook = self._hook
            for number, handler in self._before.items():
                signal.signal(number, handler)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        for each in SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        logging.disable()  # py4j logs the traceback of the call that it is in
        # Python ignores what is raised in a finaliser, of which py4j has many: an alarm raises it
        # again.
        sys.unraisablehook = lambda _: None
        signal.signal(signal.SIGALRM, self._interrupt_again)
        if self._silence is not None:
            # Ctrl-C ends Java too, which would log it. This thread may be in a call of the JVM:
            # another one calls it.
            silencing = threading.Thread(target=self._silence, daemon=True)
            silencing.start()
            silencing.join(SILENCE_SECONDS)
        signal.setitimer(signal.ITIMER_REAL, AGAIN_SECONDS, AGAIN_SECONDS)
        raise KeyboardInterrupt

    def _interrupt_again(self, number: int, frame: FrameType | None) -> None:
        if sys.exc_info()[0] is None:  # else it is on its way out
            raise KeyboardInterrupt

    @contextmanager
    def with_advice(self, advice: Callable[[], str]) -> Iterator[None]:
        """Add the advice to a KeyboardInterrupt of the body while the JVM, which can list files,
        still runs.

        Under spark-submit the JVM ends with the signal too, so any exception may come first.
        """
        try:
            yield
        except BaseException as error:
            if self.received is None and not isinstance(error, KeyboardInterrupt):
                raise
            words = ""
            with suppress(Exception):
                words = advice()
            raise KeyboardInterrupt(words) from error


# ---- the jobs ----------------------------------------------------------------------------------


def _module(name: str) -> Any:
    return import_module(f"onebit_spark.cli.{name}")


def compile_ahead(config: FitConfig, weighted: bool, device: str = "cpu") -> None:
    """Compile the kernels that a fit with these settings needs, or load them from the cache, by a
    fit of 16 ratings.

    This happens while Spark starts or a file is read. No result depends on it.
    """
    import numpy as np

    from onebit_spark.in_process import fit_arrays

    rows, cols = np.divmod(np.arange(16), 4)
    labels = np.where((rows + cols) % 3 > 0, 1, -1)
    weights = np.ones(16, np.float32) if weighted else None
    short = replace(config, max_iter=2, tol=0.0)
    fit_arrays(rows, cols, labels, short, weights=weights, certify=Terms(), device=device)


def _warm_up(request: requests.FitRequest, runtime: str) -> None:
    with suppress(Exception):  # the fit itself reports what is wrong
        compile_ahead(request.fit_config, request.weight_col is not None, request.execution.device)
        _module(f"{runtime}_runtime")
        _module("fit_job")
        if request.report:
            import matplotlib.figure  # noqa: F401


fit = Job(
    "fit.py",
    requests.FitRequest,
    work=lambda: _module("fit_job").fit,
    advice=lambda runtime, request: _module("fit_job").how_to_resume(runtime, request),
    warm_up=_warm_up,
)
predict = Job("predict.py", requests.PredictRequest, work=lambda: _module("model_jobs").predict)
positions = Job(
    "positions.py", requests.PositionsRequest, work=lambda: _module("model_jobs").positions
)
evaluate = Job("evaluate.py", requests.EvaluateRequest, work=lambda: _module("model_jobs").evaluate)
