"""The factor tables of a model on Spark, the scores of pairs by them, and how a model does on ratings.

SparkFactors      both tables: ids, and scores of pairs
scored_ratings    ratings with what the model predicts for them, in this process if they are few, by Spark otherwise
measure, certify  figures and certificates, from scored ratings by ``predict.predictor``
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, DoubleType, LongType, StructField, StructType

from onebit_spark.certify.certificates import Certificate, HeldOutCounts, certificate_document
from onebit_spark.core import prediction
from onebit_spark.core.posterior import packed_size
from onebit_spark.core.prediction import LARGEST, Call
from onebit_spark.data.hashes import HIGHEST, CellSketch, limit_for
from onebit_spark.data.ratings import INTEGRAL, TABLE_BYTES, Batches, Columns, RatingCounts, joined
from onebit_spark.engines.spark import columns as spark_ratings
from onebit_spark.engines.spark.engine import collected_factors
from onebit_spark.engines.spark.frames import arrow_udf, collect_in_parts
from onebit_spark.engines.spark.ratings import check_ratings
from onebit_spark.engines.spark.sessions import as_bytes, described, driver_limits
from onebit_spark.errors import RequestError, refuse
from onebit_spark.model import FittedModel
from onebit_spark.model_info import SIDE_OF, ModelInfo, factor_columns
from onebit_spark.predict import predictor
from onebit_spark.predict.predictor import OUTPUTS, CertificateRequest, ModelSide, Predictor
from onebit_spark.settings import Who

SCORED = StructType([StructField(name, DoubleType()) for name in OUTPUTS])

# Small models predict on the driver: no Python worker has to start, and nothing is joined.
MOST_PAIRS = 2_000_000
MOST_BYTES = 128 * 2**20  # of both factor tables


@dataclass(frozen=True, eq=False)
class SparkFactors:
    """The factor tables of a model, one line per id, and the columns of ids in the user's DataFrames."""

    info: ModelInfo
    users: DataFrame  # see ``model_info``
    items: DataFrame
    columns: Mapping[Who, str]  # ``userCol`` and ``itemCol``
    collected: list[tuple[ModelSide, ModelSide]] = field(default_factory=list)  # both tables on the driver, or nothing
    predicts_unknown: bool = True  # whether ``transform`` predicts pairs with an unknown id, by ``coldStartStrategy``

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

    def on_driver(self) -> FittedModel:
        """The model on the driver, without certificates. The tables are collected the first time."""
        if not self.collected:
            users, items = collected_factors(self.users), collected_factors(self.items)
            self.collected.append((ModelSide.of(users, self.info, "user"), ModelSide.of(items, self.info, "item")))
        return FittedModel(self.info, *self.collected[0], certificate_document([]))

    # ---- ids ---------------------------------------------------------------------------------------------------------

    def check_id_type(self, dataset: DataFrame, who: Who) -> None:
        """Refuse a column of ids whose type is not that of the model's: see ``predictor.asked_ids``."""
        column, expected = self.columns[who], self.info.id_types[who]
        actual = spark_ratings.type_of(dataset, column).simpleString()
        if actual != expected and not (actual in INTEGRAL and expected in INTEGRAL):
            raise RequestError(
                f"column {column!r} is of type {actual}, but the model's {who} ids are of type {expected}: "
                f"cast the column to {expected}"
            )

    # ---- pairs -------------------------------------------------------------------------------------------------------

    def scored(self, dataset: DataFrame) -> tuple[DataFrame, str]:
        """The pairs with their scores, computed by the executors. Nothing is collected.

        The factors are joined to the pairs (left joins on unique ids), and only the factors are sent to Python.

        Returns the pairs with the columns PREFIX_user and PREFIX_item, null for an unknown id, and PREFIX_scored, a
        struct of ``OUTPUTS``; and PREFIX.
        """
        joined, prefix = self._joined(dataset, factor_columns(self.info.kind, self.info.config.intercepts))
        factors = f"{prefix}_user", f"{prefix}_item"
        scorer = Predictor.of(self.info)

        def score(users: pa.Array, items: pa.Array) -> pa.Array:
            return scorer.score_lines((users, items))

        scoring = arrow_udf(score, [joined.schema[name].dataType for name in factors], SCORED)
        return joined.withColumn(f"{prefix}_scored", scoring(*factors)), prefix

    def scored_here(self, pairs: DataFrame) -> pa.Table:
        """The pairs with ``OUTPUTS``, unknown_user and unknown_item, on the driver. Ids must not be null.

        One job collects the pairs, two more the factors of a model that was loaded, the first time.
        """
        for who in SIDE_OF:
            self.check_id_type(pairs, who)
        model, table = self.on_driver(), pairs.toArrow()
        rows, cols = (model.side(who).positions(table[self.columns[who]]) for who in SIDE_OF)
        for name, values in {**model.predicted(rows, cols), "unknown_user": rows < 0, "unknown_item": cols < 0}.items():
            table = table.append_column(name, pa.array(values))
        return table

    def sampled(self, dataset: DataFrame, seed: int) -> DataFrame:
        info = self.info
        joined, prefix = self._joined(dataset, factor_columns(info.kind, info.config.intercepts))
        scorer = Predictor.of(info)

        def draw(users: pa.Array, items: pa.Array, keys: pa.Array) -> pa.Array:
            return scorer.sample_lines((users, items), keys, seed)

        ids = (F.col(spark_ratings.quoted(self.columns[who])).cast(info.id_types[who]) for who in SIDE_OF)
        factors = f"{prefix}_user", f"{prefix}_item"
        types = [*(joined.schema[name].dataType for name in factors), LongType()]
        score = arrow_udf(draw, types, DoubleType())(*factors, F.xxhash64(*ids))
        return joined.withColumn("sampledScore", score).drop(*factors)

    def _joined(self, dataset: DataFrame, columns: Iterable[str]) -> tuple[DataFrame, str]:
        """The pairs with these columns of both factor tables, as structs PREFIX_user and PREFIX_item or null."""
        prefix = "__onebit"
        while any(name.lower().startswith(prefix) for name in dataset.columns):
            prefix += "_"
        for who in SIDE_OF:
            self.check_id_type(dataset, who)
        checked = spark_ratings.checked_ids(dataset, [self.columns[who] for who in SIDE_OF])
        limit = as_bytes(str(self.spark.conf.get("spark.sql.autoBroadcastJoinThreshold")))
        joined = dataset.withColumns({f"{prefix}_{who}_key": ids for who, ids in zip(SIDE_OF, checked, strict=True)})
        for who in SIDE_OF:
            key, known = f"{prefix}_{who}_key", f"{prefix}_{who}_id"
            right = self.of(who).select(F.col("id").alias(known), F.struct(*columns).alias(f"{prefix}_{who}"))
            # Broadcast up to the session's limit. Spark's own estimate is far too small: one element per array.
            hint = "broadcast" if self.info.count(who) * self.bytes_per_row <= limit else "merge"
            joined = joined.join(right.hint(hint), F.col(key) == F.col(known), "left").drop(key, known)
        return joined, prefix


