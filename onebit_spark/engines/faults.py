"""Errors of Python workers, raised again on the driver with their own type and message."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from onebit_spark.errors import FitFailed
from onebit_spark.input.defects import not_deterministic
from onebit_spark.platform.plans import JOB_ERRORS, rows_are_lost

_RAISED = re.compile(r"onebit_spark\.errors\.FitFailed: (.+)")


def check_checksums(found: dict[int, tuple[int, int]], expected: dict[int, tuple[int, int]]) -> None:
    """Check that each block has the number of ratings and the checksum that it was cached with."""
    if found != expected:
        raise not_deterministic("a block of ratings was computed again and came out different")


@contextmanager
def worker_errors() -> Iterator[None]:
    """Raise a FitFailed of a worker as a FitFailed here. Spark reports it only as a traceback in a message.

    Also if a table is lost that is kept on the executors only.
    """
    try:
        yield
    except JOB_ERRORS as error:
        if rows_are_lost(error):
            raise FitFailed(
                "an executor was lost, and factors with it: fit again, from a checkpoint if there is one, or set "
                "shuffleStorage=files"
            ) from None
        raised = _RAISED.search(str(error))
        if raised is None:
            raise
        raise FitFailed(raised.group(1)) from None
