"""Folders that models read their factors from. A folder is deleted when no plan reads it, at the latest at exit.

A model may be garbage in Python while its predictions are not computed yet. So references to the model do not count.
What counts are the plans in Spark's driver: all plans over the same files share one index of these files. The JVM
notices that an index is gone when it collects its garbage, so it is asked to. On Spark Connect nobody can ask for these
plans, and the folder remains until exit.
"""

from __future__ import annotations

import atexit
import threading
from contextlib import suppress
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession

from onebit_spark.platform.files import Location
from onebit_spark.platform.sessions import is_connect

_MAKING = threading.Lock()


class TemporaryFolders:
    """The folders of one Spark application, which owns them: they are an attribute of it."""

    def __init__(self) -> None:
        self._folders: dict[str, Location] = {}  # by URI
        self._readers: dict[str, list[Any]] = {}  # weak references of the JVM to the shared index of the files
        self._jvm: Any = None  # of the readers
        atexit.register(self._delete_all)

    @classmethod
    def of(cls, spark: SparkSession) -> TemporaryFolders:
        application: Any = spark if is_connect(spark) else spark.sparkContext
        with _MAKING:
            if not hasattr(application, "_onebit_folders"):
                application._onebit_folders = cls()
        return application._onebit_folders

    def delete_after(self, folder: Location, frame: DataFrame) -> None:
        """Delete the folder when neither this frame nor any frame made from it exists any more."""
        self._folders[folder.uri] = folder
        if is_connect(frame.sparkSession):
            return
        self._jvm = frame.sparkSession._jvm
        plan: Any = frame._jdf
        plan = plan.queryExecution().analyzed()
        try:
            shared = plan.relation().location()
        except Py4JError:  # the session reads Parquet through the newer interface
            shared = plan.table()
        self._readers.setdefault(folder.uri, []).append(self._jvm.java.lang.ref.WeakReference(shared))

    def delete_unread(self) -> None:
        """Delete the folders that nothing refers to any more."""
        if self._readers:
            self._jvm.System.gc()
        for uri, readers in list(self._readers.items()):
            if all(reader.refersTo(None) for reader in readers):
                self._folders.pop(uri).delete()
                del self._readers[uri]

    def _delete_all(self) -> None:
        for folder in self._folders.values():
            with suppress(Py4JError, OSError):  # Spark's driver may be gone
                folder.delete()
