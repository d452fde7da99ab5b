"""The work on a block of ratings, or on the rows of a side, that every engine runs.

    BlockWork          (block, its rows by name, others) ─► new rows, a vector that is summed
      UpdateRows         a half step; the vector is that of its SideStatistics
      RatingWork[S]      no rows; the sum of the vectors gives an S
      MeasureSpreads     the numbers of every row
      RowWork          (counted rows, rows by name) ─► the same, without a rating
        RowSum[S]        no rows; the sum of the vectors gives an S
        RowMapping       the rows of another posterior

The rows are those of the block: "rows", their posterior, and what else the work needs. The others
are the rows of the other side to which its ratings refer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
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
from onebit_spark.core.loss import RowSums
from onebit_spark.core.losses import HalfStep, Loss, RowPrior, Side
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

Rows = RowPosterior | FloatArray  # the rows of a table: of a posterior, or plain numbers
Own = Mapping[str, Rows]  # the rows of a block in the tables of its side, by name
Result = tuple[Rows | None, Sums]  # new rows, and a vector that is summed
NO_SUMS: Sums = np.empty(0)
# The part of the rows lo … hi−1 of a block in a sum
RangeSum = Callable[[int, int], NDArray[np.float64] | NDArray[np.int64]]

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
        """The results of ``each_range``."""
        return list(self.each_range(work, reads_ratings))

    def each_range(
        self,
        work: Callable[[int, int], Part],
        reads_ratings: bool = True,
    ) -> Iterator[Part]:
        """``work(lo, hi)`` for ranges of the rows, in their order, run as the results are read.

        The ranges do not depend on the number of threads. If the work ``reads_ratings``, they
        have about equally many ratings, else equally many rows.
        """
        ranges = self.ratings.ranges if reads_ratings else self.ratings.even_ranges
        if self.pool is None or len(ranges) == 1:
            return starmap(work, ranges)
        return self.pool.map(work, *zip(*ranges, strict=True))

    @property
    def counted_rows(self) -> CountedRows:
        ratings = self.ratings
        return CountedRows(self.rows, ratings.row_weights, ratings.row_positive_weights)


class BlockWork(ABC):
    """Work on the ratings of a block. It is sent to the workers of a cluster."""

    @abstractmethod
    def on_block(self, block: PlacedBlock, own: Own, others: Rows | None) -> Result: ...


class RowWork(BlockWork):
    """Work on rows. It reads no rating."""

    @abstractmethod
    def on_rows(self, counted: CountedRows, own: Own) -> Result: ...

    def on_block(self, block: PlacedBlock, own: Own, others: Rows | None) -> Result:
        return self.on_rows(block.counted_rows, own)


def posterior_of(rows: Rows | None) -> RowPosterior:
    assert isinstance(rows, RowPosterior)
    return rows


def numbers_of(rows: Rows | None) -> FloatArray:
    assert isinstance(rows, np.ndarray)
    return rows


def features_of(own: Own) -> FloatArray | None:
    """The side features of the rows, if the work needs them."""
    return numbers_of(own["features"]) if "features" in own else None


# ---- a half step -------------------------------------------------------------------------------


@dataclass(frozen=True)
class HalfStepInputs(Generic[T]):
    """What a half step reads beside the ratings."""

    rows: T  # of the side that moves
    others: T  # of the other side
    features: FloatArray | None = None  # side features of the rows, if the step has their weights


@dataclass(frozen=True)
class UpdateRows(BlockWork):
    """A half step. It changes its own rows in place."""

    loss: Loss
    step: HalfStep

    def on_block(self, block: PlacedBlock, own: Own, others: Rows | None) -> Result:
        features = features_of(own)
        inputs = HalfStepInputs(posterior_of(own["rows"]), posterior_of(others), features)
        rows = inputs.rows
        ratings = block.ratings
        step = self._with_feature_means(block, inputs)
        lines = self.loss.other_lines(inputs.others)
        before = rows.location.copy()
        update = partial(self.loss.update_rows, ratings, others=lines, rows=rows, step=step)
        sums = list(block.each_range(update))
        measure = partial(_statistics, ratings, before, rows, step, features)
        parts = block.over_rows(measure, reads_ratings=False)
        total = reduce(SideStatistics.__add__, parts)
        return rows, replace(total, **RowSums.total(sums)._asdict()).to_vector()

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


# ---- a posterior from another one --------------------------------------------------------------


class RowMapping(RowWork):
    """Makes rows of a posterior from rows of another one."""

    def form_of(self, form: Form) -> Form:
        """The form of the new rows."""
        return form


@dataclass(frozen=True)
class ConvertRows(RowMapping):
    make: Callable[[RowPosterior], RowPosterior]  # converts any number of rows

    def on_rows(self, counted: CountedRows, own: Own) -> Result:
        return self.make(posterior_of(own["rows"])), NO_SUMS

    def form_of(self, form: Form) -> Form:
        return self.make(form.empty()).form


@dataclass(frozen=True)
class FillUnrated(RowMapping):
    """Puts the prior in rows without ratings, with the means that their side features explain."""

    prior: RowPrior
    feature_coef: Matrix | None = None

    def on_rows(self, counted: CountedRows, own: Own) -> Result:
        rows = posterior_of(own["rows"])
        empty = np.asarray(counted.counts == 0)
        if not empty.any():
            return rows, NO_SUMS
        lines = prior_rows(self.prior, int(empty.sum()), rows)
        features = features_of(own)
        if features is not None and self.feature_coef is not None:
            lines.location[:] += (features @ self.feature_coef)[empty]
        filled = rows.copy()
        filled.put(empty, lines)
        return filled, NO_SUMS


def prior_rows(prior: RowPrior, n: int, like: RowPosterior) -> RowPosterior:
    """One line of prior as a posterior of n rows, stored like another."""
    location = np.tile(prior.mean.astype(like.location.dtype), (n, 1))
    std = 1.0 / np.sqrt(prior.precision[0])
    return RowPosterior.isotropic(location, std, like.kind, like.has_intercept)


# ---- sums --------------------------------------------------------------------------------------


class SumWork(BlockWork, Generic[S]):
    """A work without new rows, whose vectors are summed over all blocks."""

    @abstractmethod
    def result(self, total: Sums) -> S:
        """What the sum of all vectors means."""


class RowSum(RowWork, SumWork[S]):
    """A sum over the rows of a side."""

    @abstractmethod
    def sum_of(self, counted: CountedRows, rows: RowPosterior) -> Sums: ...

    def on_rows(self, counted: CountedRows, own: Own) -> Result:
        return None, self.sum_of(counted, posterior_of(own["rows"]))


class GramSum(RowSum[Matrix]):
    """A Gram matrix."""

    def result(self, total: Sums) -> Matrix:
        return square_matrix(total)


class CoefGram(GramSum):
    """The Gram matrix of [w z d], the implicit weights for the other side."""

    def sum_of(self, counted: CountedRows, rows: RowPosterior) -> Sums:
        return coef_gram(rows).ravel()


class ColumnNorms(RowSum[Matrix]):
    """‖E L_k‖ for every factor."""

    def sum_of(self, counted: CountedRows, rows: RowPosterior) -> Sums:
        return rows.column_norms**2

    def result(self, total: Sums) -> Matrix:
        return np.asarray(np.sqrt(total))


class RatedGram(GramSum):
    """Σ [1, x][1, x]ᵀ over the rows with ratings."""

    def sum_of(self, counted: CountedRows, rows: RowPosterior) -> Sums:
        return gram(rows.location[counted.counts > 0]).ravel()


@dataclass(frozen=True)
class PositionCubes(RowSum[Sums]):
    """Σ t³ of the positions of the rows with ratings."""

    axes: Axes

    def sum_of(self, counted: CountedRows, rows: RowPosterior) -> Sums:
        return self.axes.cubes(rows.location[counted.counts > 0])

    def result(self, total: Sums) -> Sums:
        return total


def square_matrix(numbers: Sums) -> Matrix:
    size = round(len(numbers) ** 0.5)
    return numbers.reshape(size, size)


class RatingWork(SumWork[S]):
    """A sum over all ratings under a posterior, by ranges of the rows."""

    @abstractmethod
    def sum_of(self, block: PlacedBlock, rows: RowPosterior, cols: RowPosterior) -> RangeSum:
        """The part of the rows lo … hi−1 of a block."""

    def on_block(self, block: PlacedBlock, own: Own, others: Rows | None) -> Result:
        measure = self.sum_of(block, posterior_of(own["rows"]), posterior_of(others))
        return None, np.sum(block.over_rows(measure), axis=0, dtype=np.float64)


@dataclass(frozen=True)
class CountDrawErrors(RatingWork[GibbsErrors]):
    """Draws from the posteriors, and the number of those that err."""

    draws: Draws
    n_ratings: int

    def sum_of(self, block: PlacedBlock, rows: RowPosterior, cols: RowPosterior) -> RangeSum:
        def count(lo: int, hi: int) -> Sums:
            errors = count_errors(block.ratings, lo, hi, block.rows, rows, cols, self.draws)
            return np.array([errors], np.float64)

        return count

    def result(self, total: Sums) -> GibbsErrors:
        return GibbsErrors(int(total[0]), self.n_ratings)


@dataclass(frozen=True)
class CountConfidences(RatingWork[Histogram]):
    """The histogram of the signed confidences of every ``stride``-th rating."""

    noise: float
    stride: int

    def sum_of(self, block: PlacedBlock, rows: RowPosterior, cols: RowPosterior) -> RangeSum:
        how = self.noise, self.stride
        return lambda lo, hi: count_confidences(block.ratings, lo, hi, block.rows, rows, cols, *how)

    def result(self, total: Sums) -> Histogram:
        return total.astype(np.int64)


@dataclass(frozen=True)
class SumHoldoutLoss(RatingWork[HoldoutLoss]):
    """The held-out loss of the ratings that a split does not choose."""

    loss: str
    split: Split

    def sum_of(self, block: PlacedBlock, rows: RowPosterior, cols: RowPosterior) -> RangeSum:
        left = block.not_chosen(self.split)

        def measure(lo: int, hi: int) -> Sums:
            return HoldoutLoss.of_ratings(self.loss, left, lo, hi, rows, cols).to_vector()

        return measure

    def result(self, total: Sums) -> HoldoutLoss:
        return HoldoutLoss.of_sums(total)


# ---- what the ratings of a row leave open ------------------------------------------------------


@dataclass(frozen=True)
class MeasureSpreads(BlockWork):
    """[n_i, standard deviations of ``Axes.values``] of every row (docs/MATH.md, §17).

    The means are those of the posterior. The covariances come from an update with the logistic's
    own curvature at κ = 1; those of rows without ratings, and of a loss that has none, are those
    of the posterior.
    """

    loss: Loss
    side: Side
    prior: RowPrior
    axes: Axes

    def on_block(self, block: PlacedBlock, own: Own, others: Rows | None) -> Result:
        rows = posterior_of(own["rows"]).copy()
        ratings = block.ratings
        counts = ratings.row_counts
        if self.loss.has_curvature:
            lines = self.loss.other_lines(posterior_of(others))
            step = self.half_step
            update = partial(self.loss.update_rows, ratings, others=lines, rows=rows, step=step)
            list(block.each_range(update))

        def measure(lo: int, hi: int) -> NDArray[np.float32]:
            return self.table(counts[lo:hi], rows.take(slice(lo, hi)))

        parts = block.over_rows(measure, reads_ratings=False)
        return np.concatenate(parts) if parts else self.table(counts, rows), NO_SUMS

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