def signed_confidence(info: ModelInfo, score: Column, std: Column) -> Column:
    """score/√(c + std²), clipped, as in ``core.prediction``; c is the noise of the loss, also in a calibrated model."""
    root, most = F.sqrt(F.lit(prediction.score_noise(info.config.loss)) + std * std), F.lit(LARGEST)
    z = F.when(score == 0, 0.0).when(root == 0, F.signum(score) * most).otherwise(score / root)
    return F.greatest(F.least(z, most), -most)


def called(info: ModelInfo, call: Call, threshold: float, score: Column, std: Column) -> Column:
    if math.isinf(threshold):  # the request was not met
        return F.lit(False)
    z = signed_confidence(info, score, std)
    return {"answered": F.abs(z), "positive": z, "negative": -z}[call] >= threshold


# ---- scored ratings --------------------------------------------------------------------------------------------------


def scored_ratings(
    factors: SparkFactors, ratings: DataFrame, threshold: float | None, n: int, group: Column | None = None
) -> pa.Table:
    """One line for each of n checked ratings, on the driver: see ``scored_table``."""
    asked = _asked(factors, ratings, threshold, group)
    table = factors.scored_here(asked) if factors.fit_driver(n) else _by_spark(factors, asked).toArrow()
    return _scored_lines(factors.info, table)


