"""New ratings of a fitted model, on Spark (``predict.new_ratings``): ``fold_in`` and ``update``.

fold_in    new users or items, from their ratings, from their side features, or from both
update     ratings of users and items that the model knows or not
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from onebit_spark import model_info
from onebit_spark.core.losses import OTHER
from onebit_spark.core.posterior import FloatArray, RowPosterior
from onebit_spark.data.features import warn_of_unknown_values
from onebit_spark.data.ratings import ITEM, LABEL, USER, WEIGHT, Columns
from onebit_spark.data.user_tables import one_array
from onebit_spark.engines.spark.columns import (
    collected_features,
    matching,
    rating_lines,
    with_weight,
)
from onebit_spark.engines.spark.engine import factor_frame, factor_schema
from onebit_spark.engines.spark.frames import Batches, computed_once
from onebit_spark.engines.spark.ratings import count_ratings
from onebit_spark.engines.spark.sessions import parallelism
from onebit_spark.errors import RequestError
from onebit_spark.model_info import PARTNER, SIDE_OF, IdLines
from onebit_spark.predict.new_ratings import FoldIn, unrated_spreads, updated_rows, warn_left_out
from onebit_spark.predict.new_ratings import fold_in as fold_in_here
from onebit_spark.predict.sides import ModelSide, arrow_type
from onebit_spark.settings import Who
from onebit_spark.spark.scoring import MOST_PAIRS, SparkFactors

COLUMN_OF: dict[Who, str] = {"user": USER, "item": ITEM}  # of prepared ratings
RATINGS_PER_TASK = 200_000  # each rating comes with the factors of its partner


@dataclass(frozen=True)
class Change:
    """A factor table with more rows, and their number."""

    table: DataFrame
    n: int


Changes = dict[Who, Change]


def fold_in(
    factors: SparkFactors, given: NewRatings, who: Who, features: DataFrame | None = None
) -> Changes:
    """The users (or items) of new ratings added, or replaced if they are known.

    The other side does not change.

    Few ratings are folded in on the driver. Otherwise the factors are computed once and kept by the
    executors. If an executor is lost, its factors are computed again. ``features`` are side
    features of the new ids. If none of the ratings has a known partner, nothing changes.
    """
    means = None if features is None else explained_means(factors, features, who)
    if not factors.fit_driver(given.n):
        united = _with_new(factors, given, who, means)
        return {} if united is None else {who: Change(united, united.count())}
    here = factors.on_driver()
    new = given.collect()
    own = here.side(who)
    partners = here.side(PARTNER[who]).positions(new.ids[PARTNER[who]])
    ids = new.ids[who].cast(own.ids.type)
    folded = fold_in_here(here, who, ids, partners, new.positive, new.weights, means)
    return {who: _replace_rows(factors, who, own, *folded)} if len(folded[0]) else {}


def fold_in_features(factors: SparkFactors, features: DataFrame, who: Who) -> tuple[Changes, int]:
    """The ids that the model does not know added, predicted from their side features alone; and
    their number.
    """
    means = explained_means(factors, features, who)
    side = sides_of(factors, {who: means.ids}, 0)[who]
    new = np.flatnonzero(side.positions(means.ids) < 0)
    rows = model_info.newcomer_rows(side.prior, means.lines[new])
    ids = means.ids.take(pa.array(new)).cast(side.ids.type)
    measured = unrated_spreads(factors.info, who, rows)
    return {who: _replace_rows(factors, who, side, ids, rows, measured)}, len(new)


def update(factors: SparkFactors, given: NewRatings, features: Mapping[Who, DataFrame]) -> Changes:
    """The factors after these ratings.

    They come to the driver, with the factors of their users and items.
    """
    means = {who: explained_means(factors, frame, who) for who, frame in features.items()}
    if given.n > MOST_PAIRS:
        raise RequestError(
            f"update takes at most {MOST_PAIRS:,} ratings, not {given.n:,}: give them in parts, "
            "or fit again with "
            "setInitialModel(model)"
        )
    new = given.collect()
    sides = sides_of(factors, new.ids, given.n)
    after = updated_rows(factors.info, sides, new.ids, new.positive, new.weights, means)
    return {who: _replace_rows(factors, who, sides[who], *rows) for who, rows in after.items()}


def sides_of(
    factors: SparkFactors, ids: Mapping[Who, pa.Array], pairs: int
) -> dict[Who, ModelSide]:
    """The sides on the driver: whole if they and so many pairs fit it, or else with the lines of
    these ids alone.
    """
    if factors.fit_driver(pairs):
        return {who: factors.on_driver().side(who) for who in ids}
    return {who: side_of(factors, who, own) for who, own in ids.items()}


def _replace_rows(
    factors: SparkFactors,
    who: Who,
    side: ModelSide,
    ids: pa.Array,
    rows: RowPosterior,
    measured: FloatArray | None = None,
) -> Change:
    """The factor table with these rows instead of those of the same ids.

    ``side`` is that of ``sides_of``.
    """
    new = int(np.count_nonzero(side.positions(ids) < 0))
    n = factors.info.count(who)
    if len(side.ids) == n:
        return Change(side_frame(factors, who, side.with_rows(ids, rows, measured).table), n + new)
    old = factors.of(who)
    plain = [*model_info.factor_columns(*factors.info.table_form)]
    if measured is not None:
        plain = model_info.plain_columns(factors.info, old.columns)
    lines = side_frame(factors, who, model_info.factor_table(ids, rows, measured))
    kept = old.select("id", *plain).join(F.broadcast(lines.select("id")), "id", "left_anti")
    return Change(kept.unionByName(lines.select("id", *plain)), n + new)


def explained_means(factors: SparkFactors, features: DataFrame, who: Who) -> IdLines:
    info = factors.info
    coding = model_info.coding_of(factors.info, who)
    column = factors.columns[who]
    lacking = [name for name in coding.columns if not matching(features, name)]
    if lacking:
        raise RequestError(
            f"{who} features: the model was fitted with {', '.join(lacking)}, which is not there"
        )
    spelt = {matching(features, name)[0].name: name for name in coding.columns}
    named = features.withColumnsRenamed(spelt)
    table = collected_features(named, column, info.id_types[who], who)
    warn_of_unknown_values(coding, table, f"{who} features")
    return IdLines(
        one_array(table[column]), model_info.feature_means(info, who, coding.coded(table))
    )


@dataclass(frozen=True)
class NewRatings:
    frame: DataFrame
    columns: Columns
    n: int

    @classmethod
    def of(cls, factors: SparkFactors, ratings: DataFrame, threshold: float | None) -> NewRatings:
        roles = factors.info.columns
        user = factors.columns["user"]
        item = factors.columns["item"]
        columns = Columns(user, item, roles["label"], threshold, roles.get("weight"))
        ratings = with_weight(ratings, columns)
        for who in SIDE_OF:
            factors.check_id_type(ratings, who)
        tally = count_ratings(ratings, columns).tally
        n = tally.counts().n if tally.facts["n"] else 0  # a batch may be empty
        return cls(ratings, columns, n)

    def collect(self) -> CollectedLines:
        table = rating_lines(self.frame, self.columns).toArrow()
        weights = None if self.columns.weight is None else table[WEIGHT].to_numpy()
        ids = {who: one_array(table[column]) for who, column in COLUMN_OF.items()}
        return CollectedLines(ids, table[LABEL].to_numpy(), weights)


class CollectedLines(NamedTuple):
    ids: dict[Who, pa.Array]
    positive: NDArray[np.bool_]
    weights: NDArray[np.floating] | None


def side_frame(factors: SparkFactors, who: Who, table: pa.Table) -> DataFrame:
    return factor_frame(factors.spark, table, factor_schema(factors.info, who, table.column_names))


def _with_new(
    factors: SparkFactors, given: NewRatings, who: Who, means: IdLines | None
) -> DataFrame | None:
    """The factor table with the new rows, computed and kept by the executors; None if there is no
    new row.
    """
    info = factors.info
    ratings = rating_lines(given.frame, given.columns)
    new = COLUMN_OF[who]
    needed = model_info.factor_columns(*info.table_form)
    plain = model_info.plain_columns(info, factors.of(who).columns)
    partners = factors.of(PARTNER[who]).select(
        F.col("id").alias("__known"), F.struct(*needed).alias("lines")
    )
    # An inner join: ratings of partners that the model does not know are ignored.
    joined = ratings.join(partners, F.col(COLUMN_OF[PARTNER[who]]) == F.col("__known"))
    cast = F.col(new).cast(info.id_types[who]).alias("id")
    tasks = max(parallelism(ratings.sparkSession), -(-given.n // RATINGS_PER_TASK))
    weight = [] if given.columns.weight is None else [F.col(WEIGHT).alias("weight")]
    placed = joined.select(
        cast, F.col("__known").alias("partner"), F.col(LABEL).alias("positive"), "lines", *weight
    )
    partner_prior = model_info.prior_row(info.scales, OTHER[SIDE_OF[who]], *info.table_form)
    task = FoldIn.of(info, SIDE_OF[who])

    def rows_of(batches: Batches) -> Batches:
        filled = [batch for batch in batches if batch.num_rows]
        if not filled:
            return
        table = pa.Table.from_batches(filled).combine_chunks()
        partners = table["partner"].combine_chunks().dictionary_encode().indices.to_numpy()
        first = np.unique(partners, return_index=True)[1]  # one line per partner
        lines = model_info.read_factors(
            table["lines"].combine_chunks().take(pa.array(first)), partner_prior
        )
        weights = table["weight"].to_numpy() if "weight" in table.schema.names else None
        positive = table["positive"].to_numpy().astype(bool)
        folded = task.fold(one_array(table["id"]), partners, lines, positive, weights, means)
        rows = model_info.plain_lists(model_info.factor_table(*folded))
        yield from rows.select(["id", *plain]).to_batches()

    schema = factor_schema(info, who, plain)
    folded = computed_once(placed.repartition(tasks, "id").mapInArrow(rows_of, schema))
    n_folded = folded.count()
    warn_left_out(who, ratings.select(new).distinct().count(), n_folded)
    if not n_folded:
        return None
    return (
        factors.of(who)
        .select("id", *plain)
        .join(folded.select("id"), "id", "left_anti")
        .unionByName(folded)
    )


def side_of(factors: SparkFactors, who: Who, ids: pa.Array) -> ModelSide:
    asked = pa.table({"id": ids.cast(arrow_type(factors.info.id_types[who])).unique()})
    lines = factors.of(who).join(
        F.broadcast(factors.spark.createDataFrame(asked)), "id", "left_semi"
    )
    return ModelSide.of(lines.toArrow(), factors.info, who)
