"""CudaEngine: the engine on a GPU. A table is a posterior with arrays on the device.

A half step is: lines, sums over ratings, a system for every row, and the statistics of the side.
The .cu files that a fit needs are compiled in parallel, before the first of them runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from onebit_spark.core.blocks import RatingBlock, Repeats
from onebit_spark.core.confidences import HISTOGRAM_BINS, LOWEST_OCTAVE, PER_OCTAVE
from onebit_spark.core.features import RIDGE, ImplicitMove
from onebit_spark.core.holdout import BINS, WIDEST
from onebit_spark.core.losses import OTHER, SIDES, HalfStep, Loss, RowPrior, Side
from onebit_spark.core.losses.logistic import Logistic
from onebit_spark.core.posterior import (
    FIT_VECTORS,
    FloatArray,
    Form,
    RowMap,
    RowPosterior,
    packed_size,
)
from onebit_spark.core.randomness import Draws, Split
from onebit_spark.core.scores import HIGHEST_OCTAVE
from onebit_spark.core.setup import form_of
from onebit_spark.core.spectral import (
    STARTS,
    CountedRows,
    CubeSums,
    Factors,
    Normals,
    Numbered,
    SquareSum,
    Table,
    TableSum,
    gram,
    spectral_start,
)
from onebit_spark.core.statistics import SideStatistics
from onebit_spark.core.work import (
    CoefGram,
    ColumnNorms,
    ConvertRows,
    CountConfidences,
    CountDrawErrors,
    FillUnrated,
    HalfStepInputs,
    MeasureSpreads,
    RatingWork,
    RowMapping,
    RowSum,
    RowTransform,
    SumHoldoutLoss,
    Sums,
    UpdateRows,
)
from onebit_spark.engines.base import Engine, Numbers, S
from onebit_spark.engines.cuda.device import (
    NULL,
    THREADS,
    Array,
    bytes_needed,
    cache_bytes,
    check_memory,
    compile_soon,
    cupy,
    download,
    kernel,
    launch,
    or_null,
    upload,
    usable_bytes,
    with_arrays,
)
from onebit_spark.engines.cuda.ratings import (
    DeviceRatings,
    Orientations,
    count_distinct,
    device_ratings,
    keyed_normals,
    orientations_of,
)
from onebit_spark.engines.cuda.shapes import (
    BLOCK,
    MODE_CURVATURE,
    MODE_LOGISTIC,
    MODE_PRODUCT,
    RATING_MACROS,
    WARP,
    LineShape,
    Shape,
)
from onebit_spark.engines.start import GROWN_MARGIN
from onebit_spark.errors import RequestError
from onebit_spark.settings import CUDA_MOST_RANK, FitConfig

FILL_BLOCKS = 8448  # sixty-four for each multiprocessor of an H200
LANES = 8  # threads of a rating, as in pairs.cu
MOST_BLOCKS = 2112  # sixteen for each multiprocessor of an H200
LINES = 16  # rows whose lines one block of threads writes, as in lines.cu
MAP_BLOCKS = 1056  # eight blocks for each multiprocessor of an H200
TOTAL_BLOCKS = (
    264  # two blocks for each multiprocessor of an H200; each adds up a share of the rows
)
MANY_THREADS = 1024
LEAST_ROWS = 64  # threads of a block of ``fold``, and rows that make a block worthwhile
SCALES = 0
T_T = 5
W_W = 6
D_D = 11
Q_Q = 16  # numbers of jobs, as in totals.cu
TOTAL_BITS = 62  # the weights of held-out ratings are added up as integers below 2^62


Vector = NDArray[np.float64]


class CudaEngine:
    """The engine on the device, which holds both orientations of the ratings.

    Every work of ``core.work`` has a form for the device here.
    """

    numbers: dict[Side, Numbers] | None = None

    def __init__(self, ratings: Orientations) -> None:
        self.ratings = ratings
        self.n_ratings = ratings["rows"].n
        self.weighted = ratings["rows"].weights is not None
        self.total_weight = ratings["rows"].total_weight
        self._prepared: set[Form] = set()
        self._features: dict[Side, tuple[FloatArray, Array]] = {}  # side features, here and there
        self._left_out: tuple[Split, DeviceRatings] | None = None
        # sums of the next half step, where the data term has needed them
        self._ahead: RatingSums | None = None
        self._next: Callable[[], RatingSums] | None = None  # computes them

    @classmethod
    def of_arrays(
        cls,
        rows: ArrayLike,
        cols: ArrayLike,
        labels: ArrayLike,
        shape: Sequence[int] | None,
        settings: Sequence[object],
        weights: ArrayLike | None,
        form: Form,
    ) -> Self:
        """An engine on the ratings of ``fit_arrays``; ``settings`` are the problems of the
        settings.
        """
        if not settings:
            prepare_ratings()
        return cls(device_ratings(rows, cols, labels, shape, settings, weights, form))

    @classmethod
    def of_block(cls, block: RatingBlock, form: Form) -> Self:
        """An engine on the ratings of a block; ``form`` is that of the rows at the start of the
        fit.
        """
        prepare_ratings()
        weighted = block.weights is not None
        check_memory(block.n_ratings, block.n_rows, block.n_columns, form, weighted)
        return cls(orientations_of(block))

    # ---- the ratings ----------------------------------------------------------------------------

    @property
    def positives(self) -> int:
        return self.ratings["rows"].positives

    @property
    def repeats(self) -> Repeats:
        return self.ratings["rows"].repeats

    def count(self, side: Side) -> int:
        return self.ratings[side].n_rated

    def n_rows(self, side: Side) -> int:
        return self.ratings[side].n_rows

    def counts(self, side: Side) -> Numbers:
        return self.ratings[side].counts

    # ---- the length of a fit --------------------------------------------------------------------

    @contextmanager
    def running(self) -> Iterator[Self]:
        """The engine for the length of a fit. Afterwards, sums for a next half step are freed."""
        yield self
        self._ahead = None
        self._next = None
        self._left_out = None

    @contextmanager
    def restricted(self, split: Split) -> Iterator[CudaEngine]:
        chosen = self.ratings["rows"].part_of(split)
        yield CudaEngine({"rows": chosen, "cols": chosen.transposed()})

    def described(self, what: str) -> AbstractContextManager[None]:
        return nullcontext()

    def shortage(self, config: FitConfig) -> str | None:
        sizes = self.n_ratings, self.n_rows("rows"), self.n_rows("cols")
        needed = bytes_needed(*sizes, form_of(config), self.weighted)
        there = usable_bytes()
        if needed <= there:
            return None
        return (
            f"it takes about {needed / 1e9:.1f} GB of GPU memory, and there are {there / 1e9:.1f}"
        )

    # ---- tables ---------------------------------------------------------------------------------

    def table(self, side: Side, rows: RowPosterior) -> RowPosterior:
        if rows.rank > CUDA_MOST_RANK:
            raise RequestError(
                f"device='cuda' fits up to {CUDA_MOST_RANK} factors, and the model or checkpoint "
                "that "
                f"this fit starts from has {rows.rank}: choose device='cpu'"
            )
        return with_arrays(rows, lambda array: upload(array.astype(np.float32, copy=False)))

    def rows_here(self, table: RowPosterior) -> RowPosterior:
        return with_arrays(table, download)

    def take(self, side: Side, table: RowPosterior, numbers: Numbers) -> RowPosterior:
        return self.rows_here(table).take(numbers)

    def place(
        self,
        side: Side,
        rows: RowPosterior,
        numbers: Numbers,
        prior: RowPosterior,
    ) -> RowPosterior:
        return self.table(side, rows.among(prior, self.n_rows(side), numbers))

    # ---- the start ------------------------------------------------------------------------------

    def start(self, config: FitConfig, loss: Loss) -> dict[Side, RowPosterior]:
        self._prepare(form_of(config))
        signs = DeviceSigns(self.ratings, self.ratings)
        tables: tuple[Array, Array] = STARTS[config.start](signs, config.factors, config.seed)
        return {
            side: _posterior(table, config, loss) for side, table in zip(SIDES, tables, strict=True)
        }

    def grow(
        self,
        tables: dict[Side, RowPosterior],
        config: FitConfig,
        loss: Loss,
    ) -> dict[Side, RowPosterior]:
        self._prepare(form_of(config))
        residuals: dict[Side, DeviceRatings] = {}
        for side, ratings in self.ratings.items():
            weights = residual_weights(ratings, tables[side], tables[OTHER[side]])
            residuals[side] = replace(ratings, weights=weights)
        matrix = DeviceSigns(self.ratings, residuals)
        more = config.factors - tables["rows"].rank
        factors: tuple[Array, Array] = spectral_start(matrix, more, config.seed, GROWN_MARGIN)
        return {
            side: _with_factors(tables[side], each, loss.start_std)
            for side, each in zip(SIDES, factors, strict=True)
        }

    # ---- half steps -----------------------------------------------------------------------------

    def half_step(
        self,
        update: UpdateRows,
        inputs: HalfStepInputs[RowPosterior],
    ) -> tuple[RowPosterior, SideStatistics]:
        step = update.step
        side = step.side
        rows = inputs.rows
        others = inputs.others
        ratings = self.ratings[side]
        self._prepare(rows.form)
        features = self._feature_table(side, inputs.features)
        prior = DevicePrior.of(step, features)
        self._next = None
        sums = self._ahead
        self._ahead = None
        if sums is None or not sums.are_of(rows, others, step.kappa):
            sums = RatingSums.of(ratings, rows, others, step.kappa)
        new, implicit_means, scalars = updated(ratings, step, sums, prior)
        del sums
        if step.want_data:
            partners = self.ratings[OTHER[side]]
            self._next = partial(RatingSums.of, partners, others, new, step.kappa)
        statistics = side_statistics(
            ratings, rows.location, new, prior, implicit_means, scalars, step.want_data, features
        )
        return new, statistics

    def _prepare(self, form: Form) -> None:
        if form not in self._prepared:
            self._prepared.add(form)
            for ratings in self.ratings.values():
                prepare_half_step(ratings, form)

    def _feature_table(self, side: Side, features: FloatArray | None) -> Array:
        """The side features on the device, sent once."""
        if features is None:
            return None
        if side not in self._features or self._features[side][0] is not features:
            self._features[side] = features, upload(features)
        return self._features[side][1]

    def data_term(self, summed: float) -> float:
        """The data term. Its first part comes with the sums of the next half step."""
        if self._next is None:
            return summed
        self._ahead = self._next()
        self._next = None
        first = cupy().empty(1)
        fold(self._ahead.data[None, :], first)
        return summed + float(first[0])

    def apply(self, side: Side, table: RowPosterior, by: RowTransform) -> RowPosterior:
        """Map the rows themselves, at once."""
        self._ahead = None
        if isinstance(by, ImplicitMove):
            move_implicit(table, by)
        else:
            apply_map(table, by)
        return table

    # ---- other work -----------------------------------------------------------------------------

    def over_ratings(self, work: RatingWork[S], rows: RowPosterior, cols: RowPosterior) -> S:
        return work.result(self._sum_of(work, rows, cols))

    def _sum_of(self, work: RatingWork[Any], rows: RowPosterior, cols: RowPosterior) -> Sums:
        ratings = self.ratings["rows"]
        match work:
            case CountDrawErrors():
                return drawn_errors(ratings, rows, cols, work.draws)
            case CountConfidences():
                return confidence_histogram(ratings, rows, cols, work.noise, work.stride)
            case SumHoldoutLoss():
                return holdout_loss_sums(self._left(work.split), rows, cols)
            case _:
                raise NotImplementedError(f"a GPU has no form of {work}")

    def _left(self, split: Split) -> DeviceRatings:
        """The ratings that a split does not choose. Those of the last split are kept."""
        if self._left_out is None or self._left_out[0] != split:
            self._left_out = split, self.ratings["rows"].part_of(split, those=False)
        return self._left_out[1]

    def sum_rows(self, work: RowSum[S], side: Side, table: RowPosterior) -> S:
        ratings = self.ratings[side]
        total: Sums
        match work:
            case CoefGram():
                total = gram_of_coef(ratings, table).ravel()
            case ColumnNorms():
                mean: Array = table.mean.astype(np.float64)
                total = np.diag((mean.T @ mean).get()).copy()
            case _:  # these use only functions and indices that CuPy has too
                numbers = cupy().arange(ratings.n_rows)
                counted = CountedRows(numbers, *ratings.row_weights[:2])
                total = download(work.sum_of(counted, table))
        return work.result(total)

    def map_rows(
        self,
        work: RowMapping,
        side: Side,
        table: RowPosterior,
        features: FloatArray | None = None,
    ) -> RowPosterior:
        match work:
            case FillUnrated():
                explained = None
                if work.feature_coef is not None:
                    coef = cupy().asarray(work.feature_coef)
                    explained = (self._feature_table(side, features) @ coef).astype(np.float32)
                return _with_prior(table, self.ratings[side], work.prior, explained)
            case ConvertRows():  # it uses only functions and indices that CuPy has too
                return work.make(table)
            case _:
                raise NotImplementedError(f"a GPU has no form of {work}")

    def measure(
        self,
        work: MeasureSpreads,
        side: Side,
        rows: RowPosterior,
        others: RowPosterior,
    ) -> NDArray[np.float32]:
        self._ahead = None  # no half step follows
        self._next = None
        return measured(self.ratings[side], work, rows, others)


def _is_engine(engine: CudaEngine) -> Engine[RowPosterior]:
    return engine  # mypy holds the class to the Protocol


def _with_prior(
    posterior: RowPosterior, ratings: DeviceRatings, prior: RowPrior, explained: Array
) -> RowPosterior:
    """The posterior with the prior in rows without ratings (``core.work.FillUnrated``)."""
    filled = posterior.copy()
    shape = Shape.of(posterior.form)
    deviation = prior.precision[0] ** -0.5
    line = deviation
    if not shape.spread:
        line = np.zeros(shape.packed)
        line[[packed_size(k + 1) - 1 for k in range(shape.size)]] = deviation**2
    mean, line = (cupy().asarray(numbers, np.float32) for numbers in (prior.mean[0], line))
    kernel("maps", "fill_unrated", shape.map_macros)(
        (min(FILL_BLOCKS, filled.n_rows),),
        (WARP,),
        (
            ratings.pointers,
            mean,
            or_null(explained),
            line,
            filled.location,
            filled.scale,
            or_null(filled.implicit),
            np.int64(filled.n_rows),
        ),
    )
    return filled


# ---- steps over all ratings --------------------------------------------------------------------


def drawn_errors(
    ratings: DeviceRatings, rows: RowPosterior, cols: RowPosterior, draws: Draws
) -> Sums:
    """The number of draws that err (``core.randomness``)."""
    shape = Shape.of(rows.form)
    factors = cupy().empty(rows.scale.shape)
    kernel("maps", "roots", shape.map_macros, shape.root_bytes)(
        *shape.row_blocks(rows.n_rows),
        (rows.scale, factors, np.int64(rows.n_rows)),
        shared_mem=shape.root_bytes,
    )
    errors = cupy().zeros(1, np.uint64)
    how = np.uint64(draws.seed), np.int32(draws.per_rating)
    launch(
        kernel("draws", "count_errors", shape.pair_macros),
        ratings.n,
        *ratings.places,
        ratings.codes,
        rows.location,
        factors,
        cols.location,
        cols.scale,
        *how,
        errors,
        np.int64(ratings.n),
    )
    return np.asarray(errors.get(), np.float64)


def confidence_histogram(
    ratings: DeviceRatings, rows: RowPosterior, cols: RowPosterior, noise: float, stride: int
) -> Sums:
    """A histogram of the signed confidences of every ``stride``-th rating
    (``core.confidences``).
    """
    counts = cupy().zeros(2 * HISTOGRAM_BINS, np.uint64)
    octaves = np.float64(LOWEST_OCTAVE), np.float64(HIGHEST_OCTAVE)
    launch(
        kernel("pairs", "confidences", Shape.of(rows.form).pair_macros),
        LANES * ratings.n,
        *ratings.places,
        ratings.codes,
        rows.location,
        rows.scale,
        cols.location,
        cols.scale,
        np.float64(noise),
        np.int64(stride),
        *octaves,
        np.int32(PER_OCTAVE),
        counts,
        np.int64(ratings.n),
    )
    return np.asarray(counts.get(), np.float64)


def holdout_loss_sums(left: DeviceRatings, rows: RowPosterior, cols: RowPosterior) -> Sums:
    """``HoldoutLoss`` of these ratings under the logistic loss (``core.holdout``).

    The histogram of margins counts weights in a unit that is a power of 2, so the order of the sums
    changes nothing.
    """
    cp = cupy()
    blocks = max(1, min(MOST_BLOCKS, -(-left.n * LANES // THREADS)))
    unit = weight_unit(left.total_weight)
    parts = cp.empty((4, blocks))
    margins = cp.zeros(BINS, np.uint64)
    sums = cp.empty(4)
    kernel("pairs", "holdout_loss", Shape.of(rows.form).pair_macros)(
        (blocks,),
        (THREADS,),
        (
            *left.places,
            left.codes,
            or_null(left.weights),
            rows.location,
            rows.scale,
            cols.location,
            cols.scale,
            np.float64(Logistic.score_noise),
            np.float64(WIDEST),
            np.int32(BINS),
            np.float64(1 / unit),
            parts,
            margins,
            np.int64(left.n),
        ),
    )
    fold(parts, sums)
    return np.concatenate([np.insert(sums.get(), 4, left.n), margins.get() * unit])


def measured(
    ratings: DeviceRatings, step: MeasureSpreads, rows: RowPosterior, others: RowPosterior
) -> NDArray[np.float32]:
    """The table of ``MeasureSpreads``, on the host."""
    half = step.half_step
    rows = replace(rows, scale=rows.scale.copy(), implicit=None)
    sums = RatingSums.of(ratings, rows, others, half.kappa, half.curvature)
    new, *_ = updated(ratings, half, sums, DevicePrior.of(half, None))
    del sums
    return download(step.table(cupy().diff(ratings.pointers), new))


def weight_unit(total: float) -> float:
    """The smallest power of 2 such that weights with this sum stay below 2^62 units.

    No weight is less than a unit.
    """
    return 2.0 ** (int(np.frexp(total)[1]) - TOTAL_BITS)


def residual_weights(ratings: DeviceRatings, rows: RowPosterior, others: RowPosterior) -> Array:
    """w_l σ(−y_l u_l) of every rating, u_l the mean of its score."""
    shape = Shape.of(rows.form)
    out = cupy().empty(ratings.n, np.float32)
    launch(
        kernel("pairs", "residuals", shape.pair_macros),
        ratings.n,
        *ratings.places,
        ratings.codes,
        or_null(ratings.weights),
        rows.location,
        others.location,
        out,
        np.int64(ratings.n),
    )
    return out


# ---- the start of a fit, and of new factors ----------------------------------------------------


def _with_factors(rows: RowPosterior, factors: Array, deviation: float) -> RowPosterior:
    """``RowPosterior.with_factors`` on the device."""
    cp = cupy()
    old = rows.dimension
    new = rows.dimension + factors.shape[1]
    width = new if rows.kind == "spread" else packed_size(new)
    scale = cp.zeros((rows.n_rows, width), np.float32)
    # The packed triangle of the first coordinates comes first
    scale[:, : rows.scale.shape[1]] = rows.scale
    for k in range(old, new):
        if rows.kind == "spread":
            scale[:, k] = deviation
        else:
            scale[:, packed_size(k + 1) - 1] = deviation**2
    implicit = None
    if rows.implicit is not None:
        rank = rows.rank
        wider = rows.rank + factors.shape[1]
        implicit = cp.zeros((rows.n_rows, rows.vectors * wider), np.float32)
        for n in range(rows.vectors):
            implicit[:, n * wider :][:, :rank] = rows.implicit[:, n * rank :][:, :rank]
    location = cp.hstack([rows.location, factors.astype(np.float32)])
    return RowPosterior(location, scale, rows.kind, rows.has_intercept, implicit)


def _posterior(factors: Array, config: FitConfig, loss: Loss) -> RowPosterior:
    """A posterior with intercepts at 0 and the same standard deviation for all coordinates."""
    cp = cupy()
    rows = len(factors)
    size = config.dimension
    fixed = int(config.intercepts)
    location = cp.zeros((rows, size), np.float32)
    location[:, fixed:] = factors * loss.start_shrinkage if fixed else factors
    if loss.kind == "spread":
        scale = cp.full((rows, size), loss.start_std, np.float32)
    else:
        scale = cp.zeros((rows, packed_size(size)), np.float32)
        for k in range(size):
            scale[:, packed_size(k + 1) - 1] = np.float32(loss.start_std) ** 2
    implicit = (
        cp.zeros((rows, FIT_VECTORS * config.factors), np.float32)
        if config.implicit_features
        else None
    )
    return RowPosterior(location, scale, loss.kind, config.intercepts, implicit)


@dataclass(frozen=True)
class DeviceSigns:
    """A ``SignMatrix`` (``core.spectral``) whose tables are arrays of the device.

    Weighted by σ(−y_l u_l), where u_l = E[L_i]·E[R_j] plus the intercepts, the ratings are the
    residuals of a fit.
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

    def draw(self, side: Side, normals: Normals) -> Array:
        numbered = isinstance(normals, Numbered)
        std = normals.std if isinstance(normals, Numbered) else 1.0
        return keyed_normals(self.ratings[side], normals.width, normals.seed, std, numbered)

    def add(self, side: Side, table: Array, other: Array) -> Array:
        return table + other

    def factors(self, side: Side, factors: Factors, table: Array) -> Array:
        ratings = self.ratings[side]
        scaled = _scaled(ratings, table, factors.right)
        if not factors.fillers:
            return scaled
        noise = keyed_normals(ratings, factors.fillers, factors.seed + 1, factors.noise, False)
        return cupy().hstack([scaled, noise])

    def product(self, side: Side, table: Array, right: Table) -> Array:
        line = LineShape.of_columns(right.shape[1])
        sent = cupy().zeros((len(table) + 1, line.width), np.float32)
        sent[:-1, : right.shape[1]] = _scaled(self.ratings[OTHER[side]], table, right)
        sums = rating_sums(self.weighted[side], line, None, sent, mode=MODE_PRODUCT)
        return sums[:, : right.shape[1]] * self.ratings[side].row_weights.root[:, None]

    def total(self, side: Side, measure: TableSum, table: Array) -> NDArray[np.float64]:
        if measure is gram:
            return np.asarray((table.T @ table).get())
        assert isinstance(measure, CubeSums | SquareSum)
        factors = _scaled(self.ratings[side], table, measure.factors.right)
        if isinstance(measure, CubeSums):
            return np.asarray((cupy().ones(len(factors)) @ (factors * factors * factors)).get())
        return np.asarray(cupy().vdot(factors, factors).get())


