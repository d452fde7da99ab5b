"""Errors that our code raised in a Python worker, brought home as what they were."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import PySparkException

from onebit_spark.errors import FitFailed

_RAISED = re.compile(r"onebit_spark\.errors\.FitFailed: (.+)")


def not_deterministic(what: str) -> FitFailed:
    """The ratings differ between two readings of them."""
    return FitFailed(
        f"{what}: the source is not deterministic (a random split or sample, say). Write the ratings to disk first and "
        "fit from there"
    )


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
