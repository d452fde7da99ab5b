"""Load or compile what a fit on the driver will need, while Spark starts and reads."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import replace
from importlib import import_module

import numpy as np

from onebit_spark.certificate.certified import Terms
from onebit_spark.core.config import FitConfig


def warm_up(config: FitConfig, report: bool) -> None:
    """Begin in a thread of its own: a fit of a tiny matrix with these settings, and the import of the plots."""
    threading.Thread(target=_warm_up, args=(config, report), name="warm-up", daemon=True).start()


def _warm_up(config: FitConfig, report: bool) -> None:
    from onebit_spark.inprocess import fit_arrays

    rows, cols = np.divmod(np.arange(16), 4)
    with suppress(Exception):  # whatever is wrong will show in the fit itself
        short = replace(config, max_iter=2, tol=0.0)
        fit_arrays(rows, cols, np.where((rows + cols) % 3 > 0, 1, -1), short, certify=Terms())
    if report:
        with suppress(ImportError):
            import_module("matplotlib.figure")
