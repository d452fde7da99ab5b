"""Blocks: how an engine runs a work on its blocks of ratings, in this process or on Spark."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from onebit_spark.core.losses import Side
from onebit_spark.core.work import BlockWork, Sums
from onebit_spark.engines.layout import RowLayout, Sending

# The rows of a side in the form of an engine: a posterior, or a table of plain numbers.
Table = Any


class Blocks(ABC):
    total_weight: float  # the sum of the weights of the ratings

    @abstractmethod
    def count(self, side: Side) -> int:
        """Number of rows with at least one rating."""

    @abstractmethod
    def is_held(self, side: Side) -> bool:
        """Whether the tables of this side are in this process."""

    @abstractmethod
    def run(
        self,
        side: Side,
        work: BlockWork,
        own: Mapping[str, Table],
        layout: RowLayout,
        others: Table | None = None,
        send: Sending | None = None,
    ) -> tuple[Table, list[Sums]]:
        """The table of a work, laid out so, and its vectors. ``send``: what stored others send."""

    @abstractmethod
    def total(
        self,
        side: Side,
        work: BlockWork,
        own: Mapping[str, Table],
        others: Table | None = None,
    ) -> list[Sums]:
        """The vectors of a work that makes no rows, those of each block."""
