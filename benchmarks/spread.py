"""What ``std`` is worth: how often score ± 1.96·std contains the true score, and how std depends on the rank K.

    python benchmarks/spread.py simulated [--draws 3]      # a known truth, drawn from the model class
    python benchmarks/spread.py movielens                  # MovieLens-100K; ONEBIT_DATA: folder of the data sets

Simulated: M = b + d + LRᵀ with rank 3 and logistic noise, so the model is right. The coverage is that of all cells,
at each κ of the grid and at the chosen one. Three versions of std are compared:

- "as is": the standard deviation of the posterior;
- "in use": without the factors that the prior switched off, which keep the spread of the prior;
- "scaled": the latter times the number that is best for the log loss of a held-out tenth.
"""

from __future__ import annotations

import argparse
import time
import warnings

import numpy as np
from datasets import Ratings, movielens_100k, split
from numpy.typing import NDArray
from record import provenance
from scipy.optimize import minimize_scalar
from scipy.special import expit

from onebit_spark import Fit, FitConfig, NotConverged, fit_arrays
from onebit_spark.core import prediction
from onebit_spark.core.posterior import LEAST_STRENGTH, RANK_THRESHOLD, RowPosterior
from onebit_spark.core.prediction import log_loss

# Declared before any draw.
SHAPE, TRUE_RANK, FRACTION = (400, 300), 3, 0.25
DEVIATIONS = 0.5, 0.8  # of the intercepts, and of a factor's entries
WEIGHTS: tuple[float | None, ...] = (0.6, 1.0, 1.6, None)  # None: chosen
RANKS = 3, 10, 30
MOVIELENS_RANKS = 10, 20, 30
SCALES = 0.1, 10.0  # the scaled version searches between them
NORMAL = 1.96


def drawn(seed: int) -> tuple[Ratings, NDArray[np.float64]]:
    """Ratings of a matrix of the model class, in random order, and the matrix of true scores."""
    rng = np.random.default_rng(seed)
    of_intercept, of_factor = DEVIATIONS
    b, d = (of_intercept * rng.standard_normal(size) for size in SHAPE)
    left, right = (of_factor * rng.standard_normal((size, TRUE_RANK)) for size in SHAPE)
    truth = b[:, None] + d + left @ right.T
    rows, cols = np.divmod(rng.permutation(truth.size)[: round(FRACTION * truth.size)], SHAPE[1])
    positive = rng.random(len(rows)) < expit(truth[rows, cols])
    return Ratings(rows, cols, np.where(positive, 1, -1).astype(np.int8)), truth


def in_use(fit: Fit) -> NDArray[np.bool_]:
    """Which coordinates are in use: the intercept, and the factors of the effective rank."""
    strength = fit.rows.column_norms * fit.cols.column_norms / np.sqrt(fit.rows.n_rows * fit.cols.n_rows)
    factors = strength >= max(LEAST_STRENGTH, RANK_THRESHOLD * strength.max())
    return np.insert(factors, 0, True)


def without(side: RowPosterior, used: NDArray[np.bool_]) -> RowPosterior:
    """The same rows, with the variance of the other coordinates at 0."""
    i, j = np.tril_indices(side.dimension)
    return RowPosterior(side.location, side.scale * (used[i] & used[j]), "covariance", True)


def deviations(fit: Fit, rows: NDArray[np.int64], cols: NDArray[np.int64]) -> tuple[NDArray[np.float64], ...]:
    """std as it is, and without the factors that were switched off."""
    used = in_use(fit)
    found: tuple[list[NDArray[np.float64]], ...] = [], []
    for part in np.array_split(np.arange(len(rows)), max(1, len(rows) // 10_000)):
        pair = fit.rows.take(rows[part]), fit.cols.take(cols[part])
        for kept, sides in zip(found, (pair, [without(side, used) for side in pair]), strict=True):
            kept.append(np.sqrt(prediction.variance(*sides)))
    return tuple(np.concatenate(kept) for kept in found)


def best_scale(fit: Fit, tenth: Ratings) -> float:
    """The number that std is multiplied by for the lowest log loss of these ratings."""
    score, std = fit.score(tenth.rows, tenth.cols), deviations(fit, tenth.rows, tenth.cols)[1]

    def loss(log_scale: float) -> float:
        return log_loss(tenth.labels, prediction.probability("logistic", score, (np.exp(log_scale) * std) ** 2))

    return float(np.exp(minimize_scalar(loss, bounds=np.log(SCALES), method="bounded").x))


def simulated(draws: int) -> None:
    rows, cols = (index.ravel() for index in np.indices(SHAPE))
    print(f"{'K':>3}{'κ':>6}{'in use':>8}{'as is':>17}{'in use':>17}{'scaled':>17}{'by':>17}{'error/std':>11}")
    for rank in RANKS:
        for weight in WEIGHTS:
            lines = []
            for seed in range(draws):
                ratings, truth = drawn(seed)
                fitted, tenth = split(ratings, 0.1, seed)
                fit = fit_arrays(*fitted, FitConfig(rank=rank, likelihood_weight=weight), SHAPE)
                away = np.abs(fit.score(rows, cols) - truth.ravel())
                as_is, used = deviations(fit, rows, cols)
                scale = best_scale(fit, tenth)
                covered = [float(np.mean(away <= NORMAL * std)) for std in (as_is, used, scale * used)]
                lines.append([fit.effective_rank, *covered, scale, float(np.sqrt(np.mean((away / used) ** 2)))])
            low, mean, high = (np.array(lines).min(axis=0), np.mean(lines, axis=0), np.array(lines).max(axis=0))
            cells = [f"{mean[i]:.3f} {low[i]:.2f}–{high[i]:.2f}" for i in (1, 2, 3, 4)]
            print(
                f"{rank:3}{weight or 'auto':>6}{mean[0]:8.1f}{''.join(f'{cell:>17}' for cell in cells)}{mean[5]:11.2f}",
                flush=True,
            )


def movielens() -> None:
    """Median std of the held-out tenth, and its log loss, with each version."""
    ratings = movielens_100k()
    (fitted, test), shape = split(ratings, 0.1, 0), (int(ratings.rows.max()) + 1, int(ratings.cols.max()) + 1)
    print(f"{'K':>3}{'κ':>6}{'in use':>8}{'as is':>15}{'in use':>15}{'seconds':>9}      (median std, log loss)")
    for rank in MOVIELENS_RANKS:
        began = time.perf_counter()
        fit = fit_arrays(*fitted, FitConfig(rank=rank), shape)
        score, seconds = fit.score(test.rows, test.cols), time.perf_counter() - began
        cells = [
            f"{np.median(std):.3f}, {log_loss(test.labels, prediction.probability('logistic', score, std**2)):.4f}"
            for std in deviations(fit, test.rows, test.cols)
        ]
        print(
            f"{rank:3}{fit.config.kappa:6g}{fit.effective_rank:8}{cells[0]:>15}{cells[1]:>15}{seconds:9.1f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("simulated", "movielens"))
    parser.add_argument("--draws", type=int, default=3)
    asked = parser.parse_args()
    warnings.simplefilter("ignore", NotConverged)
    print(provenance())
    if asked.what == "simulated":
        simulated(asked.draws)
    else:
        movielens()


if __name__ == "__main__":
    main()
