"""BlockEngine runs the steps of a fit on the tables of both sides. A Runner determines where: there are three.

runner                   the tables of the two sides        how a block gets their rows
threads (this process)   arrays                             they are in memory
GPU (this process)       arrays on the device               they are on the device
Spark, broadcast         both held on the driver            by broadcast
Spark, mixed             one held, one stored               by broadcast, and by a join
Spark, shuffle           both stored on the cluster         by a join
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core.blocks import Repeats
from onebit_spark.core.config import FitConfig
from onebit_spark.core.implicit_features import CoefStep
from onebit_spark.core.losses import OTHER, SIDES, HalfStep, Loss, PriorLines, RowPrior, Side
from onebit_spark.core.posterior import SENT_VECTORS, FloatArray, Form, RowMap, RowPosterior
from onebit_spark.core.prediction import ENOUGH, Histogram, HoldoutLoss
from onebit_spark.core.randomness import Draws, GibbsErrors, Split
from onebit_spark.core.side_features import SideTables, coded_by_rated, rated_gram
from onebit_spark.core.spectral import CountedRows
from onebit_spark.core.statistics import SideStatistics
from onebit_spark.engines import steps
from onebit_spark.engines.steps import Rows, RowStep, Step, Sums

T = TypeVar("T")  # a table of a side, as the runner keeps it
Matrix = NDArray[np.float64]

# The largest stretch of a pending map. Rows are rounded to float32 before they are mapped, and the map amplifies this
# rounding by the square of its stretch.
MOST_STRETCH = 30.0


class RowTransform(Protocol):
    """A map of every row: a ``RowMap`` or an ``ImplicitMove``."""

    def apply_to(self, posterior: RowPosterior, lo: int, hi: int) -> None:
        """Map rows lo … hi−1 in place."""


@dataclass(frozen=True)
class RowLayout:
    """The rows of a table: those of a posterior, packed as ``form`` says, or plain numbers; with pending maps.

    A map of all rows costs nothing until they are read: the tasks map the rows that they take.
    """

    dtype: str  # type of the numbers
    form: Form | None = None  # the form of the rows of a posterior; None if they are plain numbers
    maps: tuple[RowTransform, ...] = ()  # pending maps, applied in this order when a row is read

    @classmethod
    def of(cls, form: Form) -> RowLayout:
        return cls(form.precision, form)

    def then(self, after: RowTransform) -> RowLayout:
        """With one more map."""
        return replace(self, maps=(*self.maps, after))

    @property
    def mapped(self) -> RowLayout:
        """The layout of rows that have been read and written again."""
        return replace(self, maps=())

    def read(self, numbers: NDArray[Any], n_rows: int) -> Rows:
        """Rows from the numbers that ``written`` gave. CountedRows of a posterior are a copy."""
        if self.form is None:
            return numbers.reshape(n_rows, -1) if n_rows else numbers.reshape(0, 0)
        return self._through_maps(self.form.unpacked(numbers))

    def taken(self, rows: Rows, index: NDArray[np.integer]) -> Rows:
        """A copy of some of the rows."""
        return self._through_maps(rows.take(index)) if isinstance(rows, RowPosterior) else rows[index]

    def whole(self, rows: Rows) -> Rows:
        """All rows. They are a copy only if a map is pending."""
        return self._through_maps(rows.copy()) if self.maps and isinstance(rows, RowPosterior) else rows

    def _through_maps(self, rows: RowPosterior) -> RowPosterior:
        for by in self.maps:
            by.apply_to(rows, 0, rows.n_rows)
        return rows


@dataclass(frozen=True)
class ToOthers:
    """The part of the rows of a posterior that the ratings of the other side need."""

    form: Form  # the form of the rows

    def __call__(self, counts: NDArray[Any], rows: RowPosterior) -> FloatArray:
        return rows.with_vectors(SENT_VECTORS, SENT_VECTORS).packed()

    @property
    def layout(self) -> RowLayout:
        """The layout of what arrives."""
        return RowLayout.of(self.form.sent)


def written(rows: Rows) -> FloatArray:
    """The rows as a matrix of numbers."""
    return rows.packed() if isinstance(rows, RowPosterior) else rows


class Runner(Protocol[T]):
    """Keeps the ratings in blocks of both orientations, and runs steps on all blocks of a side.

    Sums are in the order of the blocks. ``layout`` is that of the new table.
    """

    n_ratings: int
    weighted: bool
    total_weight: float

    @property
    def repeats(self) -> Repeats:
        """Cells that were rated more than once."""

    def count(self, side: Side) -> int:
        """CountedRows with at least one rating."""

    def n_rows(self, side: Side) -> int:
        """CountedRows of the side."""

    def counts(self, side: Side) -> NDArray[Any]:
        """Number of ratings of every row, on the driver."""

    def held_rows(self, side: Side) -> CountedRows | None:
        """The rows, if the driver holds the tables of this side."""

    def run(
        self, side: Side, step: Step, own: Sequence[T], others: T, layout: RowLayout, send: Any = None
    ) -> tuple[T, list[Sums]]:
        """The table that a step computes. Stored rows of the other side go through ``send(counts, rows)`` first."""

    def sums(self, side: Side, step: Step, own: Sequence[T], others: T) -> list[Sums]:
        """The sums of a step alone."""

    def run_rows(self, side: Side, step: RowStep, own: Sequence[T], layout: RowLayout) -> T:
        """The table that a step computes without reading ratings."""

    def row_sums(self, side: Side, step: RowStep, own: Sequence[T] = ()) -> list[Sums]:
        """The sums of such a step alone."""

    def table(self, side: Side, rows: Rows) -> T:
        """A table of rows that are on the driver."""

    def lines(self, table: T) -> Any:
        """The rows of a table that the driver holds."""

    def mapped(self, side: Side, table: T, by: RowTransform) -> T:
        """The table with every row mapped, now or when it is read."""

    def start(self, config: FitConfig, loss: Loss) -> dict[Side, T]:
        """Both posteriors at the start of a fit."""

    def data_term(self, summed: float) -> float:
        """The data term of the objective after a half step with ``want_data``; ``summed`` is what its sums contain."""

    def shortage(self, config: FitConfig) -> str | None:
        """Why there is no room for a fit with these settings; None if there is, or if that is not known."""

    def grown(self, posteriors: dict[Side, T], config: FitConfig, loss: Loss) -> dict[Side, T]:
        """Both posteriors with more factors, as many as ``config`` says."""

    def restricted(self, split: Split) -> AbstractContextManager[Runner[T]]:
        """A runner on the ratings that the split chooses. Rows keep their numbers, so both runners share tables."""

    def described(self, what: str) -> AbstractContextManager[None]:
        """Name the work, for Spark's UI."""


