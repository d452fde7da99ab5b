"""The work on one block of ratings. Every exchange runs these steps, and each is written once.

    Step       (block, rows, other rows) ─► (new rows | None, sums)
    RowStep    (counted rows, rows) ─► (new rows | None, sums)                 it reads no rating

``tables`` are the block's rows in one or more tables of its side, ``others`` its columns' rows in a table of the other
side. The rows of a table are those of a posterior, or plain numbers. The sums of all blocks go to the driver.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core import implicit_features
from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.losses import HalfStep, Loss, PriorLines, RowPrior
from onebit_spark.core.losses.base import OtherLines
from onebit_spark.core.posterior import SENT_VECTORS, FloatArray, Form, RowPosterior
from onebit_spark.core.prediction import HoldoutLoss, count_confidences
from onebit_spark.core.randomness import Draws, Split, count_errors
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
    # ``over_rows`` in several threads
    in_parallel: Callable[[Callable[[int, int], Any]], list[Any]] | None = None

    @property
    def over_rows(self) -> Callable[[Callable[[int, int], Part]], list[Part]]:
        """``over_rows(work)``: ``work(lo, hi)`` for ranges of the rows, the results in the order of the rows."""
        return self.in_parallel or self.ratings.over_ranges

    @property
    def counted_rows(self) -> CountedRows:
        """The rows, with the sums of their ratings' weights."""
        return CountedRows(self.rows, self.ratings.row_weights, self.ratings.row_positive_weights)


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
    """The rows as a matrix of numbers."""
    return rows.packed() if isinstance(rows, RowPosterior) else rows


class Sending(NamedTuple):
    """What a stored table sends to the blocks of the other side."""

    make: Callable[[NDArray[Any], Any], FloatArray]  # from the weights of the rows' ratings, and the rows
    layout: RowLayout  # the layout of what arrives


def implicit_sent(form: Form) -> Sending:
    """The part of the rows of a posterior that the ratings of the other side need."""
    return Sending(_sent_vectors, RowLayout.of(form.sent))


def _sent_vectors(weights: NDArray[Any], rows: RowPosterior) -> FloatArray:
    return rows.with_vectors(SENT_VECTORS, SENT_VECTORS).packed()


# ---- the fit ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Update:
    """A half step. It changes its own rows in place. The sums are ``SideStatistics``.

    Its tables are the rows, the prior of each row if the step's prior is ``PriorLines``, and the side features if the
    step has weights for them.
    """

    loss: Loss
    step: HalfStep[None]

    def __call__(self, block: PlacedBlock, tables: list[Any], others: RowPosterior) -> Result:
        step, (rows, *more) = self.step, tables
        if isinstance(step.prior, PriorLines):
            step = step.under(RowPrior.at(more.pop(0)))
        features = more.pop(0) if step.feature_coef is not None else None
        step = _with_feature_means(block, others, rows, step, features)
        table = self.loss.other_lines(others)
        parts = block.over_rows(partial(_update_range, self.loss, block, table, rows, step, features))
        return rows, reduce(SideStatistics.__add__, parts).to_vector()


def _with_feature_means(
    block: PlacedBlock, others: RowPosterior, rows: RowPosterior, step: HalfStep, features: FloatArray | None
) -> HalfStep:
    """The step under the prior means that follow from the features of the rows; new directions of their weights."""
    implicit, ratings = rows.implicit, block.ratings
    explained = np.zeros((ratings.n_rows, rows.dimension))
    if features is not None and step.feature_coef is not None:
        explained = np.asarray(features @ step.feature_coef)
    if others.implicit is None or implicit is None:
        return step if features is None else step.under(step.row_prior.shifted_by(explained))
    means, theirs = np.zeros((ratings.n_rows, rows.rank)), implicit_features.sent_vectors(others)
    block.over_rows(lambda lo, hi: implicit_features.add_implicit_sums(ratings, lo, hi, theirs, implicit, means))
    return step.under(step.row_prior.shifted_by(explained, means))


def _update_range(
    loss: Loss, block: PlacedBlock, others: OtherLines, rows: RowPosterior, step: HalfStep,
    features: FloatArray | None, lo: int, hi: int,
) -> SideStatistics:  # fmt: skip
    """Update the rows lo … hi−1."""
    ratings, old = block.ratings, rows.location[lo:hi].copy()
    sums = loss.update_rows(ratings, lo, hi, others, rows, step)
    if rows.implicit is not None:
        implicit_features.leave_residuals(ratings, lo, hi, rows, step.row_prior.mean)
    counts = (ratings.row_counts if rows.implicit is None else ratings.distinct_counts)[lo:hi]
    part, some = slice(lo, hi), None if features is None else features[lo:hi]
    return SideStatistics.of_rows(old, rows.take(part), step.row_prior.take(part), counts, sums, some)


@dataclass(frozen=True)
class Combine:
    """A posterior from other posteriors of the side, row by row."""

    make: Callable[..., RowPosterior]

    def __call__(self, rows: CountedRows, tables: list[RowPosterior]) -> Result:
        return self.make(*tables), NO_SUMS


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


def coef_gram(rows: CountedRows, tables: list[RowPosterior]) -> Result:
    """The Gram matrix of [w z d], the implicit weights for the other side."""
    return None, implicit_features.coef_gram(tables[0]).ravel()


def column_squares(rows: CountedRows, tables: list[RowPosterior]) -> Result:
    """‖E L_k‖² for every factor."""
    return None, tables[0].column_norms ** 2


def total_weight(rows: CountedRows, tables: list[Any]) -> Result:
    """The sum of the weights."""
    return None, np.array([rows.counts.sum()], np.float64)


# ---- over all ratings, after a fit -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Draw:
    """Draws from the posteriors. The sums are ``GibbsErrors``."""

    draws: Draws

    def __call__(self, block: PlacedBlock, tables: list[RowPosterior], others: RowPosterior) -> Result:
        parts = block.over_rows(
            lambda lo, hi: count_errors(block.ratings, lo, hi, block.rows, tables[0], others, self.draws)
        )
        return None, np.sum(np.array(parts, np.float64).reshape(-1, 2), axis=0)


@dataclass(frozen=True)
class Confidences:
    """The histogram of the confidences of every ``stride``-th rating."""

    noise: float
    stride: int

    def __call__(self, block: PlacedBlock, tables: list[RowPosterior], others: RowPosterior) -> Result:
        noise, stride = self.noise, self.stride
        parts = block.over_rows(
            lambda lo, hi: count_confidences(block.ratings, lo, hi, block.rows, tables[0], others, noise, stride)
        )
        return None, reduce(np.add, parts).astype(np.float64)


@dataclass(frozen=True)
class MeasureHoldoutLoss:
    """The held-out loss of the ratings that a split does not choose. The sums are ``HoldoutLoss``."""

    loss: str
    split: Split

    def __call__(self, block: PlacedBlock, tables: list[RowPosterior], others: RowPosterior) -> Result:
        left = self.split.part_of(block.ratings, block.rows, those=False)
        parts = block.over_rows(lambda lo, hi: HoldoutLoss.of_ratings(self.loss, left, lo, hi, tables[0], others))
        return None, np.sum([part.to_vector() for part in parts], axis=0)
