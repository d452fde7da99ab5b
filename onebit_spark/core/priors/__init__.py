"""The priors of the scales: one module for each name (docs/ARCHITECTURE.md, "A new prior")."""

from __future__ import annotations

from onebit_spark.core.prior import ScalePrior
from onebit_spark.registry import Registry

PRIORS: Registry[ScalePrior] = Registry("core/priors", ScalePrior)
