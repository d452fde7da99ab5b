"""Ratings as arrays in this process, divided for fitting and testing; the fit of one fold; the choice of a setting.

One-standard-error rule: consider all settings whose mean error is within one standard error of the lowest. Take the
smallest rank, then no intercepts, then the smallest error.

``LocalValidation`` runs the folds in this process; ``cross_validation`` runs them on Spark.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onebit_spark.certificate.certificates import Terms
from onebit_spark.core.config import FitConfig
from onebit_spark.core.hashes import cell_hashes, fold_hashes
from onebit_spark.core.metrics import log_loss
from onebit_spark.core.solver import NotConverged
from onebit_spark.in_process import TableFit, fit_arrays
from onebit_spark.input.arrow_ratings import ArrowRatings
from onebit_spark.input.arrow_table import ArrowTable
from onebit_spark.input.batches import CollectedRatings
from onebit_spark.input.rating_checks import Columns, RatingCounts
from onebit_spark.predictor.fitted_model import FittedModel
from onebit_spark.tuning.tasks import Advances, Ledger, Task, TaskResult, run_one_by_one, run_tasks

FoldResult = dict[str, Any]  # errors, n, log_loss, iterations, converged, effective_rank, seconds


@dataclass(frozen=True, eq=False)
class Sample:
    """Ratings of a matrix, each with its row and column."""

    rows: NDArray[np.int32]
    cols: NDArray[np.int32]
    labels: NDArray[np.int8]  # ±1
    shape: tuple[int, int]  # of the matrix
    weights: NDArray[np.float32] | None = None

    @classmethod
    def of(
        cls, rows: NDArray, cols: NDArray, labels: NDArray, shape: tuple[int, int], weights: NDArray | None = None
    ) -> Sample:
        return cls(rows.astype(np.int32), cols.astype(np.int32), labels.astype(np.int8), shape, weights)

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, which: NDArray) -> Sample:
        """The ratings at these positions, or where a mask is true."""
        weights = None if self.weights is None else self.weights[which]
        return Sample(self.rows[which], self.cols[which], self.labels[which], self.shape, weights)


@dataclass(frozen=True, eq=False)
class FoldedSample:
    """Ratings in folds."""

    sample: Sample
    fold: NDArray[np.int32]  # the fold in which each rating is held out: one for all ratings of a cell


def fold_tasks(
    tally: RatingCounts, ids: tuple[int, int], n_folds: int, seed: int, configs: Sequence[FitConfig]
) -> list[dict[str, Any]]:
    """One task per configuration and fold: what identifies it, and what its result depends on."""
    data = [tally.n, tally.positives, *ids, tally.fingerprint]
    return [
        {"data": data, "folds": n_folds, "fold": fold, "seed": seed, "config": asdict(config)}
        for config in configs
        for fold in range(n_folds)
    ]


def fit_fold(data: FoldedSample, fold: int, config: FitConfig, threads: int | None = 1) -> FoldResult:
    """Fit all other folds, and count the errors in this one, each rating once.

    A score of exactly 0 counts as the training majority.
    """
    train, test = data.sample.take(data.fold != fold), data.sample.take(data.fold == fold)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConverged)
        sides = train.rows, train.cols, train.labels
        fit = fit_arrays(*sides, config, train.shape, weights=train.weights, threads=threads)
    return {
        "errors": int(np.count_nonzero(fit.predict(test.rows, test.cols) != test.labels)),
        "n": len(test),
        "log_loss": log_loss(test.labels, fit.probability(test.rows, test.cols)),
        "iterations": len(fit.history),
        "converged": fit.converged,
        "effective_rank": fit.effective_rank,
    }


@dataclass(frozen=True)
class Score:
    """The result of a setting over all folds."""

    config: FitConfig
    error: float  # mean of the error rates
    standard_error: float  # of ``error``
    log_loss: float  # mean
    seconds: float  # of all its fits


def score(config: FitConfig, folds: Sequence[FoldResult]) -> Score:
    rates = np.array([fold["errors"] / fold["n"] for fold in folds])
    return Score(
        config=config,
        error=float(rates.mean()),
        standard_error=float(rates.std(ddof=1) / np.sqrt(len(rates))),
        log_loss=float(np.average([fold["log_loss"] for fold in folds], weights=[fold["n"] for fold in folds])),
        seconds=float(sum(fold["seconds"] for fold in folds)),
    )


def limit(scores: Sequence[Score]) -> float:
    """The lowest mean error plus its standard error: settings up to here count as equally good."""
    lowest = min(scores, key=lambda score: score.error)
    return lowest.error + lowest.standard_error


def choose(scores: Sequence[Score]) -> Score:
    """By the one-standard-error rule."""
    equal = [score for score in scores if score.error <= limit(scores)]
    return min(equal, key=lambda score: (score.config.factors, score.config.intercepts, score.error))


@dataclass(frozen=True)
class LocalValidation:
    """Ratings in memory, divided into folds."""

    ratings: CollectedRatings
    columns: Columns
    id_types: dict[str, str]
    n_folds: int
    seed: int  # of the folds

    @classmethod
    def of(cls, table: ArrowTable, columns: Columns, n_folds: int, seed: int) -> LocalValidation:
        """Read the ratings, and check them."""
        source = ArrowRatings(table, columns)
        return cls(source.divided().to_fit, columns, source.id_types, n_folds, seed)

    @property
    def n(self) -> int:
        return self.ratings.tally.n

    def tasks(self, configs: Sequence[FitConfig]) -> list[Task]:
        ids = self.ratings.n_users, self.ratings.n_items
        return fold_tasks(self.ratings.tally, ids, self.n_folds, self.seed, configs)

    def in_workers(self, tasks: Sequence[Task], ledger: Ledger, progress: Advances) -> list[TaskResult]:
        """Run the fits side by side, on one core each."""
        return run_tasks(None, tasks, self._fitting(threads=1), ledger, progress)

    def one_after_the_other(self, tasks: Sequence[Task], ledger: Ledger, progress: Advances) -> list[TaskResult]:
        """Run the fits one after the other, each on all cores."""
        return run_one_by_one(tasks, self._fitting(threads=None), ledger, progress)

    def _fitting(self, threads: int | None) -> Callable[[Task], TaskResult]:
        data = self.folded()
        return lambda task: fit_fold(data, task["fold"], FitConfig(**task["config"]), threads)

    def folded(self) -> FoldedSample:
        """The ratings as indices, in the order of rows, columns and labels, each with its fold."""
        block = self.ratings.ratings
        rows = np.repeat(np.arange(block.n_rows), block.row_counts)
        cols, labels = block.codes >> 1, np.where(block.codes & 1, 1, -1)
        users, items = self.ratings.users.take(rows), self.ratings.items.take(cols)
        fold = fold_hashes(cell_hashes(users, items), self.seed) % self.n_folds
        sample = Sample.of(rows, cols, labels, (block.n_rows, block.n_columns), block.weights)
        return FoldedSample(sample, fold.astype(np.int32))

    def model(self, config: FitConfig, settings: int) -> FittedModel:
        """The fit of all ratings with a configuration that was chosen among ``settings`` many."""
        return TableFit(config, Terms(grid=settings), self.columns, self.id_types).model(self.ratings)
