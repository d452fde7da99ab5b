"""Held-out ratings watched during a fit, and the best state so far."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import Broadcast
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType

from onebit_spark.core.engine import Engine
from onebit_spark.core.factor_tables import newcomer_rows, prior_row
from onebit_spark.core.id_index import one_array
from onebit_spark.core.id_lines import IdLines
from onebit_spark.core.losses import SIDES, Side
from onebit_spark.core.posterior import FloatArray, RowPosterior
from onebit_spark.core.prediction import held_out_sums
from onebit_spark.core.scales import ScaleHierarchy, Scales
from onebit_spark.core.solver import Iteration, Outcome
from onebit_spark.engines.block_frames import Batches
from onebit_spark.engines.broadcast.engine import BroadcastEngine
from onebit_spark.engines.driver import DriverEngine
from onebit_spark.engines.held_out_loss import MEASURED, means_of, measured, signs_of
from onebit_spark.engines.shuffle.engine import ShuffleEngine
from onebit_spark.engines.shuffle.validation import watching_tables
from onebit_spark.errors import RequestError
from onebit_spark.input.collect import CollectedPairs
from onebit_spark.input.columns import column_problem, quoted, type_of
from onebit_spark.input.defects import Columns, RatingCounts, check_ratings
from onebit_spark.input.ratings import ITEM, LABEL, USER, WEIGHT, prepared
from onebit_spark.platform.binary_cells import schema_of
from onebit_spark.platform.sessions import broadcast

PAIRS = schema_of("row int, col int, positive boolean, weight float")


def divided(dataset: DataFrame, indicator: str | None) -> tuple[DataFrame, DataFrame | None]:
    """The ratings to fit, and those to watch: the rows where the boolean column ``indicator`` is true."""
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
    hierarchy: ScaleHierarchy
    posteriors: dict[Side, Any]


class Measure(Protocol):
    """The mean loss and the error rate of the watched ratings, scored as the model of these posteriors would.

    So an id that is not fitted is scored from its side features, or has the prior of the scales. The mean of the loss
    is by weight; the error rate counts every rating once.
    """

    def __call__(self, scales: Scales, posteriors: dict[Side, Any]) -> tuple[float, float]: ...


class Validation:
    """Called after every iteration; ``history`` holds the held-out loss and error rate of each."""

    def __init__(self, measure: Measure, engine: Engine[Any], patience: int) -> None:
        self._measure = measure
        self._engine = engine
        self._patience = patience
        self._best: _State | None = None
        self.history: list[dict[str, float]] = []
        self.seconds = 0.0

    def __call__(self, engine: Engine[Any], hierarchy: ScaleHierarchy, history: list[Iteration]) -> str | None:
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

    def best(self, outcome: Outcome[ScaleHierarchy]) -> Outcome[ScaleHierarchy]:
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


def check_watched(ratings: DataFrame, columns: Columns) -> RatingCounts:
    """The tally of the ratings to watch."""
    try:
        return check_ratings(ratings, columns)
    except RequestError as error:
        raise RequestError(f"the validation ratings: {error}") from None


@contextmanager
def watching(
    ratings: DataFrame, columns: Columns, engine: Any, loss: str, newcomers: Mapping[Side, IdLines]
) -> Iterator[Measure]:
    """How an engine measures ratings: by the pairs that the driver holds, or by one job over cached pairs.

    ``newcomers`` are the coded side features of ids that are not fitted, for the sides that have any.
    """
    if isinstance(engine, DriverEngine):
        assert engine.watched is not None
        yield _OnDriver(engine.watched, loss, _coded(engine.watched.unfitted, newcomers))
        return
    if isinstance(engine, ShuffleEngine):
        with watching_tables(prepared(ratings, columns), engine, loss) as measure:
            yield measure
        return
    assert isinstance(engine, BroadcastEngine)
    told = prepared(ratings, columns)
    fitted = [engine.ids[side].values for side in SIDES]
    unfitted = [
        _met(newcomers[side].ids, told.select(name)) if side in newcomers else known[:0]
        for side, name, known in zip(SIDES, (USER, ITEM), fitted, strict=True)
    ]
    users, items = (pa.concat_arrays(both) for both in zip(fitted, unfitted, strict=True))
    ids = broadcast(ratings.sparkSession, (users, items))
    pairs = told.mapInArrow(_Numbered(ids), PAIRS).cache()
    try:
        yield _BySpark(pairs, loss, _coded(unfitted, newcomers))
    finally:
        pairs.unpersist()
        ids.destroy()


def _met(newcomers: pa.Array, watched: DataFrame) -> pa.Array:
    """The newcomers that occur in a column of the ratings to watch."""
    ids = one_array(watched.distinct().toArrow().column(0))
    return newcomers.filter(pc.is_in(newcomers, value_set=ids.cast(newcomers.type)))


def _coded(unfitted: Sequence[pa.Array], newcomers: Mapping[Side, IdLines]) -> dict[Side, FloatArray]:
    """The side features of ids that are not fitted: no number each where the side has no features."""
    return {
        side: newcomers[side].at(ids) if side in newcomers else np.empty((len(ids), 0), np.float32)
        for side, ids in zip(SIDES, unfitted, strict=True)
    }


@dataclass(frozen=True)
class _OnDriver:
    pairs: CollectedPairs
    loss: str
    coded: dict[Side, FloatArray]

    def __call__(self, scales: Scales, posteriors: dict[Side, RowPosterior]) -> tuple[float, float]:
        rows, cols = (_with_unfitted(posteriors[side], scales, side, self.coded[side]) for side in SIDES)
        pairs = self.pairs
        signs, weights, n = signs_of(pairs.positive), pairs.weights, len(pairs.rows)
        loss, wrong = held_out_sums(self.loss, rows, cols, pairs.rows, pairs.columns, signs, weights)
        return loss / (n if weights is None else float(np.sum(weights, dtype=np.float64))), wrong / n


@dataclass(frozen=True)
class _BySpark:
    pairs: DataFrame
    loss: str
    coded: dict[Side, FloatArray]

    def __call__(self, scales: Scales, posteriors: dict[Side, RowPosterior]) -> tuple[float, float]:
        rows, cols = (_with_unfitted(posteriors[side], scales, side, self.coded[side]) for side in SIDES)
        sent = broadcast(self.pairs.sparkSession, (rows, cols))
        try:
            table = self.pairs.mapInArrow(_MeasureBatches(self.loss, sent), MEASURED).toArrow()
        finally:
            sent.destroy()
        return means_of(table)


def _with_unfitted(posterior: RowPosterior, scales: Scales, side: Side, coded: FloatArray) -> RowPosterior:
    """The posterior with more rows: ids that are not fitted, by their features, and last, as number −1, the prior."""
    prior = prior_row(scales, side, posterior.kind, posterior.has_intercept)
    nothing = np.zeros((0, posterior.dimension))  # features say nothing on a side that has none
    explained = coded @ scales.features.get(side, nothing)
    more = newcomer_rows(prior, np.vstack([explained, np.zeros(posterior.dimension)]))
    dtype = posterior.location.dtype
    return RowPosterior(
        np.vstack([posterior.location, more.location.astype(dtype)]),
        np.vstack([posterior.scale, more.scale.astype(dtype)]),
        posterior.kind,
        posterior.has_intercept,
    )


@dataclass(frozen=True)
class _Numbered:
    """Ids by their number, −1 for one that has none: it is not fitted, and it has no features."""

    ids: Broadcast[tuple[pa.Array, pa.Array]]

    def __call__(self, batches: Batches) -> Batches:
        users, items = self.ids.value
        for batch in batches:
            numbers = [
                pc.fill_null(pc.index_in(batch.column(name), value_set=values), -1).cast(pa.int32())
                for name, values in ((USER, users), (ITEM, items))
            ]
            ones = pa.array(np.ones(batch.num_rows, np.float32))
            weights = batch.column(WEIGHT) if WEIGHT in batch.schema.names else ones
            names = ["row", "col", "positive", "weight"]
            yield pa.RecordBatch.from_arrays([*numbers, batch.column(LABEL), weights], names=names)


@dataclass(frozen=True)
class _MeasureBatches:
    """Sums of the held-out loss, of the weights and of the wrong signs."""

    loss: str
    posteriors: Broadcast[tuple[RowPosterior, RowPosterior]]

    def __call__(self, batches: Batches) -> Batches:
        rows, cols = self.posteriors.value
        columns = ([batch.column(k).to_numpy(zero_copy_only=False) for k in range(4)] for batch in batches)
        yield measured(self.loss, ((rows, cols, *four) for four in columns))
