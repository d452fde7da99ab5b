"""The factor tables of a model on Spark, the scores of pairs by them, and how a model does on
ratings.

SparkFactors      both tables: ids, and scores of pairs
scored_ratings    ratings with their predictions, in this process if they are few
measure, certify  figures and certificates, from scored ratings by ``predict.figures``
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, reduce
from operator import add

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, DoubleType, LongType, StructField, StructType

from onebit_spark.certify.requests import CertificateRequest
from onebit_spark.core.confidences import Call
from onebit_spark.core.posterior import packed_size
from onebit_spark.core.scores import LARGEST, score_noise
from onebit_spark.data.hashes import HIGHEST, CellSketch, limit_for
from onebit_spark.data.ratings import INTEGRAL, TABLE_BYTES, Batches, Columns, RatingCounts, joined
from onebit_spark.engines.spark.columns import (
    cell_hash,
    checked_ids,
    column_problem,
    matching,
    positive,
    quoted,
    type_of,
    with_weight,
)
from onebit_spark.engines.spark.engine import collected_factors
from onebit_spark.engines.spark.frames import arrow_udf, collect_in_parts
from onebit_spark.engines.spark.ratings import check_ratings
from onebit_spark.engines.spark.sessions import as_bytes, described, driver_limits
from onebit_spark.errors import RequestError, refuse
from onebit_spark.model_info import SIDE_OF, ModelInfo, factor_columns
from onebit_spark.predict.factors import Factors
from onebit_spark.predict.figures import ScoreSums, scored_table
from onebit_spark.predict.judged import RatingsHere
from onebit_spark.predict.predictor import OUTPUTS, Predictor
from onebit_spark.predict.sides import ModelSide
from onebit_spark.settings import Who

SCORED = StructType([StructField(name, DoubleType()) for name in OUTPUTS])

# Small models predict on the driver: no Python worker has to start, and nothing is joined.
MOST_PAIRS = 2_000_000
MOST_BYTES = 128 * 2**20  # of both factor tables


@dataclass(frozen=True, eq=False)
class SparkFactors:
    """The factor tables of a model, one line per id, and the columns of ids in the user's
    DataFrames.
    """

    info: ModelInfo
    users: DataFrame  # see ``model_info``
    items: DataFrame
    columns: Mapping[Who, str]  # ``userCol`` and ``itemCol``
    # Both tables on the driver, or nothing
    collected: list[tuple[ModelSide, ModelSide]] = field(default_factory=list)

    def of(self, who: Who) -> DataFrame:
        return self.users if who == "user" else self.items

    @property
    def spark(self) -> SparkSession:
        return self.users.sparkSession

    @property
    def bytes_per_row(self) -> int:
        dimension = self.info.config.dimension
        floats = dimension + (dimension if self.info.kind == "spread" else packed_size(dimension))
        return 4 * floats + 64

    def fit_driver(self, pairs: int) -> bool:
        """Whether the tables and so many pairs are small enough for the driver."""
        rows = self.info.n_users + self.info.n_items
        return pairs <= MOST_PAIRS and rows * self.bytes_per_row <= MOST_BYTES

    def on_driver(self) -> Factors:
        """The tables on the driver. They are collected the first time."""
        if not self.collected:
            users = collected_factors(self.users)
            items = collected_factors(self.items)
            self.collected.append(
                (ModelSide.of(users, self.info, "user"), ModelSide.of(items, self.info, "item"))
            )
        return Factors(self.info, *self.collected[0])

    # ---- ids ------------------------------------------------------------------------------------

    def check_id_type(self, dataset: DataFrame, who: Who) -> None:
        """Refuse a column of ids whose type is not that of the model's: see ``asked_ids``."""
        column = self.columns[who]
        expected = self.info.id_types[who]
        actual = type_of(dataset, column).simpleString()
        if actual != expected and not (actual in INTEGRAL and expected in INTEGRAL):
            raise RequestError(
                f"column {column!r} is of type {actual}, but the model's {who} ids are of type "
                f"{expected}: "
                f"cast the column to {expected}"
            )

    # ---- pairs ----------------------------------------------------------------------------------

    def scored(self, dataset: DataFrame) -> tuple[DataFrame, str]:
        """The pairs with their scores, computed by the executors. Nothing is collected.

        The factors are joined to the pairs (left joins on unique ids), and only the factors are
        sent to Python.

        Returns the pairs with the columns PREFIX_user and PREFIX_item, null for an unknown id, and
        PREFIX_scored, a struct of ``OUTPUTS``; and PREFIX.
        """
        joined, prefix = self._joined(
            dataset, factor_columns(self.info.kind, self.info.config.intercepts)
        )
        factors = f"{prefix}_user", f"{prefix}_item"
        scorer = Predictor.of(self.info)

        def score(users: pa.Array, items: pa.Array) -> pa.Array:
            return scorer.score_lines((users, items))

        scoring = arrow_udf(score, [joined.schema[name].dataType for name in factors], SCORED)
        return joined.withColumn(f"{prefix}_scored", scoring(*factors)), prefix

    def scored_here(self, pairs: DataFrame) -> pa.Table:
        """The pairs with ``OUTPUTS`` and ``KNOWN_PAIR`` on the driver. Ids must not be null.

        One job collects the pairs, two more the factors of a model that was loaded, the first time.
        """
        for who in SIDE_OF:
            self.check_id_type(pairs, who)
        here = self.on_driver()
        table = pairs.toArrow()
        rows, cols = here.find(*(table[self.columns[who]] for who in SIDE_OF))
        known = (rows >= 0) & (cols >= 0)
        for name, values in {**here.predict(rows, cols), KNOWN_PAIR: known}.items():
            table = table.append_column(name, pa.array(values))
        return table

    def sampled(self, dataset: DataFrame, seed: int) -> DataFrame:
        info = self.info
        joined, prefix = self._joined(dataset, factor_columns(info.kind, info.config.intercepts))
        scorer = Predictor.of(info)

        def draw(users: pa.Array, items: pa.Array, keys: pa.Array) -> pa.Array:
            return scorer.sample_lines((users, items), keys, seed)

        ids = (F.col(quoted(self.columns[who])).cast(info.id_types[who]) for who in SIDE_OF)
        factors = f"{prefix}_user", f"{prefix}_item"
        types = [*(joined.schema[name].dataType for name in factors), LongType()]
        score = arrow_udf(draw, types, DoubleType())(*factors, F.xxhash64(*ids))
        return joined.withColumn("sampledScore", score).drop(*factors)

    def _joined(self, dataset: DataFrame, columns: Iterable[str]) -> tuple[DataFrame, str]:
        """The pairs with these columns of both factor tables, as structs PREFIX_user and
        PREFIX_item or null.
        """
        prefix = "__onebit"
        while any(name.lower().startswith(prefix) for name in dataset.columns):
            prefix += "_"
        for who in SIDE_OF:
            self.check_id_type(dataset, who)
        checked = checked_ids(dataset, [self.columns[who] for who in SIDE_OF])
        limit = as_bytes(str(self.spark.conf.get("spark.sql.autoBroadcastJoinThreshold")))
        joined = dataset.withColumns(
            {f"{prefix}_{who}_key": ids for who, ids in zip(SIDE_OF, checked, strict=True)}
        )
        for who in SIDE_OF:
            key = f"{prefix}_{who}_key"
            known = f"{prefix}_{who}_id"
            right = self.of(who).select(
                F.col("id").alias(known), F.struct(*columns).alias(f"{prefix}_{who}")
            )
            # Broadcast up to the session's limit. Spark's own estimate is far too small: one
            # element per array.
            hint = "broadcast" if self.info.count(who) * self.bytes_per_row <= limit else "merge"
            joined = joined.join(right.hint(hint), F.col(key) == F.col(known), "left").drop(
                key, known
            )
        return joined, prefix