def _scaled(ratings: DeviceRatings, table: Array, right: Table) -> Array:
    return ratings.row_weights.root[:, None] * (table @ cupy().asarray(right))


# ---- compiling ahead ---------------------------------------------------------------------------


def sum_macros(line: LineShape, ratings: DeviceRatings, mode: int) -> dict[str, int]:
    lines = 4 * line.width * (ratings.n_columns + 1)
    return line.sum_macros(ratings.weights is not None, mode, lines <= cache_bytes())


def prepare_half_step(ratings: DeviceRatings, form: Form) -> None:
    """Start compiling what a half step needs, and what follows a fit."""
    shape = Shape.of(form)
    bare = replace(shape, implicit=False)  # ``measured`` needs no implicit features
    compile_soon("solve", shape.row_macros)
    compile_soon("sums", sum_macros(shape.line, ratings, MODE_LOGISTIC))
    compile_soon("lines", shape.row_macros)
    compile_soon("maps", shape.map_macros)
    compile_soon("totals", shape.total_macros)
    compile_soon("pairs", shape.pair_macros)
    compile_soon("sums", sum_macros(bare.line, ratings, MODE_CURVATURE))
    compile_soon("solve", bare.row_macros)
    compile_soon("lines", bare.row_macros)


def prepare_ratings() -> None:
    """Start compiling what every fit needs."""
    compile_soon("ratings", RATING_MACROS)
    compile_soon("fold", {})


