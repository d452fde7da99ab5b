"""pyarrow, where it is installed. A fit of arrays on a GPU does without it."""

from __future__ import annotations

from onebit_spark.core.absent import Absent

try:
    import pyarrow as pa
    import pyarrow.compute as pc
except ModuleNotFoundError:
    pa, pc = Absent("pyarrow"), Absent("pyarrow.compute")

__all__ = ["pa", "pc"]