def signed_confidence(info: ModelInfo, score: Column, std: Column) -> Column:
    """score/√(c + std²), clipped, as in ``core.scores``; c is the noise of the loss, also in a
    calibrated model.
    """
    root = F.sqrt(F.lit(score_noise(info.config.loss)) + std * std)
    most = F.lit(LARGEST)
    z = F.when(score == 0, 0.0).when(root == 0, F.signum(score) * most).otherwise(score / root)
    return F.greatest(F.least(z, most), -most)


def called(info: ModelInfo, call: Call, threshold: float, score: Column, std: Column) -> Column:
    if math.isinf(threshold):  # the request was not met
        return F.lit(False)
    z = signed_confidence(info, score, std)
    return {"answered": F.abs(z), "positive": z, "negative": -z}[call] >= threshold


# ---- predictions of pairs ----------------------------------------------------------------------

KNOWN_PAIR = "__known"


def predicted_pairs(factors: SparkFactors, pairs: DataFrame, n: int) -> DataFrame:
    """The pairs with ``OUTPUTS``, and ``KNOWN_PAIR``: whether the model knows both ids."""
    if factors.fit_driver(n):
        more = [StructField(name, DoubleType()) for name in OUTPUTS]
        schema = StructType([*pairs.schema, *more, StructField(KNOWN_PAIR, BooleanType())])
        return factors.spark.createDataFrame(factors.scored_here(pairs), schema)
    scored, prefix = factors.scored(pairs)
    ids = (F.col(quoted(name)) for name in pairs.columns)
    return scored.select(*ids, *_outputs(prefix), known_pair(prefix).alias(KNOWN_PAIR))


