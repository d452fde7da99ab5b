"""Cross-validation in this process: the folds of ``cross_validation``, without Spark."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from onebit_spark.certificate.certificates import Terms
from onebit_spark.core.config import FitConfig
from onebit_spark.core.hashes import cell_hashes, fold_hashes
from onebit_spark.input.arrow_ratings import ArrowRatings
from onebit_spark.input.arrow_table import ArrowTable
from onebit_spark.input.gathering import CollectedRatings
from onebit_spark.input.rating_checks import Columns
from onebit_spark.predictor.served_model import ServedModel
from onebit_spark.table_fit import TableFit
from onebit_spark.tuning.folds import FoldedSample, Sample, fit_fold, fold_tasks
from onebit_spark.tuning.tasks import Advances, Ledger, Task, TaskResult, run_tasks


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

    def results(self, tasks: Sequence[Task], alone: bool, ledger: Ledger, progress: Advances) -> list[TaskResult]:
        """Fits side by side, ``alone`` on one core each, or one after the other on all cores."""
        data = self.folded()

        def work(task: Task) -> TaskResult:
            return fit_fold(data, task["fold"], FitConfig(**task["config"]), 1 if alone else None)

        if alone:
            return run_tasks(None, tasks, work, ledger, progress)
        for task in tasks:
            began = time.perf_counter()
            if task not in ledger:
                result = work(task)
                ledger.record([task], [{**result, "seconds": time.perf_counter() - began}])
                progress.advance(1, time.perf_counter() - began)
            else:
                progress.advance(1, seconds=0.0)
        return [ledger[task] for task in tasks]

    def folded(self) -> FoldedSample:
        """The ratings as indices, in the order of rows, columns and labels, each with its fold."""
        block = self.ratings.ratings
        rows = np.repeat(np.arange(block.n_rows), block.row_counts)
        cols, labels = block.codes >> 1, np.where(block.codes & 1, 1, -1)
        users, items = self.ratings.users.take(rows), self.ratings.items.take(cols)
        fold = fold_hashes(cell_hashes(users, items), self.seed) % self.n_folds
        sample = Sample.of(rows, cols, labels, (block.n_rows, block.n_columns), block.weights)
        return FoldedSample(sample, fold.astype(np.int32))

    def model(self, config: FitConfig, settings: int) -> ServedModel:
        """The fit of all ratings with a configuration that was chosen among ``settings`` many."""
        return TableFit(config, Terms(grid=settings), self.columns, self.id_types).model(self.ratings)
