"""The two exceptions that people see, and how problems and other exceptions become one of them."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence

LONGEST_REASON = 600  # characters of a failure that are shown


class RequestError(ValueError):
    """The request or the data is wrong. The message says what is wrong and what to do. A job ends with exit code 2."""


class FitFailed(RuntimeError):
    """The fit failed: the objective is no longer a number, or the source changed. A job ends with exit code 1."""


def refuse(problems: Sequence[str]) -> None:
    """Raise a RequestError with all problems, if there are any."""
    if problems:
        raise RequestError("; ".join(problems))


def counted(n: int, noun: str) -> str:
    """1 rating, 2 ratings"""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def reason_of(error: BaseException) -> str:
    """One line about an exception: the root cause in a worker's traceback or in a Java stack."""
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
