"""Runner: where steps run, and where tables are; LineFormat: how the lines of a table are written and read."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core.config import FitConfig
from onebit_spark.core.losses import Loss, Side
from onebit_spark.core.posterior import SENT_VECTORS, FloatArray, Form, RowPosterior
from onebit_spark.core.randomness import Split
from onebit_spark.core.spectral import Rows
from onebit_spark.engines.steps import Lines, RowStep, Step, Sums

T = TypeVar("T")  # a table of a side, as the runner keeps it


class LineMap(Protocol):
    """A map of every row: a ``RowMap`` or an ``ImplicitMove``."""

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
        return rows.with_vectors(SENT_VECTORS, SENT_VECTORS).packed()

    @property
    def format(self) -> LineFormat:
        """Of what arrives."""
        return LineFormat.of(self.form.sent)


def written(lines: Lines) -> FloatArray:
    """Lines as a matrix of numbers."""
    return lines.packed() if isinstance(lines, RowPosterior) else lines


class Runner(Protocol[T]):
    """Keeps the ratings in blocks of both orientations, and runs steps on all blocks of a side.

    Sums come in the order of the blocks. The format is that of the new table.
    """

    n_ratings: int
    weighted: bool
    total_weight: float

    def count(self, side: Side) -> int:
        """Rows with at least one rating."""

    def n_rows(self, side: Side) -> int:
        """Rows of the side."""

    def counts(self, side: Side) -> NDArray[Any]:
        """Number of ratings of every row, on the driver."""

    def held_rows(self, side: Side) -> Rows | None:
        """The rows, if the driver holds the tables of this side."""

    def run(
        self, side: Side, step: Step, own: Sequence[T], partners: T, format: LineFormat, send: Any = None
    ) -> tuple[T, list[Sums]]:
        """The table that a step makes. Stored partners go through ``send(counts, lines)`` before they travel."""

    def sums(self, side: Side, step: Step, own: Sequence[T], partners: T) -> list[Sums]:
        """The sums of a step alone."""

    def run_rows(self, side: Side, step: RowStep, own: Sequence[T], format: LineFormat) -> T:
        """The table that a step makes which reads no rating."""

    def row_sums(self, side: Side, step: RowStep, own: Sequence[T] = ()) -> list[Sums]:
        """The sums of such a step alone."""

    def table(self, side: Side, lines: Lines) -> T:
        """A table of lines that are on the driver."""

    def lines(self, table: T) -> Any:
        """The lines of a table that the driver holds."""

    def mapped(self, side: Side, table: T, by: LineMap) -> T:
        """The table with every row mapped, now or when it is read."""

    def start(self, config: FitConfig, loss: Loss) -> dict[Side, T]:
        """Both posteriors at the start of a fit."""

    def data_term(self, summed: float) -> float:
        """The data term of the objective, after a half step that wants it; ``summed`` is what its sums have of it."""

    def shortage(self, config: FitConfig) -> str | None:
        """Why there is no room for a fit with these settings; None if there is, or if nobody knows."""

    def grown(self, posteriors: dict[Side, T], config: FitConfig, loss: Loss) -> dict[Side, T]:
        """Both posteriors with more factors, as many as ``config`` says."""

    def restricted(self, split: Split) -> AbstractContextManager[Runner[T]]:
        """A runner on the ratings that the split chooses. Rows keep their numbers; tables of one fit the other."""

    def described(self, what: str) -> AbstractContextManager[None]:
        """Says what the work is about, wherever somebody looks."""