class BlockEngine(Generic[T]):
    """An ``Engine`` (``core.engine``): both posteriors as tables, and the steps that change them.

    Attributes
    ----------
    runner : Runner
        Runs the steps.
    ids : dict of Side to ids
        The ids of the rows, if they have any, in the type of the caller.
    features : dict of Side to SideFeatures
        Side features, on the driver.

    The gauge maps all rows after every iteration, which would cost as much as an update where they have covariances. So
    these maps stay pending: a half step works on unmapped rows under the unmapped prior (``HalfStep.before``), and only
    its sums are mapped (docs/MATH.md, §7.2).
    """

    def __init__(self, runner: Runner[T], ids: dict[Side, Any] | None = None) -> None:
        self.runner: Any = runner
        self.ids = ids or {}
        self.n_ratings = runner.n_ratings
        self.weighted = runner.weighted
        self.total_weight = runner.total_weight
        self.features: SideTables = {}
        self._tables: dict[Side, Any] = {}
        self._maps: dict[Side, RowMap] = {}  # pending maps of the rows in the tables
        self._feature_tables: dict[Side, tuple[Any, T]] = {}
        self._data = 0.0  # the data term of the last half step

    @contextmanager
    def running(self) -> Iterator[Self]:
        """The engine for the length of a fit in this process: its threads, or the buffers of its GPU, are kept."""
        with self.runner.running():
            yield self

    @property
    def positives(self) -> int:
        """Number of positive ratings, in this process."""
        return int(self.runner.positives)

    @property
    def repeats(self) -> Repeats:
        """Cells that were rated more than once."""
        return self.runner.repeats

    def count(self, side: Side) -> int:
        return self.runner.count(side)

    def counts(self, side: Side) -> NDArray[Any]:
        """Number of ratings of every row of the side."""
        return self.runner.counts(side)

    @property
    def posteriors(self) -> dict[Side, Any]:
        """Both posteriors as they stand."""
        self._apply_maps()
        return self._tables

    @posteriors.setter
    def posteriors(self, tables: dict[Side, Any]) -> None:
        self._tables, self._maps = tables, {}

    def start(self, config: FitConfig, loss: Loss) -> None:
        with self.runner.described("start"):
            self.posteriors = self.runner.start(config, loss)

    def shortage(self, config: FitConfig) -> str | None:
        return self.runner.shortage(config)

    def grown(self, config: FitConfig, loss: Loss) -> dict[Side, Any]:
        with self.runner.described("more factors"):
            return self.runner.grown(self.posteriors, config, loss)

    def start_from(self, posteriors: dict[Side, Any]) -> None:
        self.posteriors = {side: posterior.copy() for side, posterior in posteriors.items()}

    def half_step(self, loss: Loss, step: HalfStep[Any]) -> SideStatistics:
        if isinstance(step.prior, PriorLines):
            self._apply_maps()
        side, by = step.side, self._maps.get(step.side)
        if by is not None:
            step = step.before(by)
        own, others, prior = [self._tables[side]], self._tables[OTHER[side]], step.prior
        if isinstance(prior, PriorLines):
            own.append(prior.lines)
            prior = PriorLines(None)
        if step.feature_coef is not None:
            own.append(self._feature_table(side))
        form, update = own[0].form, steps.Update(loss, step.under(prior))
        with self.runner.described(f"iteration {step.iteration + 1}, {side}"):
            send = ToOthers(others.form) if form.vectors else None
            self._tables[side], sums = self.runner.run(side, update, own, others, RowLayout.of(form), send)
        statistics = reduce(SideStatistics.__add__, (SideStatistics.from_vector(part, form) for part in sums))
        self._data = statistics.data
        return statistics if by is None else statistics.mapped(by)

    def data_term(self) -> float:
        return self.runner.data_term(self._data)

    def apply(self, maps: dict[Side, RowMap]) -> None:
        self._maps = {side: self._maps[side].then(by) if self._maps else by for side, by in maps.items()}
        kinds = {table.form.kind for table in self._tables.values()}
        if kinds != {"covariance"} or any(np.linalg.cond(by.matrix) > MOST_STRETCH for by in self._maps.values()):
            self._apply_maps()

    def _apply_maps(self) -> None:
        for side, by in self._maps.items():
            self._tables[side] = self.runner.mapped(side, self._tables[side], by)
        self._maps = {}

    def move_coef(self, side: Side, step: CoefStep) -> None:
        if not step.matrix.any():
            return
        if self._maps:
            step = step.before(self._maps[side])
        for whose, by in ((side, step.of_residuals), (OTHER[side], step.of_coef)):
            self._tables[whose] = self.runner.mapped(whose, self._tables[whose], by)

    def coef_gram(self, side: Side) -> Matrix:
        posterior = self.posteriors[side]
        if not posterior.form.vectors:
            return np.zeros((0, 0))
        size = 3 * posterior.form.rank
        return np.sum(self.runner.row_sums(side, steps.coef_gram, [posterior]), axis=0).reshape(size, size)

    def column_norms(self, side: Side, posterior: Any) -> Matrix:
        return np.sqrt(np.sum(self.runner.row_sums(side, steps.column_squares, [posterior]), axis=0))

    def feature_gram(self, side: Side) -> Matrix | None:
        known = self.features.get(side)
        return None if known is None else rated_gram(known.coded, self.counts(side))

    def posterior(self, side: Side, unseen: RowPrior | None = None, feature_coef: Matrix | None = None) -> Any:
        posterior = self.posteriors[side]
        if unseen is None or self.count(side) == self.runner.n_rows(side):
            return posterior
        own = [posterior] if feature_coef is None else [posterior, self._feature_table(side)]
        fill = steps.FillUnrated(unseen, feature_coef)
        return self.runner.run_rows(side, fill, own, RowLayout.of(posterior.form))

    def combined(self, side: Side, make: Callable[..., RowPosterior], *posteriors: Any) -> Any:
        form = make(*(posterior.form.empty() for posterior in posteriors)).form
        return self.runner.run_rows(side, steps.Combine(make), posteriors, RowLayout.of(form))

    def gibbs_errors(self, draws: Draws) -> GibbsErrors:
        with self.runner.described("certificate"):
            total = self._over_ratings(steps.Draw(draws), self.posteriors)
        return GibbsErrors(*map(int, total))

    def confidences(self, posterior: dict[Side, Any], noise: float) -> Histogram:
        with self.runner.described("confidences"):
            total = self._over_ratings(steps.Confidences(noise, max(1, self.n_ratings // ENOUGH)), posterior)
        return total.astype(np.int64)

    def holdout_loss(self, loss: str, posterior: dict[Side, Any], split: Split) -> HoldoutLoss:
        with self.runner.described("loss of the last tenth"):
            total = self._over_ratings(steps.MeasureHoldoutLoss(loss, split), posterior)
        return HoldoutLoss.of_sums(total)

    @contextmanager
    def restricted(self, split: Split) -> Iterator[BlockEngine[T]]:
        with self.runner.restricted(split) as runner:
            part = BlockEngine(runner)
            part.features = coded_by_rated(self.features, part.counts)
            yield part

    def _over_ratings(self, step: Step, posterior: dict[Side, Any]) -> Sums:
        rows, cols = (posterior[side] for side in SIDES)
        return np.asarray(np.sum(self.runner.sums("rows", step, [rows], cols), axis=0))

    def _feature_table(self, side: Side) -> T:
        """The side features as a table, made once."""
        coded = self.features[side].coded
        if side not in self._feature_tables or self._feature_tables[side][0] is not coded:
            self._feature_tables[side] = coded, self.runner.table(side, coded)
        return self._feature_tables[side][1]
