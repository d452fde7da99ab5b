"""Cross-validation on Spark, in one of two ways.

If one worker can hold all ratings, they are sent to all workers, and every fit is one Spark task. Otherwise the fits
run one after the other, each on the whole cluster. The fold of a rating is a hash of its cell (user, item). So the
folds are the same in both ways, and in every run. And all ratings of a cell are held out together: none is predicted
from another rating of its own cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from onebit_spark.core.config import FitConfig
from onebit_spark.core.id_index import IdIndex
from onebit_spark.core.settings import by_param
from onebit_spark.estimator import OneBitCompletion
from onebit_spark.input.batches import ITEM, LABEL, USER, WEIGHT
from onebit_spark.input.rating_checks import Columns
from onebit_spark.input.ratings import cell_hash, rating_lines, with_weight
from onebit_spark.input.survey import RatedIds, survey_ratings
from onebit_spark.model import OneBitCompletionModel
from onebit_spark.platform.sessions import broadcast, driver_limits
from onebit_spark.tuning.folds import FoldedSample, Sample, fit_fold, fold_tasks
from onebit_spark.tuning.tasks import Advances, Ledger, Task, TaskResult, run_one_by_one, run_tasks

FOLD = "__onebit_fold"


@dataclass(frozen=True)
class CrossValidation:
    """Ratings in a DataFrame, divided into folds."""

    ratings: DataFrame
    columns: Columns
    surveyed: RatedIds  # their ids and counts
    n_folds: int
    seed: int  # of the folds

    @classmethod
    def of(cls, ratings: DataFrame, columns: Columns, n_folds: int, seed: int) -> CrossValidation:
        """Check the ratings, and count them."""
        ratings = with_weight(ratings, columns)
        with survey_ratings(ratings, columns) as survey:
            return cls(ratings, columns, survey.rated_ids(), n_folds, seed)

    @property
    def n(self) -> int:
        """The number of ratings."""
        return self.surveyed.tally.n

    def tasks(self, configs: Sequence[FitConfig]) -> list[Task]:
        """One task per configuration and fold. The folds of one configuration follow each other."""
        ids = len(self.surveyed.users), len(self.surveyed.items)
        return fold_tasks(self.surveyed.tally, ids, self.n_folds, self.seed, configs)

    def model(self, config: FitConfig, settings: int) -> OneBitCompletionModel:
        """The fit of all ratings with a configuration that was chosen among ``settings`` many."""
        return self.estimator(config, settings).fit(self.ratings)

    def in_workers(self, tasks: Sequence[Task], ledger: Ledger, progress: Advances) -> list[TaskResult]:
        """Run every fit as a task of one worker, which has all ratings. On one machine, threads share them."""
        spark = self.ratings.sparkSession
        data = broadcast(spark, self.collected())

        def work(task: Task) -> TaskResult:
            return fit_fold(data.value, task["fold"], FitConfig(**task["config"]))

        try:
            return run_tasks(spark, tasks, work, ledger, progress, here=driver_limits(spark).local)
        finally:
            data.destroy()

    def one_after_the_other(self, tasks: Sequence[Task], ledger: Ledger, progress: Advances) -> list[TaskResult]:
        """Run the fits one after the other, each on the whole cluster."""
        folded = self.ratings.withColumn(FOLD, self._fold()).persist()

        def work(task: Task) -> TaskResult:
            held_out = F.col(FOLD) == task["fold"]
            return self._fit(folded.where(~held_out), folded.where(held_out), FitConfig(**task["config"]))

        try:
            return run_one_by_one(tasks, work, ledger, progress)
        finally:
            folded.unpersist()

    def collected(self) -> FoldedSample:
        """The ratings in this process, as indices, in an order that does not depend on the partitions."""
        with_fold = self.ratings.withColumn(FOLD, self._fold())
        table = rating_lines(with_fold, self.columns, FOLD).toArrow()
        sides = {USER: self.surveyed.users, ITEM: self.surveyed.items}
        rows, cols = (IdIndex(ids.values).find(table[name]) for name, ids in sides.items())
        labels, fold = np.where(table[LABEL].to_numpy(), 1, -1), table[FOLD].to_numpy()
        weights = table[WEIGHT].to_numpy() if self.columns.weight is not None else None
        order = np.lexsort((labels if weights is None else weights, labels, cols, rows))
        shape = (len(self.surveyed.users), len(self.surveyed.items))
        sample = Sample.of(rows[order], cols[order], labels[order], shape, None if weights is None else weights[order])
        return FoldedSample(sample, fold[order].astype(np.int32))

    def estimator(self, config: FitConfig, settings: int = 1) -> OneBitCompletion:
        """The estimator for a configuration that was chosen among ``settings`` many on these ratings."""
        return OneBitCompletion(
            userCol=self.columns.user,
            itemCol=self.columns.item,
            labelCol=self.columns.label,
            threshold=self.columns.threshold,
            weightCol=self.columns.weight,
            certificateGrid=settings,
            **by_param(config),
        )

    def _fit(self, train: DataFrame, test: DataFrame, config: FitConfig) -> TaskResult:
        """The figures of ``folds.fit_fold``, computed on the whole cluster."""
        model = self.estimator(config).fit(train.drop(FOLD))
        # The test part with labels as booleans, and with the column names that the model expects.
        inside = rating_lines(test, self.columns).withColumnsRenamed({USER: self.columns.user, ITEM: self.columns.item})
        p = F.least(F.greatest("probability", F.lit(1e-15)), F.lit(1 - 1e-15))
        figures = (
            model.transform(inside)
            .agg(
                F.count_if((F.col("prediction") > 0) != F.col(LABEL)).alias("errors"),
                F.count(F.lit(1)).alias("n"),
                F.mean(-F.log(F.when(F.col(LABEL), p).otherwise(1 - p))).alias("log_loss"),
            )
            .collect()[0]
        )
        info = model.info
        return {
            **figures.asDict(),
            "iterations": info.iterations,
            "converged": info.converged,
            "effective_rank": info.effective_rank,
        }

    def _fold(self) -> Column:
        hashed = F.xxhash64(cell_hash(self.ratings, self.columns), F.lit(self.seed))
        return F.pmod(hashed, F.lit(self.n_folds)).cast("int")
