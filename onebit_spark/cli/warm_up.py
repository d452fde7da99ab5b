"""Load or compile what a fit on the driver will need, while Spark starts."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from importlib import import_module

import numpy as np

from onebit_spark.certificate.certificates import Terms
from onebit_spark.cli.requests import FitRequest


def warm_up(request: FitRequest) -> None:
    """Fit a tiny matrix with these settings, and import what the job imports. Nothing depends on it."""
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
