"""Errors that our code raised in a Python worker, brought home as what they were."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import PySparkException

from onebit_spark.errors import FitFailed

_RAISED = re.compile(r"onebit_spark\.errors\.FitFailed: (.+)")


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
