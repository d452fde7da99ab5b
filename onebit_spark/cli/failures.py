"""How a job fails: one line that names the cause; and how Ctrl-C or SIGTERM ends it, in order.

The exit code of a signal is the one that shells expect. Python ignores an exception in a finaliser or in the callback
of a weak reference, and py4j has many finalisers. So KeyboardInterrupt is raised again until it is handled.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any

from onebit_spark.errors import FitFailed, RequestError

LONGEST_REASON = 600  # characters of a failure that are shown


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
            file = re.search(r"reading file (\S+?)\.?\s", str(error))
            raise RequestError(f"the file {file[1] if file else ''} cannot be read, is it damaged? {reason}") from error
        if "onebit_spark.errors.RequestError: " in str(error):  # of a task in Python
            raise RequestError(reason) from error
        raise FitFailed(reason) from error


@contextmanager
def failures_after(success: str) -> Iterator[None]:
    """If the body fails, the message first says what was done before."""
    try:
        yield
    except RequestError as error:
        raise RequestError(f"{success}: {error}") from error
    except Exception as error:
        raise FitFailed(f"{success}: {reason_of(error)}") from error


def reason_of(error: BaseException) -> str:
    """One line about an exception: the root cause in a worker's traceback or in a Java stack."""
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


def print_traceback() -> None:
    """Print the whole traceback if the environment variable ONEBIT_DEBUG is 1."""
    if os.environ.get("ONEBIT_DEBUG") == "1":
        traceback.print_exc()


# ---- signals ---------------------------------------------------------------------------------------------------------

SIGNALS = (signal.SIGINT, signal.SIGTERM)
AGAIN = signal.SIGALRM  # what this process sends itself
AGAIN_SECONDS = 0.3
SILENCE_SECONDS = 2.0  # the longest wait for a busy or dead JVM


class Interrupts:
    """Within it, the first signal raises KeyboardInterrupt and is recorded; a second one ends the process at once.

    Only the main thread can handle signals. In another thread nothing changes.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, Any] = {}
        self._silence: Callable[[], None] | None = None
        self._handled = threading.Event()
        self._unraisable_hook = sys.unraisablehook

    def __enter__(self) -> Interrupts:
        self._before = {number: signal.getsignal(number) for number in (*SIGNALS, AGAIN)}
        self.listen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.handled()
        if self.received is not None:
            logging.disable(logging.NOTSET)
            sys.unraisablehook = self._unraisable_hook
        self._handle(self._before)

    def listen(self, silence: Callable[[], None] | None = None) -> None:
        """Install the handlers; again after a Spark session has started, which installs its own.

        ``silence`` stops Spark's logging. It runs in another thread: the signal may arrive during a call of the JVM,
        and a second call from the same thread fails.
        """
        self._silence = silence
        if self.received is None:
            self._handle(dict.fromkeys(SIGNALS, self._receive))

    def handled(self) -> None:
        """KeyboardInterrupt has been caught and is not raised again."""
        self._handled.set()

    @contextmanager
    def with_advice(self, advice: Callable[[], str]) -> Iterator[None]:
        """Add the advice to a KeyboardInterrupt of the body while the JVM, which can list files, still runs.

        Under spark-submit the JVM ends with the signal too, so any exception may come first.
        """
        try:
            yield
        except BaseException as error:
            if self.received is None and not isinstance(error, KeyboardInterrupt):
                raise
            self.handled()
            words = ""
            with suppress(Exception):
                words = advice()
            raise KeyboardInterrupt(words) from error

    @property
    def exit_code(self) -> int:
        """130 after SIGINT, 143 after SIGTERM."""
        return 128 + (self.received or signal.SIGINT)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        self._handle(dict.fromkeys(SIGNALS, signal.SIG_DFL))
        logging.disable()  # py4j logs the traceback of the call that it is in
        sys.unraisablehook = lambda _: None
        if self._silence is not None:
            silencing = threading.Thread(target=self._silence, daemon=True)
            silencing.start()
            silencing.join(SILENCE_SECONDS)
        self._handle({AGAIN: self._raise_again})
        threading.Thread(target=self._insist, daemon=True).start()
        raise KeyboardInterrupt

    def _insist(self) -> None:
        main = threading.main_thread().ident
        assert main is not None
        while not self._handled.wait(AGAIN_SECONDS):
            if sys._current_exceptions().get(main) in (None, (None, None, None)):  # else it is on its way out
                signal.pthread_kill(main, AGAIN)

    def _raise_again(self, number: int, frame: FrameType | None) -> None:
        if not self._handled.is_set():
            raise KeyboardInterrupt

    @staticmethod
    def _handle(handlers: dict[int, Any]) -> None:
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                signal.signal(number, handler)
