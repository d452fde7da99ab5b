"""ThreadRunner: the steps on the cores of this machine, without Spark. All ratings are one block. The start of a fit.

The runners of other exchanges have the same methods. ``layout`` is that of the new table, and ``send`` is what stored
tables of the other side send: both are for Spark. Sums are in the order of the blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import starmap
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core.blocks import RatingBlock, Repeats, repeats_of
from onebit_spark.core.compiled import jit
from onebit_spark.core.config import FitConfig, available_cores
from onebit_spark.core.engine import (
    NO_SUMS,
    Engine,
    PlacedBlock,
    Result,
    RowLayout,
    Rows,
    RowStep,
    RowTransform,
    Sending,
    Step,
    Sums,
)
from onebit_spark.core.losses import OTHER, SIDES, Loss, Side
from onebit_spark.core.losses.row_sums import add_signed_rows
from onebit_spark.core.posterior import FIT_VECTORS, Form, RowPosterior
from onebit_spark.core.randomness import Split
from onebit_spark.core.spectral import (
    STARTS,
    CountedRows,
    StartTable,
    Table,
    distinct_keys,
    gram,
    scaled_product,
    spectral_start,
)

Part = TypeVar("Part")


class ThreadRunner:
    """Both orientations of the ratings (8 bytes per rating, 16 with weights), in memory. A table is an array of rows.

    Compiled kernels release the interpreter lock, so plain threads share the work: ranges of rows, cut by the ratings
    alone, whose sums are added in order. Any number of threads gives the same bits.
    """

    def __init__(
        self, ratings: RatingBlock, threads: int | None = None, numbers: dict[Side, NDArray[np.int64]] | None = None
    ) -> None:
        self.ratings: dict[Side, RatingBlock] = {"rows": ratings, "cols": ratings.transpose()}
        self.n_ratings = ratings.n_ratings
        self.weighted = ratings.weights is not None
        self.total_weight = float(ratings.row_weights.sum())
        self.threads = threads or available_cores()
        self._pool: ThreadPoolExecutor | None = None
        self._left_out: dict[Side, dict[Split, RatingBlock]] = {side: {} for side in SIDES}
        self.numbers = numbers or {side: np.arange(block.n_rows) for side, block in self.ratings.items()}

    def _block(self, side: Side) -> PlacedBlock:
        """A new object for every step: one that is kept would form a reference cycle with this runner."""
        ratings, numbers, left_out = self.ratings[side], self.numbers, self._left_out[side]
        return PlacedBlock(0, numbers[side], numbers[OTHER[side]], ratings, 0, self._over_ranges, left_out)

    @contextmanager
    def running(self) -> Iterator[Self]:
        """Keep the threads alive for the length of a fit."""
        with ThreadPoolExecutor(self.threads) as self._pool:
            yield self
        self._pool = None

    def count(self, side: Side) -> int:
        """Number of rows with at least one rating."""
        return int(np.count_nonzero(self.counts(side)))

    def n_rows(self, side: Side) -> int:
        return self.ratings[side].n_rows

    def counts(self, side: Side) -> NDArray[np.int64]:
        """Number of ratings of every row."""
        return self.ratings[side].row_counts

    @property
    def positives(self) -> int:
        return int(self.ratings["rows"].row_positives.sum())

    @property
    def repeats(self) -> Repeats:
        """Cells that were rated more than once."""
        return repeats_of(self.ratings["rows"])

    def held_rows(self, side: Side) -> CountedRows:
        """The rows; None if the tables of this side are not in this process."""
        return self._block(side).counted_rows

    def run(
        self, side: Side, step: Step, tables: Sequence[Any], others: Any, layout: RowLayout, send: Sending | None = None
    ) -> tuple[Any, list[Sums]]:
        """The table that a step computes from tables of the side and one of the other side, and its sums."""
        rows, sums = step(self._block(side), list(tables), others)
        return rows, [sums]

    def sums(self, side: Side, step: Step, tables: Sequence[Any], others: Any) -> list[Sums]:
        """The sums of a step alone."""
        return [step(self._block(side), list(tables), others)[1]]

    def run_rows(self, side: Side, step: RowStep, tables: Sequence[Any], layout: RowLayout) -> Any:
        """The table that a step computes without reading ratings."""
        return step(self.held_rows(side), list(tables))[0]

    def row_sums(self, side: Side, step: RowStep, tables: Sequence[Any] = ()) -> list[Sums]:
        """The sums of such a step alone."""
        return [step(self.held_rows(side), list(tables))[1]]

    def table(self, side: Side, rows: Rows) -> Any:
        """A table of rows in this process."""
        return rows

    def taken(self, side: Side, table: RowPosterior, numbers: NDArray[np.int64]) -> RowPosterior:
        """Some rows of a table, by their numbers."""
        return table.take(np.searchsorted(self.numbers[side], numbers))

    def placed(self, side: Side, rows: RowPosterior, numbers: NDArray[np.int64], prior: RowPosterior) -> Any:
        """The table with some of its rows, given by their numbers, and the one row of ``prior`` elsewhere."""
        return rows.among(prior, self.n_rows(side), np.searchsorted(self.numbers[side], numbers))

    def lines(self, table: Rows) -> Any:
        """The rows of a table in this process."""
        return table

    def mapped(self, side: Side, table: RowPosterior, by: RowTransform) -> RowPosterior:
        """The table with every row mapped: here in place with all threads, on Spark when a task reads it."""
        self._over_ranges(partial(by.apply_to, table), self.ratings[side].even_ranges)
        return table

    def start(self, config: FitConfig, loss: Loss) -> dict[Side, Any]:
        return start_posteriors(self, config, loss)

    def grown(self, posteriors: dict[Side, Any], config: FitConfig, loss: Loss) -> dict[Side, Any]:
        """Both posteriors with more factors, as many as ``config`` says."""
        return grown_posteriors(self, posteriors, config, loss)

    def data_term(self, summed: float) -> float:
        """The data term of the objective after a half step with ``want_data``, whose sums contain ``summed``."""
        return summed

    def shortage(self, config: FitConfig) -> str | None:
        """Why there is no room for a fit with these settings; None if there is, or if that is not known."""
        return None

    @contextmanager
    def restricted(self, split: Split) -> Iterator[ThreadRunner]:
        """A runner on the ratings that the split chooses. Both share tables, unless it is a slice: see ``placed``."""
        rows, numbers = self._block("rows"), self.numbers
        part = split.part_of(rows.ratings, rows.rows, rows.columns)
        if split.by in SIDES:
            part, *kept = part.compacted()
            numbers = {side: numbers[side][index] for side, index in zip(SIDES, kept, strict=True)}
        with ThreadRunner(part, self.threads, numbers).running() as runner:
            yield runner

    def described(self, what: str) -> AbstractContextManager[None]:
        """Name the work, for Spark's UI."""
        return nullcontext()

    def _over_ranges(self, work: Callable[[int, int], Part], ranges: list[tuple[int, int]]) -> list[Part]:
        """``work(lo, hi)`` for every range, results in their order."""
        if self._pool is None or self.threads == 1 or len(ranges) == 1:
            return list(starmap(work, ranges))
        return list(self._pool.map(work, *zip(*ranges, strict=True)))


