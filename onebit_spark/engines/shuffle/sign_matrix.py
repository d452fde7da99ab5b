"""The sign matrix of the spectral start, with lines in tall tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from onebit_spark.core.losses import Side
from onebit_spark.core.spectral_rows import Rows, Table, distinct_keys, gram
from onebit_spark.engines.shuffle import steps as work
from onebit_spark.engines.shuffle.tables import AnyTable, HeldTable, Tables


@dataclass
class StartLines:
    """A table of the start. It is made when it is first read: the last one never is, only the posterior from it.

    Parameters
    ----------
    side : Side
        The side of its rows.
    make : callable, optional
        How its lines are made, from the rows and their lines of ``tables``, unless it is made already.
    tables : tuple of StartLines
        Tables of the same side.
    made : TallTable or HeldTable, optional
        The table itself.
    gram : array, optional
        The Gram matrix of its lines.
    """

    side: Side
    make: Callable[..., Table] | None = None
    tables: tuple[StartLines, ...] = ()
    made: AnyTable | None = None
    gram: Table | None = None


class TableSignMatrix:
    """A ``SignMatrix`` (``core.spectral``). On a side whose tables the driver holds, only products are jobs."""

    def __init__(self, tables: Tables, total_weight: float) -> None:
        self._tables = tables
        self.total_weight = total_weight

    def count(self, side: Side) -> int:
        return self._tables.sides[side].n_rated

    def distinct_keys(self, side: Side, enough: int) -> int:
        held = self._tables.sides[side].held
        if held is not None:
            return len(distinct_keys(held.rows))
        parts = self._tables.sums(side, work.Keys(enough))
        return len(np.unique(np.concatenate([part.reshape(-1, 2) for part in parts]), axis=0))

    def tall(self, side: Side, make: Callable[..., Table], *tables: StartLines) -> StartLines:
        return StartLines(side, make, tables)

    def product(self, side: Side, table: StartLines, right: Table) -> StartLines:
        partners, width = self._made(table), right.shape[1]
        made, sums = self._tables.make(
            side, work.Product(width), partners=partners, send=work.Scaled(right), dtype=np.float32
        )  # fmt: skip
        return StartLines(side, made=made, gram=np.sum(sums, axis=0).reshape(width, width))

    def total(self, side: Side, measure: Callable[[Rows, Table], Table], table: StartLines) -> Table:
        if measure is gram and table.gram is not None:
            return table.gram
        held, made = self._tables.sides[side].held, self._made(table)
        if held is not None and isinstance(made, HeldTable):
            return measure(held.rows, made.values.astype(np.float64, copy=False))
        parts = self._tables.sums(side, work.Measure(measure), (made,))
        shape = [int(size) for size in parts[0][1 : 1 + int(parts[0][0])]]
        return np.sum([part[1 + len(shape) :] for part in parts], axis=0).reshape(shape)

    def made_of(self, lines: StartLines) -> tuple[AnyTable, ...]:
        """The tables that some lines are made of."""
        return tuple(map(self._made, lines.tables))

    def _made(self, lines: StartLines) -> AnyTable:
        if lines.made is None:
            assert lines.make is not None
            held, tables = self._tables.sides[lines.side].held, self.made_of(lines)
            if held is None:
                lines.made = self._tables.make(lines.side, work.Lines(lines.make), tables)[0]
            else:
                values = (table.values for table in tables if isinstance(table, HeldTable))
                lines.made = self._tables.held(lines.make(held.rows, *values))
        return lines.made
