"""The registered losses. A third one is one new file and one line here."""

from __future__ import annotations

from onebit_spark.core.losses.base import (
    OTHER,
    SIDES,
    HalfStep,
    Loss,
    Move,
    PriorLines,
    RowPrior,
    RowSums,
    Side,
    Symmetry,
)
from onebit_spark.core.losses.hinge import Hinge
from onebit_spark.core.losses.logistic import Logistic

LOSSES: dict[str, type[Loss]] = {loss.name: loss for loss in (Hinge, Logistic)}

__all__ = ["LOSSES", "OTHER", "SIDES", "HalfStep", "Hinge", "Logistic", "Loss", "Move", "PriorLines", "RowPrior",
    "RowSums", "Side", "Symmetry"]  # fmt: skip
