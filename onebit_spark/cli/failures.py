"""Failures in words: one line that names the cause."""

from __future__ import annotations

import os
import re
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from onebit_spark.core.solver import NotConverged
from onebit_spark.errors import FitFailed, RequestError

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
            file = re.search(r"reading file (\S+?)\.?\s", str(error))
            raise RequestError(f"the file {file[1] if file else ''} cannot be read, is it damaged? {reason}") from error
        if "onebit_spark.errors.RequestError: " in str(error):  # of a task in Python
            raise RequestError(reason) from error
        raise FitFailed(reason) from error


@contextmanager
def after(success: str) -> Iterator[None]:
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
