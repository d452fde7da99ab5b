"""CudaRunner: the steps on a GPU. A table is a posterior with arrays on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
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
from onebit_spark.core.losses import OTHER, Loss, PriorLines, RowPrior, Side
from onebit_spark.core.posterior import Form, RowMap, RowPosterior, packed_size
from onebit_spark.core.randomness import Split
from onebit_spark.core.spectral import CountedRows
from onebit_spark.engines.cuda import pairs
from onebit_spark.engines.cuda.device import (
    bytes_needed,
    check_memory,
    cupy,
    downloaded,
    kernel,
    or_null,
    upload,
    uploaded,
    usable_bytes,
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
    side_statistics,
    updated,
)
from onebit_spark.engines.cuda.ratings import DeviceRatings, Orientations, device_ratings, orientations_of
from onebit_spark.engines.cuda.shapes import WARP, Shape
from onebit_spark.engines.cuda.start import device_growth, device_start
from onebit_spark.errors import RequestError

FILL_BLOCKS = 8448  # sixty-four for each multiprocessor of an H200


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
            return [pairs.drawn_errors(ratings, rows, others, step.draws)]
        if isinstance(step, Confidences):
            return [pairs.confidence_histogram(ratings, rows, others, step.noise, step.stride)]
        assert isinstance(step, MeasureHoldoutLoss)
        return [pairs.holdout_loss_sums(self._left(step.split), rows, others)]

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
        return uploaded(lines)

    def lines(self, table: Any) -> Any:
        return downloaded(table)

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
        return device_start(self.ratings, config, loss)

    def shortage(self, config: FitConfig) -> str | None:
        sizes = self.n_ratings, self.n_rows("rows"), self.n_rows("cols")
        needed, there = bytes_needed(*sizes, config.form, self.weighted), usable_bytes()
        if needed <= there:
            return None
        return f"it takes about {needed / 1e9:.1f} GB of GPU memory, and there are {there / 1e9:.1f}"

    def grown(self, posteriors: dict[Side, RowPosterior], config: FitConfig, loss: Loss) -> dict[Side, RowPosterior]:
        self._prepare(config.form)
        return device_growth(self.ratings, posteriors, config, loss)

    @contextmanager
    def restricted(self, split: Split) -> Iterator[CudaRunner]:
        chosen, left = self.ratings["rows"].divided(split)
        self._left_out = split, left
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
            self._left_out = split, self.ratings["rows"].divided(split)[1]
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
