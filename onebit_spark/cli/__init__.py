"""The jobs: fit, predict, evaluate, tune. Each reads its input, calls the package once, and writes.

flags ◄ requests (flags of each job) ◄ choose_runtime ◄ running (runtime, exit codes)
runtime (what a job asks of it) ◄ local_runtime (this process), spark_runtime with spark_tables (a session)
checks, summaries ◄ …_job (on any runtime)
failures      one line that names the cause; Ctrl-C and SIGTERM
progress      progress and times, on a terminal or in a log
compile_ahead kernels, compiled while Spark starts or a file is read

Arguments are checked before Spark is imported; in this process it never is. So the modules of a job and of its runtime
are imported when it runs.
"""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module

from onebit_spark.cli.requests import EvaluateRequest, FitRequest, PredictRequest, TuneRequest
from onebit_spark.cli.running import Job

fit = Job(
    "fit.py",
    FitRequest,
    "onebit_spark.cli.fit_job:run",
    when_interrupted="onebit_spark.cli.fit_job:when_interrupted",
    meanwhile="onebit_spark.cli:warm_up",
)
predict = Job("predict.py", PredictRequest, "onebit_spark.cli.predict_job:run")
evaluate = Job("evaluate.py", EvaluateRequest, "onebit_spark.cli.evaluate_job:run")
tune = Job("tune.py", TuneRequest, "onebit_spark.cli.tune_job:run", needs_classic=True)


def warm_up(request: FitRequest, runtime: str) -> None:
    """While Spark starts, or a file is read: compile what these settings need, and import what the job imports."""
    with suppress(Exception):  # whatever is wrong will show in the fit itself
        execution = request.execution()
        if execution.exchange in ("auto", "driver"):
            from onebit_spark.cli.compile_ahead import compile_ahead

            compile_ahead(request.fit_config(), request.weight_col is not None, execution.device)
        import_module(f"onebit_spark.cli.{runtime}_runtime")
        import_module("onebit_spark.cli.fit_job")
        if request.report:
            import_module("matplotlib.figure")
