"""The jobs: fit, predict, evaluate, tune. Each reads its input, calls the package once, and writes.

flags ◄ requests (flags of each job) ◄ running (the runtime of a job, failures, signals, exit codes)
runtime (what a job needs of it, shared checks) ◄ local_runtime (this process), spark_runtime (a session)
fit_job, model_jobs (predict, evaluate), tune_job: on any runtime; progress (lines, bars and times)
compile_ahead: kernels are compiled while Spark starts or a file is read

A wrong argument is answered before numpy, Arrow or Spark is imported. So the functions below import what they need.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from onebit_spark.cli.requests import EvaluateRequest, FitRequest, PredictRequest, TuneRequest
from onebit_spark.cli.running import LOCAL, Job


def _fit(runtime: Any, request: FitRequest) -> None:
    from onebit_spark.cli.fit_job import fit

    fit(runtime, request)


def _predict(runtime: Any, request: PredictRequest) -> None:
    from onebit_spark.cli.model_jobs import predict

    predict(runtime, request)


def _evaluate(runtime: Any, request: EvaluateRequest) -> None:
    from onebit_spark.cli.model_jobs import evaluate

    evaluate(runtime, request)


def _tune(runtime: Any, request: TuneRequest) -> None:
    from onebit_spark.cli.tune_job import tune

    tune(runtime, request)


def _how_to_resume(runtime: Any, request: FitRequest) -> str:
    from onebit_spark.cli.fit_job import how_to_resume

    return how_to_resume(runtime, request)


def _warm_up(request: FitRequest, runtime: str) -> None:
    """Compile the kernels of these settings, and import what the job imports."""
    with suppress(Exception):  # the fit itself reports what is wrong
        if request.execution.exchange in ("auto", "driver"):
            from onebit_spark.cli.compile_ahead import compile_ahead

            compile_ahead(request.fit_config, request.labels.weight_col is not None, request.execution.device)
        if runtime == LOCAL:
            import onebit_spark.cli.local_runtime
        else:
            import onebit_spark.cli.spark_runtime
        import onebit_spark.cli.fit_job  # noqa: F401

        if request.report:
            import matplotlib.figure  # noqa: F401


fit = Job("fit.py", FitRequest, _fit, advice=_how_to_resume, warm_up=_warm_up)
predict = Job("predict.py", PredictRequest, _predict)
evaluate = Job("evaluate.py", EvaluateRequest, _evaluate)
tune = Job("tune.py", TuneRequest, _tune, needs_classic=True)