def _scored_lines(info: ModelInfo, table: pa.Table) -> pa.Table:
    lines = table.select([*OUTPUTS, "unknown_user", "unknown_item", "__positive", "__group"])
    return predictor.scored_table(info, lines.rename_columns({"__positive": "positive", "__group": "group"}))


def _asked(factors: SparkFactors, ratings: DataFrame, threshold: float | None, group: Column | None) -> DataFrame:
    ids = (F.col(spark_ratings.quoted(column)) for column in factors.columns.values())
    positive = spark_ratings.positive(ratings, factors.info.columns["label"], threshold)
    group = F.lit(None).cast("string") if group is None else group
    return ratings.select(*ids, positive.alias("__positive"), group.alias("__group"))


def _by_spark(factors: SparkFactors, asked: DataFrame) -> DataFrame:
    """Ratings of ``_asked`` with ``OUTPUTS``, unknown_user and unknown_item, lazily, for any number of them."""
    scored, prefix = factors.scored(asked)
    unknown = (F.col(f"{prefix}_{who}").isNull().alias(f"unknown_{who}") for who in SIDE_OF)
    outputs = (F.col(f"{prefix}_scored")[name].alias(name) for name in OUTPUTS)
    return scored.select("__positive", "__group", *outputs, *unknown)


KNOWN_PAIR = "__known"


def predicted_pairs(factors: SparkFactors, pairs: DataFrame, n: int) -> DataFrame:
    """The pairs with ``OUTPUTS``, and ``KNOWN_PAIR``: whether the model knows both ids."""
    if factors.fit_driver(n):
        table = factors.scored_here(pairs)
        known = pc.invert(pc.or_(table["unknown_user"], table["unknown_item"]))
        table = table.drop_columns(["unknown_user", "unknown_item"]).append_column(KNOWN_PAIR, known)
        more = (StructField(name, DoubleType()) for name in OUTPUTS)
        schema = StructType([*pairs.schema, *more, StructField(KNOWN_PAIR, BooleanType())])
        return factors.spark.createDataFrame(table, schema)
    scored, prefix = factors.scored(pairs)
    ids = (F.col(spark_ratings.quoted(name)) for name in pairs.columns)
    outputs = (F.col(f"{prefix}_scored")[name].alias(name) for name in OUTPUTS)
    return scored.select(*ids, *outputs, known_pair(prefix).alias(KNOWN_PAIR))


def known_pair(prefix: str) -> Column:
    """Whether the model knows both ids of a pair of ``SparkFactors.scored``."""
    return F.col(f"{prefix}_user").isNotNull() & F.col(f"{prefix}_item").isNotNull()


# ---- figures ---------------------------------------------------------------------------------------------------------

COLLECT_LIMIT = 5_000_000  # up to so many ratings the driver holds all scores: 35 bytes per rating, and its group
SCORED_BYTES = 60  # of a rating with its scores on its way to the driver, about


