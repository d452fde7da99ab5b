"""Errors that our code raised in a Python worker, brought home as what they were."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import PySparkException

from onebit_spark.errors import FitFailed
from onebit_spark.input.defects import not_deterministic

_RAISED = re.compile(r"onebit_spark\.errors\.FitFailed: (.+)")


def check_checksums(found: dict[int, tuple[int, int]], expected: dict[int, tuple[int, int]]) -> None:
    """Each block must hold the ratings, by number and checksum, that it was cached with."""
    if found != expected:
        raise not_deterministic("a block of ratings was computed again and came out different")


@contextmanager
def worker_errors() -> Iterator[None]:
    """A FitFailed in a worker is a FitFailed here; Spark knows it only as a traceback in a message."""
    try:
        yield
    except PySparkException as error:
        raised = _RAISED.search(str(error))
        if raised is None:
            raise
        raise FitFailed(raised.group(1)) from None
