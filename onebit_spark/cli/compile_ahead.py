"""compile_ahead: a fit of sixteen ratings, while Spark starts or a file is read. No result depends on it.

It compiles the kernels of a fit's settings, once for each machine and version, and later loads them from the cache.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from onebit_spark.core.config import FitConfig, Terms
from onebit_spark.in_process import fit_arrays


def compile_ahead(config: FitConfig, weighted: bool, device: str = "cpu") -> None:
    """Compile, or load, the kernels that a fit with these settings needs."""
    rows, cols = np.divmod(np.arange(16), 4)
    labels, weights = np.where((rows + cols) % 3 > 0, 1, -1), np.ones(16, np.float32) if weighted else None
    short = replace(config, max_iter=2, tol=0.0)
    fit_arrays(rows, cols, labels, short, weights=weights, certify=Terms(), device=device)
