"""How the rows of a table are laid out: stored, sent, or held with maps that are pending."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core.blocks import Sums
from onebit_spark.core.posterior import SENT_VECTORS, FloatArray, Form, RowPosterior
from onebit_spark.core.work import Rows, RowTransform, posterior_of


@dataclass(frozen=True)
class RowLayout:
    """The rows of a table: those of a posterior, packed as ``form`` says, or plain numbers.

    A map of all rows costs nothing until they are read: the tasks map the rows that they take.
    """

    dtype: str  # type of the numbers
    form: Form | None = None  # the form of the rows of a posterior; None if they are plain numbers
    maps: tuple[RowTransform, ...] = ()  # pending maps, applied in this order when a row is read

    @classmethod
    def of(cls, form: Form) -> RowLayout:
        return cls(form.precision, form)

    @classmethod
    def of_rows(cls, rows: Rows) -> RowLayout:
        return cls.of(rows.form) if isinstance(rows, RowPosterior) else cls(str(rows.dtype))

    def then(self, by: RowTransform) -> RowLayout:
        return replace(self, maps=(*self.maps, by))

    @property
    def mapped(self) -> RowLayout:
        """The layout of rows that have been read and written again."""
        return replace(self, maps=())

    def read(self, numbers: FloatArray, n_rows: int) -> Rows:
        """Rows from the numbers that ``written`` gave. Rows of a posterior are a copy."""
        if self.form is None:
            return numbers.reshape(n_rows, -1) if n_rows else numbers.reshape(0, 0)
        return self._through_maps(self.form.unpacked(numbers))

    def taken(self, rows: Rows, index: NDArray[np.integer]) -> Rows:
        """A copy of some of the rows."""
        if isinstance(rows, RowPosterior):
            return self._through_maps(rows.take(index))
        return rows[index]

    def whole(self, rows: Rows) -> Rows:
        """All rows. They are a copy only if a map is pending."""
        return self._through_maps(posterior_of(rows).copy()) if self.maps else rows

    def _through_maps(self, rows: RowPosterior) -> RowPosterior:
        for by in self.maps:
            by.apply_to(rows, 0, rows.n_rows)
        return rows


def written(rows: Rows) -> FloatArray:
    return rows.packed() if isinstance(rows, RowPosterior) else rows


class Sending(NamedTuple):
    """What a stored table sends to the blocks of the other side."""

    # from the weights of the rows' ratings, and the rows
    make: Callable[[Sums, Rows], FloatArray]
    layout: RowLayout  # the layout of what arrives


def send_vectors(weights: Sums, rows: Rows) -> FloatArray:
    """The part of the rows of a posterior that the ratings of the other side need."""
    return posterior_of(rows).with_vectors(SENT_VECTORS, SENT_VECTORS).packed()
