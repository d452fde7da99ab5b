"""Folders that models read their factors from: each goes when no plan reads it any more, at the latest at exit.

A model may be gone while its predictions are still to be computed, so what counts is not who holds the model here but
what the plans of Spark's driver refer to: the files' index, which all plans over them share.
"""

from __future__ import annotations

import atexit
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import DataFrame

from onebit_spark.platform.files import Location


@dataclass
class _Lent:
    folder: Location
    readers: list[Any] = field(default_factory=list)  # weak references of the JVM to what plans share


_lent: dict[str, _Lent] = {}  # by URI


def lend(folder: Location, reading: DataFrame) -> None:
    """Delete the folder when neither this frame nor any that was made from it is left."""
    lent = _lent.setdefault(folder.uri, _Lent(folder))
    jvm: Any = reading.sparkSession._jvm
    frame: Any = reading._jdf
    plan = frame.queryExecution().analyzed()
    try:
        shared = plan.relation().location()
    except Py4JError:  # the session reads Parquet by the newer interface
        shared = plan.table()
    lent.readers.append(jvm.java.lang.ref.WeakReference(shared))


def take_back() -> None:
    """Delete the folders that nothing refers to any more, as far as the JVM knows: it may take another call."""
    if _lent:
        jvm: Any = next(iter(_lent.values())).folder.spark._jvm
        jvm.System.gc()
    for uri, lent in list(_lent.items()):
        if all(reader.refersTo(None) for reader in lent.readers):
            lent.folder.delete()
            del _lent[uri]


@atexit.register
def _take_all_back() -> None:
    for lent in _lent.values():
        with suppress(Py4JError, OSError):  # Spark's driver may be gone
            lent.folder.delete()
