"""The jobs: fit, predict, evaluate, tune. Each reads its input, calls the package once, and writes.

flags ◄ requests (flags of each job) ◄ choose_runtime ◄ running (runtime, exit codes)
runtime (what a job asks of it) ◄ local_runtime (this process), spark_runtime with spark_tables (a session)
outputs, table_checks, summaries ◄ …_job (on any runtime)
interrupts    Ctrl-C and SIGTERM
failures      one line that names the cause
progress      progress and times, on a terminal or in a log
compile_ahead kernels, compiled while Spark starts or a file is read

Arguments are checked before Spark is imported; in this process it never is. So the modules of a job and of its runtime
are imported when it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

from onebit_spark.cli.choose_runtime import SPARK
from onebit_spark.cli.requests import EvaluateRequest, FitRequest, PredictRequest, TuneRequest
from onebit_spark.cli.running import PACKAGE, Job, run_job

Arguments = Sequence[str] | None


def fit(argv: Arguments = None, *, ship_package: bool = False, name: str = "fit.py", runtime: str = SPARK) -> int:
    advice = _imported("fit_job", "when_interrupted")
    job = Job(name, FitRequest, _imported("fit_job"), warm_up, advice, runtime=runtime)
    return run_job(job, argv, [PACKAGE] * ship_package)


def predict(
    argv: Arguments = None, *, ship_package: bool = False, name: str = "predict.py", runtime: str = SPARK
) -> int:
    job = Job(name, PredictRequest, _imported("predict_job"), runtime=runtime)
    return run_job(job, argv, [PACKAGE] * ship_package)


def evaluate(
    argv: Arguments = None, *, ship_package: bool = False, name: str = "evaluate.py", runtime: str = SPARK
) -> int:
    job = Job(name, EvaluateRequest, _imported("evaluate_job"), runtime=runtime)
    return run_job(job, argv, [PACKAGE] * ship_package)


def tune(argv: Arguments = None, *, ship_package: bool = False, name: str = "tune.py", runtime: str = SPARK) -> int:
    job = Job(name, TuneRequest, _imported("tune_job"), needs_classic=True, runtime=runtime)
    return run_job(job, argv, [PACKAGE] * ship_package)


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


def _imported(module: str, function: str = "run") -> Callable[..., Any]:
    """A function of a job's module, which is imported at the first call."""
    return lambda *arguments: getattr(import_module(f"onebit_spark.cli.{module}"), function)(*arguments)