def local_engine(ratings: RatingBlock, threads: int | None = None) -> Engine[Any]:
    return Engine(ThreadRunner(ratings, threads))


# ---- the start of a fit on any runner: the tables of ``core.spectral`` on the tables of a runner ---------------------

HELD_ROWS = 2**18  # rows of a table on the driver that are computed at a time, to bound wide intermediate results
GROWN_MARGIN = 0.003  # mean of y·u of the scores that new factors begin with; ten times more disturbs the old ones
Array = NDArray[np.floating]
Finish = Callable[[Array], RowPosterior]


def start_posteriors(runner: Any, config: FitConfig, loss: Loss) -> dict[Side, Any]:
    matrix, finish = StartTables(runner), partial(_initial_posterior, config, loss)
    tables = STARTS[config.start](matrix, config.factors, config.seed)
    return {side: matrix.posterior(side, table, finish, config.form) for side, table in zip(SIDES, tables, strict=True)}


def grown_posteriors(runner: Any, posteriors: dict[Side, Any], config: FitConfig, loss: Loss) -> dict[Side, Any]:
    """Both posteriors with more factors: the leading directions of the residuals (docs/MATH.md, §14)."""
    matrix = ResidualTables(runner, posteriors)
    more = config.factors - posteriors["rows"].form.rank
    tables = spectral_start(matrix, more, config.seed, GROWN_MARGIN)
    return {
        side: matrix.grown(side, table, loss.start_std, config.form) for side, table in zip(SIDES, tables, strict=True)
    }


