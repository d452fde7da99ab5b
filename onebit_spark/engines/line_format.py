"""LineFormat: how the lines of a table are written and read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core.posterior import FloatArray, Form, RowPosterior
from onebit_spark.core.row_map import RowMap
from onebit_spark.engines.steps import Lines


@dataclass(frozen=True)
class LineFormat:
    """Lines are rows of a posterior, packed as ``form`` says, or plain numbers. A map may still wait for them.

    A map of all rows costs nothing until they are read: the tasks map the rows that they take.
    """

    dtype: str  # type of the numbers
    form: Form | None = None  # Of the rows of a posterior. None: the lines are plain numbers.
    by: RowMap | None = None  # the map that a row goes through when it is read

    @classmethod
    def of(cls, form: Form) -> LineFormat:
        return cls(form.precision, form)

    def then(self, after: RowMap) -> LineFormat:
        """With one more map."""
        return replace(self, by=after if self.by is None else self.by.then(after))

    @property
    def mapped(self) -> LineFormat:
        """The format of lines that have been read and written again."""
        return replace(self, by=None)

    def read(self, numbers: NDArray[Any], n_rows: int) -> Lines:
        """Lines from the numbers that ``written`` gave. Rows of a posterior are a copy."""
        if self.form is None:
            return numbers.reshape(n_rows, -1) if n_rows else numbers.reshape(0, 0)
        return self._through_map(self.form.unpacked(numbers))

    def taken(self, lines: Lines, index: NDArray[np.integer]) -> Lines:
        """Some of the lines: a copy."""
        return self._through_map(lines.take(index)) if isinstance(lines, RowPosterior) else lines[index]

    def whole(self, lines: Lines) -> Lines:
        """All lines. It is a copy only if a map waits for them."""
        return lines if self.by is None or not isinstance(lines, RowPosterior) else self.by.applied(lines)

    def _through_map(self, rows: RowPosterior) -> RowPosterior:
        if self.by is not None:
            self.by.apply_to(rows, 0, rows.n_rows)
        return rows


def written(lines: Lines) -> FloatArray:
    """Lines as a matrix of numbers."""
    return lines.packed() if isinstance(lines, RowPosterior) else lines
