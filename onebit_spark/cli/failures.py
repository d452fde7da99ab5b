"""How a job fails: one line that names the cause; and how Ctrl-C or SIGTERM ends it, in order.

The exit code of a signal is the one that shells expect. Python ignores an exception in a finaliser or in the callback
of a weak reference, and a signal may come in the middle of one. So KeyboardInterrupt is raised again until somebody
handles it.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any

from onebit_spark.core.solver import NotConverged
from onebit_spark.errors import FitFailed, RequestError
from onebit_spark.input.tables import wrong_header, wrong_line, wrong_quotes

LONGEST_REASON = 600  # characters of a failure that are shown


@contextmanager
def failures_in_words() -> Iterator[None]:
    """Turn Spark's exceptions into ours while the JVM that holds their messages still runs."""
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
    """Why Spark cannot read a file."""
    found = re.search(r"reading file (\S+?)\.?\s", error)
    file = re.sub("^file:/+", "file:/", found[1]) if found else ""
    if "CSV header does not conform" in error:
        return wrong_header(file)
    if "Unescaped quote character" in error:
        return wrong_quotes(file)
    if line := re.search(r"Malformed CSV record: (.*?)(?: SQLSTATE|$)", error, re.MULTILINE):
        return wrong_line(file, line[1])
    return f"the file {file} cannot be read, is it damaged? {reason}"


@contextmanager
def noting_success(success: str) -> Iterator[None]:
    """If the body fails, say in the message what was already done."""
    try:
        yield
    except RequestError as error:
        raise RequestError(f"{success}: {error}") from error
    except Exception as error:
        raise FitFailed(f"{success}: {reason_of(error)}") from error


def reason_of(error: BaseException) -> str:
    """The telling line of an exception: of a worker's traceback or of a Java stack, the cause at its root."""
    name, text = type(error).__name__, str(error).split("\n\nJVM stacktrace:")[0]
    if name == "Py4JNetworkError" or isinstance(error, ConnectionError):
        return "Spark's driver ended unexpectedly, perhaps out of memory: see its log, and raise --driver-memory"
    if "JAVA_GATEWAY_EXITED" in text:
        return "Spark did not start: see the lines above; it needs Java 17 or newer (set JAVA_HOME)"
    if "java.lang.OutOfMemoryError" in text:
        return "Spark ran out of memory: raise --driver-memory and --executor-memory, or --row-blocks and --col-blocks"
    if "No space left on device" in text and isinstance(error, OSError):
        where = error.filename or f"the output, or of temporary files ({tempfile.gettempdir()})"
        return f"the disk is full: free some space on the disk of {where}"
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
    """The whole traceback, if ONEBIT_DEBUG asks for it."""
    if os.environ.get("ONEBIT_DEBUG") == "1":
        traceback.print_exc()


# ---- signals ---------------------------------------------------------------------------------------------------------

SIGNALS = (signal.SIGINT, signal.SIGTERM)
AGAIN = signal.SIGALRM  # what this process sends itself
AGAIN_SECONDS = 0.3
HUSH_SECONDS = 2.0  # the most that a busy or dead JVM is waited for


class Interrupts:
    """Within it, the first signal raises KeyboardInterrupt and is remembered; a second one ends the process at once.

    Only the main thread can wait for signals. In another one nothing changes.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, Any] = {}
        self._hush: Callable[[], None] | None = None
        self._noticed = threading.Event()
        self._unraisable_hook = sys.unraisablehook

    def __enter__(self) -> Interrupts:
        self._before = {number: signal.getsignal(number) for number in (*SIGNALS, AGAIN)}
        self.listen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.notice()
        if self.received is not None:
            logging.disable(logging.NOTSET)
            sys.unraisablehook = self._unraisable_hook
        self._handle(self._before)

    def listen(self, hush: Callable[[], None] | None = None) -> None:
        """Wait for the signals: again where a Spark session has begun, whose own handler has taken our place.

        ``hush`` keeps Spark from logging what breaks off. It runs in another thread: the signal may come in the middle
        of a call of the JVM, and a second call from the same thread fails.
        """
        self._hush = hush
        if self.received is None:
            self._handle(dict.fromkeys(SIGNALS, self._receive))

    def notice(self) -> None:
        """Whoever handles KeyboardInterrupt says so. It is not raised again."""
        self._noticed.set()

    @contextmanager
    def in_words(self, advice: Callable[[], str]) -> Iterator[None]:
        """Give the KeyboardInterrupt of the body the advice while the JVM, which sees the files, still runs.

        If it ended with the signal too, as under spark-submit, any exception may come first.
        """
        try:
            yield
        except BaseException as error:
            if self.received is None and not isinstance(error, KeyboardInterrupt):
                raise
            self.notice()
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
        if self._hush is not None:
            hushing = threading.Thread(target=self._hush, daemon=True)
            hushing.start()
            hushing.join(HUSH_SECONDS)
        self._handle({AGAIN: self._raise_again})
        threading.Thread(target=self._insist, daemon=True).start()
        raise KeyboardInterrupt

    def _insist(self) -> None:
        main = threading.main_thread().ident
        assert main is not None
        while not self._noticed.wait(AGAIN_SECONDS):
            if sys._current_exceptions().get(main) in (None, (None, None, None)):  # else it is on its way out
                signal.pthread_kill(main, AGAIN)

    def _raise_again(self, number: int, frame: FrameType | None) -> None:
        if not self._noticed.is_set():
            raise KeyboardInterrupt

    @staticmethod
    def _handle(handlers: dict[int, Any]) -> None:
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                signal.signal(number, handler)
