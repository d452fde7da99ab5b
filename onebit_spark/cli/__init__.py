"""The jobs: fit, predict, evaluate, tune, reproduce. Each reads its input, calls the package once, and writes.

flags ◄ requests, experiment_requests (flags of each job) ◄ running (session, exit codes) ◄ common, job_tables ◄ …_job
interrupts                 Ctrl-C and SIGTERM
progress, task_progress    progress on a terminal or in a log

Arguments are checked before Spark is imported. So the module of a job is imported when the job runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from onebit_spark.cli.experiment_requests import TuneRequest
from onebit_spark.cli.requests import EvaluateRequest, FitRequest, PredictRequest
from onebit_spark.cli.running import run_job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def fit(argv: Sequence[str] | None = None, *, ship_package: bool = False, name: str = "fit.py") -> int:
    def work(spark: SparkSession, request: FitRequest) -> None:
        from onebit_spark.cli.fit_job import run_fit

        run_fit(spark, request)

    def meanwhile(request: FitRequest) -> None:
        from onebit_spark.cli.warm_up import warm_up

        warm_up(request)

    def when_interrupted(spark: SparkSession, request: FitRequest) -> str:
        from onebit_spark.cli import fit_job

        return fit_job.when_interrupted(spark, request)

    return run_job(name, FitRequest, work, argv, ship_package, meanwhile, when_interrupted=when_interrupted)


def predict(argv: Sequence[str] | None = None, *, ship_package: bool = False, name: str = "predict.py") -> int:
    def work(spark: SparkSession, request: PredictRequest) -> None:
        from onebit_spark.cli.predict_job import run_predict

        run_predict(spark, request)

    return run_job(name, PredictRequest, work, argv, ship_package)


def evaluate(argv: Sequence[str] | None = None, *, ship_package: bool = False, name: str = "evaluate.py") -> int:
    def work(spark: SparkSession, request: EvaluateRequest) -> None:
        from onebit_spark.cli.evaluate_job import run_evaluate

        run_evaluate(spark, request)

    return run_job(name, EvaluateRequest, work, argv, ship_package)


def tune(argv: Sequence[str] | None = None, *, ship_package: bool = False, name: str = "tune.py") -> int:
    def work(spark: SparkSession, request: TuneRequest) -> None:
        from onebit_spark.cli.tune_job import run_tune

        run_tune(spark, request)

    return run_job(name, TuneRequest, work, argv, ship_package, needs_classic=True)


def reproduce(argv: Sequence[str] | None = None, *, ship_package: bool = False, name: str = "reproduce.py") -> int:
    from onebit_spark.cli.reproduce_job import reproduce as run

    return run(argv, ship_package=ship_package, name=name)
