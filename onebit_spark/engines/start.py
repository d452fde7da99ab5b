"""The posteriors at the start of a fit: the factors of the configured start, and one spread for all coordinates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onebit_spark.core.config import FitConfig
from onebit_spark.core.losses import Loss, Side
from onebit_spark.core.posterior import RowPosterior
from onebit_spark.core.spectral import STARTS, AnyTable, ArrayTables, Products


@dataclass(frozen=True)
class SpreadOut:
    """Turns factors into a posterior, with intercepts at 0 and one spread for all coordinates."""

    config: FitConfig
    loss: Loss

    def __call__(self, factors: AnyTable) -> RowPosterior:
        config, loss = self.config, self.loss
        if config.intercepts:
            factors = np.insert(factors * loss.start_shrinkage, 0, 0.0, axis=1)
        location = factors.astype(config.precision)
        posterior = RowPosterior.isotropic(location, loss.start_deviation, loss.kind, config.intercepts)
        return posterior.with_implicit() if config.implicit_features else posterior


def start_posteriors(engine: Products, config: FitConfig, loss: Loss) -> dict[Side, RowPosterior]:
    """The posteriors at the start, for an engine whose tables are arrays in this process."""
    rows, cols = STARTS[config.start](ArrayTables(engine), config.rank, config.seed)
    spread_out = SpreadOut(config, loss)
    return {"rows": spread_out(rows), "cols": spread_out(cols)}
