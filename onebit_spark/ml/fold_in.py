"""Fold-in: add new users (or items) to a fitted model by repeating the row update from the prior."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.factor_tables import factor_columns, factor_table, plain_lists, prior_row, read_factors
from onebit_spark.core.fitted_features import SIDE_OF, Who
from onebit_spark.core.folding import FoldIn, tell_left_out
from onebit_spark.core.id_index import one_array
from onebit_spark.core.losses import OTHER, Side
from onebit_spark.core.posterior import RowPosterior
from onebit_spark.core.sketch import HIGHEST, together
from onebit_spark.engines.block_frames import Batches
from onebit_spark.engines.factor_frames import factor_frame, factor_schema
from onebit_spark.input.defects import Columns, count_ratings, verdict, with_weight
from onebit_spark.input.ratings import ITEM, LABEL, USER, WEIGHT, prepared
from onebit_spark.ml.driver_scoring import fits_here
from onebit_spark.ml.feature_fold_in import Explained, check_who
from onebit_spark.ml.fitted_model import FittedModel
from onebit_spark.ml.freshness import sketch_of
from onebit_spark.platform.plans import kept
from onebit_spark.platform.sessions import parallelism

M = TypeVar("M", bound=FittedModel)

RATINGS_PER_TASK = 200_000  # each rating comes with the factors of its partner


def fold_in(model: M, ratings: DataFrame, who: Who, threshold: float | None, features: DataFrame | None = None) -> M:
    """The model with these users (or items) added, or replaced if it knows them. The other side does not change.

    Few ratings are folded in on the driver. Otherwise the factors are computed once and kept by the executors. If an
    executor is lost, its factors are computed again. ``features`` are side features of the new ids.
    """
    check_who(who)
    known = None if features is None else Explained.of(model, features, who)
    given = NewRatings.of(model, ratings, threshold)
    if not given.n:
        return model
    if fits_here(model, given.n):
        united, n = _united_here(model, given.frame, given.columns, who, known)
    else:
        united, n = _united(model, given.frame, given.columns, who, given.n, known)
    changed = model.changed(users=united, n_users=n) if who == "user" else model.changed(items=united, n_items=n)
    return given.seen_by(changed)


@dataclass(frozen=True)
class NewRatings:
    """Ratings for a fitted model that were checked, with the columns of the fit."""

    frame: DataFrame
    columns: Columns
    n: int

    @classmethod
    def of(cls, model: FittedModel, ratings: DataFrame, threshold: float | None) -> NewRatings:
        weight = model.info.columns.get("weight")
        columns = Columns(model.getUserCol(), model.getItemCol(), model.info.columns["label"], threshold, weight)
        ratings = with_weight(ratings, columns)
        for side, column in (("user", columns.user), ("item", columns.item)):
            model.checkIdType(ratings, side, column)
        totals = count_ratings(ratings, columns)
        n = verdict(ratings, columns, totals, both_classes=False).n if totals["n"] else 0  # a batch may be empty
        return cls(ratings, columns, n)

    def seen_by(self, model: M) -> M:
        """The model, which now remembers that it was fitted on these ratings, too."""
        fitted = model.fitted
        limit = HIGHEST if fitted is None else fitted.limit
        return model.fittedOn(together(fitted, sketch_of(self.frame, self.columns, self.n, limit)))


def _united_here(
    model: FittedModel, ratings: DataFrame, columns: Columns, who: Who, known_means: Explained | None
) -> tuple[DataFrame, int]:
    """The factor table with the new rows, computed on the driver, and its length."""
    users, items = model.resident()
    own, others = (users, items) if who == "user" else (items, users)
    new, partner = (USER, ITEM) if who == "user" else (ITEM, USER)
    table = prepared(ratings, columns).toArrow()
    cols = others.positions(table[partner])
    known = cols >= 0  # ratings of partners that the model does not know are ignored
    given = one_array(table[new].cast(own.ids.type))
    ids = given.filter(pa.array(known)).dictionary_encode()
    tell_left_out(who, len(given.unique()), len(ids.dictionary))
    rows, positive = ids.indices.to_numpy().astype(np.int64), table[LABEL].to_numpy()[known]
    weights = None if columns.weight is None else table[WEIGHT].to_numpy()[known]
    block = RatingBlock.from_coordinates(rows, cols[known], positive, (len(ids.dictionary), len(others.ids)), weights)
    means = None if known_means is None else known_means.at(ids.dictionary)
    settled = FoldIn.of(model.info, SIDE_OF[who]).settled(block, others.known, means)
    kept_ids = pc.invert(pc.is_in(own.ids, value_set=ids.dictionary))
    old = factor_table(own.ids.filter(kept_ids), own.known.take(np.flatnonzero(kept_ids.to_numpy(False))))
    united = pa.concat_tables([old, factor_table(ids.dictionary, settled)])
    schema = factor_schema(replace(model.info, draw_narrowing=None), who)
    return factor_frame(ratings.sparkSession, united, schema), len(united)


def _united(
    model: FittedModel, ratings: DataFrame, columns: Columns, who: Who, n_ratings: int, known_means: Explained | None
) -> tuple[DataFrame, int]:
    """The factor table with the new rows, computed and kept by the executors, and its length."""
    info = model.info
    new, known, others = (USER, model.users, model.items) if who == "user" else (ITEM, model.items, model.users)
    partner = ITEM if who == "user" else USER
    plain = factor_columns(info.kind, info.config.intercepts, info.config.implicit_features)
    partners = others.select(F.col("id").alias("__known"), F.struct(*plain).alias("lines"))
    # An inner join: ratings of partners that the model does not know are ignored.
    joined = prepared(ratings, columns).join(partners, F.col(partner) == F.col("__known"))
    cast = F.col(new).cast(info.id_types[who]).alias("id")
    tasks = max(parallelism(ratings.sparkSession), -(-n_ratings // RATINGS_PER_TASK))
    weight = [] if columns.weight is None else [F.col(WEIGHT).alias("weight")]
    placed = joined.select(cast, F.col("__known").alias("partner"), F.col(LABEL).alias("positive"), "lines", *weight)
    work = replace(_FoldInTask.of(model, SIDE_OF[who]), known=known_means)
    schema = factor_schema(replace(info, draw_narrowing=None), who)
    folded = kept(placed.repartition(tasks, "id").mapInArrow(work, schema))
    tell_left_out(who, prepared(ratings, columns).select(new).distinct().count(), folded.count())
    united = known.select("id", *plain).join(folded.select("id"), "id", "left_anti").unionByName(folded)
    return united, united.count()


@dataclass(frozen=True)
class _FoldInTask:
    """Computes the rows of a task from their ratings. Each rating comes with the factors of its partner."""

    work: FoldIn
    partner_prior: RowPosterior  # gives the form of the partners' factors
    known: Explained | None = None

    @classmethod
    def of(cls, model: FittedModel, side: Side) -> _FoldInTask:
        config, scales, kind = model.info.config, model.info.scales, model.info.kind
        partner_prior = prior_row(scales, OTHER[side], kind, config.intercepts, config.implicit_features)
        return cls(FoldIn.of(model.info, side), partner_prior)

    def __call__(self, batches: Batches) -> Batches:
        arrived = [batch for batch in batches if batch.num_rows]
        if not arrived:
            return
        table = pa.Table.from_batches(arrived).combine_chunks()
        ids, partners = (pc.dictionary_encode(table[name]).combine_chunks() for name in ("id", "partner"))
        shape = len(ids.dictionary), len(partners.dictionary)
        rows, cols = (array.indices.to_numpy().astype(np.int64) for array in (ids, partners))
        positive = table["positive"].to_numpy().astype(bool)
        first = np.unique(cols, return_index=True)[1]  # one line per partner
        posterior = read_factors(table["lines"].combine_chunks().take(pa.array(first)), self.partner_prior)
        weights = table["weight"].to_numpy() if "weight" in table.schema.names else None
        block = RatingBlock.from_coordinates(rows, cols, positive, shape, weights)
        means = None if self.known is None else self.known.at(ids.dictionary)
        yield from plain_lists(factor_table(ids.dictionary, self.work.settled(block, posterior, means))).to_batches()
