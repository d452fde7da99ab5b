"""Validation: the loss of held-out ratings after every iteration of a fit, and the best state so far.

The loss under the posteriors of an engine is measured where these are: on the driver, by broadcast, or by joins.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark import Broadcast
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType

from onebit_spark.core.engine import Engine
from onebit_spark.core.factor_tables import newcomer_rows, prior_row
from onebit_spark.core.fitted_features import IdLines
from onebit_spark.core.hyper_posterior import HierarchicalPrior, HyperPosterior
from onebit_spark.core.id_index import IdIndex, one_array
from onebit_spark.core.losses import SIDES, Side
from onebit_spark.core.posterior import DoubleArray, FloatArray, Form, RowPosterior
from onebit_spark.core.prediction import held_out_sums
from onebit_spark.core.solver import Iteration, Outcome
from onebit_spark.engines.block_frames import Batches
from onebit_spark.engines.numbering import NumberedIds
from onebit_spark.engines.routes import NUMBERED, numbered_lines
from onebit_spark.engines.spark_engine import SparkEngine
from onebit_spark.errors import RequestError
from onebit_spark.input.batches import ITEM, LABEL, USER, WEIGHT
from onebit_spark.input.collect import CollectedPairs
from onebit_spark.input.columns import column_problem, quoted, type_of
from onebit_spark.input.rating_checks import Columns, RatingCounts
from onebit_spark.input.ratings import check_ratings, rating_lines
from onebit_spark.platform.binary_cells import schema_of
from onebit_spark.platform.plans import cached, cut_from_plan
from onebit_spark.platform.sessions import broadcast

PAIRS = schema_of("row int, col int, positive boolean, weight float")
MEASURED = schema_of("n long, weight double, loss double, wrong long")


class Measure(Protocol):
    """The mean loss and the error rate of the validation ratings, scored as the model of these posteriors would.

    So an id that is not fitted is scored from its side features, or has the prior of the scales. The mean of the loss
    is by weight; the error rate counts every rating once.
    """

    def __call__(self, scales: HyperPosterior, posteriors: dict[Side, Any]) -> tuple[float, float]: ...


@contextmanager
def measure_for(
    ratings: DataFrame, columns: Columns, engine: SparkEngine, loss: str, unrated: Mapping[Side, IdLines]
) -> Iterator[Measure]:
    """How the ratings are measured: on the driver if they were collected, else by one job over cached pairs.

    ``unrated`` are the coded side features of ids without ratings, for the sides that have any.
    """
    pairs = engine.validation_pairs
    if pairs is not None:
        yield _OnDriver(pairs, loss, dict(zip(SIDES, _coded(pairs.unfitted, unrated), strict=True)))
        return
    named = rating_lines(ratings, columns)
    weight = F.col(WEIGHT) if WEIGHT in named.columns else F.lit(1.0)
    named = named.withColumn(WEIGHT, weight.cast("float"))
    occurring = [
        _occurring(unrated[side].ids, named.select(name)) if side in unrated else None
        for side, name in zip(SIDES, (USER, ITEM), strict=True)
    ]
    coded: dict[Side, FloatArray] = dict(zip(SIDES, _coded(occurring, unrated), strict=True))
    with ExitStack() as release:
        if all(map(engine.is_held, SIDES)):
            ids = [
                IdIndex(_with_more(engine.ids[side].values, more)) for side, more in zip(SIDES, occurring, strict=True)
            ]
            sent = broadcast(ratings.sparkSession, (ids[0], ids[1]))
            release.callback(sent.destroy)
            yield _ByBroadcast(cached(named.mapInArrow(_Numbered(sent), PAIRS), release), engine, loss, coded)
        else:
            for side, name, more in zip(SIDES, (USER, ITEM), occurring, strict=True):
                named = _numbered(named, name, side, engine, more)
            yield _ByJoin(cached(named, release), engine, loss, coded)


def _occurring(unrated: pa.Array, column: DataFrame) -> pa.Array:
    """The ids that occur in a column of the validation ratings."""
    ids = one_array(column.distinct().toArrow().column(0))
    return unrated.filter(pa.array(IdIndex(ids).contains(unrated)))


def _coded(ids: Sequence[pa.Array | None], unrated: Mapping[Side, IdLines]) -> list[FloatArray]:
    """The side features of ids without ratings: no number each where the side has no features."""
    lines = []
    for side, some in zip(SIDES, ids, strict=True):
        n = 0 if some is None else len(some)
        lines.append(unrated[side].at(some) if side in unrated else np.empty((n, 0), np.float32))
    return lines


def _with_more(ids: pa.Array, more: pa.Array | None) -> pa.Array:
    return ids if more is None else pa.concat_arrays([ids, more])


def _unrated_rows(posterior: Form, scales: HyperPosterior, side: Side, coded: FloatArray) -> RowPosterior:
    """Rows of ids that are not fitted: by their features, and last the prior, for ids that have none."""
    prior = prior_row(scales, side, posterior.kind, posterior.has_intercept, posterior.vectors)
    nothing = np.zeros((0, posterior.dimension))  # features say nothing on a side that has none
    explained = coded @ scales.features.get(side, nothing)
    rows = newcomer_rows(prior, np.vstack([explained, np.zeros(posterior.dimension)]))
    return rows.astype(posterior.precision)


def _extended(posterior: RowPosterior, scales: HyperPosterior, side: Side, coded: FloatArray) -> RowPosterior:
    """The posterior with more rows: ids that are not fitted. The last one, number −1, has the prior."""
    more = _unrated_rows(posterior.form, scales, side, coded)
    location, scale = (np.vstack(both) for both in ((posterior.location, more.location), (posterior.scale, more.scale)))
    return RowPosterior(location, scale, posterior.kind, posterior.has_intercept)


@dataclass(frozen=True)
class _OnDriver:
    pairs: CollectedPairs
    loss: str
    coded: dict[Side, FloatArray]

    def __call__(self, scales: HyperPosterior, posteriors: dict[Side, RowPosterior]) -> tuple[float, float]:
        rows, cols = (_extended(posteriors[side], scales, side, self.coded[side]) for side in SIDES)
        pairs, n = self.pairs, len(self.pairs.rows)
        loss, wrong = held_out_sums(
            self.loss, rows, cols, pairs.rows, pairs.columns, _signs(pairs.positive), pairs.weights
        )
        return loss / (n if pairs.weights is None else float(np.sum(pairs.weights, dtype=np.float64))), wrong / n


@dataclass(frozen=True)
class _ByBroadcast:
    """Pairs of numbers; both posteriors are broadcast."""

    pairs: DataFrame
    engine: SparkEngine
    loss: str
    coded: dict[Side, FloatArray]

    def __call__(self, scales: HyperPosterior, posteriors: dict[Side, Any]) -> tuple[float, float]:
        rows, cols = (
            _extended(self.engine.runner.lines(posteriors[side]), scales, side, self.coded[side]) for side in SIDES
        )
        sent = broadcast(self.pairs.sparkSession, (rows, cols))
        try:
            return _means(self.pairs.mapInArrow(_MeasureNumbers(self.loss, sent), MEASURED).toArrow())
        finally:
            sent.destroy()


@dataclass(frozen=True)
class _ByJoin:
    """Pairs of numbers; each gets the lines of its user and its item by two joins.

    A rating travels as a row of its own, about 100 bytes per half of it. That is dear beside a half step, where the
    ratings stay in their blocks. But these are few, and any ids may be among them.
    """

    pairs: DataFrame
    engine: SparkEngine
    loss: str
    coded: dict[Side, FloatArray]

    def __call__(self, scales: HyperPosterior, posteriors: dict[Side, Any]) -> tuple[float, float]:
        joined, priors = self.pairs, []
        for side in SIDES:
            posterior = posteriors[side]
            runner, _ = self.engine.stored(side)
            lines = cut_from_plan(runner.frame(side, [posterior], packed_lines, NUMBERED), self._session)
            more = _unrated_rows(posterior.form, scales, side, self.coded[side])
            priors.append(more.take(np.array([-1])))
            if more.n_rows > 1:
                first = runner.n_rows(side)
                unrated = packed_lines(np.arange(first, first + more.n_rows - 1), [more.take(slice(-1))])
                lines = lines.unionAll(self._session.createDataFrame(unrated, NUMBERED))
            named = lines.select(F.col("number").alias(side), F.col("values").alias(f"packed_{side}"))
            joined = joined.join(named, side, "left").drop(side)
        forms = posteriors["rows"].form, posteriors["cols"].form
        measure = _MeasurePacked(self.loss, forms, (priors[0], priors[1]))
        return _means(joined.mapInArrow(measure, MEASURED).toArrow())

    @property
    def _session(self) -> SparkSession:
        return self.pairs.sparkSession


def _numbered(pairs: DataFrame, column: str, side: Side, engine: SparkEngine, more: pa.Array | None) -> DataFrame:
    """The pairs with the number of an id instead of the id; null where it is not fitted and has no features.

    Ids without ratings have the numbers after those of the engine.
    """
    session, numbered = pairs.sparkSession, engine.ids[side]
    assert isinstance(numbered, NumberedIds)
    ids = cut_from_plan(numbered.frame.select("id", "number"), session)
    if more is not None:
        numbers = np.arange(numbered.n_rows, numbered.n_rows + len(more))
        ids = ids.unionAll(session.createDataFrame(pa.table({"id": more, "number": numbers}), ids.schema))
    named = ids.select(F.col("id").alias(column), F.col("number").alias(side))
    return pairs.join(named, column, "left").drop(column)


def packed_lines(numbers: NDArray[np.int64], posteriors: list[RowPosterior]) -> pa.Table:
    """The packed rows of a posterior by row number."""
    return numbered_lines(numbers, posteriors[0].packed())


@dataclass(frozen=True)
class _Numbered:
    """Ids by their number, −1 for one that has none: it is not fitted, and it has no features."""

    ids: Broadcast[tuple[IdIndex, IdIndex]]

    def __call__(self, batches: Batches) -> Batches:
        users, items = self.ids.value
        for batch in batches:
            numbers = [pa.array(index.find(batch.column(name))) for name, index in ((USER, users), (ITEM, items))]
            columns = [*numbers, batch.column(LABEL), batch.column(WEIGHT)]
            yield pa.RecordBatch.from_arrays(columns, names=PAIRS.names)


@dataclass(frozen=True)
class _MeasureNumbers:
    """Sums over pairs of numbers."""

    loss: str
    posteriors: Broadcast[tuple[RowPosterior, RowPosterior]]

    def __call__(self, batches: Batches) -> Batches:
        rows, cols = self.posteriors.value
        columns = ([batch.column(k).to_numpy(zero_copy_only=False) for k in range(4)] for batch in batches)
        yield _measured(self.loss, ((rows, cols, *four) for four in columns))


@dataclass(frozen=True)
class _MeasurePacked:
    """Sums over ratings that bring both of their lines; null where an id is not fitted."""

    loss: str
    forms: tuple[Form, Form]
    priors: tuple[RowPosterior, RowPosterior]

    def __call__(self, batches: Batches) -> Batches:
        yield _measured(self.loss, (self._pairs(batch) for batch in batches))

    def _pairs(self, batch: pa.RecordBatch) -> tuple:
        rows, cols = (
            _unpacked(batch.column(f"packed_{side}"), form, prior)
            for side, form, prior in zip(SIDES, self.forms, self.priors, strict=True)
        )
        each = np.arange(batch.num_rows)
        label, weight = (batch.column(name).to_numpy(zero_copy_only=False) for name in (LABEL, WEIGHT))
        return rows, cols, each, each, label, weight


def _unpacked(packed: pa.Array, form: Form, prior: RowPosterior) -> RowPosterior:
    absent = packed.is_null().to_numpy(zero_copy_only=False)
    table = np.repeat(prior.packed(), len(packed), axis=0)
    if not absent.all():
        table[~absent] = np.frombuffer(b"".join(packed.drop_null().to_pylist()), form.precision).reshape(-1, form.width)
    return form.unpacked(table)


def _measured(loss: str, parts: Iterable[tuple]) -> pa.RecordBatch:
    """Sums over (rows, cols, row, col, positive, weight): of the held-out loss, the weights and the wrong signs."""
    n, weight, total, errors = 0, 0.0, 0.0, 0
    for rows, cols, row, col, positive, weights in parts:
        part, wrong = held_out_sums(loss, rows, cols, row, col, _signs(positive), weights)
        n, total, errors = n + len(row), total + part, errors + wrong
        weight += float(np.sum(weights, dtype=np.float64))
    return pa.RecordBatch.from_pydict({"n": [n], "weight": [weight], "loss": [total], "wrong": [errors]})


def _means(measured: pa.Table) -> tuple[float, float]:
    """The mean loss by weight, and the error rate."""
    n, weight, loss, wrong = (float(pc.sum(measured[name]).as_py() or 0) for name in measured.schema.names)
    return loss / weight, wrong / n


def _signs(positive: NDArray[np.bool_]) -> DoubleArray:
    return np.where(positive, 1.0, -1.0)


def divide_by_indicator(dataset: DataFrame, indicator: str | None) -> tuple[DataFrame, DataFrame | None]:
    """The ratings to fit, and those for validation: the rows where the boolean column ``indicator`` is true."""
    if indicator is None:
        return dataset, None
    if column_problem(dataset, indicator) or not isinstance(type_of(dataset, indicator), BooleanType):
        raise RequestError(f"validationIndicatorCol {indicator!r} must be a boolean column of the ratings")
    message = f"validationIndicatorCol {indicator!r} holds a null: say true or false for every rating"
    held_out = F.coalesce(F.col(quoted(indicator)), F.raise_error(F.lit(message)))
    return dataset.where(~held_out), dataset.where(held_out)


@dataclass(frozen=True)
class _State:
    """What the fit had reached after an iteration."""

    number: int
    loss: float
    hierarchy: HierarchicalPrior
    posteriors: dict[Side, Any]


class Validation:
    """Called after every iteration; ``history`` holds the held-out loss and error rate of each."""

    def __init__(self, measure: Measure, engine: Engine[Any], patience: int) -> None:
        self._measure = measure
        self._engine = engine
        self._patience = patience
        self._best: _State | None = None
        self.history: list[dict[str, float]] = []
        self.seconds = 0.0

    def begin(self, choice: Any) -> None:
        """All settings are welcome."""

    def __call__(self, engine: Engine[Any], hierarchy: HierarchicalPrior, history: list[Iteration]) -> str | None:
        """Measure; the reason to stop, if there is one."""
        began, iteration = time.perf_counter(), history[-1]
        posteriors: dict[Side, Any] = {side: engine.posterior(side) for side in SIDES}
        loss, error = self._measure(hierarchy.scales, posteriors)
        self.seconds += time.perf_counter() - began
        self.history.append({"loss": loss, "error": error})
        if self._best is None or loss < self._best.loss:
            kept = {side: posterior.copy() for side, posterior in posteriors.items()}  # the driver's change in place
            self._best = _State(iteration.number, loss, hierarchy, kept)
        if iteration.number - self._best.number >= self._patience:
            return f"none lower in patience = {self._patience} iterations"
        return None

    def best(self, outcome: Outcome[HierarchicalPrior]) -> Outcome[HierarchicalPrior]:
        """The fit as it was when the held-out loss was lowest, in the engine too.

        It has converged only if that was in the iteration that converged.
        """
        last = len(outcome.history)
        if len(self.history) < last:  # an iteration that converges ends the fit before it is measured
            self(self._engine, outcome.hierarchy, outcome.history)
        assert self._best is not None
        if self._best.number == last:
            return outcome
        self._engine.start_from(self._best.posteriors)
        reason = f"the validation loss was lowest in iteration {self._best.number} of {last} ({outcome.reason})"
        kept = outcome.history[: self._best.number]
        return Outcome(self._best.hierarchy, kept, False, reason)


def check_validation(ratings: DataFrame, columns: Columns) -> RatingCounts:
    """The tally of the ratings for validation."""
    try:
        return check_ratings(ratings, columns)
    except RequestError as error:
        raise RequestError(f"the validation ratings: {error}") from None
