"""One line about a failure of Spark or of a Python worker. This module imports no Spark."""

from __future__ import annotations

import re
import tempfile

LONGEST_REASON = 600  # characters of a failure that are shown
TRACEBACK = "Traceback (most recent call last):"
NO_SPACE = "No space left on device"
CURES = {  # words in a failure ─► what to do
    "JAVA_GATEWAY_EXITED": "Spark did not start: see the lines above; it needs Java 17 or newer "
    "(set JAVA_HOME)",
    "java.lang.OutOfMemoryError": (
        "Spark ran out of memory: raise --driver-memory and --executor-memory, or --row-blocks "
        "and --col-blocks"
    ),
    NO_SPACE: (
        "the disk is full: free some space on the disk of the output, or on that of "
        "spark.local.dir, where Spark "
        "keeps its own files"
    ),
}


def reason_of(error: BaseException) -> str:
    """One line about an exception: the cure, or the root cause in a worker's traceback or in a Java
    stack.
    """
    text = str(error).split("\n\nJVM stacktrace:")[0]
    if type(error).__name__ == "Py4JNetworkError" or isinstance(error, ConnectionError):
        return (
            "Spark's driver ended unexpectedly, perhaps out of memory: see its log, and "
            "raise --driver-memory"
        )
    if isinstance(error, OSError) and NO_SPACE in text:
        where = error.filename or f"the output, or of temporary files ({tempfile.gettempdir()})"
        return f"the disk is full: free some space on the disk of {where}"
    for words, cure in CURES.items():
        if words in text:
            return cure
    reason = " ".join(
        re.sub(r"\s*SQLSTATE: \w+.*", "", _root_cause(error, text), flags=re.DOTALL).split()
    )
    return reason if len(reason) <= LONGEST_REASON else reason[:LONGEST_REASON] + " …"


def _root_cause(error: BaseException, text: str) -> str:
    name = type(error).__name__
    if TRACEBACK in text:
        raised = re.search(r"^[^\s].*$", text.rpartition(TRACEBACK)[2], re.MULTILINE)
        return re.sub(r"^onebit_spark\.errors\.\w+: ", "", raised[0] if raised else text)
    if "\n\tat " in text or name == "Py4JJavaError":
        causes = re.findall(r"^Caused by: (.+)$", text, re.MULTILINE)
        cause = (
            causes[-1] if causes else re.split(r"^\s+at ", text, maxsplit=1, flags=re.MULTILINE)[0]
        )
        cause = re.sub(r"An error occurred while calling \S+\s+: ", "", cause)
        return re.sub(r"^(?:[\w$]+\.)+[\w$]+: ", "", cause.strip())
    if hasattr(error, "getCondition"):
        return text
    return f"{name}: {text}" if text else name
