"""The registered losses. A new loss is a file of its own and an entry of ``LOSSES``."""

from __future__ import annotations

from onebit_spark.core.losses.base import (
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
from onebit_spark.core.losses.hinge import Hinge
from onebit_spark.core.losses.logistic import Logistic

LOSSES: dict[str, type[Loss]] = {loss.name: loss for loss in (Hinge, Logistic)}

__all__ = ["LOSSES", "OTHER", "SIDES", "HalfStep", "Hinge", "Logistic", "Loss", "Move", "RowPrior",
    "RowSums", "Side", "Symmetry"]  # fmt: skip
