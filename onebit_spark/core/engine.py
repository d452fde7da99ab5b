"""Engine: both posteriors of a fit, and the steps that change them. A runner determines where the steps run.

runner                   the tables of the two sides        how a block gets their rows
threads (this process)   arrays                             they are in memory
GPU (this process)       arrays on the device               they are on the device
Spark, broadcast         both held on the driver            by broadcast
Spark, mixed             one held, one stored               by broadcast, and by a join
Spark, shuffle           both stored on the cluster         by a join

A step is the work on one block of ratings, and it is written once for all runners::

    Step       (block, rows, other rows) ─► (new rows | None, sums)
    RowStep    (counted rows, rows) ─► (new rows | None, sums)                 it reads no rating

``tables`` are the block's rows in one or more tables of its side, ``others`` its columns' rows in a table of the other
side. The rows of a table are those of a posterior, or plain numbers. The sums of all blocks go to the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from itertools import starmap
from typing import Any, Generic, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core.blocks import RatingBlock, Repeats
from onebit_spark.core.config import FitConfig
from onebit_spark.core.features import (
    CoefStep,
    ImplicitMove,
    SideTables,
    add_implicit_sums,
    coded_by_rated,
    coef_gram,
    leave_residuals,
    rated_gram,
    sent_vectors,
)
from onebit_spark.core.hyper_posterior import HyperPosterior
from onebit_spark.core.losses import OTHER, SIDES, HalfStep, Loss, RowPrior, Side
from onebit_spark.core.losses.base import RowSums
from onebit_spark.core.positions import Axes, gram
from onebit_spark.core.posterior import SENT_VECTORS, FloatArray, Form, RowMap, RowPosterior
from onebit_spark.core.prediction import ENOUGH, Histogram, HoldoutLoss, count_confidences
from onebit_spark.core.randomness import Draws, GibbsErrors, Split, count_errors
from onebit_spark.core.spectral import CountedRows
from onebit_spark.core.statistics import SideStatistics

Part = TypeVar("Part")
Sums = NDArray[np.float64]
Rows = RowPosterior | FloatArray
Result = tuple[Rows | None, Sums]
Step = Callable[["PlacedBlock", list[Any], Any], Result]
RowStep = Callable[[CountedRows, list[Any]], Result]

NO_SUMS: Sums = np.empty(0)


@dataclass(frozen=True)
class PlacedBlock:
    """A RatingBlock with its place in the matrix."""

    number: int  # number of the block
    rows: NDArray[np.int64]  # row r of the block is row ``rows[r]`` of the matrix
    columns: NDArray[np.int64]  # column c of the block is column ``columns[c]`` of the matrix
    ratings: RatingBlock  # the ratings
    checksum: int = 0  # checksum of the ratings
    # (work, ranges) ─► results, in several threads
    in_parallel: Callable[[Callable[[int, int], Any], list[tuple[int, int]]], list[Any]] | None = None
    left_out: dict[Split, RatingBlock] = field(default_factory=dict)  # by split: what it does not choose, once computed

    def not_chosen(self, split: Split) -> RatingBlock:
        if split not in self.left_out:
            self.left_out[split] = split.part_of(self.ratings, self.rows, self.columns, those=False)
        return self.left_out[split]

    def over_rows(self, work: Callable[[int, int], Part], reads_ratings: bool = True) -> list[Part]:
        """``work(lo, hi)`` for ranges of the rows, the results in the order of the rows.

        The ranges do not depend on the number of threads. If the work ``reads_ratings``, they have about equally many
        ratings, else equally many rows.
        """
        ranges = self.ratings.ranges if reads_ratings else self.ratings.even_ranges
        return list(starmap(work, ranges)) if self.in_parallel is None else self.in_parallel(work, ranges)

    @property
    def counted_rows(self) -> CountedRows:
        return CountedRows(self.rows, self.ratings.row_weights, self.ratings.row_positive_weights)


RowTransform = RowMap | ImplicitMove  # maps of every row, which ``apply_to`` applies in place


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

    @property
    def mapped(self) -> RowLayout:
        """The layout of rows that have been read and written again."""
        return replace(self, maps=())

    def read(self, numbers: NDArray[Any], n_rows: int) -> Rows:
        """Rows from the numbers that ``written`` gave. Rows of a posterior are a copy."""
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


def written(rows: Rows) -> FloatArray:
    return rows.packed() if isinstance(rows, RowPosterior) else rows


class Sending(NamedTuple):
    """What a stored table sends to the blocks of the other side."""

    make: Callable[[NDArray[Any], Any], FloatArray]  # from the weights of the rows' ratings, and the rows
    layout: RowLayout  # the layout of what arrives


def _sent_vectors(weights: NDArray[Any], rows: RowPosterior) -> FloatArray:
    """The part of the rows of a posterior that the ratings of the other side need."""
    return rows.with_vectors(SENT_VECTORS, SENT_VECTORS).packed()


# ---- the fit ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Update:
    """A half step. It changes its own rows in place. The sums are ``SideStatistics``.

    Its tables are the rows, and the side features if the step has weights for them.
    """

    loss: Loss
    step: HalfStep

    def __call__(self, block: PlacedBlock, tables: list[Any], others: RowPosterior) -> Result:
        rows = tables[0]
        features = tables[1] if self.step.feature_coef is not None else None
        step = _with_feature_means(block, others, rows, self.step, features)
        table, ratings, old = self.loss.other_lines(others), block.ratings, rows.location.copy()
        sums = block.over_rows(lambda lo, hi: self.loss.update_rows(ratings, lo, hi, table, rows, step))
        parts = block.over_rows(partial(_statistics, ratings, old, rows, step, features), reads_ratings=False)
        total = replace(reduce(SideStatistics.__add__, parts), **RowSums.total(sums)._asdict())
        return rows, total.to_vector()


def _with_feature_means(
    block: PlacedBlock, others: RowPosterior, rows: RowPosterior, step: HalfStep, features: FloatArray | None
) -> HalfStep:
    """The step under the prior means that follow from the features of the rows; new directions of their weights."""
    implicit, ratings = rows.implicit, block.ratings
    explained = np.zeros((ratings.n_rows, rows.dimension))
    if features is not None and step.feature_coef is not None:
        explained = np.asarray(features @ step.feature_coef)
    if others.implicit is None or implicit is None:
        return step if features is None else replace(step, prior=step.prior.shifted_by(explained))
    means, theirs = np.zeros((ratings.n_rows, rows.rank)), sent_vectors(others)
    block.over_rows(lambda lo, hi: add_implicit_sums(ratings, lo, hi, theirs, implicit, means))
    return replace(step, prior=step.prior.shifted_by(explained, means))


def _statistics(
    ratings: RatingBlock, old: FloatArray, rows: RowPosterior, step: HalfStep, features: FloatArray | None,
    lo: int, hi: int,
) -> SideStatistics:  # fmt: skip
    """The statistics of the rows lo … hi−1 after their update, without the sums of the update."""
    if rows.implicit is not None:
        leave_residuals(ratings, lo, hi, rows, step.prior.mean)
    counts = (ratings.row_counts if rows.implicit is None else ratings.distinct_counts)[lo:hi]
    part, some = slice(lo, hi), None if features is None else features[lo:hi]
    prior = step.prior.take(part)
    return SideStatistics.of_rows(old[part], rows.take(part), prior, counts, RowSums(), some)


@dataclass(frozen=True)
class Convert:
    """A posterior from another one of the side, row by row."""

    make: Callable[[RowPosterior], RowPosterior]

    def __call__(self, rows: CountedRows, tables: list[RowPosterior]) -> Result:
        return self.make(tables[0]), NO_SUMS


@dataclass(frozen=True)
class FillUnrated:
    """The posterior with the prior in rows without ratings; with the means that their side features explain, if any."""

    prior: RowPrior
    feature_coef: NDArray[np.float64] | None = None

    def __call__(self, rows: CountedRows, tables: list[Any]) -> Result:
        posterior, empty = tables[0], np.asarray(rows.counts == 0)
        if not empty.any():
            return posterior, NO_SUMS
        filled, lines = posterior.copy(), prior_rows(self.prior, int(empty.sum()), posterior)
        if self.feature_coef is not None:
            lines.location[:] += (tables[1] @ self.feature_coef)[empty]
        filled.put(empty, lines)
        return filled, NO_SUMS


def prior_rows(prior: RowPrior, n: int, like: RowPosterior) -> RowPosterior:
    """One line of prior as a posterior of n rows, stored like another."""
    location = np.tile(prior.mean.astype(like.location.dtype), (n, 1))
    return RowPosterior.isotropic(location, 1.0 / np.sqrt(prior.precision[0]), like.kind, like.has_intercept)


def coef_gram_step(rows: CountedRows, tables: list[RowPosterior]) -> Result:
    """The Gram matrix of [w z d], the implicit weights for the other side."""
    return None, coef_gram(tables[0]).ravel()


def column_squares(rows: CountedRows, tables: list[RowPosterior]) -> Result:
    """‖E L_k‖² for every factor."""
    return None, tables[0].column_norms ** 2


def total_weight(rows: CountedRows, tables: list[Any]) -> Result:
    return None, np.array([rows.counts.sum()], np.float64)


def rated_gram_step(rows: CountedRows, tables: list[RowPosterior]) -> Result:
    """Σ [1, x][1, x]ᵀ over the rows with ratings."""
    return None, gram(tables[0].location[rows.counts > 0]).ravel()


@dataclass(frozen=True)
class CubesStep:
    """Σ t³ of the positions of the rows with ratings."""

    axes: Axes

    def __call__(self, rows: CountedRows, tables: list[RowPosterior]) -> Result:
        return None, self.axes.cubes(tables[0].location[rows.counts > 0])


# ---- over all ratings, after a fit -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Draw:
    """Draws from the posteriors. The sum is the number of those that err."""

    draws: Draws

    def __call__(self, block: PlacedBlock, tables: list[RowPosterior], others: RowPosterior) -> Result:
        parts = block.over_rows(
            lambda lo, hi: count_errors(block.ratings, lo, hi, block.rows, tables[0], others, self.draws)
        )
        return None, np.array([sum(parts)], np.float64)


@dataclass(frozen=True)
class Confidences:
    """The histogram of the signed confidences of every ``stride``-th rating."""

    noise: float
    stride: int

    def __call__(self, block: PlacedBlock, tables: list[RowPosterior], others: RowPosterior) -> Result:
        noise, stride = self.noise, self.stride
        parts = block.over_rows(
            lambda lo, hi: count_confidences(block.ratings, lo, hi, block.rows, tables[0], others, noise, stride)
        )
        return None, reduce(np.add, parts).astype(np.float64)


@dataclass(frozen=True)
class Measure:
    """[n_i, standard deviations of ``Axes.values``] of every row: what its ratings leave open (docs/MATH.md, §17).

    The means are those of the posterior. The covariances come from an update with the logistic's own curvature at
    κ = 1; those of rows without ratings, and of a loss that has none, are those of the posterior.
    """

    loss: Loss
    side: Side
    prior: RowPrior
    axes: Axes

    def __call__(self, block: PlacedBlock, tables: list[RowPosterior], others: RowPosterior) -> Result:
        rows, ratings = tables[0].copy(), block.ratings
        if self.loss.has_curvature:
            step, lines = self.half_step, self.loss.other_lines(others)
            block.over_rows(lambda lo, hi: self.loss.update_rows(ratings, lo, hi, lines, rows, step))
        counts = ratings.row_counts
        parts = block.over_rows(lambda lo, hi: self.table(counts[lo:hi], rows.take(slice(lo, hi))), False)
        return np.concatenate(parts) if parts else self.table(counts, rows), NO_SUMS

    @property
    def half_step(self) -> HalfStep:
        return HalfStep(self.side, 0, 1.0, self.prior, 1.0, relaxation=0.0, curvature=True)

    def table(self, counts: NDArray[np.integer], rows: RowPosterior) -> NDArray[np.float32]:
        """The table of rows that have these numbers of ratings, and the covariances of the update."""
        return np.column_stack([counts.astype(np.float32), self.axes.spreads(self.side, rows)])


@dataclass(frozen=True)
class MeasureHoldoutLoss:
    """The held-out loss of the ratings that a split does not choose. The sums are ``HoldoutLoss``."""

    loss: str
    split: Split

    def __call__(self, block: PlacedBlock, tables: list[RowPosterior], others: RowPosterior) -> Result:
        left = block.not_chosen(self.split)
        parts = block.over_rows(lambda lo, hi: HoldoutLoss.of_ratings(self.loss, left, lo, hi, tables[0], others))
        return None, np.sum([part.to_vector() for part in parts], axis=0)


P = TypeVar("P")  # the posterior of a side, as the runner keeps it: a RowPosterior, or a table of Spark
Matrix = NDArray[np.float64]

# The largest stretch of a pending map. Rows are rounded to float32 before they are mapped, and the map amplifies this
# rounding by the square of its stretch.
MOST_STRETCH = 30.0


class Engine(Generic[P]):
    """Both posteriors as tables, and the map steps that change them.

    Attributes
    ----------
    runner : ThreadRunner, CudaRunner or SparkRunner
        Keeps the ratings in blocks of both orientations, and runs the steps on them. All runners have the methods of
        ``threads.ThreadRunner``.
    ids : dict of Side to ids
        The ids of the rows, if they have any, in the type of the caller.
    n_ratings : int
        Number of ratings.
    weighted : bool
        Whether the ratings have weights.
    total_weight : float
        The sum of the weights; n without weights.
    features : dict of Side to SideFeatures
        Side features, on the driver.

    The gauge maps all rows after every iteration, which would cost as much as an update where they have covariances. So
    these maps stay pending: a half step works on unmapped rows under the unmapped prior (``HalfStep.before``), and only
    its sums are mapped (docs/MATH.md, §7.2).
    """

    def __init__(self, runner: Any, ids: dict[Side, Any] | None = None) -> None:
        self.runner = runner
        self.ids = ids or {}
        self.n_ratings: int = runner.n_ratings
        self.weighted: bool = runner.weighted
        self.total_weight: float = runner.total_weight
        self.features: SideTables = {}
        self._tables: dict[Side, Any] = {}
        self._maps: dict[Side, RowMap] = {}  # pending maps of the rows in the tables
        self._feature_tables: dict[Side, tuple[Any, Any]] = {}
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
        return self.runner.repeats

    def count(self, side: Side) -> int:
        return self.runner.count(side)

    def counts(self, side: Side) -> NDArray[Any]:
        return self.runner.counts(side)

    @property
    def posteriors(self) -> dict[Side, Any]:
        self._apply_maps()
        return self._tables

    @posteriors.setter
    def posteriors(self, tables: dict[Side, Any]) -> None:
        self._tables, self._maps = tables, {}

    def start(self, config: FitConfig, loss: Loss) -> None:
        with self.runner.described("start"):
            self.posteriors = self.runner.start(config, loss)

    def start_from(self, posteriors: dict[Side, P]) -> None:
        """Set both posteriors to results of ``posterior`` or ``convert``."""
        self.posteriors = {side: posterior.copy() for side, posterior in posteriors.items()}  # type: ignore[attr-defined]

    def shortage(self, config: FitConfig) -> str | None:
        return self.runner.shortage(config)

    def grown(self, config: FitConfig, loss: Loss) -> dict[Side, P]:
        """Both posteriors with more factors, as many as ``config`` says: the leading directions of the residuals."""
        with self.runner.described("more factors"):
            return self.runner.grown(self.posteriors, config, loss)

    def half_step(self, loss: Loss, step: HalfStep) -> SideStatistics:
        """Update the posterior of ``step.side`` given the other side's."""
        side, by = step.side, self._maps.get(step.side)
        if by is not None:
            step = step.before(by)
        tables, others = [self._tables[side]], self._tables[OTHER[side]]
        if step.feature_coef is not None:
            tables.append(self._feature_table(side))
        form, update = tables[0].form, Update(loss, step)
        with self.runner.described(f"iteration {step.iteration + 1}, {side}"):
            send = Sending(_sent_vectors, RowLayout.of(others.form.sent)) if form.vectors else None
            self._tables[side], sums = self.runner.run(side, update, tables, others, RowLayout.of(form), send)
        statistics = reduce(SideStatistics.__add__, (SideStatistics.from_vector(part, form) for part in sums))
        self._data = statistics.data
        return statistics if by is None else statistics.mapped(by)

    def data_term(self) -> float:
        """The data term of the objective, after the last half step and the step of the implicit coefficients."""
        return self.runner.data_term(self._data)

    def apply(self, maps: dict[Side, RowMap]) -> None:
        """Map every row of both sides, now or when it is next read."""
        self._maps = {side: self._maps[side].then(by) if self._maps else by for side, by in maps.items()}
        kinds = {table.form.kind for table in self._tables.values()}
        if kinds != {"covariance"} or any(np.linalg.cond(by.matrix) > MOST_STRETCH for by in self._maps.values()):
            self._apply_maps()

    def _apply_maps(self) -> None:
        for side, by in self._maps.items():
            self._tables[side] = self.runner.mapped(side, self._tables[side], by)
        self._maps = {}

    def move_coef(self, side: Side, step: CoefStep) -> None:
        """Move the other side's implicit weights, of which the prior means of this side are made."""
        if not step.matrix.any():
            return
        if self._maps:
            step = step.before(self._maps[side])
        for whose, by in ((side, step.of_residuals), (OTHER[side], step.of_coef)):
            self._tables[whose] = self.runner.mapped(whose, self._tables[whose], by)

    def coef_gram(self, side: Side) -> Matrix:
        """The Gram matrix of [w z d], the side's implicit weights for the other side; 0 × 0 without."""
        posterior = self.posteriors[side]
        if not posterior.form.vectors:
            return np.zeros((0, 0))
        size = 3 * posterior.form.rank
        return np.sum(self.runner.row_sums(side, coef_gram_step, [posterior]), axis=0).reshape(size, size)

    def column_norms(self, side: Side, posterior: P) -> Matrix:
        """‖E L_k‖ for every factor of a posterior."""
        return np.sqrt(np.sum(self.runner.row_sums(side, column_squares, [posterior]), axis=0))

    def feature_gram(self, side: Side) -> Matrix | None:
        """Σ_i f_i f_iᵀ of the side features of the rows with ratings, p × p; None if the side has no features."""
        known = self.features.get(side)
        return None if known is None else rated_gram(known.coded, self.counts(side))

    def posterior(self, side: Side, unseen: RowPrior | None = None, feature_coef: Matrix | None = None) -> P:
        """The side's posterior as it stands.

        Rows without ratings have the prior ``unseen``, if it is given, with the mean that their side features explain.
        """
        posterior = self.posteriors[side]
        if unseen is None or self.count(side) == self.runner.n_rows(side):
            return posterior
        tables = [posterior] if feature_coef is None else [posterior, self._feature_table(side)]
        fill = FillUnrated(unseen, feature_coef)
        return self.runner.run_rows(side, fill, tables, RowLayout.of(posterior.form))

    def convert(self, side: Side, make: Callable[[RowPosterior], RowPosterior], posterior: P) -> P:
        """The posterior that ``make`` gives for any rows, from their lines in ``posterior``."""
        form = make(posterior.form.empty()).form  # type: ignore[attr-defined]
        return self.runner.run_rows(side, Convert(make), [posterior], RowLayout.of(form))

    def gibbs_errors(self, draws: Draws) -> GibbsErrors:
        """Errors of draws from the posteriors on the ratings: one map step over the rows."""
        with self.runner.described("certificate"):
            (errors,) = self._over_ratings(Draw(draws), self.posteriors)
        return GibbsErrors(int(errors), self.n_ratings)

    def confidences(self, posterior: dict[Side, P], noise: float) -> Histogram:
        """The histogram of the ratings' signed confidences (``prediction``) under this posterior: one map step."""
        with self.runner.described("confidences"):
            total = self._over_ratings(Confidences(noise, max(1, self.n_ratings // ENOUGH)), posterior)
        return total.astype(np.int64)

    def measured(
        self, posterior: dict[Side, Any], loss: Loss, priors: dict[Side, RowPrior]
    ) -> tuple[Axes, dict[Side, Any]]:
        """The axes of a posterior, and the table of ``Measure`` of each side: one map step over the ratings each."""
        with self.runner.described("positions"):
            size, intercepts = posterior["rows"].form.dimension + 1, posterior["rows"].form.has_intercept
            sums = [self.runner.row_sums(side, rated_gram_step, [posterior[side]]) for side in SIDES]
            row_gram, col_gram = (np.sum(each, axis=0).reshape(size, size) for each in sums)
            axes = Axes.of(row_gram, col_gram, intercepts)
            cubes = self.runner.row_sums("rows", CubesStep(axes), [posterior["rows"]])
            axes, layout = axes.towards(np.sum(cubes, axis=0)), RowLayout("float32")
            steps = {side: Measure(loss, side, priors[side], axes) for side in SIDES}
            runs = {side: (side, steps[side], [posterior[side]], posterior[OTHER[side]], layout) for side in SIDES}
            return axes, {side: self.runner.run(*arguments)[0] for side, arguments in runs.items()}

    def holdout_loss(self, loss: str, posterior: dict[Side, P], split: Split) -> HoldoutLoss:
        """Held-out loss and errors of the ratings that the split does *not* choose, under a posterior: one map step."""
        with self.runner.described("loss of the last tenth"):
            total = self._over_ratings(MeasureHoldoutLoss(loss, split), posterior)
        return HoldoutLoss.of_sums(total)

    def _over_ratings(self, step: Step, posterior: dict[Side, Any]) -> Sums:
        rows, cols = (posterior[side] for side in SIDES)
        return np.asarray(np.sum(self.runner.sums("rows", step, [rows], cols), axis=0))

    @contextmanager
    def restricted(self, split: Split) -> Iterator[Engine[Any]]:
        """An engine on the ratings that the split chooses, with the rows and columns of this one.

        It depends on these ratings alone: side features are coded anew. A slice may have fewer rows: see ``numbers``.
        """
        with self.runner.restricted(split) as runner:
            part, features = Engine[Any](runner), self.features
            if split.by in SIDES and part.numbers is not None:
                numbers = part.numbers
                features = {
                    side: replace(each, table=each.table.take(numbers[side])) for side, each in features.items()
                }
            part.features = coded_by_rated(features, part.counts)
            yield part

    @property
    def numbers(self) -> dict[Side, NDArray[np.int64]] | None:
        """The numbers of the rows of both sides; None if all engines of this kind have the same rows."""
        return self.runner.numbers

    def taken(self, posteriors: dict[Side, P], numbers: dict[Side, NDArray[np.int64]]) -> dict[Side, RowPosterior]:
        """The rows of a slice in this process, by their numbers."""
        return {side: self.runner.taken(side, table, numbers[side]) for side, table in posteriors.items()}

    def placed(
        self, posteriors: dict[Side, Any], numbers: dict[Side, NDArray[np.int64]] | None, hierarchy: HyperPosterior
    ) -> dict[Side, P]:
        """The posteriors of a slice, whose rows are ``numbers``, for all rows of this engine; others have the prior."""
        if numbers is None:
            return posteriors
        placed: dict[Side, P] = {}
        for side, rows in posteriors.items():
            prior = rows.form.empty(1)
            prior.put(np.array([0]), prior_rows(hierarchy.unseen(side), 1, rows))
            placed[side] = self.runner.placed(side, rows, numbers[side], prior)
        return placed

    def _feature_table(self, side: Side) -> Any:
        """The side features as a table, made once."""
        coded = self.features[side].coded
        if side not in self._feature_tables or self._feature_tables[side][0] is not coded:
            self._feature_tables[side] = coded, self.runner.table(side, coded)
        return self._feature_tables[side][1]


def final_posteriors(engine: Engine[P], hierarchy: HyperPosterior) -> dict[Side, P]:
    """Both posteriors, with the prior in the rows without ratings."""
    return {side: engine.posterior(side, hierarchy.unseen(side), hierarchy.features.get(side)) for side in SIDES}
