"""The start of a fit, and new factors, on engines with blocks of ratings: this process and Spark.

``core.spectral`` computes with tables of a ``SignMatrix``. ``StartTables`` makes them of works,
each only when it is read: what a row needs of other tables of its side is computed with it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core.blocks import Sums
from onebit_spark.core.losses import OTHER, SIDES, Loss, Side
from onebit_spark.core.posterior import FIT_VECTORS, FloatArray, Form, RowPosterior
from onebit_spark.core.row_sums import add_signed_rows
from onebit_spark.core.setup import form_of
from onebit_spark.core.spectral import (
    STARTS,
    CountedRows,
    Factors,
    Normals,
    TableSum,
    distinct_keys,
    gram,
    scaled_product,
    spectral_start,
)
from onebit_spark.core.work import (
    NO_SUMS,
    BlockWork,
    Matrix,
    Own,
    PlacedBlock,
    Result,
    Rows,
    RowWork,
    numbers_of,
    posterior_of,
    square_matrix,
)
from onebit_spark.engines.base import PosteriorTable
from onebit_spark.engines.blocks import Blocks, Table
from onebit_spark.engines.layout import RowLayout, Sending
from onebit_spark.kernels.jit import jit
from onebit_spark.settings import FitConfig

HELD_ROWS = 2**18  # rows of a table that are computed at a time, to bound memory
GROWN_MARGIN = 0.003  # mean of y·u of new factors' scores; ten times more disturbs the old ones

T = TypeVar("T", bound=PosteriorTable)
Lines = Mapping[str, NDArray[Any]]  # the rows of some tables of a side, by name


# ---- both posteriors ---------------------------------------------------------------------------


def start_posteriors(blocks: Blocks, config: FitConfig, loss: Loss) -> dict[Side, Table]:
    matrix = StartTables(blocks)
    tables = STARTS[config.start](matrix, config.factors, config.seed)
    finish = Finish(config, loss.start_std, loss.start_shrinkage)
    posteriors: dict[Side, Table] = {}
    for side, table in zip(SIDES, tables, strict=True):
        posteriors[side] = matrix.posterior(side, table, finish)
    return posteriors


def grow_posteriors(
    blocks: Blocks,
    posteriors: dict[Side, T],
    config: FitConfig,
    loss: Loss,
) -> dict[Side, T]:
    """Both posteriors with more factors: the leading directions of the residuals (MATH.md, §14)."""
    matrix = ResidualTables(blocks, posteriors)
    more = config.factors - posteriors["rows"].form.rank
    tables = spectral_start(matrix, more, config.seed, GROWN_MARGIN)
    grown: dict[Side, T] = {}
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


# ---- tables of the start -----------------------------------------------------------------------


@dataclass
class StartTable:
    """A table of the start: how its rows are made, until they are computed."""

    make: MakeRows
    sources: Mapping[str, StartTable] = field(default_factory=dict)  # tables of the same side
    computed: Table | None = None  # in the form of the engine
    gram: Matrix | None = None  # its Gram matrix


class StartTables:
    """A ``SignMatrix``."""

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks
        self.total_weight = blocks.total_weight

    def count(self, side: Side) -> int:
        return self._blocks.count(side)

    def distinct_keys(self, side: Side, enough: int) -> int:
        parts = self._blocks.total(side, FindKeys(enough), {})
        keys = np.concatenate([part.reshape(-1, 2) for part in parts])
        return len(np.unique(keys, axis=0))

    def draw(self, side: Side, normals: Normals) -> StartTable:
        return StartTable(DrawNormals(normals))

    def add(self, side: Side, table: StartTable, other: StartTable) -> StartTable:
        return StartTable(AddTables(), {"table": table, "other": other})

    def factors(self, side: Side, factors: Factors, table: StartTable) -> StartTable:
        return StartTable(ScaleFactors(factors), {"table": table})

    def product(self, side: Side, table: StartTable, right: Matrix) -> StartTable:
        """The product. Where the others are stored, their blocks multiply what they send."""
        other = OTHER[side]
        layout = RowLayout("float32")
        others = self.rows(other, table)
        send = None
        if self._blocks.is_held(other):
            others, _ = self._blocks.run(other, ScaleRows(right), {"table": others}, layout)
        else:
            send = Sending(partial(_scaled, right), layout)
        return self._multiplied(side, right.shape[1], {}, others, send)

    def _multiplied(
        self,
        side: Side,
        width: int,
        own: Mapping[str, Table],
        others: Table,
        send: Sending | None = None,
    ) -> StartTable:
        """The product. Where it is stored, the same job sums up its Gram matrix."""
        step = Multiply(width, measures_gram=not self._blocks.is_held(side))
        layout = RowLayout("float32")
        product, sums = self._blocks.run(side, step, own, layout, others, send)
        known = square_matrix(np.sum(sums, axis=0)) if step.measures_gram else None
        return StartTable(TakeTable(), {}, product, known)

    def total(self, side: Side, measure: TableSum, table: StartTable) -> Matrix:
        if measure is gram and table.gram is not None:
            return table.gram
        own = {"table": self.rows(side, table)}
        parts = self._blocks.total(side, SumTable(measure), own)
        dimensions = int(parts[0][0])
        shape = parts[0][1 : 1 + dimensions].astype(int)
        return np.sum(parts, axis=0)[1 + dimensions :].reshape(shape)

    def posterior(self, side: Side, table: StartTable, finish: Finish) -> Table:
        layout = RowLayout.of(form_of(finish.config))
        own = self._own(side, table)
        return self._blocks.run(side, FinishRows(table.make, finish), own, layout)[0]

    def _own(self, side: Side, table: StartTable) -> dict[str, Table]:
        """The tables of which the rows of this one are made."""
        if table.computed is not None:
            return {"table": table.computed}
        return {name: self.rows(side, each) for name, each in table.sources.items()}

    def rows(self, side: Side, table: StartTable) -> Table:
        """The rows of a table in the form of the engine, computed once."""
        if table.computed is None:
            own = self._own(side, table)
            table.computed, _ = self._blocks.run(side, table.make, own, RowLayout("float64"))
            table.make = TakeTable()
            table.sources = {}
        return table.computed


class ResidualTables(StartTables):
    """The same with the residuals of a fit instead of the signs."""

    def __init__(self, blocks: Blocks, posteriors: Mapping[Side, Table]) -> None:
        super().__init__(blocks)
        self._posteriors = posteriors

    def product(self, side: Side, table: StartTable, right: Matrix) -> StartTable:
        other = OTHER[side]
        own = {"rows": self._posteriors[other], "table": self.rows(other, table)}
        others, _ = self._blocks.run(other, LocateRows(right), own, RowLayout("float32"))
        rows = {"rows": self._posteriors[side]}
        return self._multiplied(side, right.shape[1], rows, others)

    def grow(self, side: Side, table: StartTable, std: float, form: Form) -> Table:
        """The posterior with these factors besides its own."""
        own = {"rows": self._posteriors[side], **self._own(side, table)}
        return self._blocks.run(side, GrowRows(table.make, std), own, RowLayout.of(form))[0]


def _scaled(right: Matrix, weights: Sums, rows: Rows) -> FloatArray:
    """D^{−½} table·right, as a stored table is multiplied by Y."""
    counted = CountedRows(np.arange(len(weights)), weights, weights)
    return scaled_product(counted, numbers_of(rows), right)


# ---- works on rows -----------------------------------------------------------------------------


def _parts(counted: CountedRows, own: Own) -> list[tuple[CountedRows, dict[str, NDArray[Any]]]]:
    """The rows, some at a time."""
    tables = {name: table for name, table in own.items() if isinstance(table, np.ndarray)}
    parts = []
    for start in range(0, max(1, len(counted.numbers)), HELD_ROWS):
        some = slice(start, start + HELD_ROWS)
        parts.append((counted.part(some), {name: table[some] for name, table in tables.items()}))
    return parts


class MakeRows(RowWork):
    """Makes a table of the start, row by row."""

    @abstractmethod
    def make(self, counted: CountedRows, own: Lines) -> FloatArray: ...

    def table(self, counted: CountedRows, own: Own) -> FloatArray:
        parts = [self.make(*part) for part in _parts(counted, own)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def on_rows(self, counted: CountedRows, own: Own) -> Result:
        return self.table(counted, own), NO_SUMS


@dataclass(frozen=True)
class DrawNormals(MakeRows):
    normals: Normals

    def make(self, counted: CountedRows, own: Lines) -> FloatArray:
        return self.normals(counted)


class AddTables(MakeRows):
    def make(self, counted: CountedRows, own: Lines) -> FloatArray:
        return np.asarray(own["table"] + own["other"])


class TakeTable(MakeRows):
    def make(self, counted: CountedRows, own: Lines) -> FloatArray:
        return own["table"]


@dataclass(frozen=True)
class ScaleFactors(MakeRows):
    factors: Factors

    def make(self, counted: CountedRows, own: Lines) -> FloatArray:
        return self.factors(counted, own["table"])


@dataclass(frozen=True)
class ScaleRows(MakeRows):
    """D^{−½} table·right."""

    right: Matrix

    def make(self, counted: CountedRows, own: Lines) -> FloatArray:
        return scaled_product(counted, own["table"], self.right)


@dataclass(frozen=True)
class LocateRows(RowWork):
    """The means of each row, and its D^{−½} table·right."""

    right: Matrix

    def on_rows(self, counted: CountedRows, own: Own) -> Result:
        scaled = scaled_product(counted, numbers_of(own["table"]), self.right)
        location = posterior_of(own["rows"]).location
        return np.hstack([location, scaled]).astype(np.float32), NO_SUMS


@dataclass(frozen=True)
class FinishRows(RowWork):
    """Makes a posterior of the last table of the start."""

    make: MakeRows
    finish: Finish

    def on_rows(self, counted: CountedRows, own: Own) -> Result:
        return self.finish(self.make.table(counted, own)), NO_SUMS


@dataclass(frozen=True)
class GrowRows(RowWork):
    """A posterior with the factors that ``make`` gives besides its own."""

    make: MakeRows
    std: float

    def on_rows(self, counted: CountedRows, own: Own) -> Result:
        factors = self.make.table(counted, own)
        return posterior_of(own["rows"]).with_factors(factors, self.std), NO_SUMS


@dataclass(frozen=True)
class SumTable(RowWork):
    """A sum over the rows of a table, sent as its shape and its numbers."""

    measure: TableSum

    def on_rows(self, counted: CountedRows, own: Own) -> Result:
        parts = []
        for some, tables in _parts(counted, own):
            table = tables["table"].astype(np.float64, copy=False)
            parts.append(self.measure(some, table))
        total = np.asarray(sum(parts[1:], parts[0]))
        return None, np.concatenate([[total.ndim], total.shape, total.ravel()])


@dataclass(frozen=True)
class FindKeys(RowWork):
    """The distinct pairs (ratings, positives) of the rows, at most ``enough`` of them."""

    enough: int

    def on_rows(self, counted: CountedRows, own: Own) -> Result:
        return None, distinct_keys(counted)[: self.enough].astype(np.float64).ravel()


# ---- the product with the signs or the residuals -----------------------------------------------


@dataclass(frozen=True)
class Multiply(BlockWork):
    """D^{−½} Σ_l w_l e_l z_j: the signs e_l = y_l times the other rows z = D^{−½} table·right.

    Given the posterior of the rows, e_l are the residuals y_l σ(−y_l u_l), and the other rows are
    those of ``LocateRows``.
    """

    width: int  # numbers in a row
    measures_gram: bool = False  # whether the sums are the Gram matrix of the product

    def on_block(self, block: PlacedBlock, own: Own, others: Rows | None) -> Result:
        assert isinstance(others, np.ndarray)
        counted = block.counted_rows
        ratings = block.ratings
        posterior = posterior_of(own["rows"]) if own else None
        product = np.empty((len(counted.numbers), self.width), np.float32)
        scale = counted.scale
        means = 0 if posterior is None else posterior.dimension
        table = others.reshape(-1, self.width + means)

        def multiply(lo: int, hi: int) -> None:
            arrays = ratings.row_pointers, ratings.codes, ratings.weights, lo, hi
            if posterior is None:
                _signed_sums(*arrays, table, product)
            else:
                fixed = int(posterior.has_intercept)
                _residual_sums(*arrays, posterior.location, fixed, table, product)
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
def _residual_sums(  # type: ignore[no-untyped-def]
    pointers, codes, weights, first, last, location, fixed, table, out
):
    """out_i = Σ_{l∈Ω_i} w_l y_l σ(−y_l u_l) z_j, where a row of the table is [d_j, R_j, z_j] (or
    without d_j).
    """
    size = location.shape[1]
    width = out.shape[1]
    sums = np.empty(width)
    for i in range(first, last):
        sums[:] = 0.0
        for l in range(pointers[i], pointers[i + 1]):
            j = codes[l] >> 1
            sign = 2.0 * (codes[l] & 1) - 1.0
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
