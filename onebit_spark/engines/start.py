"""The posteriors that a fit starts from, given an engine's view of the sign matrix."""

from __future__ import annotations

import numpy as np

from onebit_spark.config import FitConfig
from onebit_spark.losses import Loss, Side
from onebit_spark.posterior import RowPosterior
from onebit_spark.spectral import STARTS, SignMatrix


def start_posteriors(matrix: SignMatrix, config: FitConfig, loss: Loss) -> dict[Side, RowPosterior]:
    """Factors from the start that the configuration names, intercepts at 0, one spread for every coordinate."""
    rows, cols = STARTS[config.start](matrix, config.rank, config.seed)
    if config.intercepts:
        rows, cols = (np.insert(factors * loss.start_shrinkage, 0, 0.0, axis=1) for factors in (rows, cols))
    return {
        "rows": _spread_out(rows, config, loss),
        "cols": _spread_out(cols, config, loss),
    }


def _spread_out(location: np.ndarray, config: FitConfig, loss: Loss) -> RowPosterior:
    return RowPosterior.isotropic(location.astype(config.precision), loss.start_deviation, loss.kind, config.intercepts)
