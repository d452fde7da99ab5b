"""What ``std`` is worth: how often score ± 1.96·std contains the true score, and how std depends on
the rank K.

    python benchmarks/spread.py simulated [--draws 3] [--save]      # a known truth, drawn from the model class
    python benchmarks/spread.py movielens                  # MovieLens-100K; ONEBIT_DATA: folder of the data sets

Simulated: M = b + d + LRᵀ with rank 3 and logistic noise, so the model is right. The coverage is
that of all cells, at each κ of the grid and at the chosen one; first the defaults, which choose
both. Four versions of std are compared:

- "as is": the standard deviation of the posterior;
- "in use": without the factors that the prior switched off, which keep the spread of the prior;
- "own": with the logistic's own curvature at κ = 1, as the standard deviations of positions are
  computed;
- "scaled": those in use times the number that is best for the log loss of a held-out tenth.
"""

from __future__ import annotations

import argparse
import time
import warnings
from itertools import product
from typing import Any

import numpy as np
from datasets import Ratings, movielens_100k, split
from numpy.typing import NDArray
from record import provenance, save
from scipy.optimize import minimize_scalar
from scipy.special import expit

from onebit_spark import FitConfig, FittedModel, NotConverged, fit_arrays
from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.losses import SIDES, HalfStep
from onebit_spark.core.posterior import LEAST_STRENGTH, RANK_THRESHOLD, RowPosterior
from onebit_spark.core.scores import compute_probabilities, compute_variances
from onebit_spark.core.setup import kappa_of, loss_of
from onebit_spark.predict.metrics import log_loss

# Declared before any draw.
SHAPE = (400, 300)
TRUE_RANK = 3
FRACTION = 0.25
DEVIATIONS = 0.5, 0.8  # of the intercepts, and of a factor's entries
WEIGHTS: tuple[float | None, ...] = (0.6, 1.0, 1.6, None)  # None: chosen
RANKS = 3, 10, 30
SETTINGS: list[tuple[Any, float | None]] = [("auto", None), *product(RANKS, WEIGHTS)]
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


def in_use(fit: FittedModel) -> NDArray[np.bool_]:
    """Which coordinates are in use: the intercept, and the factors of the effective rank."""
    strength = (
        fit.rows.column_norms * fit.cols.column_norms / np.sqrt(fit.rows.n_rows * fit.cols.n_rows)
    )
    factors = strength >= max(LEAST_STRENGTH, RANK_THRESHOLD * strength.max())
    return np.insert(factors, 0, True)


def without(side: RowPosterior, used: NDArray[np.bool_]) -> RowPosterior:
    """The same rows, with the variance of the other coordinates at 0."""
    i, j = np.tril_indices(side.dimension)
    return RowPosterior(side.location, side.scale * (used[i] & used[j]), "covariance", True)


