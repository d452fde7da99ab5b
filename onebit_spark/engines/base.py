"""What an engine is: it holds ratings in both orientations, and runs ``core.work`` on them.

    engine          a table of a side's rows (``T``)       where the work runs
    ThreadEngine    RowPosterior                           the cores of this process
    CudaEngine      RowPosterior with arrays on a GPU      the GPU
    SparkEngine     Table, held or stored                  the executors, in one job or two per step

``core.fit_state`` keeps the tables of a fit and calls these methods. mypy holds the three classes
to the Protocol, and so does one contract test (``tests/support/engine_contract.py``).
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core.blocks import Repeats
from onebit_spark.core.losses import Loss, Side
from onebit_spark.core.posterior import FloatArray, Form, RowPosterior
from onebit_spark.core.randomness import Split
from onebit_spark.core.statistics import SideStatistics
from onebit_spark.core.work import (
    HalfStepInputs,
    MeasureSpreads,
    RatingWork,
    RowMapping,
    RowSum,
    RowTransform,
    UpdateRows,
)
from onebit_spark.settings import FitConfig

Numbers = NDArray[np.int64]
S = TypeVar("S")


class PosteriorTable(Protocol):
    """The posterior of all rows of a side, in the form of an engine."""

    @property
    def form(self) -> Form: ...

    def copy(self) -> Self: ...


T = TypeVar("T", bound=PosteriorTable)


class Engine(Protocol[T]):
    @property
    def n_ratings(self) -> int: ...

    @property
    def weighted(self) -> bool: ...

    @property
    def total_weight(self) -> float:
        """The sum of the weights; the number of ratings without weights."""

    @property
    def repeats(self) -> Repeats:
        """Cells that were rated more than once."""

    @property
    def numbers(self) -> dict[Side, Numbers] | None:
        """The numbers of the rows of both sides, if a slice has fewer rows than the whole.

        None if all engines of this kind have the same rows.
        """

    def n_rows(self, side: Side) -> int: ...

    def count(self, side: Side) -> int:
        """Number of rows with at least one rating."""

    def counts(self, side: Side) -> Numbers:
        """Number of ratings of every row."""

    # ---- the length of a fit --------------------------------------------------------------------

    def running(self) -> AbstractContextManager[Self]:
        """The engine for the length of a fit: threads or buffers are kept."""

    def restricted(self, split: Split) -> AbstractContextManager[Engine[Any]]:
        """An engine on the ratings that the split chooses; of Spark, it may be in this process."""

    def described(self, what: str) -> AbstractContextManager[None]:
        """Name the work, for Spark's UI."""

    def shortage(self, config: FitConfig) -> str | None:
        """Why there is no room for a fit with these settings; None if there is, or if unknown."""

    # ---- tables ---------------------------------------------------------------------------------

    def table(self, side: Side, rows: RowPosterior) -> T:
        """A table of rows in this process."""

    def rows_here(self, table: T) -> RowPosterior:
        """The rows of a table in this process, unless they are stored on a cluster."""

    def take(self, side: Side, table: T, numbers: Numbers) -> RowPosterior:
        """Some rows of a table in this process, by their numbers."""

    def place(self, side: Side, rows: RowPosterior, numbers: Numbers, prior: RowPosterior) -> T:
        """A table with these rows, by their numbers, and the one row of ``prior`` elsewhere."""

    # ---- work -----------------------------------------------------------------------------------

    def start(self, config: FitConfig, loss: Loss) -> dict[Side, T]:
        """Both posteriors at the start of a fit."""

    def grow(self, tables: dict[Side, T], config: FitConfig, loss: Loss) -> dict[Side, T]:
        """Both posteriors with more factors, as many as ``config`` says (docs/MATH.md, §14)."""

    def half_step(
        self,
        update: UpdateRows,
        inputs: HalfStepInputs[T],
    ) -> tuple[T, SideStatistics]:
        """The updated rows of a side, and their statistics."""

    def data_term(self, summed: float) -> float:
        """The data term of the objective after a half step whose statistics have ``summed``."""

    def apply(self, side: Side, table: T, by: RowTransform) -> T:
        """The table with every row mapped, at once or when it is next read."""

    def over_ratings(self, work: RatingWork[S], rows: T, cols: T) -> S:
        """A sum over all ratings under a posterior."""

    def sum_rows(self, work: RowSum[S], side: Side, table: T) -> S:
        """A sum over the rows of a side."""

    def map_rows(
        self,
        work: RowMapping,
        side: Side,
        table: T,
        features: FloatArray | None = None,
    ) -> T:
        """Another posterior of the side. ``features`` are the side features of its rows."""

    def measure(self, work: MeasureSpreads, side: Side, rows: T, others: T) -> FloatArray | T:
        """The numbers of ``MeasureSpreads`` for every row: an array, or a stored table."""