def measure(
    factors: SparkFactors, ratings: DataFrame, threshold: float | None, counts: RatingCounts, by: str | None = None
) -> tuple[dict[str, Any], HeldOutCounts]:
    """All figures of metrics.json, and the counts for certificates, in one pass.

    Up to ``COLLECT_LIMIT`` ratings, the AUC is exact (``auc_error`` is 0). More ratings are summed up as they arrive,
    with their scores in bins, and the AUC is off by at most ``auc_error``. The error is that of ``prediction``: a score
    of exactly 0 counts as the majority label of the training data. ``counts`` is the result of ``check_ratings`` on the
    same ratings; ``by`` is a column to group them by.
    """
    info, group, exact = factors.info, None if by is None else F.col(spark_ratings.quoted(by)).cast("string"), True
    if counts.n <= COLLECT_LIMIT:
        sums = predictor.sums_of(scored_ratings(factors, ratings, threshold, counts.n, group))
    else:
        exact, frame = False, _by_spark(factors, _asked(factors, ratings, threshold, group))
        parts = -(-counts.n * SCORED_BYTES // driver_limits(factors.spark).result)

        def summed(batches: Batches) -> dict[str, Any]:
            tables = joined(batches, lambda batch: int(batch.nbytes), TABLE_BYTES)
            each = (predictor.sums_of(_scored_lines(info, table), exact=False) for table in tables)
            return reduce(lambda one, two: {name: one[name] + two[name] for name in one}, each)

        sums = collect_in_parts(frame, parts, F.xxhash64("score", "std"), summed)
    figures = predictor.with_rates(predictor.figures_of(sums, exact), info, counts.n, counts.positives, threshold)
    return figures, predictor.count_by_level(info, sums, by, factors.predicts_unknown)


def scored_sample(
    factors: SparkFactors, ratings: DataFrame, most: int, counts: RatingCounts | None = None
) -> tuple[pa.Table, bool]:
    """The ratings scored, or a sample of about ``most``, and whether it is a sample."""
    on = checked_ratings(factors, ratings, counts=counts)
    if sampled := on.counts.n > most:
        ratings = on.ratings.sample(fraction=most / on.counts.n, seed=0)
    n = min(on.counts.n, most)
    return scored_ratings(factors, ratings if sampled else on.ratings, on.columns.threshold, n), sampled


@dataclass(frozen=True)
class CheckedRatings:
    """Ratings that a model is judged by, without those of weight 0: see ``checked_ratings``."""

    ratings: DataFrame
    columns: Columns
    counts: RatingCounts


def checked_ratings(
    factors: SparkFactors, ratings: DataFrame, threshold: float | None = None, counts: RatingCounts | None = None
) -> CheckedRatings:
    """Check and count ratings, unless ``counts`` is known. Those of weight 0 do not count (docs/MATH.md, §16).

    The default threshold is that of the fit, unless the labels are booleans. The weights are in the column of the fit;
    ratings without this column all count.
    """
    roles = factors.info.columns
    labels = spark_ratings.matching(ratings, roles["label"])
    if threshold is None and not any(isinstance(field.dataType, BooleanType) for field in labels):
        threshold = factors.info.threshold
    weight = roles.get("weight")
    weight = weight if weight is not None and spark_ratings.matching(ratings, weight) else None
    columns = Columns(factors.columns["user"], factors.columns["item"], roles["label"], threshold, weight)
    ratings = spark_ratings.with_weight(ratings, columns)
    return CheckedRatings(ratings, columns, counts or check_ratings(ratings, columns))


def certify(
    factors: SparkFactors, fitted: CellSketch | None, on: CheckedRatings, request: CertificateRequest,
    freshness: Mapping[str, Any] | None = None,
) -> tuple[dict[str, Any], list[Certificate]]:  # fmt: skip
    """The figures of a model on ratings, and the certificates that they give: ``holdout`` first.

    Ratings of cells that the model was ``fitted`` on are refused, unless their ``freshness`` is given.
    """
    if freshness is None:
        freshness = check_fresh(fitted, on)
    figures, counts = measure(factors, on.ratings, on.columns.threshold, on.counts, request.by)
    return figures, predictor.certificates_of(factors.info, counts, request, freshness)


def check_request(factors: SparkFactors, ratings: DataFrame, request: CertificateRequest) -> None:
    problems = request.problems(factors.info)
    if request.by is not None and (problem := spark_ratings.column_problem(ratings, request.by, " to group by")):
        problems.append(problem)
    refuse(problems)


def check_fresh(fitted: CellSketch | None, on: CheckedRatings) -> dict[str, Any]:
    if fitted is None:
        return predictor.NOT_KNOWN
    return predictor.fresh_to(fitted, sketch_of(on.ratings, on.columns, on.counts.n, fitted.limit))


def sketch_of(ratings: DataFrame, columns: Columns, n: int, limit: int = HIGHEST) -> CellSketch:
    """The sketch of n ratings, in one job; up to ``limit``, or lower where they are many."""
    limit = min(limit, limit_for(n))
    hashes = ratings.select(spark_ratings.cell_hash(ratings, columns).alias("hash"))
    if limit < HIGHEST:
        hashes = hashes.where(F.col("hash") <= F.lit(limit))
    with described(ratings.sparkSession, "sketch"):
        cells = hashes.groupBy("hash").agg(F.count(F.lit(1)).alias("ratings")).toArrow()
    return CellSketch.of_table(cells, limit)
