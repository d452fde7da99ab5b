"""The work on a block of ratings, or on the rows of a side, that every engine runs.

    UpdateRows        (block, HalfStepInputs) ─► new rows, SideStatistics    a half step
    RatingWork[S]     (block, rows, columns) ─► a vector                     summed, it gives an S
    RowSum[S]         (counted rows, rows) ─► a vector                       the same without ratings
    RowMapping        (counted rows, rows) ─► rows                           another posterior
    MeasureSpreads    (block, rows, columns) ─► numbers of every row

The rows are those of the block. The columns are the rows of the other side to which its ratings
refer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from itertools import starmap
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.confidences import Histogram, count_confidences
from onebit_spark.core.features import (
    ImplicitMove,
    add_implicit_sums,
    coef_gram,
    leave_residuals,
    sent_vectors,
)
from onebit_spark.core.holdout import HoldoutLoss
from onebit_spark.core.losses import HalfStep, Loss, RowPrior, Side
from onebit_spark.core.losses.base import RowSums
from onebit_spark.core.positions import Axes, gram
from onebit_spark.core.posterior import FloatArray, Form, RowMap, RowPosterior
from onebit_spark.core.randomness import Draws, GibbsErrors, Split, count_errors
from onebit_spark.core.spectral import CountedRows
from onebit_spark.core.statistics import SideStatistics

Part = TypeVar("Part")
S = TypeVar("S")  # what a sum means
T = TypeVar("T")  # a table of the rows of one side, in the form of an engine
Sums = NDArray[np.float64]
Matrix = NDArray[np.float64]

RowTransform = RowMap | ImplicitMove  # maps of every row, which ``apply_to`` applies in place


@dataclass(frozen=True)
class PlacedBlock:
    """A RatingBlock with its place in the matrix."""

    number: int  # number of the block
    rows: NDArray[np.int64]  # row r of the block is row ``rows[r]`` of the matrix
    columns: NDArray[np.int64]  # column c of the block is column ``columns[c]`` of the matrix
    ratings: RatingBlock  # the ratings
    checksum: int = 0  # checksum of the ratings
    pool: ThreadPoolExecutor | None = None  # runs ranges of rows in several threads
    # by split: what it does not choose, once computed
    left_out: dict[Split, RatingBlock] = field(default_factory=dict)

    def not_chosen(self, split: Split) -> RatingBlock:
        if split not in self.left_out:
            others = split.part_of(self.ratings, self.rows, self.columns, those=False)
            self.left_out[split] = others
        return self.left_out[split]

    def over_rows(
        self,
        work: Callable[[int, int], Part],
        reads_ratings: bool = True,
    ) -> list[Part]:
        """``work(lo, hi)`` for ranges of the rows, the results in the order of the rows.

        The ranges do not depend on the number of threads. If the work ``reads_ratings``, they
        have about equally many ratings, else equally many rows.
        """
        ranges = self.ratings.ranges if reads_ratings else self.ratings.even_ranges
        if self.pool is None or len(ranges) == 1:
            return list(starmap(work, ranges))
        return list(self.pool.map(work, *zip(*ranges, strict=True)))

    @property
    def counted_rows(self) -> CountedRows:
        ratings = self.ratings
        return CountedRows(self.rows, ratings.row_weights, ratings.row_positive_weights)


# ---- a half step ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class HalfStepInputs(Generic[T]):
    """What a half step reads beside the ratings."""

    rows: T  # of the side that moves
    others: T  # of the other side
    features: FloatArray | None = None  # side features of the rows, if the step has their weights


@dataclass(frozen=True)
class UpdateRows:
    """A half step. It changes its own rows in place."""

    loss: Loss
    step: HalfStep

    def on_block(
        self,
        block: PlacedBlock,
        inputs: HalfStepInputs[RowPosterior],
    ) -> tuple[RowPosterior, SideStatistics]:
        rows = inputs.rows
        ratings = block.ratings
        step = self._with_feature_means(block, inputs)
        lines = self.loss.other_lines(inputs.others)
        before = rows.location.copy()
        update = partial(self.loss.update_rows, ratings, others=lines, rows=rows, step=step)
        sums = block.over_rows(update)
        measure = partial(_statistics, ratings, before, rows, step, inputs.features)
        parts = block.over_rows(measure, reads_ratings=False)
        total = reduce(SideStatistics.__add__, parts)
        return rows, replace(total, **RowSums.total(sums)._asdict())

    def _with_feature_means(
        self,
        block: PlacedBlock,
        inputs: HalfStepInputs[RowPosterior],
    ) -> HalfStep:
        """The step under the prior means that follow from the features of the rows.

        It also computes new directions of their weights.
        """
        step = self.step
        features = inputs.features
        implicit = inputs.rows.implicit
        ratings = block.ratings
        explained = np.zeros((ratings.n_rows, inputs.rows.dimension))
        if features is not None and step.feature_coef is not None:
            explained = np.asarray(features @ step.feature_coef)
        if inputs.others.implicit is None or implicit is None:
            if features is None:
                return step
            return replace(step, prior=step.prior.shifted_by(explained))
        means = np.zeros((ratings.n_rows, inputs.rows.rank))
        theirs = sent_vectors(inputs.others)
        add = partial(add_implicit_sums, ratings, partners=theirs, own=implicit, means=means)
        block.over_rows(add)
        return replace(step, prior=step.prior.shifted_by(explained, means))


def _statistics(
    ratings: RatingBlock,
    before: FloatArray,
    rows: RowPosterior,
    step: HalfStep,
    features: FloatArray | None,
    lo: int,
    hi: int,
) -> SideStatistics:
    """The statistics of the rows lo … hi−1 after their update, without the sums of the update."""
    counts = ratings.row_counts
    if rows.implicit is not None:
        leave_residuals(ratings, lo, hi, rows, step.prior.mean)
        counts = ratings.distinct_counts
    part = slice(lo, hi)
    some = None if features is None else features[part]
    prior = step.prior.take(part)
    after = rows.take(part)
    return SideStatistics.of_rows(before[part], after, prior, counts[part], RowSums(), some)


# ---- a posterior from another one ----------------------------------------------------------------


class RowMapping(ABC):
    """Makes rows of a posterior from rows of another one, without reading a rating."""

    @abstractmethod
    def on_rows(
        self,
        counted: CountedRows,
        rows: RowPosterior,
        features: FloatArray | None = None,
    ) -> RowPosterior: ...

    def form_of(self, form: Form) -> Form:
        """The form of the new rows."""
        return form


@dataclass(frozen=True)
class ConvertRows(RowMapping):
    make: Callable[[RowPosterior], RowPosterior]  # converts any number of rows

    def on_rows(
        self,
        counted: CountedRows,
        rows: RowPosterior,
        features: FloatArray | None = None,
    ) -> RowPosterior:
        return self.make(rows)

    def form_of(self, form: Form) -> Form:
        return self.make(form.empty()).form


@dataclass(frozen=True)
class FillUnrated(RowMapping):
    """Puts the prior in rows without ratings, with the means that their side features explain."""

    prior: RowPrior
    feature_coef: Matrix | None = None

    def on_rows(
        self,
        counted: CountedRows,
        rows: RowPosterior,
        features: FloatArray | None = None,
    ) -> RowPosterior:
        empty = np.asarray(counted.counts == 0)
        if not empty.any():
            return rows
        lines = prior_rows(self.prior, int(empty.sum()), rows)
        if features is not None and self.feature_coef is not None:
            lines.location[:] += (features @ self.feature_coef)[empty]
        filled = rows.copy()
        filled.put(empty, lines)
        return filled


def prior_rows(prior: RowPrior, n: int, like: RowPosterior) -> RowPosterior:
    """One line of prior as a posterior of n rows, stored like another."""
    location = np.tile(prior.mean.astype(like.location.dtype), (n, 1))
    std = 1.0 / np.sqrt(prior.precision[0])
    return RowPosterior.isotropic(location, std, like.kind, like.has_intercept)


# ---- sums over the rows of a side ----------------------------------------------------------------


class RowSum(ABC, Generic[S]):
    """A sum over the rows of a side. It reads no rating."""

    @abstractmethod
    def on_rows(self, counted: CountedRows, rows: RowPosterior) -> Sums:
        """The part of some rows."""

    @abstractmethod
    def result(self, total: Sums) -> S:
        """What the sum of all parts means."""


@dataclass(frozen=True)
class CoefGram(RowSum[Matrix]):
    """The Gram matrix of [w z d], the implicit weights for the other side."""

    def on_rows(self, counted: CountedRows, rows: RowPosterior) -> Sums:
        return coef_gram(rows).ravel()

    def result(self, total: Sums) -> Matrix:
        return _square(total)


@dataclass(frozen=True)
class ColumnNorms(RowSum[Matrix]):
    """‖E L_k‖ for every factor."""

    def on_rows(self, counted: CountedRows, rows: RowPosterior) -> Sums:
        return rows.column_norms**2

    def result(self, total: Sums) -> Matrix:
        return np.asarray(np.sqrt(total))


@dataclass(frozen=True)
class RatedGram(RowSum[Matrix]):
    """Σ [1, x][1, x]ᵀ over the rows with ratings."""

    def on_rows(self, counted: CountedRows, rows: RowPosterior) -> Sums:
        return gram(rows.location[counted.counts > 0]).ravel()

    def result(self, total: Sums) -> Matrix:
        return _square(total)


@dataclass(frozen=True)
class PositionCubes(RowSum[Sums]):
    """Σ t³ of the positions of the rows with ratings."""

    axes: Axes

    def on_rows(self, counted: CountedRows, rows: RowPosterior) -> Sums:
        return self.axes.cubes(rows.location[counted.counts > 0])

    def result(self, total: Sums) -> Sums:
        return total


def _square(total: Sums) -> Matrix:
    size = round(len(total) ** 0.5)
    return total.reshape(size, size)


# ---- over all ratings, after a fit ---------------------------------------------------------------


class RatingWork(ABC, Generic[S]):
    """A sum over all ratings under a posterior."""

    @abstractmethod
    def on_block(self, block: PlacedBlock, rows: RowPosterior, cols: RowPosterior) -> Sums:
        """The part of a block."""

    @abstractmethod
    def result(self, total: Sums) -> S:
        """What the sum of all parts means."""


@dataclass(frozen=True)
class CountDrawErrors(RatingWork[GibbsErrors]):
    """Draws from the posteriors, and the number of those that err."""

    draws: Draws
    n_ratings: int

    def on_block(self, block: PlacedBlock, rows: RowPosterior, cols: RowPosterior) -> Sums:
        def count(lo: int, hi: int) -> int:
            return count_errors(block.ratings, lo, hi, block.rows, rows, cols, self.draws)

        return np.array([sum(block.over_rows(count))], np.float64)

    def result(self, total: Sums) -> GibbsErrors:
        return GibbsErrors(int(total[0]), self.n_ratings)


@dataclass(frozen=True)
class CountConfidences(RatingWork[Histogram]):
    """The histogram of the signed confidences of every ``stride``-th rating."""

    noise: float
    stride: int

    def on_block(self, block: PlacedBlock, rows: RowPosterior, cols: RowPosterior) -> Sums:
        how = self.noise, self.stride

        def count(lo: int, hi: int) -> Histogram:
            return count_confidences(block.ratings, lo, hi, block.rows, rows, cols, *how)

        return reduce(np.add, block.over_rows(count)).astype(np.float64)

    def result(self, total: Sums) -> Histogram:
        return total.astype(np.int64)


@dataclass(frozen=True)
class SumHoldoutLoss(RatingWork[HoldoutLoss]):
    """The held-out loss of the ratings that a split does not choose."""

    loss: str
    split: Split

    def on_block(self, block: PlacedBlock, rows: RowPosterior, cols: RowPosterior) -> Sums:
        left = block.not_chosen(self.split)

        def measure(lo: int, hi: int) -> Sums:
            return HoldoutLoss.of_ratings(self.loss, left, lo, hi, rows, cols).to_vector()

        return np.asarray(np.sum(block.over_rows(measure), axis=0))

    def result(self, total: Sums) -> HoldoutLoss:
        return HoldoutLoss.of_sums(total)


# ---- what the ratings of a row leave open --------------------------------------------------------


@dataclass(frozen=True)
class MeasureSpreads:
    """[n_i, standard deviations of ``Axes.values``] of every row (docs/MATH.md, §17).

    The means are those of the posterior. The covariances come from an update with the logistic's
    own curvature at κ = 1; those of rows without ratings, and of a loss that has none, are those
    of the posterior.
    """

    loss: Loss
    side: Side
    prior: RowPrior
    axes: Axes

    def on_block(
        self,
        block: PlacedBlock,
        rows: RowPosterior,
        cols: RowPosterior,
    ) -> NDArray[np.float32]:
        rows = rows.copy()
        ratings = block.ratings
        counts = ratings.row_counts
        if self.loss.has_curvature:
            lines = self.loss.other_lines(cols)
            step = self.half_step
            update = partial(self.loss.update_rows, ratings, others=lines, rows=rows, step=step)
            block.over_rows(update)

        def measure(lo: int, hi: int) -> NDArray[np.float32]:
            return self.table(counts[lo:hi], rows.take(slice(lo, hi)))

        parts = block.over_rows(measure, reads_ratings=False)
        return np.concatenate(parts) if parts else self.table(counts, rows)

    @property
    def half_step(self) -> HalfStep:
        return HalfStep(self.side, 0, 1.0, self.prior, 1.0, relaxation=0.0, curvature=True)

    def table(
        self,
        counts: NDArray[np.integer],
        rows: RowPosterior,
    ) -> NDArray[np.float32]:
        """The table of rows that have these numbers of ratings, and the updated covariances."""
        spreads = self.axes.spreads(self.side, rows)
        return np.column_stack([counts.astype(np.float32), spreads])