def _outputs(prefix: str) -> list[Column]:
    """The predictions of ``SparkFactors.scored`` as columns."""
    return [F.col(f"{prefix}_scored")[name].alias(name) for name in OUTPUTS]


def known_pair(prefix: str) -> Column:
    """Whether the model knows both ids of a pair of ``SparkFactors.scored``."""
    return F.col(f"{prefix}_user").isNotNull() & F.col(f"{prefix}_item").isNotNull()


# ---- ratings that a model is judged by ---------------------------------------------------------

# Up to so many ratings the driver holds all scores: 35 bytes per rating, and its group
COLLECT_LIMIT = 5_000_000
SCORED_BYTES = 60  # of a rating with its scores on its way to the driver, about


@dataclass(frozen=True, eq=False)
class SparkRatings:
    """Checked ratings on Spark, without those of weight 0: see ``judged.Judged``.

    Few ratings are scored on the driver by a model that fits it. Otherwise the executors score
    them. Up to ``COLLECT_LIMIT`` the driver holds all scores. More are summed up as they arrive,
    with their scores in bins, and the AUC is off by at most ``auc_error``.
    """

    factors: SparkFactors
    frame: DataFrame
    columns: Columns
    counts: RatingCounts
    by: str | None = None  # a column to group them by

    @property
    def n(self) -> int:
        return self.counts.n

    @property
    def threshold(self) -> float | None:
        return self.columns.threshold

    @cached_property
    def here(self) -> RatingsHere | None:
        """The ratings on the driver, if they and the model are small."""
        few = self.factors.fit_driver(self.n) and self.n <= COLLECT_LIMIT
        return self._collect(self.frame) if few else None

    def score(self, most: int | None = None) -> pa.Table:
        if self.here is not None:
            return self.here.score(most)
        frame = self.frame
        n = self.n
        if most is not None and n > most:
            frame = frame.sample(fraction=most / n, seed=0)
            n = most
        if self.factors.fit_driver(n):
            return self._collect(frame).score()
        return scored_table(self.factors.info, self._predict(frame).toArrow())

    def sum_up(self) -> ScoreSums:
        if self.here is not None:
            return self.here.sum_up()
        info = self.factors.info
        if self.n <= COLLECT_LIMIT:
            return ScoreSums.of(self.score())

        def sum_batches(batches: Batches) -> ScoreSums:
            tables = joined(batches, lambda batch: int(batch.nbytes), TABLE_BYTES)
            return reduce(
                add, (ScoreSums.of(scored_table(info, table), exact=False) for table in tables)
            )

        parts = -(-self.n * SCORED_BYTES // driver_limits(self.factors.spark).result)
        return collect_in_parts(
            self._predict(self.frame), parts, F.xxhash64("score", "std"), sum_batches
        )

    def sketch(self, limit: int) -> CellSketch:
        return sketch_of(self.frame, self.columns, self.n, limit)

    def _asked(self, frame: DataFrame) -> DataFrame:
        """The ids, and the columns ``positive`` and ``group`` under names of their own."""
        ids = (F.col(quoted(column)) for column in self.factors.columns.values())
        label = positive(frame, self.columns.label, self.threshold)
        group = F.lit(None) if self.by is None else F.col(quoted(self.by))
        return frame.select(*ids, label.alias("__positive"), group.cast("string").alias("__group"))

    def _collect(self, frame: DataFrame) -> RatingsHere:
        for who in SIDE_OF:
            self.factors.check_id_type(frame, who)
        factors = self.factors.on_driver()
        table = self._asked(frame).toArrow()
        users, items = (table[self.factors.columns[who]] for who in SIDE_OF)
        positive = table["__positive"].to_numpy()
        return RatingsHere.of(factors, (users, items), positive, table["__group"], self.threshold)

    def _predict(self, frame: DataFrame) -> DataFrame:
        """The lines that ``scored_table`` takes, lazily, for any number of ratings."""
        scored, prefix = self.factors.scored(self._asked(frame))
        unknown = (F.col(f"{prefix}_{who}").isNull().alias(f"unknown_{who}") for who in SIDE_OF)
        own = F.col("__positive").alias("positive"), F.col("__group").alias("group")
        return scored.select(*own, *_outputs(prefix), *unknown)


def judge(
    factors: SparkFactors,
    ratings: DataFrame,
    threshold: float | None = None,
    by: str | None = None,
    counts: RatingCounts | None = None,
) -> SparkRatings:
    """Check and count ratings, unless ``counts`` is known.

    Those of weight 0 do not count (docs/MATH.md, §16).

    The default threshold is that of the fit, unless the labels are booleans. The weights are in the
    column of the fit; ratings without this column all count.
    """
    roles = factors.info.columns
    labels = matching(ratings, roles["label"])
    if threshold is None and not any(isinstance(field.dataType, BooleanType) for field in labels):
        threshold = factors.info.threshold
    weight = roles.get("weight")
    if weight is not None and not matching(ratings, weight):
        weight = None
    columns = Columns(
        factors.columns["user"], factors.columns["item"], roles["label"], threshold, weight
    )
    ratings = with_weight(ratings, columns)
    if counts is None:
        counts = check_ratings(ratings, columns)
    return SparkRatings(factors, ratings, columns, counts, by)


def check_request(factors: SparkFactors, ratings: DataFrame, request: CertificateRequest) -> None:
    problems = request.problems(factors.info)
    if request.by is not None and (problem := column_problem(ratings, request.by, " to group by")):
        problems.append(problem)
    refuse(problems)


def sketch_of(ratings: DataFrame, columns: Columns, n: int, limit: int = HIGHEST) -> CellSketch:
    """The sketch of n ratings, in one job; up to ``limit``, or lower where they are many."""
    limit = min(limit, limit_for(n))
    hashes = ratings.select(cell_hash(ratings, columns).alias("hash"))
    if limit < HIGHEST:
        hashes = hashes.where(F.col("hash") <= F.lit(limit))
    with described(ratings.sparkSession, "sketch"):
        cells = hashes.groupBy("hash").agg(F.count(F.lit(1)).alias("ratings")).toArrow()
    return CellSketch.of_table(cells, limit)
