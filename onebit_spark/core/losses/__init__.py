"""The losses: one module for each name (docs/ARCHITECTURE.md, "A new loss")."""

from __future__ import annotations

from onebit_spark.core.loss import (
    OTHER,
    SIDES,
    HalfStep,
    Loss,
    Move,
    RowPrior,
    RowSums,
    Side,
    Symmetry,
)
from onebit_spark.registry import Registry

LOSSES: Registry[Loss] = Registry("core/losses", Loss)

__all__ = [
    "LOSSES",
    "OTHER",
    "SIDES",
    "HalfStep",
    "Loss",
    "Move",
    "RowPrior",
    "RowSums",
    "Side",
    "Symmetry",
]
