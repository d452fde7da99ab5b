"""The start of a fit, and new factors, on engines with blocks of ratings: this process and Spark.

``core.spectral`` computes with tables of a ``SignMatrix``. ``StartTables`` keeps them as arrays
where the driver holds the tables of a side, and as ``StoredRows`` where they are on the cluster.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from onebit_spark.compiled import jit
from onebit_spark.core.losses import OTHER, SIDES, Loss, Side
from onebit_spark.core.posterior import FIT_VECTORS, FloatArray, Form, RowPosterior
from onebit_spark.core.row_sums import add_signed_rows
from onebit_spark.core.setup import form_of
from onebit_spark.core.spectral import (
    STARTS,
    CountedRows,
    Factors,
    Normals,
    Table,
    TableSum,
    distinct_keys,
    gram,
    scaled_product,
    spectral_start,
)
from onebit_spark.core.work import PlacedBlock, Sums
from onebit_spark.engines.layout import RowLayout, Rows, Sending
from onebit_spark.settings import FitConfig

HELD_ROWS = 2**18  # rows of a table on the driver that are computed at a time, to bound memory
GROWN_MARGIN = 0.003  # mean of y·u of new factors' scores; ten times more disturbs the old ones

NO_SUMS: Sums = np.empty(0)
Own = Mapping[str, Rows]  # the rows of a block in the tables of its side, by name
Result = tuple[Rows | None, Sums]  # new rows, and a vector that is summed


class BlockStep(Protocol):
    """A step on the ratings of a block. ``others`` are the rows of its columns."""

    def on_block(self, block: PlacedBlock, own: Own, others: Any) -> Result: ...


class RowStep(ABC):
    """A step on the rows of a block, which reads no rating."""

    @abstractmethod
    def on_rows(self, counted: CountedRows, own: Own) -> Result: ...


class StartEngine(Protocol):
    """What the start needs of an engine. A table (Any) is in the form of the engine."""

    @property
    def total_weight(self) -> float: ...

    def count(self, side: Side) -> int: ...

    def held_rows(self, side: Side) -> CountedRows | None:
        """The rows; None if the tables of this side are not in this process."""

    def table(self, side: Side, rows: Any) -> Any: ...

    def rows_here(self, table: Any) -> Any: ...

    def run_step(
        self,
        side: Side,
        step: BlockStep,
        own: Mapping[str, Any],
        others: Any,
        layout: RowLayout,
        send: Sending | None = None,
    ) -> tuple[Any, list[Sums]]:
        """The table of a step, laid out so, and its vectors. ``send``: what stored others send."""

    def run_row_step(
        self,
        side: Side,
        step: RowStep,
        own: Mapping[str, Any],
        layout: RowLayout,
    ) -> Any: ...

    def sum_row_step(self, side: Side, step: RowStep, own: Mapping[str, Any]) -> list[Sums]: ...


# ---- both posteriors -----------------------------------------------------------------------------


def start_posteriors(engine: StartEngine, config: FitConfig, loss: Loss) -> dict[Side, Any]:
    matrix = StartTables(engine)
    tables = STARTS[config.start](matrix, config.factors, config.seed)
    finish = Finish(config, loss.start_std, loss.start_shrinkage)
    posteriors: dict[Side, Any] = {}
    for side, table in zip(SIDES, tables, strict=True):
        posteriors[side] = matrix.posterior(side, table, finish)
    return posteriors


def grow_posteriors(
    engine: StartEngine,
    posteriors: dict[Side, Any],
    config: FitConfig,
    loss: Loss,
) -> dict[Side, Any]:
    """Both posteriors with more factors: the leading directions of the residuals (MATH.md, §14)."""
    matrix = ResidualTables(engine, posteriors)
    more = config.factors - posteriors["rows"].form.rank
    tables = spectral_start(matrix, more, config.seed, GROWN_MARGIN)
    grown: dict[Side, Any] = {}
    for side, table in zip(SIDES, tables, strict=True):
        grown[side] = matrix.grow(side, table, loss.start_std, form_of(config))
    return grown


@dataclass(frozen=True)
class Finish:
    """The posterior at some factors: intercepts at 0, one deviation for all coordinates."""

    config: FitConfig
    std: float
    shrinkage: float

    def __call__(self, factors: FloatArray) -> RowPosterior:
        config = self.config
        if config.intercepts:
            factors = np.insert(factors * self.shrinkage, 0, 0.0, axis=1)
        location = factors.astype(config.precision)
        kind = form_of(config).kind
        posterior = RowPosterior.isotropic(location, self.std, kind, config.intercepts)
        return posterior.with_implicit(FIT_VECTORS) if config.implicit_features else posterior


# ---- tables of the start -------------------------------------------------------------------------


@dataclass
class StoredRows:
    """A stored table of the start. It is computed when it is first read.

    The last one is only read as a posterior.
    """

    # computes the rows from those of ``sources``, unless ``table`` is there already
    make: MakeRows | None = None
    sources: Mapping[str, StoredRows] = field(default_factory=dict)  # tables of the same side
    table: Any = None  # the engine's table
    gram: Table | None = None  # its Gram matrix


StartRows = FloatArray | StoredRows


class StartTables:
    """A ``SignMatrix``. Where the driver holds the tables of a side, they are arrays."""

    def __init__(self, engine: StartEngine) -> None:
        self._engine = engine
        self.total_weight = engine.total_weight

    def count(self, side: Side) -> int:
        return self._engine.count(side)

    def distinct_keys(self, side: Side, enough: int) -> int:
        rows = self._engine.held_rows(side)
        if rows is not None:
            return len(distinct_keys(rows))
        parts = self._engine.sum_row_step(side, FindKeys(enough), {})
        keys = np.concatenate([part.reshape(-1, 2) for part in parts])
        return len(np.unique(keys, axis=0))

    def draw(self, side: Side, normals: Normals) -> StartRows:
        return self._made(side, DrawNormals(normals), {})

    def add(self, side: Side, table: StartRows, other: StartRows) -> StartRows:
        return self._made(side, AddTables(), {"table": table, "other": other})

    def factors(self, side: Side, factors: Factors, table: StartRows) -> StartRows:
        return self._made(side, ScaleFactors(factors), {"table": table})

    def _made(self, side: Side, make: MakeRows, sources: Mapping[str, StartRows]) -> StartRows:
        rows = self._engine.held_rows(side)
        stored = {name: each for name, each in sources.items() if isinstance(each, StoredRows)}
        if rows is None:
            return StoredRows(make, stored)
        held = {name: each for name, each in sources.items() if isinstance(each, np.ndarray)}

        def part(some: CountedRows, which: slice) -> FloatArray:
            return make.make(some, {name: table[which] for name, table in held.items()})

        return _by_parts(rows, part)

    def product(self, side: Side, table: StartRows, right: Table) -> StartRows:
        other = OTHER[side]
        send = None
        if isinstance(table, StoredRows):
            others = self._computed(other, table)
            send = Sending(partial(_scaled, right), RowLayout("float32"))
        else:
            rows = self._engine.held_rows(other)
            assert rows is not None
            held = table

            def part(some: CountedRows, which: slice) -> FloatArray:
                return scaled_product(some, held[which], right)

            others = self._engine.table(other, _by_parts(rows, part))
        return self._multiplied(side, right.shape[1], {}, others, send)

    def _multiplied(
        self,
        side: Side,
        width: int,
        own: Mapping[str, Any],
        others: Any,
        send: Sending | None = None,
    ) -> StartRows:
        """The product. Its Gram matrix is summed up as well, unless the driver gets its rows."""
        held = self._engine.held_rows(side) is not None
        step = Multiply(width, measures_gram=not held)
        layout = RowLayout("float32")
        product, sums = self._engine.run_step(side, step, own, others, layout, send)
        if held:
            rows: FloatArray = self._engine.rows_here(product)
            return rows
        return StoredRows(table=product, gram=np.sum(sums, axis=0).reshape(width, width))

    def total(self, side: Side, measure: TableSum, table: StartRows) -> Table:
        if not isinstance(table, StoredRows):
            rows = self._engine.held_rows(side)
            assert rows is not None
            held = []
            for part in _parts(len(table)):
                lines = table[part].astype(np.float64, copy=False)
                held.append(measure(rows.part(part), lines))
            return np.asarray(sum(held[1:], held[0]))
        if measure is gram and table.gram is not None:
            return table.gram
        own = {"table": self._computed(side, table)}
        parts = self._engine.sum_row_step(side, SumTable(measure), own)
        dimensions = int(parts[0][0])
        shape = [int(size) for size in parts[0][1 : 1 + dimensions]]
        total = np.sum([part[1 + dimensions :] for part in parts], axis=0)
        return np.asarray(total).reshape(shape)

    def posterior(self, side: Side, table: StartRows, finish: Finish) -> Any:
        if not isinstance(table, StoredRows):
            return self._engine.table(side, finish(table))
        assert table.make is not None  # the last table of the start is not computed yet
        own = self._sources(side, table)
        layout = RowLayout.of(form_of(finish.config))
        return self._engine.run_row_step(side, FinishRows(table.make, finish), own, layout)

    def _computed(self, side: Side, table: StoredRows) -> Any:
        if table.table is None:
            assert table.make is not None
            own = self._sources(side, table)
            layout = RowLayout("float64")
            table.table = self._engine.run_row_step(side, table.make, own, layout)
        return table.table

    def _sources(self, side: Side, table: StoredRows) -> dict[str, Any]:
        return {name: self._computed(side, each) for name, each in table.sources.items()}


class ResidualTables(StartTables):
    """The same with the residuals of a fit instead of the signs."""

    def __init__(self, engine: StartEngine, posteriors: dict[Side, Any]) -> None:
        super().__init__(engine)
        self._posteriors = posteriors

    def product(self, side: Side, table: StartRows, right: Table) -> StartRows:
        other = OTHER[side]
        own = {"posterior": self._posteriors[other], "table": self._table(other, table)}
        layout = RowLayout("float32")
        others = self._engine.run_row_step(other, LocateRows(right), own, layout)
        rows = {"posterior": self._posteriors[side]}
        return self._multiplied(side, right.shape[1], rows, others)

    def grow(self, side: Side, table: StartRows, std: float, form: Form) -> Any:
        """The posterior with these factors besides its own."""
        own = {"posterior": self._posteriors[side]}
        make: MakeRows = TakeTable()
        if isinstance(table, StoredRows) and table.make is not None:
            make = table.make
            own |= self._sources(side, table)
        else:
            own["table"] = self._table(side, table)
        return self._engine.run_row_step(side, GrowRows(make, std), own, RowLayout.of(form))

    def _table(self, side: Side, table: StartRows) -> Any:
        if isinstance(table, StoredRows):
            return self._computed(side, table)
        return self._engine.table(side, table)


def _by_parts(
    rows: CountedRows,
    make: Callable[[CountedRows, slice], FloatArray],
) -> FloatArray:
    n = len(rows.numbers)
    first, *others = _parts(n)
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


def _scaled(right: Table, weights: NDArray[Any], rows: FloatArray) -> FloatArray:
    """D^{−½} table·right, as a stored table is multiplied by Y."""
    counted = CountedRows(np.arange(len(weights)), weights, weights)
    return scaled_product(counted, rows, right)


# ---- steps on rows -------------------------------------------------------------------------------


class MakeRows(RowStep):
    """Makes a table of the start, row by row."""

    @abstractmethod
    def make(self, counted: CountedRows, own: Mapping[str, Any]) -> FloatArray: ...

    def on_rows(self, counted: CountedRows, own: Own) -> Result:
        return self.make(counted, own), NO_SUMS


@dataclass(frozen=True)
class DrawNormals(MakeRows):
    normals: Normals

    def make(self, counted: CountedRows, own: Mapping[str, Any]) -> FloatArray:
        return self.normals(counted)


@dataclass(frozen=True)
class AddTables(MakeRows):
    def make(self, counted: CountedRows, own: Mapping[str, Any]) -> FloatArray:
        return np.asarray(own["table"] + own["other"])


@dataclass(frozen=True)
class ScaleFactors(MakeRows):
    factors: Factors

    def make(self, counted: CountedRows, own: Mapping[str, Any]) -> FloatArray:
        return self.factors(counted, own["table"])


@dataclass(frozen=True)
class TakeTable(MakeRows):
    def make(self, counted: CountedRows, own: Mapping[str, Any]) -> FloatArray:
        return np.asarray(own["table"])


@dataclass(frozen=True)
class FinishRows(RowStep):
    """Makes a posterior of the last table of the start."""

    make: MakeRows
    finish: Finish

    def on_rows(self, counted: CountedRows, own: Own) -> Result:
        return self.finish(self.make.make(counted, own)), NO_SUMS


@dataclass(frozen=True)
class GrowRows(RowStep):
    """A posterior with the factors that ``make`` gives besides its own."""

    make: MakeRows
    std: float

    def on_rows(self, counted: CountedRows, own: Own) -> Result:
        posterior = own["posterior"]
        assert isinstance(posterior, RowPosterior)
        return posterior.with_factors(self.make.make(counted, own), self.std), NO_SUMS


@dataclass(frozen=True)
class LocateRows(RowStep):
    """The means of each row, and its D^{−½} table·right."""

    right: Table

    def on_rows(self, counted: CountedRows, own: Own) -> Result:
        posterior = own["posterior"]
        table = own["table"]
        assert isinstance(posterior, RowPosterior)
        assert isinstance(table, np.ndarray)
        scaled = scaled_product(counted, table, self.right)
        return np.hstack([posterior.location, scaled]).astype(np.float32), NO_SUMS


@dataclass(frozen=True)
class SumTable(RowStep):
    """A sum over the rows of a table, sent as its shape and its numbers."""

    measure: TableSum

    def on_rows(self, counted: CountedRows, own: Own) -> Result:
        table = own["table"]
        assert isinstance(table, np.ndarray)
        total = self.measure(counted, table.astype(np.float64, copy=False))
        return None, np.concatenate([[total.ndim], total.shape, total.ravel()])


@dataclass(frozen=True)
class FindKeys(RowStep):
    """The distinct pairs (ratings, positives) of the rows, at most ``enough`` of them."""

    enough: int

    def on_rows(self, counted: CountedRows, own: Own) -> Result:
        return None, distinct_keys(counted)[: self.enough].astype(np.float64).ravel()


# ---- the product with the signs or the residuals -------------------------------------------------


@dataclass(frozen=True)
class Multiply:
    """D^{−½} Σ_l w_l e_l z_j: the signs e_l = y_l times the other rows z = D^{−½} table·right.

    Given the posterior of the rows, e_l are the residuals y_l σ(−y_l u_l), and the other rows are
    those of ``LocateRows``.
    """

    width: int  # numbers in a row
    measures_gram: bool = False  # whether the sums are the Gram matrix of the product

    def on_block(self, block: PlacedBlock, own: Own, others: FloatArray) -> Result:
        counted = block.counted_rows
        ratings = block.ratings
        posterior = own.get("posterior")
        product = np.empty((len(counted.numbers), self.width), np.float32)
        scale = counted.scale
        means = posterior.dimension if isinstance(posterior, RowPosterior) else 0
        table = others.reshape(-1, self.width + means)

        def multiply(lo: int, hi: int) -> None:
            arrays = ratings.row_pointers, ratings.codes, ratings.weights, lo, hi
            if isinstance(posterior, RowPosterior):
                fixed = int(posterior.has_intercept)
                _residual_sums(*arrays, posterior.location, fixed, table, product)
            else:
                _signed_sums(*arrays, table, product)
            product[lo:hi] *= scale[lo:hi]

        block.over_rows(multiply)
        if not self.measures_gram:
            return product, NO_SUMS
        return product, gram(counted, product.astype(np.float64)).ravel()


@jit
def _signed_sums(pointers, codes, weights, first, last, table, out):  # type: ignore[no-untyped-def]
    """out_i = Σ_{l∈Ω_i} w_l y_l table_j, in double precision."""
    sums = np.empty(out.shape[1])
    for i in range(first, last):
        sums[:] = 0.0
        add_signed_rows(table, codes, weights, pointers[i], pointers[i + 1], sums, 0, True)
        for k in range(len(sums)):
            out[i, k] = sums[k]


@jit
def _residual_sums(pointers, codes, weights, first, last, location, fixed, table, out):  # type: ignore[no-untyped-def]
    """out_i = Σ_{l∈Ω_i} w_l y_l σ(−y_l u_l) z_j, where a row of the table is [d_j, R_j, z_j] (or without d_j)."""
    size, width = location.shape[1], out.shape[1]
    sums = np.empty(width)
    for i in range(first, last):
        sums[:] = 0.0
        for l in range(pointers[i], pointers[i + 1]):
            j, sign = codes[l] >> 1, 2.0 * (codes[l] & 1) - 1.0
            score = np.float64(location[i, 0]) + table[j, 0] if fixed else 0.0
            for k in range(fixed, size):
                score += np.float64(location[i, k]) * table[j, k]
            residual = sign / (1.0 + np.exp(sign * score))
            if weights is not None:
                residual *= weights[l]
            for k in range(width):
                sums[k] += residual * table[j, size + k]
        for k in range(width):
            out[i, k] = sums[k]
