"""Steps over all ratings after a fit, on the GPU: draws, confidences, and the loss of ratings that were left out."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core.confidence import HIGHEST_OCTAVE, HISTOGRAM_BINS, LOWEST_OCTAVE, PER_OCTAVE
from onebit_spark.core.draws import Draws
from onebit_spark.core.left_out import BINS, WIDEST
from onebit_spark.core.losses import LOSSES, Hinge
from onebit_spark.core.posterior import RowPosterior
from onebit_spark.engines.cuda.device import NULL, cupy, kernel, launch
from onebit_spark.engines.cuda.ratings import DeviceRatings
from onebit_spark.engines.cuda.shapes import Shape

Sums = NDArray[np.float64]

PIECE = 2**26  # ratings whose scores are held at a time


def count_errors(ratings: DeviceRatings, rows: RowPosterior, cols: RowPosterior, draws: Draws) -> Sums:
    """Errors of draws, and the ratings that were drawn for (``core.draws``)."""
    shape, split = Shape.of(rows.form), draws.unseen_by
    factors = cupy().empty(rows.scale.shape)
    kernel("rows", "roots", shape.row_macros, shape.root_bytes)(
        *shape.row_blocks(rows.n_rows), (rows.scale, factors, np.int64(rows.n_rows)), shared_mem=shape.root_bytes
    )
    seed, fraction = (-1, 0.0) if split is None else (split.seed, split.fraction)
    counts = cupy().zeros(2, np.uint64)
    launch(
        kernel("ratings", "count_errors", shape.pair_macros), ratings.n,
        ratings.pointers, ratings.rows, ratings.codes, rows.location, factors, cols.location, cols.scale,
        np.uint64(draws.seed), np.int32(draws.per_rating), np.int64(seed), np.float64(fraction), counts,
        np.int64(ratings.n),
    )  # fmt: skip
    ratings.forget_rows()
    return np.asarray(counts.get(), np.float64)


def count_confidences(
    ratings: DeviceRatings, rows: RowPosterior, cols: RowPosterior, noise: float, stride: int
) -> Sums:
    """The histogram of the confidences of every ``stride``-th rating (``core.confidence``)."""
    cp, total, whole = cupy(), np.zeros(HISTOGRAM_BINS), ratings.rows
    for begin in range(0, ratings.n, PIECE):
        row = whole[begin : begin + PIECE]
        position = cp.arange(begin, begin + len(row)) - ratings.pointers[row]
        chosen = cp.flatnonzero((position + row) % stride == 0)
        score, variance = moments(row[chosen], ratings.codes[begin + chosen], rows, cols)
        root = cp.sqrt(noise + cp.maximum(variance, 0.0))
        z = cp.where(score == 0, 0.0, cp.where(root == 0, np.inf, cp.abs(score) / cp.where(root == 0, 1.0, root)))
        octave = cp.log2(cp.clip(z, 2.0**LOWEST_OCTAVE, 2.0**HIGHEST_OCTAVE)) - LOWEST_OCTAVE
        bins = cp.minimum((octave * PER_OCTAVE).astype(np.int64), HISTOGRAM_BINS - 1)
        total += cp.bincount(bins, minlength=HISTOGRAM_BINS).get()
    ratings.forget_rows()
    return total


def left_out_sums(left: DeviceRatings, loss: str, rows: RowPosterior, cols: RowPosterior) -> Sums:
    """``LeftOut`` of these ratings (``core.left_out``)."""
    cp, total, margins = cupy(), np.zeros(5), np.zeros(BINS)
    for begin in range(0, left.n, PIECE):
        part = slice(begin, begin + PIECE)
        score, variance = moments(left.rows[part], left.codes[part], rows, cols)
        variance = cp.maximum(variance, 0.0)
        sign = (left.codes[part] & 1).astype(np.float64) * 2.0 - 1.0
        if loss == Hinge.name:
            losses = cp.maximum(1.0 - sign * score, 0.0)
        else:
            losses = cp.logaddexp(0.0, -sign * score / cp.sqrt(1.0 + np.pi * variance / 8.0))
        weights = None if left.weights is None else left.weights[part].astype(np.float64)
        weighed = 1.0 if weights is None else weights
        weight = len(sign) if weights is None else weights.sum()
        wrong = cp.count_nonzero(score * sign <= 0)
        found = (losses * weighed).sum(), (losses**2 * weighed).sum(), weight, wrong, len(sign)
        total += np.array([float(number) for number in found])
        margin = cp.where(score == 0, 0.0, sign * score / cp.sqrt(LOSSES[loss].score_noise + variance))
        place = cp.clip((margin + WIDEST) * (BINS / (2 * WIDEST)), 0, BINS - 1).astype(np.int64)
        if weights is not None:
            weights = cp.rint(weights * 2.0**20) * 2.0**-20  # sums of such numbers are exact, in any order
        margins += cp.bincount(place, weights, BINS).get()
    return np.concatenate([total, margins])


def residual_weights(ratings: DeviceRatings, rows: RowPosterior, partners: RowPosterior) -> Any:
    """w_l σ(−y_l u_l) of every rating, u_l the mean of its score."""
    shape, out = Shape.of(rows.form), cupy().empty(ratings.n, np.float32)
    weights = NULL if ratings.weights is None else ratings.weights
    launch(
        kernel("ratings", "residuals", shape.pair_macros), ratings.n,
        ratings.rows, ratings.codes, weights, rows.location, partners.location, out, np.int64(ratings.n),
    )  # fmt: skip
    ratings.forget_rows()
    return out


def moments(row: Any, codes: Any, rows: RowPosterior, cols: RowPosterior) -> tuple[Any, Any]:
    """Mean and variance of the score of every pair, float64."""
    n, shape = len(row), Shape.of(rows.form)
    score, variance = cupy().empty(n), cupy().empty(n)
    launch(
        kernel("ratings", "pair_moments", shape.pair_macros), 8 * n,
        row, codes, rows.location, rows.scale, cols.location, cols.scale, score, variance, np.int64(n),
    )  # fmt: skip
    return score, variance
