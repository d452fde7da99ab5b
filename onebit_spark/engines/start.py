"""The posteriors at the start of a fit: the tables of ``core.spectral`` on the tables of a runner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core.config import FitConfig
from onebit_spark.core.losses import OTHER, SIDES, Loss, Side
from onebit_spark.core.posterior import FIT_VECTORS, Form, RowPosterior
from onebit_spark.core.spectral import STARTS, Rows, Table, distinct_keys, gram, scaled_product, spectral_start
from onebit_spark.engines.engine import LineFormat, Runner
from onebit_spark.engines.steps import (
    DistinctKeys,
    Grow,
    LocatedLines,
    MakeLines,
    Measure,
    Product,
    ResidualProduct,
)

HELD_LINES = 2**18  # of a table on the driver that are computed at a time: no wide intermediate result has all of them
GROWN_MARGIN = 0.003  # mean of y·u of the scores that new factors begin with; ten times more disturbs the old ones
Array = NDArray[np.floating]


def start_posteriors(runner: Runner[Any], config: FitConfig, loss: Loss) -> dict[Side, Any]:
    """The tables of both posteriors."""
    matrix, finish = StartTables(runner), InitialPosterior(config, loss)
    tables = STARTS[config.start](matrix, config.factors, config.seed)
    return {side: matrix.posterior(side, table, finish, config.form) for side, table in zip(SIDES, tables, strict=True)}


def grown_posteriors(
    runner: Runner[Any], posteriors: dict[Side, Any], config: FitConfig, loss: Loss
) -> dict[Side, Any]:
    """Both posteriors with more factors, as many as ``config`` says.

    They begin as the leading singular vectors of D^{−½} E D^{−½}, where E holds the residuals y_l σ(−y_l u_l): the
    directions in which the likelihood rises most.
    """
    matrix = ResidualTables(runner, posteriors)
    more = config.factors - posteriors["rows"].form.rank
    tables = spectral_start(matrix, more, config.seed, GROWN_MARGIN)
    return {
        side: matrix.grown(side, table, loss.start_std, config.form) for side, table in zip(SIDES, tables, strict=True)
    }


@dataclass(frozen=True)
class InitialPosterior:
    """Turns factors into a posterior, with intercepts at 0 and one spread for all coordinates."""

    config: FitConfig
    loss: Loss

    def __call__(self, factors: Array) -> RowPosterior:
        config, loss = self.config, self.loss
        if config.intercepts:
            factors = np.insert(factors * loss.start_shrinkage, 0, 0.0, axis=1)
        location = factors.astype(config.precision)
        posterior = RowPosterior.isotropic(location, loss.start_std, loss.kind, config.intercepts)
        return posterior.with_implicit(FIT_VECTORS) if config.implicit_features else posterior


@dataclass
class StoredLines:
    """A stored table of the start. It is made when it is first read. The last one never is: only its posterior is."""

    # how its lines are made, from the rows and their lines of ``tables``, unless it is made already
    make: Callable[..., Table] | None = None
    tables: tuple[StoredLines, ...] = ()  # tables of the same side
    table: Any = None  # the runner's table
    gram: Table | None = None  # the Gram matrix of its lines


@dataclass(frozen=True)
class Scaled:
    """D^{−½} table·right, as a stored table is multiplied by Y."""

    right: Table

    def __call__(self, counts: NDArray[Any], lines: Array) -> Array:
        return scaled_product(Rows(np.arange(len(counts)), counts, counts), lines, self.right)

    @property
    def format(self) -> LineFormat:
        """Of what arrives."""
        return LineFormat("float32")


class StartTables:
    """A ``SignMatrix`` (``core.spectral``). Where the driver holds the tables of a side, they are arrays."""

    def __init__(self, runner: Runner[Any]) -> None:
        self._runner = runner
        self.total_weight = runner.total_weight

    def count(self, side: Side) -> int:
        return self._runner.count(side)

    def distinct_keys(self, side: Side, enough: int) -> int:
        rows = self._runner.held_rows(side)
        if rows is not None:
            return len(distinct_keys(rows))
        parts = self._runner.row_sums(side, DistinctKeys(enough))
        return len(np.unique(np.concatenate([part.reshape(-1, 2) for part in parts]), axis=0))

    def row_table(self, side: Side, make: Callable[..., Table], *tables: Any) -> Array | StoredLines:
        rows = self._runner.held_rows(side)
        if rows is None:
            return StoredLines(make, tables)
        return _by_parts(rows, lambda some, part: make(some, *(table[part] for table in tables)))

    def product(self, side: Side, table: Array | StoredLines, right: Table) -> Array | StoredLines:
        runner, other, width = self._runner, OTHER[side], right.shape[1]
        if isinstance(table, StoredLines):
            partners, send = self._computed(other, table), Scaled(right)
        else:
            rows = runner.held_rows(other)
            assert rows is not None
            sent = _by_parts(rows, lambda some, part: scaled_product(some, table[part], right))
            partners, send = runner.table(other, sent), None
        return self._multiplied(side, Product(width, self._measure(side)), [], partners, send)

    def _measure(self, side: Side) -> Callable[[Rows, Table], Table] | None:
        """What a product sums up besides: its Gram matrix, unless the driver gets its lines."""
        return gram if self._runner.held_rows(side) is None else None

    def _multiplied(
        self, side: Side, step: Product | ResidualProduct, own: list[Any], partners: Any, send: Scaled | None = None
    ) -> Array | StoredLines:
        product, sums = self._runner.run(side, step, own, partners, LineFormat("float32"), send)
        if step.measure is None:
            return self._runner.lines(product)
        return StoredLines(table=product, gram=np.sum(sums, axis=0).reshape(step.width, step.width))

    def total(self, side: Side, measure: Callable[[Rows, Table], Table], table: Array | StoredLines) -> Table:
        if not isinstance(table, StoredLines):
            rows = self._runner.held_rows(side)
            assert rows is not None
            held = [measure(rows.part(part), table[part].astype(np.float64, copy=False)) for part in _parts(len(table))]
            return np.asarray(sum(held[1:], held[0]))
        if measure is gram and table.gram is not None:
            return table.gram
        parts = self._runner.row_sums(side, Measure(measure), [self._computed(side, table)])
        shape = [int(size) for size in parts[0][1 : 1 + int(parts[0][0])]]
        return np.sum([part[1 + len(shape) :] for part in parts], axis=0).reshape(shape)

    def posterior(self, side: Side, table: Array | StoredLines, finish: InitialPosterior, form: Form) -> Any:
        """The posterior that begins at these lines."""
        if not isinstance(table, StoredLines):
            return self._runner.table(side, finish(table))
        assert table.make is not None  # the start ends with lines that are still to be made
        step, own = MakeLines(table.make, finish), [self._computed(side, part) for part in table.tables]
        return self._runner.run_rows(side, step, own, LineFormat.of(form))

    def _computed(self, side: Side, lines: StoredLines) -> Any:
        if lines.table is None:
            assert lines.make is not None
            own = [self._computed(side, part) for part in lines.tables]
            lines.table = self._runner.run_rows(side, MakeLines(lines.make), own, LineFormat("float64"))
        return lines.table


class ResidualTables(StartTables):
    """The same with the residuals of a fit in the place of the signs."""

    def __init__(self, runner: Runner[Any], posteriors: dict[Side, Any]) -> None:
        super().__init__(runner)
        self._posteriors = posteriors

    def product(self, side: Side, table: Array | StoredLines, right: Table) -> Array | StoredLines:
        other = OTHER[side]
        own = [self._posteriors[other], self._table(other, table)]
        partners = self._runner.run_rows(other, LocatedLines(right), own, LineFormat("float32"))
        step = ResidualProduct(right.shape[1], self._measure(side))
        return self._multiplied(side, step, [self._posteriors[side]], partners)

    def grown(self, side: Side, table: Array | StoredLines, deviation: float, form: Form) -> Any:
        """The posterior with these factors besides its own."""
        make: Callable[..., Table] = _as_it_is
        tables = [table]
        if isinstance(table, StoredLines):
            assert table.make is not None
            make, tables = table.make, list(table.tables)
        own = [self._posteriors[side], *(self._table(side, part) for part in tables)]
        return self._runner.run_rows(side, Grow(make, deviation), own, LineFormat.of(form))

    def _table(self, side: Side, table: Array | StoredLines) -> Any:
        return self._computed(side, table) if isinstance(table, StoredLines) else self._runner.table(side, table)


def _as_it_is(rows: Rows, lines: Table) -> Table:
    return lines


def _by_parts(rows: Rows, make: Callable[[Rows, slice], Array]) -> Array:
    """A table made from some lines at a time."""
    n, (first, *others) = len(rows.numbers), _parts(len(rows.numbers))
    lines = make(rows.part(first), first)
    if not others:
        return lines
    table = np.empty((n, lines.shape[1]), lines.dtype)
    table[first] = lines
    for part in others:
        table[part] = make(rows.part(part), part)
    return table


def _parts(n: int) -> list[slice]:
    return [slice(start, start + HELD_LINES) for start in range(0, max(1, n), HELD_LINES)]