# ---- the update --------------------------------------------------------------------------------


@dataclass(frozen=True)
class DevicePrior:
    """The prior that all rows share, plus what side features add to the means."""

    mean: Array  # (D,) float64
    precision: Array  # (D, D) float64
    explained: Array = None  # (rows, D) float32, added to the means

    @classmethod
    def of(cls, step: HalfStep, features: Array) -> DevicePrior:
        """The prior of a step. ``features`` are the side features of all rows."""
        precision = np.diag(step.prior.precision[0])
        if step.prior.coupling is not None:
            precision = precision + step.prior.coupling
        shared = cupy().asarray(np.concatenate([step.prior.mean, precision]))
        explained = None
        if features is not None:
            coef = cupy().asarray(step.feature_coef)
            explained = (features.astype(np.float64) @ coef).astype(np.float32)
        return cls(shared[0], shared[1:], explained)

    @property
    def arguments(self) -> tuple[Array, ...]:
        """The prior as the kernels take it."""
        return self.mean, self.precision, or_null(self.explained)

    def means(self, implicit_means: Array, fixed: int) -> Array:
        """The prior means of all rows, with what side features and implicit features add to
        them.
        """
        if implicit_means is None:
            return self.mean if self.explained is None else self.mean + self.explained
        if self.explained is None:
            explained = cupy().zeros((len(implicit_means), len(self.mean)), np.float32)
        else:
            explained = self.explained.copy()
        explained[:, fixed:] += implicit_means
        return self.mean + explained


