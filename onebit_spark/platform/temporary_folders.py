"""Folders that models read their factors from. A folder is deleted when no plan reads it, at the latest at exit.

A model may be garbage in Python while its predictions are not computed yet. So references to the model do not count.
What counts are the plans in Spark's driver: all plans over the same files share one index of these files. On Spark
Connect nobody can ask for these plans, and the folder remains until exit.
"""

from __future__ import annotations

import atexit
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import DataFrame

from onebit_spark.platform.files import Location
from onebit_spark.platform.sessions import is_connect


@dataclass
class _Lent:
    folder: Location
    readers: list[Any] = field(default_factory=list)  # weak references of the JVM to the shared index of the files


_lent: dict[str, _Lent] = {}  # by URI


def lend(folder: Location, reading: DataFrame) -> None:
    """Delete the folder when neither this frame nor any frame made from it exists any more."""
    lent = _lent.setdefault(folder.uri, _Lent(folder))
    if is_connect(reading.sparkSession):
        return
    jvm: Any = reading.sparkSession._jvm
    frame: Any = reading._jdf
    plan = frame.queryExecution().analyzed()
    try:
        shared = plan.relation().location()
    except Py4JError:  # the session reads Parquet through the newer interface
        shared = plan.table()
    lent.readers.append(jvm.java.lang.ref.WeakReference(shared))


def take_back() -> None:
    """Delete the folders that nothing refers to any more. The JVM may need a second call to notice it."""
    classic = {uri: lent for uri, lent in _lent.items() if not is_connect(lent.folder.spark)}
    if classic:
        jvm: Any = next(iter(classic.values())).folder.spark._jvm
        jvm.System.gc()
    for uri, lent in classic.items():
        if all(reader.refersTo(None) for reader in lent.readers):
            lent.folder.delete()
            del _lent[uri]


@atexit.register
def _take_all_back() -> None:
    for lent in _lent.values():
        with suppress(Py4JError, OSError):  # Spark's driver may be gone
            lent.folder.delete()