def deviations(
    rows: NDArray[np.int64], cols: NDArray[np.int64], *pairs: Any
) -> list[NDArray[np.float64]]:
    """The standard deviations of these scores under each pair of posteriors."""
    found: list[list[NDArray[np.float64]]] = [[] for _ in pairs]
    for part in np.array_split(np.arange(len(rows)), max(1, len(rows) // 10_000)):
        for kept, (left, right) in zip(found, pairs, strict=True):
            kept.append(np.sqrt(compute_variances(left.take(rows[part]), right.take(cols[part]))))
    return [np.concatenate(kept) for kept in found]


def both_in_use(fit: FittedModel) -> tuple[RowPosterior, RowPosterior]:
    used = in_use(fit)
    return without(fit.rows, used), without(fit.cols, used)


def own_curvature(fit: FittedModel, fitted: Ratings) -> tuple[RowPosterior, RowPosterior]:
    """The posteriors whose covariances are computed as those of positions are
    (docs/MATH.md, §17).
    """
    shape = (fit.rows.n_rows, fit.cols.n_rows)
    before = {"rows": fit.rows, "cols": fit.cols}
    block = RatingBlock.from_coordinates(fitted.rows, fitted.cols, fitted.labels > 0, shape)
    loss = loss_of(fit.config)
    after = {side: posterior.copy() for side, posterior in before.items()}
    for side, one in zip(SIDES, (block, block.transpose()), strict=True):
        step: Any = HalfStep(
            side, 0, 1.0, fit.scales.row_prior(side), 1.0, relaxation=0.0, curvature=True
        )
        others = loss.other_lines(before["cols" if side == "rows" else "rows"])
        loss.update_rows(one, 0, one.n_rows, others, after[side], step)
    return after["rows"], after["cols"]


def best_scale(fit: FittedModel, tenth: Ratings) -> float:
    """The number that std is multiplied by for the lowest log loss of these ratings."""
    score = fit.score(tenth.rows, tenth.cols)
    (std,) = deviations(tenth.rows, tenth.cols, both_in_use(fit))

    def loss(log_scale: float) -> float:
        return log_loss(
            tenth.labels, compute_probabilities("logistic", score, (np.exp(log_scale) * std) ** 2)
        )

    return float(np.exp(minimize_scalar(loss, bounds=np.log(SCALES), method="bounded").x))


def simulated(draws: int, keep: bool) -> None:
    rows, cols = (index.ravel() for index in np.indices(SHAPE))
    names = "as is", "in use", "own", "scaled", "by"
    print(
        f"{'K':>4}{'κ':>6}{'in use':>8}{''.join(f'{name:>17}' for name in names)}   error/std: as "
        "is, in use, own"
    )
    for rank, weight in SETTINGS:
        lines = []
        for seed in range(draws):
            ratings, truth = drawn(seed)
            fitted, tenth = split(ratings, 0.1, seed)
            fit = fit_arrays(*fitted, FitConfig(rank=rank, likelihood_weight=weight), SHAPE)
            away = np.abs(fit.score(rows, cols) - truth.ravel())
            std = deviations(
                rows, cols, (fit.rows, fit.cols), both_in_use(fit), own_curvature(fit, fitted)
            )
            scale = best_scale(fit, tenth)
            covered = [float(np.mean(away <= NORMAL * each)) for each in (*std, scale * std[1])]
            lines.append(
                [
                    fit.effective_rank,
                    *covered,
                    scale,
                    *(np.sqrt(np.mean((away / each) ** 2)) for each in std),
                ]
            )
        low = np.array(lines).min(axis=0)
        mean = np.mean(lines, axis=0)
        high = np.array(lines).max(axis=0)
        cells = "".join(f"{f'{mean[i]:.3f} {low[i]:.2f}–{high[i]:.2f}':>17}" for i in range(1, 6))
        ratios = "".join(f"{ratio:8.2f}" for ratio in mean[6:])
        print(f"{rank:>4}{weight or 'auto':>6}{mean[0]:8.1f}{cells}{ratios}", flush=True)
        if keep:
            figures = {
                "before": mean[1],
                "covered": mean[3],
                "ratio_before": mean[6],
                "ratio": mean[8],
            }
            found = {name: float(value) for name, value in figures.items()} | {"draws": draws}
            save(
                "spread", "chosen" if rank == "auto" else str(rank), f"{weight or 'chosen'}", found
            )


def movielens() -> None:
    """Median std of the held-out tenth, and its log loss, with each version."""
    ratings = movielens_100k()
    (fitted, test), shape = (
        split(ratings, 0.1, 0),
        (int(ratings.rows.max()) + 1, int(ratings.cols.max()) + 1),
    )
    print(
        f"{'K':>3}{'κ':>6}{'in use':>8}{'as is':>15}{'in use':>15}{'seconds':>9}      (median "
        "std, log loss)"
    )
    for rank in MOVIELENS_RANKS:
        began = time.perf_counter()
        fit = fit_arrays(*fitted, FitConfig(rank=rank), shape)
        score = fit.score(test.rows, test.cols)
        seconds = time.perf_counter() - began
        cells = [
            f"{np.median(std):.3f}, "
            f"{log_loss(test.labels, compute_probabilities('logistic', score, std**2)):.4f}"
            for std in deviations(test.rows, test.cols, (fit.rows, fit.cols), both_in_use(fit))
        ]
        print(
            f"{rank:3}{kappa_of(fit.config):6g}{fit.effective_rank:8}{cells[0]:>15}{cells[1]:>15}{seconds:9.1f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("simulated", "movielens"))
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--save", action="store_true", help="into results.json, for pages.py")
    asked = parser.parse_args()
    warnings.simplefilter("ignore", NotConverged)
    print(provenance())
    if asked.what == "simulated":
        simulated(asked.draws, asked.save)
    else:
        movielens()


if __name__ == "__main__":
    main()
