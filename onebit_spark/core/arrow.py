"""pyarrow, where it is installed (a fit of arrays on a GPU does without it), and the tables that people have."""

from __future__ import annotations

from typing import Any, NoReturn

from onebit_spark.errors import RequestError


class Absent:
    """Stands for a package that is not installed, so that files which name it can be imported.

    Whatever is named in it is absent as well; to call it is an error.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, part: str) -> Absent:
        if part.startswith("__"):
            raise AttributeError(part)
        return Absent(f"{self._name}.{part}")

    def __call__(self, *arguments: Any, **named: Any) -> NoReturn:
        package = self._name.partition(".")[0]
        raise ModuleNotFoundError(f"{self._name} is needed, but {package} is not installed", name=package)


try:
    import pyarrow as pa
    import pyarrow.compute as pc
except ModuleNotFoundError:
    pa, pc = Absent("pyarrow"), Absent("pyarrow.compute")

__all__ = ["Absent", "arrow_table", "pa", "pc"]


def arrow_table(given: Any, what: str = "the table") -> pa.Table:
    """An Arrow table, or a DataFrame of pandas or polars, as an Arrow table; ``what`` names it in messages."""
    if isinstance(given, pa.Table):
        return given
    try:
        if hasattr(given, "__arrow_c_stream__"):
            return pa.table(given)
        return pa.Table.from_pandas(given, preserve_index=False)
    except (pa.ArrowException, AttributeError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise RequestError(
            f"{what} must be an Arrow table, or a DataFrame of pandas or polars, not a {type(given).__name__}: {reason}"
        ) from error
