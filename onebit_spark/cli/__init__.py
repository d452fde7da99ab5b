"""The jobs: fit, predict, evaluate, tune. Each reads its input, calls the package once, and writes.

flags ◄ requests (flags of each job) ◄ running (the runtime of a job, failures, signals, exit codes)
runtime (what both share: checks, places of predictions) ◄ local_runtime (this process), spark_runtime (a session)
fit_job, model_jobs (predict, evaluate), tune_job: on any runtime; progress (lines, bars and times)

A wrong argument is answered before numpy, Arrow or Spark is imported. So the modules of the jobs are imported later.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from typing import Any

from onebit_spark.cli.requests import EvaluateRequest, FitRequest, PredictRequest, TuneRequest
from onebit_spark.cli.running import LOCAL, Job
from onebit_spark.core.config import FitConfig, Terms


def _module(name: str) -> Any:
    return import_module(f"onebit_spark.cli.{name}")


def compile_ahead(config: FitConfig, weighted: bool, device: str = "cpu") -> None:
    """Compile the kernels that a fit with these settings needs, or load them from the cache, by a fit of 16 ratings.

    This happens while Spark starts or a file is read. No result depends on it.
    """
    import numpy as np

    from onebit_spark.in_process import fit_arrays

    rows, cols = np.divmod(np.arange(16), 4)
    labels, weights = np.where((rows + cols) % 3 > 0, 1, -1), np.ones(16, np.float32) if weighted else None
    short = replace(config, max_iter=2, tol=0.0)
    fit_arrays(rows, cols, labels, short, weights=weights, certify=Terms(), device=device)


def _warm_up(request: FitRequest, runtime: str) -> None:
    """Compile the kernels of these settings, and import what the job imports."""
    with suppress(Exception):  # the fit itself reports what is wrong
        if request.execution.exchange in ("auto", "driver"):
            compile_ahead(request.fit_config, request.labels.weight_col is not None, request.execution.device)
        _module("local_runtime" if runtime == LOCAL else "spark_runtime")
        _module("fit_job")
        if request.report:
            import matplotlib.figure  # noqa: F401


fit = Job(
    "fit.py",
    FitRequest,
    work=lambda: _module("fit_job").fit,
    advice=lambda runtime, request: _module("fit_job").how_to_resume(runtime, request),
    warm_up=_warm_up,
)
predict = Job("predict.py", PredictRequest, work=lambda: _module("model_jobs").predict)
evaluate = Job("evaluate.py", EvaluateRequest, work=lambda: _module("model_jobs").evaluate)
tune = Job("tune.py", TuneRequest, work=lambda: _module("tune_job").tune, needs_classic=True)
