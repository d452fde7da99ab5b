"""The work on one block of ratings. Every exchange runs these steps, and each is written once.

    Step       (block, own rows, other rows) ─► (new rows | None, sums)
    RowStep    (counted rows, own rows) ─► (new rows | None, sums)             it reads no rating

``own_rows`` are the block's rows in one or more tables of its side, ``other_rows`` its columns' rows in a table of the
other side. The rows of a table are those of a posterior, or plain numbers. The sums of all blocks go to the driver.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core import implicit_features
from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.compiled import jit
from onebit_spark.core.engine import with_prior
from onebit_spark.core.losses import HalfStep, Loss, PriorLines, RowPrior
from onebit_spark.core.losses.base import OtherLines
from onebit_spark.core.losses.row_sums import add_signed_rows
from onebit_spark.core.posterior import FloatArray, RowPosterior
from onebit_spark.core.prediction import HoldoutLoss, count_confidences
from onebit_spark.core.randomness import Draws, Split, count_errors
from onebit_spark.core.spectral import CountedRows, StartTable, Table, distinct_keys, scaled_product
from onebit_spark.core.statistics import SideStatistics

Part = TypeVar("Part")
Sums = NDArray[np.float64]
Rows = RowPosterior | FloatArray
Result = tuple[Rows | None, Sums]

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


class Step(Protocol):
    """Work on a block."""

    def __call__(self, block: PlacedBlock, own_rows: list[Any], other_rows: Any) -> Result: ...


class RowStep(Protocol):
    """Work on rows that needs none of their ratings."""

    def __call__(self, rows: CountedRows, own_rows: list[Any]) -> Result: ...


@dataclass(frozen=True)
class OnRows:
    """A RowStep as a Step."""

    step: RowStep

    def __call__(self, block: PlacedBlock, own_rows: list[Any], other_rows: Any) -> Result:
        return self.step(block.counted_rows, own_rows)


# ---- the fit ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Update:
    """A half step. It changes its own rows in place. The sums are ``SideStatistics``.

    Its tables are the rows, the prior of each row if the step's prior is ``PriorLines``, and the side features if the
    step has weights for them.
    """

    loss: Loss
    step: HalfStep[None]

    def __call__(self, block: PlacedBlock, own_rows: list[Any], other_rows: RowPosterior) -> Result:
        step, (rows, *more) = self.step, own_rows
        if isinstance(step.prior, PriorLines):
            step = step.under(RowPrior.at(more.pop(0)))
        features = more.pop(0) if step.feature_coef is not None else None
        step = _with_feature_means(block, other_rows, rows, step, features)
        table = self.loss.other_lines(other_rows)
        parts = block.over_rows(partial(_update_range, self.loss, block, table, rows, step, features))
        return rows, reduce(SideStatistics.__add__, parts).to_vector()


def _with_feature_means(
    block: PlacedBlock, other_rows: RowPosterior, rows: RowPosterior, step: HalfStep, features: FloatArray | None
) -> HalfStep:
    """The step under the prior means that follow from the features of the rows; new directions of their weights."""
    own, ratings = rows.implicit, block.ratings
    explained = np.zeros((ratings.n_rows, rows.dimension))
    if features is not None and step.feature_coef is not None:
        explained = np.asarray(features @ step.feature_coef)
    if other_rows.implicit is None or own is None:
        return step if features is None else step.under(step.row_prior.shifted_by(explained))
    means, theirs = np.zeros((ratings.n_rows, rows.rank)), implicit_features.sent_vectors(other_rows)
    block.over_rows(lambda lo, hi: implicit_features.add_implicit_sums(ratings, lo, hi, theirs, own, means))
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
    own = None if features is None else features[lo:hi]
    part = slice(lo, hi)
    return SideStatistics.of_rows(old, rows.take(part), step.row_prior.take(part), counts, sums, own)


@dataclass(frozen=True)
class Combine:
    """A posterior from other posteriors of the side, row by row."""

    make: Callable[..., RowPosterior]

    def __call__(self, rows: CountedRows, own_rows: list[RowPosterior]) -> Result:
        return self.make(*own_rows), NO_SUMS


@dataclass(frozen=True)
class FillUnrated:
    """The posterior with the prior in rows without ratings; with the means that their side features explain, if any."""

    prior: RowPrior
    feature_coef: NDArray[np.float64] | None = None

    def __call__(self, rows: CountedRows, own_rows: list[Any]) -> Result:
        explained = None if self.feature_coef is None else own_rows[1] @ self.feature_coef
        return with_prior(own_rows[0], np.asarray(rows.counts == 0), self.prior, explained), NO_SUMS


def coef_gram(rows: CountedRows, own_rows: list[RowPosterior]) -> Result:
    """The Gram matrix of [w z d], the implicit weights for the other side."""
    return None, implicit_features.coef_gram(own_rows[0]).ravel()


def column_squares(rows: CountedRows, own_rows: list[RowPosterior]) -> Result:
    """‖E L_k‖² for every factor."""
    return None, own_rows[0].column_norms ** 2


# ---- over all ratings, after a fit -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Draw:
    """Draws from the posteriors. The sums are ``GibbsErrors``."""

    draws: Draws

    def __call__(self, block: PlacedBlock, own_rows: list[RowPosterior], other_rows: RowPosterior) -> Result:
        parts = block.over_rows(
            lambda lo, hi: count_errors(block.ratings, lo, hi, block.rows, own_rows[0], other_rows, self.draws)
        )
        return None, np.sum(np.array(parts, np.float64).reshape(-1, 2), axis=0)


@dataclass(frozen=True)
class Confidences:
    """The histogram of the confidences of every ``stride``-th rating."""

    noise: float
    stride: int

    def __call__(self, block: PlacedBlock, own_rows: list[RowPosterior], other_rows: RowPosterior) -> Result:
        noise, stride = self.noise, self.stride
        parts = block.over_rows(
            lambda lo, hi: count_confidences(block.ratings, lo, hi, block.rows, own_rows[0], other_rows, noise, stride)
        )
        return None, reduce(np.add, parts).astype(np.float64)


@dataclass(frozen=True)
class MeasureHoldoutLoss:
    """The held-out loss of the ratings that a split does not choose. The sums are ``HoldoutLoss``."""

    loss: str
    split: Split

    def __call__(self, block: PlacedBlock, own_rows: list[RowPosterior], other_rows: RowPosterior) -> Result:
        left = self.split.part_of(block.ratings, block.rows, those=False)
        parts = block.over_rows(lambda lo, hi: HoldoutLoss.of_ratings(self.loss, left, lo, hi, own_rows[0], other_rows))
        return None, np.sum([part.to_vector() for part in parts], axis=0)


# ---- the start -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Product:
    """D^{−½} Σ_l w_l y_l z_j, where the other rows z are D^{−½} table·right. The sums are those of ``measure``."""

    width: int  # numbers in a row
    measure: Callable[[CountedRows, Table], Table] | None = None

    def __call__(self, block: PlacedBlock, own_rows: list[Any], other_rows: StartTable) -> Result:
        rows, table = block.counted_rows, other_rows.reshape(-1, self.width)
        product, scale = np.empty((len(rows.numbers), self.width), np.float32), rows.scale

        def work(lo: int, hi: int) -> None:
            signed_sums(block.ratings, lo, hi, table, product)
            product[lo:hi] *= scale[lo:hi]

        block.over_rows(work)
        return product, NO_SUMS if self.measure is None else self.measure(rows, product.astype(np.float64)).ravel()


@dataclass(frozen=True)
class LocatedRows:
    """The rows that ``ResidualProduct`` reads: the means of a row, and its D^{−½} table·right."""

    right: Table

    def __call__(self, rows: CountedRows, own_rows: list[Any]) -> Result:
        posterior, table = own_rows
        return np.hstack([posterior.location, scaled_product(rows, table, self.right)]).astype(np.float32), NO_SUMS


@dataclass(frozen=True)
class ResidualProduct:
    """``Product`` with residuals y_l σ(−y_l u_l) instead of the signs y_l. The other rows are ``LocatedRows``."""

    width: int  # numbers in a row
    measure: Callable[[CountedRows, Table], Table] | None = None

    def __call__(self, block: PlacedBlock, own_rows: list[RowPosterior], other_rows: StartTable) -> Result:
        rows, posterior, ratings = block.counted_rows, own_rows[0], block.ratings
        table = other_rows.reshape(-1, posterior.dimension + self.width)
        product, scale = np.empty((len(rows.numbers), self.width), np.float32), rows.scale

        def work(lo: int, hi: int) -> None:
            _residual_sums(
                ratings.row_pointers, ratings.codes, ratings.weights, lo, hi, posterior.location,
                int(posterior.has_intercept), table, product,
            )  # fmt: skip
            product[lo:hi] *= scale[lo:hi]

        block.over_rows(work)
        return product, NO_SUMS if self.measure is None else self.measure(rows, product.astype(np.float64)).ravel()


@dataclass(frozen=True)
class Grow:
    """A posterior with more factors, which ``make`` computes from the other tables."""

    make: Callable[..., Table]
    deviation: float  # standard deviation of the new factors

    def __call__(self, rows: CountedRows, own_rows: list[Any]) -> Result:
        posterior, *tables = own_rows
        return posterior.with_factors(self.make(rows, *tables), self.deviation), NO_SUMS


@dataclass(frozen=True)
class MakeRows:
    """A table of the start, row by row; ``finish`` makes a posterior of it."""

    make: Callable[..., Table]
    finish: Callable[[Table], RowPosterior] | None = None

    def __call__(self, rows: CountedRows, own_rows: list[Table]) -> Result:
        table = self.make(rows, *own_rows)
        return table if self.finish is None else self.finish(table), NO_SUMS


@dataclass(frozen=True)
class SumRows:
    """A sum over the rows of a table, sent as its shape and its numbers."""

    measure: Callable[[CountedRows, Table], Table]

    def __call__(self, rows: CountedRows, own_rows: list[Table]) -> Result:
        total = self.measure(rows, own_rows[0].astype(np.float64, copy=False))
        return None, np.concatenate([[total.ndim], total.shape, total.ravel()])


@dataclass(frozen=True)
class DistinctKeys:
    """The distinct pairs (ratings, positives) of the rows, at most ``enough`` of them."""

    enough: int

    def __call__(self, rows: CountedRows, own_rows: list[Table]) -> Result:
        return None, distinct_keys(rows)[: self.enough].astype(np.float64).ravel()


def total_weight(rows: CountedRows, own_rows: list[Any]) -> Result:
    """The sum of the weights."""
    return None, np.array([rows.counts.sum()], np.float64)


def signed_sums(block: RatingBlock, lo: int, hi: int, table: StartTable, out: StartTable) -> None:
    """out_i = Σ_{l∈Ω_i} w_l y_l table_j for the rows lo … hi−1: their part of Y·table, summed in double precision."""
    _signed_sums(block.row_pointers, block.codes, block.weights, lo, hi, table, out)


@jit
def _signed_sums(pointers, codes, weights, first, last, table, out):  # type: ignore[no-untyped-def]
    sums = np.empty(out.shape[1])
    for i in range(first, last):
        sums[:] = 0.0
        add_signed_rows(table, codes, weights, pointers[i], pointers[i + 1], sums, 0, True)
        for k in range(len(sums)):
            out[i, k] = sums[k]


@jit
def _residual_sums(pointers, codes, weights, first, last, location, fixed, table, out):  # type: ignore[no-untyped-def]
    """out_i = Σ_{l∈Ω_i} w_l y_l σ(−y_l u_l) z_j, where a row of the table is [d_j, R_j, z_j] (or without d_j)."""
    size, width = location.shape[1], out.shape[1]
    sums = np.empty(width)
    for i in range(first, last):
        sums[:] = 0.0
        for l in range(pointers[i], pointers[i + 1]):
            j, sign = codes[l] >> 1, 2.0 * (codes[l] & 1) - 1.0
            score = np.float64(location[i, 0]) + table[j, 0] if fixed else 0.0
            for k in range(fixed, size):
                score += np.float64(location[i, k]) * table[j, k]
            residual = sign / (1.0 + np.exp(sign * score))
            if weights is not None:
                residual *= weights[l]
            for k in range(width):
                sums[k] += residual * table[j, size + k]
        for k in range(width):
            out[i, k] = sums[k]
