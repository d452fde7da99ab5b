"""CudaRunner: the steps on a GPU. A table is a posterior with arrays on the device. ``half_step`` has the updates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from onebit_spark.core.blocks import RatingBlock, Repeats
from onebit_spark.core.config import CUDA_MOST_RANK, FitConfig
from onebit_spark.core.engine import (
    Combine,
    Confidences,
    Draw,
    FillUnrated,
    MeasureHoldoutLoss,
    RowLayout,
    RowStep,
    RowTransform,
    Step,
    Sums,
    Update,
    coef_gram_step,
    column_squares,
)
from onebit_spark.core.features import ImplicitMove
from onebit_spark.core.losses import OTHER, SIDES, Logistic, Loss, PriorLines, RowPrior, Side
from onebit_spark.core.posterior import FIT_VECTORS, Form, RowMap, RowPosterior, packed_size
from onebit_spark.core.prediction import BINS, HIGHEST_OCTAVE, HISTOGRAM_BINS, LOWEST_OCTAVE, PER_OCTAVE, WIDEST
from onebit_spark.core.randomness import Draws, Split
from onebit_spark.core.spectral import (
    STARTS,
    CountedRows,
    CubeSums,
    Factors,
    Keyed,
    Numbered,
    SquareSum,
    Table,
    add_tables,
    gram,
    spectral_start,
)
from onebit_spark.engines.cuda.device import (
    bytes_needed,
    check_memory,
    cupy,
    download,
    kernel,
    launch,
    or_null,
    upload,
    usable_bytes,
    with_arrays,
)
from onebit_spark.engines.cuda.half_step import (
    DevicePrior,
    RatingSums,
    apply_map,
    fold,
    gram_of_coef,
    move_implicit,
    prepare_half_step,
    prepare_ratings,
    rating_sums,
    side_statistics,
    updated,
)
from onebit_spark.engines.cuda.ratings import (
    DeviceRatings,
    Orientations,
    count_distinct,
    device_ratings,
    keyed_normals,
    orientations_of,
)
from onebit_spark.engines.cuda.shapes import MODE_PRODUCT, WARP, LineShape, Shape
from onebit_spark.engines.threads import GROWN_MARGIN
from onebit_spark.errors import RequestError

FILL_BLOCKS = 8448  # sixty-four for each multiprocessor of an H200
LANES, THREADS = 8, 256  # threads of a rating and of a block, as in pairs.cu
MOST_BLOCKS = 2112  # sixteen for each multiprocessor of an H200
TOTAL_BITS = 62  # the weights of held-out ratings are added up as integers below 2^62


class CudaRunner:
    """Runs the steps of an engine on the device, which holds both orientations of the ratings."""

    def __init__(self, ratings: Orientations) -> None:
        self.ratings = ratings
        self.n_ratings = ratings["rows"].n
        self.weighted = ratings["rows"].weights is not None
        self.total_weight = ratings["rows"].total_weight
        self._prepared: set[Form] = set()
        self._left_out: tuple[Split, DeviceRatings] | None = None
        self._ahead: RatingSums | None = None  # sums of the next half step, where the data term has needed them
        self._next: Callable[[], RatingSums] | None = None  # computes them

    @classmethod
    def of_arrays(
        cls, rows: ArrayLike, cols: ArrayLike, labels: ArrayLike, shape: Sequence[int] | None,
        settings: Sequence[object], weights: ArrayLike | None, form: Form,
    ) -> Self:  # fmt: skip
        """A runner on the ratings of ``fit_arrays``; ``settings`` are the problems of the settings."""
        if not settings:
            prepare_ratings()
        return cls(device_ratings(rows, cols, labels, shape, settings, weights, form))

    @classmethod
    def of_block(cls, block: RatingBlock, form: Form) -> Self:
        """A runner on the ratings of a block; ``form`` is that of the rows at the start of the fit."""
        prepare_ratings()
        check_memory(block.n_ratings, block.n_rows, block.n_columns, form, block.weights is not None)
        return cls(orientations_of(block))

    @property
    def positives(self) -> int:
        """Number of positive ratings."""
        return self.ratings["rows"].positives

    @property
    def repeats(self) -> Repeats:
        """Cells that were rated more than once."""
        return self.ratings["rows"].repeats

    def count(self, side: Side) -> int:
        return self.ratings[side].n_rated

    def n_rows(self, side: Side) -> int:
        return self.ratings[side].n_rows

    def counts(self, side: Side) -> NDArray[np.int64]:
        return self.ratings[side].counts

    def held_rows(self, side: Side) -> CountedRows:
        return self.ratings[side].counted_rows

    def run(
        self, side: Side, step: Step, tables: Sequence[Any], others: Any, layout: RowLayout, send: Any = None
    ) -> tuple[Any, list[Sums]]:
        assert isinstance(step, Update)
        half, ratings, (rows, *more) = step.step, self.ratings[side], tables
        self._prepare(rows.form)
        lines = more.pop(0) if isinstance(half.prior, PriorLines) else None
        features = more.pop(0) if half.feature_coef is not None else None
        prior = DevicePrior.of(half, rows.dimension, lines, features)
        self._next = None
        rating_sums, self._ahead = self._ahead, None
        if rating_sums is None or not rating_sums.are_of(rows, others, half.kappa):
            rating_sums = RatingSums.of(ratings, rows, others, half.kappa)
        new, implicit_means, scalars = updated(ratings, half, rating_sums, prior)
        del rating_sums
        if half.want_data:
            self._next = partial(RatingSums.of, self.ratings[OTHER[side]], others, new, half.kappa)
        statistics = side_statistics(
            ratings, rows.location, new, prior, implicit_means, scalars, half.want_data, features
        )
        return new, [statistics.to_vector()]

    def _prepare(self, form: Form) -> None:
        """Start compiling what half steps on such rows need, the first time."""
        if form not in self._prepared:
            self._prepared.add(form)
            for ratings in self.ratings.values():
                prepare_half_step(ratings, form)

    def data_term(self, summed: float) -> float:
        """The data term. Its first part comes with the sums of the next half step, after the weights have moved."""
        if self._next is None:
            return summed
        self._ahead, self._next = self._next(), None
        first = cupy().empty(1)
        fold(self._ahead.data[None, :], first)
        return summed + float(first[0])

    def sums(self, side: Side, step: Step, tables: Sequence[Any], others: Any) -> list[Sums]:
        ratings, rows = self.ratings[side], tables[0]
        if isinstance(step, Draw):
            return [drawn_errors(ratings, rows, others, step.draws)]
        if isinstance(step, Confidences):
            return [confidence_histogram(ratings, rows, others, step.noise, step.stride)]
        assert isinstance(step, MeasureHoldoutLoss)
        return [holdout_loss_sums(self._left(step.split), rows, others)]

    def run_rows(self, side: Side, step: RowStep, tables: Sequence[Any], layout: RowLayout) -> Any:
        if isinstance(step, FillUnrated):
            explained = None
            if step.feature_coef is not None:
                explained = (tables[1] @ cupy().asarray(step.feature_coef)).astype(np.float32)
            return _with_prior(tables[0], self.ratings[side], step.prior, explained)
        assert isinstance(step, Combine)
        return step.make(*tables)  # it uses only functions and indices that CuPy has too

    def row_sums(self, side: Side, step: RowStep, tables: Sequence[Any] = ()) -> list[Sums]:
        posterior: RowPosterior = tables[0]
        if step is coef_gram_step:
            return [gram_of_coef(self.ratings[side], posterior)]
        assert step is column_squares
        mean: Any = posterior.mean.astype(np.float64)
        return [np.diag((mean.T @ mean).get()).copy()]

    def table(self, side: Side, lines: Any) -> Any:
        if not isinstance(lines, RowPosterior):
            return upload(lines)
        if lines.rank > CUDA_MOST_RANK:
            raise RequestError(
                f"device='cuda' fits up to {CUDA_MOST_RANK} factors, and the model or checkpoint that this fit starts "
                f"from has {lines.rank}: choose device='cpu'"
            )
        return with_arrays(lines, lambda array: upload(array.astype(np.float32, copy=False)))

    def lines(self, table: Any) -> Any:
        return with_arrays(table, download)

    def mapped(self, side: Side, table: RowPosterior, by: RowTransform) -> RowPosterior:
        """Map the rows themselves, at once."""
        self._ahead = None
        if isinstance(by, ImplicitMove):
            move_implicit(table, by)
        else:
            assert isinstance(by, RowMap)
            apply_map(table, by)
        return table

    def start(self, config: FitConfig, loss: Loss) -> dict[Side, RowPosterior]:
        self._prepare(config.form)
        signs: Any = DeviceSigns(self.ratings, self.ratings)
        tables: tuple[Any, Any] = STARTS[config.start](signs, config.factors, config.seed)
        return {side: _posterior(table, config, loss) for side, table in zip(SIDES, tables, strict=True)}

    def shortage(self, config: FitConfig) -> str | None:
        sizes = self.n_ratings, self.n_rows("rows"), self.n_rows("cols")
        needed, there = bytes_needed(*sizes, config.form, self.weighted), usable_bytes()
        if needed <= there:
            return None
        return f"it takes about {needed / 1e9:.1f} GB of GPU memory, and there are {there / 1e9:.1f}"

    def grown(self, posteriors: dict[Side, RowPosterior], config: FitConfig, loss: Loss) -> dict[Side, RowPosterior]:
        """Both posteriors with as many factors as ``config`` says (``threads``)."""
        self._prepare(config.form)
        residuals = {
            side: replace(some, weights=residual_weights(some, posteriors[side], posteriors[OTHER[side]]))
            for side, some in self.ratings.items()
        }
        matrix: Any = DeviceSigns(self.ratings, residuals)
        more = config.factors - posteriors["rows"].rank
        tables: tuple[Any, Any] = spectral_start(matrix, more, config.seed, GROWN_MARGIN)
        return {
            side: _with_factors(posteriors[side], table, loss.start_std)
            for side, table in zip(SIDES, tables, strict=True)
        }

    @contextmanager
    def restricted(self, split: Split) -> Iterator[CudaRunner]:
        chosen = self.ratings["rows"].part_of(split)
        yield CudaRunner({"rows": chosen, "cols": chosen.transposed()})

    def described(self, what: str) -> AbstractContextManager[None]:
        return nullcontext()

    def positive_counts(self, side: Side) -> NDArray[np.int64]:
        return self.ratings[side].positive_counts

    @contextmanager
    def running(self) -> Iterator[Self]:
        """The runner for the length of a fit. Afterwards, sums for a next half step are freed."""
        yield self
        self._ahead = self._next = self._left_out = None

    def _left(self, split: Split) -> DeviceRatings:
        """The ratings that a split does not choose. Those of the last split are kept."""
        if self._left_out is None or self._left_out[0] != split:
            self._left_out = split, self.ratings["rows"].part_of(split, those=False)
        return self._left_out[1]


def _with_prior(posterior: RowPosterior, ratings: DeviceRatings, prior: RowPrior, explained: Any) -> RowPosterior:
    """The posterior with the prior in rows without ratings (``engine.FillUnrated``)."""
    filled, shape, deviation = posterior.copy(), Shape.of(posterior.form), prior.precision[0] ** -0.5
    line = deviation
    if not shape.spread:
        line = np.zeros(shape.packed)
        line[[packed_size(k + 1) - 1 for k in range(shape.size)]] = deviation**2
    mean, line = (cupy().asarray(numbers, np.float32) for numbers in (prior.mean[0], line))
    kernel("maps", "fill_unrated", shape.map_macros)(
        (min(FILL_BLOCKS, filled.n_rows),), (WARP,),
        (
            ratings.pointers, mean, or_null(explained), line, filled.location, filled.scale, or_null(filled.implicit),
            np.int64(filled.n_rows),
        ),
    )  # fmt: skip
    return filled


# ---- steps over all ratings ------------------------------------------------------------------------------------------


def drawn_errors(ratings: DeviceRatings, rows: RowPosterior, cols: RowPosterior, draws: Draws) -> Sums:
    """The number of errors of draws, and of ratings that were drawn for (``core.randomness``)."""
    shape, split = Shape.of(rows.form), draws.unseen_by
    factors = cupy().empty(rows.scale.shape)
    kernel("maps", "roots", shape.map_macros, shape.root_bytes)(
        *shape.row_blocks(rows.n_rows), (rows.scale, factors, np.int64(rows.n_rows)), shared_mem=shape.root_bytes
    )
    seed, fraction = (-1, 0.0) if split is None else (split.seed, split.fraction)
    counts = cupy().zeros(2, np.uint64)
    launch(
        kernel("draws", "count_errors", shape.pair_macros), ratings.n, *ratings.places, ratings.codes, rows.location,
        factors, cols.location, cols.scale, np.uint64(draws.seed), np.int32(draws.per_rating), np.int64(seed),
        np.float64(fraction), counts, np.int64(ratings.n),
    )  # fmt: skip
    return np.asarray(counts.get(), np.float64)


def confidence_histogram(
    ratings: DeviceRatings, rows: RowPosterior, cols: RowPosterior, noise: float, stride: int
) -> Sums:
    """A histogram of the signed confidences of every ``stride``-th rating (``core.prediction``)."""
    counts = cupy().zeros(2 * HISTOGRAM_BINS, np.uint64)
    octaves = np.float64(LOWEST_OCTAVE), np.float64(HIGHEST_OCTAVE)
    launch(
        kernel("pairs", "confidences", Shape.of(rows.form).pair_macros), LANES * ratings.n, *ratings.places,
        ratings.codes, rows.location, rows.scale, cols.location, cols.scale, np.float64(noise), np.int64(stride),
        *octaves, np.int32(PER_OCTAVE), counts, np.int64(ratings.n),
    )  # fmt: skip
    return np.asarray(counts.get(), np.float64)


def holdout_loss_sums(left: DeviceRatings, rows: RowPosterior, cols: RowPosterior) -> Sums:
    """``HoldoutLoss`` of these ratings under the logistic loss (``core.prediction``).

    The histogram of margins counts weights in a unit that is a power of 2, so the order of the sums changes nothing.
    """
    cp, blocks = cupy(), max(1, min(MOST_BLOCKS, -(-left.n * LANES // THREADS)))
    unit = weight_unit(left.total_weight)
    parts, margins, sums = cp.empty((4, blocks)), cp.zeros(BINS, np.uint64), cp.empty(4)
    kernel("pairs", "holdout_loss", Shape.of(rows.form).pair_macros)(
        (blocks,), (THREADS,),
        (
            *left.places, left.codes, or_null(left.weights), rows.location, rows.scale, cols.location, cols.scale,
            np.float64(Logistic.score_noise), np.float64(WIDEST), np.int32(BINS), np.float64(1 / unit), parts, margins,
            np.int64(left.n),
        ),
    )  # fmt: skip
    fold(parts, sums)
    return np.concatenate([np.insert(sums.get(), 4, left.n), margins.get() * unit])


def weight_unit(total: float) -> float:
    """The smallest power of 2 such that weights with this sum stay below 2^62 units. No weight is less than a unit."""
    return 2.0 ** (int(np.frexp(total)[1]) - TOTAL_BITS)


def residual_weights(ratings: DeviceRatings, rows: RowPosterior, others: RowPosterior) -> Any:
    """w_l σ(−y_l u_l) of every rating, u_l the mean of its score."""
    shape, out = Shape.of(rows.form), cupy().empty(ratings.n, np.float32)
    launch(
        kernel("pairs", "residuals", shape.pair_macros), ratings.n, *ratings.places, ratings.codes,
        or_null(ratings.weights), rows.location, others.location, out, np.int64(ratings.n),
    )  # fmt: skip
    return out


# ---- the start of a fit, and of new factors --------------------------------------------------------------------------


def _with_factors(rows: RowPosterior, factors: Any, deviation: float) -> RowPosterior:
    """``RowPosterior.with_factors`` on the device."""
    cp, old, new = cupy(), rows.dimension, rows.dimension + factors.shape[1]
    width = new if rows.kind == "spread" else packed_size(new)
    scale = cp.zeros((rows.n_rows, width), np.float32)
    scale[:, : rows.scale.shape[1]] = rows.scale  # the packed triangle of the first coordinates comes first
    for k in range(old, new):
        if rows.kind == "spread":
            scale[:, k] = deviation
        else:
            scale[:, packed_size(k + 1) - 1] = deviation**2
    implicit = None
    if rows.implicit is not None:
        rank, wider = rows.rank, rows.rank + factors.shape[1]
        implicit = cp.zeros((rows.n_rows, rows.vectors * wider), np.float32)
        for n in range(rows.vectors):
            implicit[:, n * wider :][:, :rank] = rows.implicit[:, n * rank :][:, :rank]
    location = cp.hstack([rows.location, factors.astype(np.float32)])
    return RowPosterior(location, scale, rows.kind, rows.has_intercept, implicit)


def _posterior(factors: Any, config: FitConfig, loss: Loss) -> RowPosterior:
    """A posterior with intercepts at 0 and the same standard deviation for all coordinates."""
    cp, rows, size, fixed = cupy(), len(factors), config.dimension, int(config.intercepts)
    location = cp.zeros((rows, size), np.float32)
    location[:, fixed:] = factors * loss.start_shrinkage if fixed else factors
    if loss.kind == "spread":
        scale = cp.full((rows, size), loss.start_std, np.float32)
    else:
        scale = cp.zeros((rows, packed_size(size)), np.float32)
        for k in range(size):
            scale[:, packed_size(k + 1) - 1] = np.float32(loss.start_std) ** 2
    implicit = cp.zeros((rows, FIT_VECTORS * config.factors), np.float32) if config.implicit_features else None
    return RowPosterior(location, scale, loss.kind, config.intercepts, implicit)


@dataclass(frozen=True)
class DeviceSigns:
    """A ``SignMatrix`` (``core.spectral``) whose tables are arrays of the device.

    Weighted by σ(−y_l u_l), where u_l = E[L_i]·E[R_j] plus the intercepts, the ratings are the residuals of a fit.
    """

    ratings: Orientations
    weighted: Orientations  # the ratings whose signs, times their weights, are the matrix

    @property
    def total_weight(self) -> float:
        return self.ratings["rows"].total_weight

    def count(self, side: Side) -> int:
        return self.ratings[side].n_rated

    def distinct_keys(self, side: Side, enough: int) -> int:
        return count_distinct(self.ratings[side])

    def row_table(self, side: Side, make: Callable[..., Table], *tables: Any) -> Any:
        ratings = self.ratings[side]
        if make is add_tables:
            return tables[0] + tables[1]
        if isinstance(make, Factors):
            factors = _scaled(ratings, tables[0], make.right)
            if not make.fillers:
                return factors
            return cupy().hstack([factors, keyed_normals(ratings, make.fillers, make.seed + 1, make.noise, False)])
        assert isinstance(make, Keyed | Numbered)
        numbered = isinstance(make, Numbered)
        return keyed_normals(ratings, make.width, make.seed, getattr(make, "std", 1.0), numbered)

    def product(self, side: Side, table: Any, right: Table) -> Any:
        line = LineShape.of_columns(right.shape[1])
        sent = cupy().zeros((len(table) + 1, line.width), np.float32)
        sent[:-1, : right.shape[1]] = _scaled(self.ratings[OTHER[side]], table, right)
        sums = rating_sums(self.weighted[side], line, None, sent, mode=MODE_PRODUCT)
        return sums[:, : right.shape[1]] * self.ratings[side].row_weights.root[:, None]

    def total(self, side: Side, measure: Callable[[CountedRows, Table], Table], table: Any) -> NDArray[np.float64]:
        if measure is gram:
            return np.asarray((table.T @ table).get())
        assert isinstance(measure, CubeSums | SquareSum)
        factors = _scaled(self.ratings[side], table, measure.factors.right)
        if isinstance(measure, CubeSums):
            return np.asarray((cupy().ones(len(factors)) @ (factors * factors * factors)).get())
        return np.asarray(cupy().vdot(factors, factors).get())


def _scaled(ratings: DeviceRatings, table: Any, right: Table) -> Any:
    """D^{−½} table·right."""
    return ratings.row_weights.root[:, None] * (table @ cupy().asarray(right))