class RatingSums(NamedTuple):
    """Sums over the ratings of every row of a side, as ``sums.cu`` leaves them, and the posteriors
    they belong to.
    """

    rows: RowPosterior
    others: RowPosterior
    kappa: float
    sums: Array
    data: Array  # κ Σ_l w_l [log(1 + e^{−ξ}) + ξ/2] of every task

    @classmethod
    def of(
        cls,
        ratings: DeviceRatings,
        rows: RowPosterior,
        others: RowPosterior,
        kappa: float,
        curvature: bool = False,
    ) -> RatingSums:
        """With ``curvature``, κ E σ'(u_l) is the weight of the moments, and there is no
        data term.
        """
        shape = Shape.of(rows.form)
        mode = MODE_CURVATURE if curvature else MODE_LOGISTIC
        of_rows = row_lines(shape, rows)
        of_others = other_lines(shape, others)
        if curvature:
            of_rows = cupy().hstack([of_rows, mean_lines(shape, rows)])
        data = None if curvature else cupy().empty(len(ratings.cuts.first_rows))
        sums = rating_sums(ratings, shape.line, of_rows, of_others, kappa, mode, data)
        return cls(rows, others, kappa, sums, data)

    def are_of(self, rows: RowPosterior, others: RowPosterior, kappa: float) -> bool:
        """Whether these are the sums of these very objects.

        They must be dropped when rows change in place.
        """
        return self.rows is rows and self.others is others and self.kappa == kappa


