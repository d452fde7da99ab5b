"""Runner: where steps run, and where tables are."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from numpy.typing import NDArray

from onebit_spark.core.config import FitConfig
from onebit_spark.core.losses import Loss, Side
from onebit_spark.core.spectral_rows import Rows
from onebit_spark.core.split import Split
from onebit_spark.engines.line_format import LineFormat, LineMap
from onebit_spark.engines.steps import Lines, RowStep, Step, Sums

T = TypeVar("T")  # a table of a side, as the runner keeps it


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

    def data_term(self, found: float) -> float:
        """The data term of the objective, after a half step that wants it; ``found`` is what its sums have of it."""

    def shortage(self, config: FitConfig) -> str | None:
        """Why there is no room for a fit with these settings; None if there is, or if nobody knows."""

    def grown(self, posteriors: dict[Side, T], config: FitConfig, loss: Loss) -> dict[Side, T]:
        """Both posteriors with more factors, as many as ``config`` says."""

    def restricted(self, split: Split) -> AbstractContextManager[Runner[T]]:
        """A runner on the ratings that the split chooses. Rows keep their numbers; tables of one fit the other."""

    def described(self, what: str) -> AbstractContextManager[None]:
        """Says what the work is about, wherever somebody looks."""
