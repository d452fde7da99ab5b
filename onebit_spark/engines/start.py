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
from onebit_spark.core.spectral import STARTS, CountedRows, Table, distinct_keys, gram, scaled_product, spectral_start
from onebit_spark.engines.engine import RowLayout, Runner
from onebit_spark.engines.steps import (
    DistinctKeys,
    Grow,
    LocatedRows,
    MakeRows,
    Product,
    ResidualProduct,
    SumRows,
)

HELD_ROWS = 2**18  # rows of a table on the driver that are computed at a time, to bound wide intermediate results
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
class StoredRows:
    """A stored table of the start. It is computed when it is first read. The last one is only read as a posterior."""

    # computes the rows from those of ``tables``, unless ``table`` is there already
    make: Callable[..., Table] | None = None
    tables: tuple[StoredRows, ...] = ()  # tables of the same side
    table: Any = None  # the runner's table
    gram: Table | None = None  # its Gram matrix


@dataclass(frozen=True)
class Scaled:
    """D^{−½} table·right, as a stored table is multiplied by Y."""

    right: Table

    def __call__(self, counts: NDArray[Any], rows: Array) -> Array:
        return scaled_product(CountedRows(np.arange(len(counts)), counts, counts), rows, self.right)

    @property
    def layout(self) -> RowLayout:
        """Of what arrives."""
        return RowLayout("float32")


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

    def row_table(self, side: Side, make: Callable[..., Table], *tables: Any) -> Array | StoredRows:
        rows = self._runner.held_rows(side)
        if rows is None:
            return StoredRows(make, tables)
        return _by_parts(rows, lambda some, part: make(some, *(table[part] for table in tables)))

    def product(self, side: Side, table: Array | StoredRows, right: Table) -> Array | StoredRows:
        runner, other, width = self._runner, OTHER[side], right.shape[1]
        if isinstance(table, StoredRows):
            others, send = self._computed(other, table), Scaled(right)
        else:
            rows = runner.held_rows(other)
            assert rows is not None
            sent = _by_parts(rows, lambda some, part: scaled_product(some, table[part], right))
            others, send = runner.table(other, sent), None
        return self._multiplied(side, Product(width, self._measure(side)), [], others, send)

    def _measure(self, side: Side) -> Callable[[CountedRows, Table], Table] | None:
        """What a product also sums up: its Gram matrix, unless the driver gets its rows."""
        return gram if self._runner.held_rows(side) is None else None

    def _multiplied(
        self, side: Side, step: Product | ResidualProduct, own: list[Any], others: Any, send: Scaled | None = None
    ) -> Array | StoredRows:
        product, sums = self._runner.run(side, step, own, others, RowLayout("float32"), send)
        if step.measure is None:
            return self._runner.lines(product)
        return StoredRows(table=product, gram=np.sum(sums, axis=0).reshape(step.width, step.width))

    def total(self, side: Side, measure: Callable[[CountedRows, Table], Table], table: Array | StoredRows) -> Table:
        if not isinstance(table, StoredRows):
            rows = self._runner.held_rows(side)
            assert rows is not None
            held = [measure(rows.part(part), table[part].astype(np.float64, copy=False)) for part in _parts(len(table))]
            return np.asarray(sum(held[1:], held[0]))
        if measure is gram and table.gram is not None:
            return table.gram
        parts = self._runner.row_sums(side, SumRows(measure), [self._computed(side, table)])
        shape = [int(size) for size in parts[0][1 : 1 + int(parts[0][0])]]
        return np.sum([part[1 + len(shape) :] for part in parts], axis=0).reshape(shape)

    def posterior(self, side: Side, table: Array | StoredRows, finish: InitialPosterior, form: Form) -> Any:
        """The posterior that begins at these rows."""
        if not isinstance(table, StoredRows):
            return self._runner.table(side, finish(table))
        assert table.make is not None  # the last table of the start is not computed yet
        step, own = MakeRows(table.make, finish), [self._computed(side, part) for part in table.tables]
        return self._runner.run_rows(side, step, own, RowLayout.of(form))

    def _computed(self, side: Side, table: StoredRows) -> Any:
        if table.table is None:
            assert table.make is not None
            own = [self._computed(side, part) for part in table.tables]
            table.table = self._runner.run_rows(side, MakeRows(table.make), own, RowLayout("float64"))
        return table.table


class ResidualTables(StartTables):
    """The same with the residuals of a fit instead of the signs."""

    def __init__(self, runner: Runner[Any], posteriors: dict[Side, Any]) -> None:
        super().__init__(runner)
        self._posteriors = posteriors

    def product(self, side: Side, table: Array | StoredRows, right: Table) -> Array | StoredRows:
        other = OTHER[side]
        own = [self._posteriors[other], self._table(other, table)]
        others = self._runner.run_rows(other, LocatedRows(right), own, RowLayout("float32"))
        step = ResidualProduct(right.shape[1], self._measure(side))
        return self._multiplied(side, step, [self._posteriors[side]], others)

    def grown(self, side: Side, table: Array | StoredRows, deviation: float, form: Form) -> Any:
        """The posterior with these factors besides its own."""
        make: Callable[..., Table] = _as_it_is
        tables = [table]
        if isinstance(table, StoredRows):
            assert table.make is not None
            make, tables = table.make, list(table.tables)
        own = [self._posteriors[side], *(self._table(side, part) for part in tables)]
        return self._runner.run_rows(side, Grow(make, deviation), own, RowLayout.of(form))

    def _table(self, side: Side, table: Array | StoredRows) -> Any:
        return self._computed(side, table) if isinstance(table, StoredRows) else self._runner.table(side, table)


def _as_it_is(rows: CountedRows, table: Table) -> Table:
    return table


def _by_parts(rows: CountedRows, make: Callable[[CountedRows, slice], Array]) -> Array:
    """A table that is computed in parts."""
    n, (first, *others) = len(rows.numbers), _parts(len(rows.numbers))
    start = make(rows.part(first), first)
    if not others:
        return start
    table = np.empty((n, start.shape[1]), start.dtype)
    table[first] = start
    for part in others:
        table[part] = make(rows.part(part), part)
    return table


def _parts(n: int) -> list[slice]:
    return [slice(start, start + HELD_ROWS) for start in range(0, max(1, n), HELD_ROWS)]