def updated(
    ratings: DeviceRatings, step: HalfStep, sums: RatingSums, prior: DevicePrior
) -> tuple[RowPosterior, Array, Array]:
    """The rows after a half step, their prior means by implicit features, and two sums
    (``solve.cu``).

    ``scale`` and ``implicit`` of the old rows change in place; their ``location`` does not.
    """
    shape = Shape.of(sums.rows.form)
    new = replace(sums.rows, location=cupy().empty_like(sums.rows.location))
    implicit_means = cupy().empty((new.n_rows, new.rank), np.float32) if shape.implicit else None
    scalars = cupy().empty((2, *shape.row_blocks(new.n_rows)[0]))
    kernel("solve", "solve", shape.row_macros)(
        *shape.row_blocks(new.n_rows),
        (
            sums.sums,
            ratings.pointers,
            ratings.distinct if shape.implicit else NULL,
            *prior.arguments,
            sums.rows.location,
            new.location,
            new.scale,
            or_null(new.implicit),
            or_null(implicit_means),
            scalars,
            np.int64(new.n_rows),
            np.float64(step.relaxation),
            np.float64(RIDGE),
        ),
    )
    return new, implicit_means, scalars


# ---- lines and sums ----------------------------------------------------------------------------


def other_lines(shape: Shape, others: RowPosterior) -> Array:
    """What a rating reads of the other side's row, and one more line of zeros."""
    n = others.n_rows
    width = shape.line.width
    out = cupy().empty((n + 1, width), np.float32)
    fill = kernel("lines", "fill_others", shape.row_macros)
    implicit = or_null(others.implicit)
    fill(
        (-(-(n + 1) // LINES),),
        (BLOCK,),
        (others.location, others.scale, implicit, out, np.int64(n)),
    )
    return out


def row_lines(shape: Shape, rows: RowPosterior) -> Array:
    """The factors of the other side's moments in E[u²]."""
    out = cupy().empty((rows.n_rows, shape.row_width), np.float32)
    fill = kernel("lines", "fill_rows", shape.row_macros)
    fill(
        (-(-rows.n_rows // LINES),),
        (BLOCK,),
        (rows.location, rows.scale, out, np.int64(rows.n_rows)),
    )
    return out


def mean_lines(shape: Shape, rows: RowPosterior) -> Array:
    """E[x] of the row x = [1, L, b] (or [L, 0]), in the places of E[z] among the moments with
    signed sums.
    """
    line = shape.line
    fixed = shape.fixed
    first = shape.packed - (line.moments - line.signed) * line.group
    out = cupy().zeros((rows.n_rows, line.signed * line.group), np.float32)
    out[:, first + fixed : first + shape.size] = rows.mean
    if fixed:
        out[:, first] = 1.0
        out[:, first + shape.size] = rows.intercept
    return out


def rating_sums(
    ratings: DeviceRatings,
    line: LineShape,
    of_rows: Array,
    of_others: Array,
    kappa: float = 1.0,
    mode: int = MODE_LOGISTIC,
    data: Array = None,
) -> Array:
    """Sums over the ratings of every row (``sums.cu``).

    In rows without ratings only products are set, to 0.
    """
    cp = cupy()
    cuts = ratings.cuts
    macros = sum_macros(line, ratings, mode)
    n_tasks = len(cuts.first_rows)
    acc = (cp.zeros if mode == MODE_PRODUCT else cp.empty)((ratings.n_rows, line.sums), np.float32)
    partial = cp.empty((2 * n_tasks, line.sums), np.float32)
    kernel("sums", "sum_rows", macros)(
        (-(-n_tasks // line.tasks_per_block),),
        (line.threads,),
        (
            ratings.codes,
            or_null(ratings.weights),
            ratings.pointers,
            cuts.first_rows,
            or_null(of_rows),
            of_others,
            acc,
            partial,
            or_null(data),
            np.int64(ratings.n),
            np.int32(n_tasks),
            np.uint32(ratings.n_columns),
            np.float32(kappa),
        ),
    )
    if n_tasks > 1:
        join = kernel("sums", "join_few", macros)
        launch(
            join,
            32 * (n_tasks - 1),
            cuts.first_rows,
            np.int32(n_tasks),
            ratings.pointers,
            partial,
            acc,
        )
    if len(cuts.many):
        join = kernel("sums", "join_many", macros)
        join((len(cuts.many),), (256,), (cuts.many, ratings.pointers, partial, acc))
    return acc


# ---- maps --------------------------------------------------------------------------------------


def apply_map(posterior: RowPosterior, by: RowMap) -> None:
    shape = Shape.of(posterior.form)
    n = posterior.n_rows
    matrices = np.zeros((3, shape.size, shape.size))
    matrices[0] = by.matrix
    matrices[1, 0] = by.shift
    if posterior.implicit is not None:
        assert by.other is not None
        matrices[2] = by.other
    matrix, shift, other = cupy().asarray(matrices)
    blocks = min(MAP_BLOCKS, -(-n // shape.map_rows))
    kernel("maps", "map_rows", shape.map_macros, shape.map_bytes)(
        (blocks,),
        (shape.map_rows * shape.map_lanes,),
        (
            posterior.location,
            posterior.scale,
            or_null(posterior.implicit),
            matrix,
            shift,
            other,
            np.int64(n),
        ),
        shared_mem=shape.map_bytes,
    )


def move_implicit(posterior: RowPosterior, by: ImplicitMove) -> None:
    shape = Shape.of(posterior.form)
    n = posterior.n_rows
    blocks = min(MAP_BLOCKS, -(-n // shape.map_rows))
    matrix = cupy().asarray(np.ascontiguousarray(by.matrix))
    kernel("maps", "move_implicit", shape.map_macros)(
        (blocks,),
        (shape.map_rows * shape.map_lanes,),
        (posterior.implicit, matrix, np.int32(by.value), np.int32(by.directions), np.int64(n)),
    )


# ---- statistics --------------------------------------------------------------------------------


def side_statistics(
    ratings: DeviceRatings,
    old: Array,
    new: RowPosterior,
    prior: DevicePrior,
    implicit_means: Array,
    scalars: Array,
    want_data: bool,
    features: Array,
) -> SideStatistics:
    """``SideStatistics`` of updated rows, in one transfer.

    ``old`` are the means before the update, ``implicit_means`` and ``scalars`` what ``updated``
    returns beside the rows. The first part of the data term comes with the sums of the next half
    step (``CudaEngine.data_term``).
    """
    shape = Shape.of(new.form)
    cp = cupy()
    parts = _parts(ratings, shape, old, new, prior.explained, implicit_means, jobs(shape))
    results = cp.empty(len(parts) + len(scalars))
    fold(parts, results[: len(parts)])
    fold(scalars, results[len(parts) :])
    numbers = results.get()
    cross = np.zeros((0, shape.size + 2 * shape.rank * shape.implicit))
    if features is not None:
        shift = new.location.astype(np.float64) - prior.means(implicit_means, shape.fixed)
        if shape.implicit:
            assert new.features is not None
            directions = (
                new.features.directions * cp.sqrt(ratings.distinct.astype(np.float64))[:, None]
            )
            shift = cp.hstack([shift, directions])
        shift *= cp.diff(ratings.pointers)[:, None] > 0
        cross = (features.astype(np.float64).T @ shift).get()
    widths = [numbers_of(shape, job) for job in jobs(shape)]
    split = np.split(numbers, np.cumsum(widths))
    covariance, gram, change_gram, change_cross, distance_gram, *implicit, two = split
    log_volume, linear = two
    rank = shape.rank
    square = (shape.size + shape.fixed,) * 2
    coef_gram = np.zeros((0, 0))
    direction_gram = np.zeros((0, square[0]))
    implicit_gram = np.zeros((rank + 1, rank + 1))
    implicit_gram[0, 0] = ratings.n
    if shape.implicit:
        implicit_gram = implicit[0].reshape(rank + 1, rank + 1)
        coef_gram = _coef_gram(implicit[1:7], rank)
        direction_gram = _direction_gram([part.reshape(square)[-rank:] for part in implicit[7:]])
    return SideStatistics(
        count=ratings.n_rated,
        covariance=_square_of(covariance, shape),
        log_volume=float(log_volume),
        data=float(-linear) if want_data else 0.0,
        gram=gram.reshape(square),
        change_gram=change_gram.reshape(square),
        change_cross=change_cross.reshape(square),
        distance_gram=distance_gram.reshape(square),
        coef_gram=coef_gram,
        direction_gram=direction_gram,
        implicit_gram=implicit_gram,
        feature_cross=cross,
    )


def gram_of_coef(ratings: DeviceRatings, rows: RowPosterior) -> Vector:
    """The Gram matrix of [w z d] of all rows."""
    shape = Shape.of(rows.form)
    parts = _parts(ratings, shape, rows.location, rows, None, None, range(W_W, D_D + 1))
    sums = cupy().empty(len(parts))
    fold(parts, sums)
    return _coef_gram(np.split(sums.get(), 6), shape.rank)


def _coef_gram(parts: list[Vector], rank: int) -> Vector:
    """The Gram matrix of [w z d] from its blocks WW, WZ, WD, ZZ, ZD and DD."""
    ww, wz, wd, zz, zd, dd = (part.reshape(rank, rank) for part in parts)
    return np.block([[ww, wz, wd], [wz.T, zz, zd], [wd.T, zd.T, dd]])


def _direction_gram(parts: list[Vector]) -> Vector:
    """[YᵀX' YᵀY] with Y = [S Q], from SX', QX', SS, SQ and QQ; the last three have the columns of
    X'.
    """
    (se, qe), (ss, sq, qq) = parts[:2], (part[:, -len(part) :] for part in parts[2:])
    return np.block([[se, ss, sq], [qe, sq.T, qq]])


def jobs(shape: Shape) -> range:
    return range(Q_Q + 1 if shape.implicit else T_T)


def numbers_of(shape: Shape, job: int) -> int:
    if job == SCALES:
        return shape.size if shape.spread else shape.packed
    width = (
        shape.rank
        if W_W <= job <= D_D
        else shape.rank + 1
        if job == T_T
        else shape.size + shape.fixed
    )
    return width * width


def fold(table: Array, out: Array) -> None:
    """The sum of every line of a table."""
    lines, count = table.shape
    threads = THREADS if count <= THREADS * 8 else MANY_THREADS
    kernel("fold", "fold", {})((lines,), (threads,), (table, np.int64(count), out))


def _parts(
    ratings: DeviceRatings,
    shape: Shape,
    old: Array,
    rows: RowPosterior,
    explained: Array,
    implicit_means: Array,
    chosen: range,
) -> Array:
    """The sums of these jobs: a line for each sum, a column for each share of the rows."""
    blocks = min(TOTAL_BLOCKS, -(-ratings.n_rows // LEAST_ROWS))
    out = cupy().empty((sum(numbers_of(shape, job) for job in chosen), blocks))
    explained, implicit_means, implicit = (
        or_null(array) for array in (explained, implicit_means, rows.implicit)
    )
    kernel("totals", "statistics", shape.total_macros)(
        (blocks, len(chosen)),
        (THREADS,),
        (
            ratings.pointers,
            ratings.distinct if shape.implicit else NULL,
            old,
            rows.location,
            rows.scale,
            explained,
            implicit_means,
            implicit,
            np.int32(chosen[0]),
            out,
            np.int64(ratings.n_rows),
        ),
    )
    return out


def _square_of(sums: Vector, shape: Shape) -> Vector:
    """Σ V from the sums of packed covariances, or of squared deviations."""
    if shape.spread:
        return np.diag(sums)
    total = np.zeros((shape.size, shape.size))
    i, j = np.tril_indices(shape.size)
    total[i, j] = total[j, i] = sums
    return total
