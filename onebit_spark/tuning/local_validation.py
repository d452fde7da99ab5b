"""Cross-validation in this process: the folds of ``cross_validation``, without Spark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from onebit_spark.tuning.tasks import Advances, Ledger, Task, TaskResult, run_one_by_one, run_tasks


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

    def model(self, config: FitConfig, settings: int) -> ServedModel:
        """The fit of all ratings with a configuration that was chosen among ``settings`` many."""
        return TableFit(config, Terms(grid=settings), self.columns, self.id_types).model(self.ratings)