def _initial_posterior(config: FitConfig, loss: Loss, factors: Array) -> RowPosterior:
    """The posterior at these factors, with intercepts at 0 and one standard deviation for all coordinates."""
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


def _scaled(right: Table, weights: NDArray[Any], rows: Array) -> Array:
    """D^{−½} table·right, as a stored table is multiplied by Y."""
    return scaled_product(CountedRows(np.arange(len(weights)), weights, weights), rows, right)


class StartTables:
    """A ``SignMatrix`` (``core.spectral``). Where the driver holds the tables of a side, they are arrays."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self.total_weight = runner.total_weight

    def count(self, side: Side) -> int:
        return self._runner.count(side)

    def distinct_keys(self, side: Side, enough: int) -> int:
        rows = self._runner.held_rows(side)
        if rows is not None:
            return len(distinct_keys(rows))
        parts = self._runner.row_sums(side, partial(_distinct_keys, enough))
        return len(np.unique(np.concatenate([part.reshape(-1, 2) for part in parts]), axis=0))

    def row_table(self, side: Side, make: Callable[..., Table], *tables: Any) -> Array | StoredRows:
        rows = self._runner.held_rows(side)
        if rows is None:
            return StoredRows(make, tables)
        return _by_parts(rows, lambda some, part: make(some, *(table[part] for table in tables)))

    def product(self, side: Side, table: Array | StoredRows, right: Table) -> Array | StoredRows:
        runner, other, width = self._runner, OTHER[side], right.shape[1]
        if isinstance(table, StoredRows):
            others, send = self._computed(other, table), Sending(partial(_scaled, right), RowLayout("float32"))
        else:
            rows = runner.held_rows(other)
            assert rows is not None
            sent = _by_parts(rows, lambda some, part: scaled_product(some, table[part], right))
            others, send = runner.table(other, sent), None
        return self._multiplied(side, width, [], others, send)

    def _multiplied(
        self, side: Side, width: int, tables: list[Any], others: Any, send: Sending | None = None
    ) -> Array | StoredRows:
        """The product. Its Gram matrix is summed up as well, unless the driver gets its rows."""
        held = self._runner.held_rows(side) is not None
        step = Product(width, measures_gram=not held)
        product, sums = self._runner.run(side, step, tables, others, RowLayout("float32"), send)
        if held:
            return self._runner.lines(product)
        return StoredRows(table=product, gram=np.sum(sums, axis=0).reshape(width, width))

    def total(self, side: Side, measure: Callable[[CountedRows, Table], Table], table: Array | StoredRows) -> Table:
        if not isinstance(table, StoredRows):
            rows = self._runner.held_rows(side)
            assert rows is not None
            held = [measure(rows.part(part), table[part].astype(np.float64, copy=False)) for part in _parts(len(table))]
            return np.asarray(sum(held[1:], held[0]))
        if measure is gram and table.gram is not None:
            return table.gram
        parts = self._runner.row_sums(side, partial(_sum_rows, measure), [self._computed(side, table)])
        shape = [int(size) for size in parts[0][1 : 1 + int(parts[0][0])]]
        return np.sum([part[1 + len(shape) :] for part in parts], axis=0).reshape(shape)

    def posterior(self, side: Side, table: Array | StoredRows, finish: Finish, form: Form) -> Any:
        if not isinstance(table, StoredRows):
            return self._runner.table(side, finish(table))
        assert table.make is not None  # the last table of the start is not computed yet
        tables = [self._computed(side, part) for part in table.tables]
        return self._runner.run_rows(side, partial(_make_rows, table.make, finish), tables, RowLayout.of(form))

    def _computed(self, side: Side, table: StoredRows) -> Any:
        if table.table is None:
            assert table.make is not None
            step, tables = partial(_make_rows, table.make, None), [self._computed(side, part) for part in table.tables]
            table.table = self._runner.run_rows(side, step, tables, RowLayout("float64"))
        return table.table


class ResidualTables(StartTables):
    """The same with the residuals of a fit instead of the signs."""

    def __init__(self, runner: Any, posteriors: dict[Side, Any]) -> None:
        super().__init__(runner)
        self._posteriors = posteriors

    def product(self, side: Side, table: Array | StoredRows, right: Table) -> Array | StoredRows:
        other = OTHER[side]
        tables = [self._posteriors[other], self._table(other, table)]
        others = self._runner.run_rows(other, partial(_located_rows, right), tables, RowLayout("float32"))
        return self._multiplied(side, right.shape[1], [self._posteriors[side]], others)

    def grown(self, side: Side, table: Array | StoredRows, deviation: float, form: Form) -> Any:
        """The posterior with these factors besides its own."""
        make, parts = (table.make, table.tables) if isinstance(table, StoredRows) else (None, (table,))
        tables = [self._posteriors[side], *(self._table(side, part) for part in parts)]
        return self._runner.run_rows(side, partial(_grow, make, deviation), tables, RowLayout.of(form))

    def _table(self, side: Side, table: Array | StoredRows) -> Any:
        return self._computed(side, table) if isinstance(table, StoredRows) else self._runner.table(side, table)


def _by_parts(rows: CountedRows, make: Callable[[CountedRows, slice], Array]) -> Array:
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


# ---- steps on a block ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Product:
    """D^{−½} Σ_l w_l e_l z_j: the signs e_l = y_l times the other rows z, which are D^{−½} table·right.

    Given the posterior of the rows, e_l are the residuals y_l σ(−y_l u_l), and the other rows are ``_located_rows``.
    """

    width: int  # numbers in a row
    measures_gram: bool = False  # whether the sums are the Gram matrix of the product

    def __call__(self, block: PlacedBlock, tables: list[RowPosterior], others: StartTable) -> Result:
        rows, ratings = block.counted_rows, block.ratings
        product, scale = np.empty((len(rows.numbers), self.width), np.float32), rows.scale
        table = others.reshape(-1, self.width + sum(posterior.dimension for posterior in tables))

        def work(lo: int, hi: int) -> None:
            arrays = ratings.row_pointers, ratings.codes, ratings.weights, lo, hi
            if tables:
                _residual_sums(*arrays, tables[0].location, int(tables[0].has_intercept), table, product)
            else:
                _signed_sums(*arrays, table, product)
            product[lo:hi] *= scale[lo:hi]

        block.over_rows(work)
        return product, gram(rows, product.astype(np.float64)).ravel() if self.measures_gram else NO_SUMS


def _located_rows(right: Table, rows: CountedRows, tables: list[Any]) -> Result:
    """The means of each row, and its D^{−½} table·right."""
    posterior, table = tables
    return np.hstack([posterior.location, scaled_product(rows, table, right)]).astype(np.float32), NO_SUMS


def _grow(make: Callable[..., Table] | None, deviation: float, rows: CountedRows, tables: list[Any]) -> Result:
    """A posterior with more factors: the second table, or what ``make`` computes from the other tables."""
    posterior, *parts = tables
    return posterior.with_factors(parts[0] if make is None else make(rows, *parts), deviation), NO_SUMS


def _make_rows(make: Callable[..., Table], finish: Finish | None, rows: CountedRows, tables: list[Table]) -> Result:
    """A table of the start, row by row; ``finish`` makes a posterior of it."""
    table = make(rows, *tables)
    return table if finish is None else finish(table), NO_SUMS


def _sum_rows(measure: Callable[[CountedRows, Table], Table], rows: CountedRows, tables: list[Table]) -> Result:
    """A sum over the rows of a table, sent as its shape and its numbers."""
    total = measure(rows, tables[0].astype(np.float64, copy=False))
    return None, np.concatenate([[total.ndim], total.shape, total.ravel()])


def _distinct_keys(enough: int, rows: CountedRows, tables: list[Table]) -> Result:
    """The distinct pairs (ratings, positives) of the rows, at most ``enough`` of them."""
    return None, distinct_keys(rows)[:enough].astype(np.float64).ravel()


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
