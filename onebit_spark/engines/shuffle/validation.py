"""Held-out ratings under factors that are in files: each gets the lines of its user and its item by two joins.

A rating travels as a row of its own, about 100 bytes per half of it. That is dear beside a half step, where the ratings
stay in their blocks. But few ratings are watched, and any ids may be among them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from onebit_spark.core.factor_tables import prior_row
from onebit_spark.core.losses import SIDES, Side
from onebit_spark.core.posterior import Form, RowPosterior
from onebit_spark.core.scales import Scales
from onebit_spark.engines.block_frames import Batches
from onebit_spark.engines.held_out_loss import MEASURED, means_of, measured
from onebit_spark.engines.shuffle.engine import ShuffleEngine
from onebit_spark.engines.shuffle.posteriors import TablePosterior
from onebit_spark.input.ratings import ITEM, LABEL, USER, WEIGHT
from onebit_spark.platform.plans import cached, cut_from_plan


@contextmanager
def watching_tables(ratings: DataFrame, engine: ShuffleEngine, loss: str) -> Iterator[WatchedPairs]:
    """Ratings (``input.ratings.prepared``) under the numbers of the engine's ids, cached."""
    weight = F.col(WEIGHT) if WEIGHT in ratings.columns else F.lit(1.0)
    pairs = ratings.withColumn(WEIGHT, weight.cast("float"))
    for side, column in zip(SIDES, (USER, ITEM), strict=True):
        pairs = engine.numbered(pairs, side, column, side)
    with ExitStack() as release:
        yield WatchedPairs(cached(pairs, release), engine, loss)


@dataclass(frozen=True)
class WatchedPairs:
    """Measures (see ``validation.Measure``) by one job."""

    pairs: DataFrame
    engine: ShuffleEngine
    loss: str

    def __call__(self, scales: Scales, posteriors: dict[Side, TablePosterior]) -> tuple[float, float]:
        joined, priors = self.pairs, []
        for side in SIDES:
            posterior = posteriors[side]
            lines = cut_from_plan(self.engine.packed_lines(side, posterior), joined.sparkSession)
            named = lines.select(F.col("number").alias(side), F.col("packed").alias(f"packed_{side}"))
            joined = joined.join(named, side, "left").drop(side)
            priors.append(prior_row(scales, side, posterior.form.kind, posterior.form.has_intercept))
        forms = posteriors["rows"].form, posteriors["cols"].form
        return means_of(joined.mapInArrow(_MeasurePacked(self.loss, forms, (priors[0], priors[1])), MEASURED).toArrow())


@dataclass(frozen=True)
class _MeasurePacked:
    """Sums over ratings that bring both of their lines; null where an id is not fitted."""

    loss: str
    forms: tuple[Form, Form]
    priors: tuple[RowPosterior, RowPosterior]

    def __call__(self, batches: Batches) -> Batches:
        yield measured(self.loss, (self._pairs(batch) for batch in batches))

    def _pairs(self, batch: pa.RecordBatch) -> tuple:
        rows, cols = (
            _lines(batch.column(f"packed_{side}"), form, prior)
            for side, form, prior in zip(SIDES, self.forms, self.priors, strict=True)
        )
        each = np.arange(batch.num_rows)
        label, weight = (batch.column(name).to_numpy(zero_copy_only=False) for name in (LABEL, WEIGHT))
        return rows, cols, each, each, label, weight


def _lines(packed: pa.Array, form: Form, prior: RowPosterior) -> RowPosterior:
    absent = packed.is_null().to_numpy(zero_copy_only=False)
    table = np.zeros((len(packed), form.width), form.precision)
    if not absent.all():
        table[~absent] = np.frombuffer(b"".join(packed.drop_null().to_pylist()), form.precision).reshape(-1, form.width)
    rows = form.unpacked(table)
    rows.location[absent] = prior.location
    rows.scale[absent] = prior.scale
    return rows
