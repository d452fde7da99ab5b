"""LineFormat: how the lines of a table are written and read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core.posterior import SENT_VECTORS, FloatArray, Form, RowPosterior
from onebit_spark.engines.steps import Lines


class LineMap(Protocol):
    """A map of every row: a ``RowMap`` or a ``ToldMap``."""

    def apply_to(self, posterior: RowPosterior, lo: int, hi: int) -> None:
        """Map rows lo … hi−1 in place."""


@dataclass(frozen=True)
class LineFormat:
    """Lines are rows of a posterior, packed as ``form`` says, or plain numbers. Maps may still wait for them.

    A map of all rows costs nothing until they are read: the tasks map the rows that they take.
    """

    dtype: str  # type of the numbers
    form: Form | None = None  # Of the rows of a posterior. None: the lines are plain numbers.
    maps: tuple[LineMap, ...] = ()  # the maps that a row goes through when it is read, in this order

    @classmethod
    def of(cls, form: Form) -> LineFormat:
        return cls(form.precision, form)

    def then(self, after: LineMap) -> LineFormat:
        """With one more map."""
        return replace(self, maps=(*self.maps, after))

    @property
    def mapped(self) -> LineFormat:
        """The format of lines that have been read and written again."""
        return replace(self, maps=())

    def read(self, numbers: NDArray[Any], n_rows: int) -> Lines:
        """Lines from the numbers that ``written`` gave. Rows of a posterior are a copy."""
        if self.form is None:
            return numbers.reshape(n_rows, -1) if n_rows else numbers.reshape(0, 0)
        return self._through_maps(self.form.unpacked(numbers))

    def taken(self, lines: Lines, index: NDArray[np.integer]) -> Lines:
        """Some of the lines: a copy."""
        return self._through_maps(lines.take(index)) if isinstance(lines, RowPosterior) else lines[index]

    def whole(self, lines: Lines) -> Lines:
        """All lines. It is a copy only if a map waits for them."""
        return self._through_maps(lines.copy()) if self.maps and isinstance(lines, RowPosterior) else lines

    def _through_maps(self, rows: RowPosterior) -> RowPosterior:
        for by in self.maps:
            by.apply_to(rows, 0, rows.n_rows)
        return rows


@dataclass(frozen=True)
class ToPartners:
    """What of the rows of a posterior travels to the ratings of the other side: not what only a row itself needs."""

    form: Form  # of the rows

    def __call__(self, counts: NDArray[Any], rows: RowPosterior) -> FloatArray:
        return rows.telling(SENT_VECTORS, SENT_VECTORS).packed()

    @property
    def format(self) -> LineFormat:
        """Of what arrives."""
        return LineFormat.of(self.form.sent)


def written(lines: Lines) -> FloatArray:
    """Lines as a matrix of numbers."""
    return lines.packed() if isinstance(lines, RowPosterior) else lines
