"""Steps over all ratings on the GPU: draws, confidences, the loss of held-out ratings, and residuals."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core.losses import Logistic
from onebit_spark.core.posterior import RowPosterior
from onebit_spark.core.prediction import BINS, HIGHEST_OCTAVE, HISTOGRAM_BINS, LOWEST_OCTAVE, PER_OCTAVE, WIDEST
from onebit_spark.core.randomness import Draws
from onebit_spark.engines.cuda.device import cupy, kernel, launch, or_null
from onebit_spark.engines.cuda.half_step import fold
from onebit_spark.engines.cuda.ratings import DeviceRatings
from onebit_spark.engines.cuda.shapes import Shape

Sums = NDArray[np.float64]

LANES, THREADS = 8, 256  # threads of a rating and of a block, as in pairs.cu
MOST_BLOCKS = 2112  # sixteen for each multiprocessor of an H200
TOTAL_BITS = 62  # the weights of held-out ratings are added up as integers below 2^62


def drawn_errors(ratings: DeviceRatings, rows: RowPosterior, cols: RowPosterior, draws: Draws) -> Sums:
    """The number of errors of draws, and of ratings that were drawn for (``core.draws``)."""
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
    """A histogram of the confidences of every ``stride``-th rating (``core.prediction``)."""
    counts, octaves = cupy().zeros(HISTOGRAM_BINS, np.uint64), (np.float64(LOWEST_OCTAVE), np.float64(HIGHEST_OCTAVE))
    launch(
        kernel("pairs", "confidences", Shape.of(rows.form).pair_macros), LANES * ratings.n, *ratings.places,
        ratings.codes, rows.location, rows.scale, cols.location, cols.scale, np.float64(noise), np.int64(stride),
        *octaves, np.int32(PER_OCTAVE), counts, np.int64(ratings.n),
    )  # fmt: skip
    return np.asarray(counts.get(), np.float64)


def holdout_loss_sums(left: DeviceRatings, rows: RowPosterior, cols: RowPosterior) -> Sums:
    """``HoldoutLoss`` of these ratings under the logistic loss (``core.holdout_loss``).

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
