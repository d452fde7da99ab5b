"""The jobs: fit, predict, evaluate, tune. Each reads its input, calls the package once, and writes.

flags ◄ requests (flags of each job) ◄ running (session, exit codes) ◄ job_tables, summaries ◄ …_job
interrupts    Ctrl-C and SIGTERM
failures      one line that names the cause
progress      progress and times, on a terminal or in a log

Arguments are checked before Spark is imported. So the module of a job is imported when the job runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np

from onebit_spark.certificate.certificates import Terms
from onebit_spark.cli.requests import EvaluateRequest, FitRequest, PredictRequest, TuneRequest
from onebit_spark.cli.running import PACKAGE, Job, run_job


def fit(argv: Sequence[str] | None = None, *, ship_package: bool = False, name: str = "fit.py") -> int:
    advice = _imported("fit_job", "when_interrupted")
    job = Job(name, FitRequest, _imported("fit_job"), meanwhile=warm_up, when_interrupted=advice)
    return run_job(job, argv, [PACKAGE] * ship_package)


def predict(argv: Sequence[str] | None = None, *, ship_package: bool = False, name: str = "predict.py") -> int:
    return run_job(Job(name, PredictRequest, _imported("predict_job")), argv, [PACKAGE] * ship_package)


def evaluate(argv: Sequence[str] | None = None, *, ship_package: bool = False, name: str = "evaluate.py") -> int:
    return run_job(Job(name, EvaluateRequest, _imported("evaluate_job")), argv, [PACKAGE] * ship_package)


def tune(argv: Sequence[str] | None = None, *, ship_package: bool = False, name: str = "tune.py") -> int:
    job = Job(name, TuneRequest, _imported("tune_job"), needs_classic=True)
    return run_job(job, argv, [PACKAGE] * ship_package)


def warm_up(request: FitRequest) -> None:
    """While Spark starts: fit a tiny matrix with these settings, and import what the job imports.

    So a fit on the driver need not wait for the compiler. Nothing depends on it.
    """
    with suppress(Exception):  # whatever is wrong will show in the fit itself
        if request.execution().exchange in ("auto", "driver"):
            from onebit_spark.in_process import fit_arrays

            rows, cols = np.divmod(np.arange(16), 4)
            short = replace(request.fit_config(), max_iter=2, tol=0.0)
            weights = None if request.weight_col is None else np.ones(16)
            fit_arrays(rows, cols, np.where((rows + cols) % 3 > 0, 1, -1), short, weights=weights, certify=Terms())
        import_module("onebit_spark.cli.fit_job")
        if request.report:
            import_module("matplotlib.figure")


def _imported(module: str, function: str = "run") -> Callable[..., Any]:
    """A function of a job's module, which is imported at the first call."""
    return lambda *arguments: getattr(import_module(f"onebit_spark.cli.{module}"), function)(*arguments)
