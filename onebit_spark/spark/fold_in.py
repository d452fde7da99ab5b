"""New ratings of a fitted model, on Spark (``predict.new_ratings``): ``fold_in`` and ``update``.

fold_in    new users or items, from their ratings, from their side features, or from both
update     ratings of users and items that the model knows or not
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from onebit_spark import model_info
from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.features import warn_of_unknown_values
from onebit_spark.core.losses import OTHER
from onebit_spark.data.ratings import ITEM, LABEL, USER, WEIGHT, Columns
from onebit_spark.data.user_tables import one_array
from onebit_spark.engines.spark import columns as spark_ratings
from onebit_spark.engines.spark.engine import factor_frame, factor_schema
from onebit_spark.engines.spark.frames import Batches, computed_once
from onebit_spark.engines.spark.ratings import count_ratings
from onebit_spark.engines.spark.sessions import parallelism
from onebit_spark.errors import RequestError
from onebit_spark.model import unrated_spreads
from onebit_spark.model_info import PARTNER, SIDE_OF, IdLines
from onebit_spark.predict.new_ratings import FoldIn, updated_rows, warn_left_out
from onebit_spark.predict.predictor import ModelSide, arrow_type
from onebit_spark.settings import Who
from onebit_spark.spark.scoring import MOST_PAIRS, SparkFactors

COLUMN_OF: dict[Who, str] = {"user": USER, "item": ITEM}  # of prepared ratings
RATINGS_PER_TASK = 200_000  # each rating comes with the factors of its partner


# With new ratings, factor tables change, and their numbers of lines: arguments of ``OneBitCompletionModel.changed``
Changes = dict[str, Any]


def _change(who: Who, table: DataFrame, n: int) -> Changes:
    return {f"{who}s": table, f"n_{who}s": n}


def fold_in(factors: SparkFactors, given: NewRatings, who: Who, features: DataFrame | None = None) -> Changes:
    """The users (or items) of new ratings added, or replaced if they are known. The other side does not change.

    Few ratings are folded in on the driver. Otherwise the factors are computed once and kept by the executors. If an
    executor is lost, its factors are computed again. ``features`` are side features of the new ids. If none of the
    ratings has a known partner, nothing changes.
    """
    means = None if features is None else explained_means(factors, features, who)
    if not factors.fit_driver(given.n):
        united = _with_new(factors, given, who, means)
        return {} if united is None else _change(who, united, united.count())
    model, table, weighted = factors.on_driver(), given.table(), given.columns.weight is not None
    own, partners = model.side(who), model.side(PARTNER[who])
    ids = one_array(table[COLUMN_OF[who]].cast(own.ids.type))
    others, weights = partners.positions(table[COLUMN_OF[PARTNER[who]]]), table[WEIGHT].to_numpy() if weighted else None
    folded = model.folded_rows(who, ids, others, table[LABEL].to_numpy(), weights, means)
    if not len(folded[0]):
        return {}
    side = own.with_rows(*folded)
    return _change(who, side_frame(factors, who, side.table), len(side.ids))


def fold_in_features(factors: SparkFactors, features: DataFrame, who: Who) -> tuple[Changes, int]:
    """The ids that the model does not know added, predicted from their side features alone; and their number."""
    info, means = factors.info, explained_means(factors, features, who)
    rows = model_info.newcomer_rows(model_info.prior_row(info.scales, SIDE_OF[who], *info.table_form), means.lines)
    if factors.fit_driver(0):
        side = factors.on_driver().side(who)
        new = np.flatnonzero(side.positions(means.ids) < 0)
        rows = rows.take(new)
        measured = unrated_spreads(info, who, rows)
        side = side.with_rows(means.ids.take(pa.array(new)).cast(side.ids.type), rows, measured)
        return _change(who, side_frame(factors, who, side.table), len(side.ids)), len(new)
    old = factors.of(who)
    plain = ["id", *model_info.plain_columns(info, old.columns)]
    lines = side_frame(factors, who, model_info.factor_table(means.ids, rows, unrated_spreads(info, who, rows)))
    united = old.select(*plain).unionByName(lines.join(old.select("id"), "id", "left_anti").select(*plain))
    n = united.count()
    return _change(who, united, n), n - info.count(who)


def explained_means(factors: SparkFactors, features: DataFrame, who: Who) -> IdLines:
    info, coding = factors.info, model_info.coding_of(factors.info, who)
    column = factors.columns[who]
    lacking = [name for name in coding.columns if not spark_ratings.matching(features, name)]
    if lacking:
        raise RequestError(f"{who} features: the model was fitted with {', '.join(lacking)}, which is not there")
    spelt = {spark_ratings.matching(features, name)[0].name: name for name in coding.columns}
    named = features.withColumnsRenamed(spelt)
    table = spark_ratings.collected_features(named, column, info.id_types[who], who)
    warn_of_unknown_values(coding, table, f"{who} features")
    return IdLines(one_array(table[column]), model_info.feature_means(info, who, coding.coded(table)))


@dataclass(frozen=True)
class NewRatings:
    frame: DataFrame
    columns: Columns
    n: int

    @classmethod
    def of(cls, factors: SparkFactors, ratings: DataFrame, threshold: float | None) -> NewRatings:
        roles = factors.info.columns
        user, item = factors.columns["user"], factors.columns["item"]
        columns = Columns(user, item, roles["label"], threshold, roles.get("weight"))
        ratings = spark_ratings.with_weight(ratings, columns)
        for who in SIDE_OF:
            factors.check_id_type(ratings, who)
        tally = count_ratings(ratings, columns).tally
        n = tally.counts().n if tally.facts["n"] else 0  # a batch may be empty
        return cls(ratings, columns, n)

    def table(self) -> pa.Table:
        return spark_ratings.rating_lines(self.frame, self.columns).toArrow()


def side_frame(factors: SparkFactors, who: Who, table: pa.Table) -> DataFrame:
    return factor_frame(factors.spark, table, factor_schema(factors.info, who, table.column_names))


def _with_new(factors: SparkFactors, given: NewRatings, who: Who, means: IdLines | None) -> DataFrame | None:
    """The factor table with the new rows, computed and kept by the executors; None if there is no new row."""
    info, ratings = factors.info, spark_ratings.rating_lines(given.frame, given.columns)
    new, needed = COLUMN_OF[who], model_info.factor_columns(*info.table_form)
    plain = model_info.plain_columns(info, factors.of(who).columns)
    partners = factors.of(PARTNER[who]).select(F.col("id").alias("__known"), F.struct(*needed).alias("lines"))
    # An inner join: ratings of partners that the model does not know are ignored.
    joined = ratings.join(partners, F.col(COLUMN_OF[PARTNER[who]]) == F.col("__known"))
    cast = F.col(new).cast(info.id_types[who]).alias("id")
    tasks = max(parallelism(ratings.sparkSession), -(-given.n // RATINGS_PER_TASK))
    weight = [] if given.columns.weight is None else [F.col(WEIGHT).alias("weight")]
    placed = joined.select(cast, F.col("__known").alias("partner"), F.col(LABEL).alias("positive"), "lines", *weight)
    partner_prior = model_info.prior_row(info.scales, OTHER[SIDE_OF[who]], *info.table_form)
    task = FoldIn.of(info, SIDE_OF[who])

    def rows_of(batches: Batches) -> Batches:
        filled = [batch for batch in batches if batch.num_rows]
        if not filled:
            return
        table = pa.Table.from_batches(filled).combine_chunks()
        ids, known = (pc.dictionary_encode(table[name]).combine_chunks() for name in ("id", "partner"))
        rows, cols = (array.indices.to_numpy().astype(np.int64) for array in (ids, known))
        positive = table["positive"].to_numpy().astype(bool)
        first = np.unique(cols, return_index=True)[1]  # one line per partner
        posterior = model_info.read_factors(table["lines"].combine_chunks().take(pa.array(first)), partner_prior)
        weights = table["weight"].to_numpy() if "weight" in table.schema.names else None
        shape = len(ids.dictionary), len(known.dictionary)
        block = RatingBlock.from_coordinates(rows, cols, positive, shape, weights)
        explained = None if means is None else means.at(ids.dictionary)
        folded = task.rows(block, posterior, explained)
        measured = task.measured(block, folded, posterior)
        lines = model_info.plain_lists(model_info.factor_table(ids.dictionary, folded, measured))
        yield from lines.select(["id", *plain]).to_batches()

    schema = factor_schema(info, who, plain)
    folded = computed_once(placed.repartition(tasks, "id").mapInArrow(rows_of, schema))
    n_folded = folded.count()
    warn_left_out(who, ratings.select(new).distinct().count(), n_folded)
    if not n_folded:
        return None
    return factors.of(who).select("id", *plain).join(folded.select("id"), "id", "left_anti").unionByName(folded)


def update(factors: SparkFactors, given: NewRatings, features: dict[Who, DataFrame]) -> Changes:
    """The factors after these ratings. They come to the driver, with the factors of their users and items."""
    means = {who: explained_means(factors, frame, who) for who, frame in features.items()}
    if given.n > MOST_PAIRS:
        raise RequestError(
            f"update takes at most {MOST_PAIRS:,} ratings, not {given.n:,}: give them in parts, or fit again with "
            "setInitialModel(model)"
        )
    table, model = given.table(), factors.on_driver() if factors.fit_driver(given.n) else None
    ids = {who: one_array(table[column]) for who, column in COLUMN_OF.items()}
    sides = {who: side_of(factors, who, ids[who]) if model is None else model.side(who) for who in COLUMN_OF}
    weights = None if given.columns.weight is None else table[WEIGHT].to_numpy()
    after = updated_rows(factors.info, sides, ids, table[LABEL].to_numpy(), weights, means)
    plain, changes = ["id", *model_info.factor_columns(*factors.info.table_form)], Changes()
    for who, (rated, rows) in after.items():
        if model is not None:
            frame = side_frame(factors, who, sides[who].with_rows(rated, rows).table)
        else:
            lines = side_frame(factors, who, model_info.factor_table(rated, rows))
            old = factors.of(who).select(*plain).join(F.broadcast(lines.select("id")), "id", "left_anti")
            frame = old.unionByName(lines)
        new = int(np.count_nonzero(sides[who].positions(rated) < 0))
        changes |= _change(who, frame, factors.info.count(who) + new)
    return changes


def side_of(factors: SparkFactors, who: Who, ids: pa.Array) -> ModelSide:
    asked = pa.table({"id": ids.cast(arrow_type(factors.info.id_types[who])).unique()})
    lines = factors.of(who).join(F.broadcast(factors.spark.createDataFrame(asked)), "id", "left_semi")
    return ModelSide.of(lines.toArrow(), factors.info, who)
